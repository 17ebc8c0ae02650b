"""A calibration for people: what is certain, what is exported, what to expect of it.

Reads the document that ``calibration.json`` holds, so that screen and file say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from stopadvisor.certification.labelling import LabelCounts
from stopadvisor.policy.promises import counted, loss_name, promised
from stopadvisor.report.headline import (
    accuracy_words,
    answers_label,
    expected_effect,
    other_stacks,
    saving_words,
)
from stopadvisor.report.screen import Screen
from stopadvisor.report.sheets.label import label_counts, more_labels
from stopadvisor.report.text.assess import graded_rows
from stopadvisor.report.words import (
    BRACKETS,
    advised_otherwise,
    explained,
    listed,
    number,
    percent,
    rule_headline,
    share,
    shell_quote,
)

__all__ = ["evidence", "expectation", "meaning", "pointwise", "show_calibration"]

Document = Mapping[str, Any]


def show_calibration(document: Document, out: TextIO, *, verbose: bool = False) -> None:
    """Print what `calibrate` found."""
    screen = Screen(out)
    screen.headline(document["headline"], "good" if document["certified"] else "doubtful")
    rows = _certified(document, verbose=verbose) if document["certified"] else _refused(document)
    shown = document["promoted"] or document["policy"]
    screen.facts(rows, f"stopadvisor inspect {shell_quote(shown)}")
    if document["tested"] and (verbose or not document["certified"]):
        _tested(screen, document)


def _files(document: Document) -> str:
    """Where the policy lies, and whether it is the one in use."""
    if document["promoted"] is not None:
        return f"{document['policy']}, and a copy of it as {Path(document['promoted']).name}"
    return str(document["policy"])


def _looks(document: Document) -> str:
    look = document["look"]
    if look is None:
        return "none was taken: no calibration question was opened"
    planned = "" if look["planned"] is None else f" of {look['planned']} planned"
    return (
        f"number {look['number']}{planned} at these calibration questions: confidence "
        f"{share(document['confidence'])}"
    )


def evidence(certificate: Document) -> str:
    """What was counted, and by which test."""
    whom = "calibration questions"
    if certificate.get("conditional"):
        whom += " that full thinking gets right"
    test = f"{certificate['bound']} test"
    if "groups" in certificate:
        whom += f" in {certificate['groups']} groups"
        test = f"betting on groups of up to {certificate['group_cap']}"
    elif "group_claim" in certificate:
        whom += ", one of each group,"
    return f"{counted(certificate, whom)} ({test}, {certificate['multiplicity']})"


def pointwise(certificate: Document) -> str:
    """The limit at the exported threshold, as if no other one had been tested."""
    confidence = certificate.get("chain_delta", certificate["delta"])
    return (
        f"at most {share(certificate['upper'])} at this threshold alone (confidence "
        f"{share(1 - confidence)}; pointwise, not the promise)"
    )


def meaning(
    certificate: Document, expected: Document | None, serving: str
) -> list[tuple[str, str]]:
    """What the promise is of the answers that are right now; nothing where that says no more.

    Of the questions whose accuracy stands beside it, not of those of fit.
    """
    if loss_name(certificate) == "differs" or certificate.get("conditional"):
        return []
    effect = None if expected is None else expected_effect(expected, serving)
    if effect is None or not effect.full_accuracy:
        return []
    alpha = certificate["alpha"]
    ratio = share(alpha / effect.full_accuracy)
    text = f"{promised(alpha)} of all questions are {ratio} of those that full thinking gets right"
    return [("means", text)]


def _certified(document: Document, *, verbose: bool) -> list[tuple[str, str]]:
    certificate = document["certificate"]
    rows = [
        ("promise", certificate["claim"]),
        *expectation(document["expected"], document["serving"]),
        ("rule", rule_headline(document["family"], document["where"])),
        *_on_stop(document),
        ("evidence", evidence(certificate)),
        *_labels(document),
        *meaning(certificate, document["expected"], document["serving"]),
        *graded_rows(document["graded_by"], document),
        ("policy", _files(document)),
    ]
    if document["look"]["number"] > 1 or verbose:
        rows.append(("look", _looks(document)))
    if verbose:
        fitted = document["expected"]["fit_total_saving_pct"]
        if fitted is not None:
            rows.append(("forecast", f"fit questions had said a saving of {percent(fitted)}"))
        rows += [
            ("threshold", f"stops when the score reaches {number(document['threshold'])}"),
            ("limit", pointwise(certificate)),
        ]
    if "transfer" in document:
        return rows
    if document["changed"] is not None:
        rows.append(("changed", document["changed"]))
    elif advised_otherwise(document):
        text = "full thinking"
        if document["advised_family"] is not None:
            text = rule_headline(document["advised_family"], document["advised_where"])
        rows.append(("advised", f"assess had said: {text}"))
    return rows


def _labels(document: Document) -> list[tuple[str, str]]:
    """How many labels there are, and what more would buy, where few questions have gold."""
    labels = document.get("labels")
    if labels is None:
        return []
    counts = LabelCounts(**labels)
    return [("gold", label_counts(counts)), ("more gold", more_labels(counts))]


def _on_stop(document: Document) -> list[tuple[str, str]]:
    if document.get("on_stop") != "answer":
        return []
    text = "thinking is closed and the model writes its visible answer"
    for part in ("test", "calibration"):  # test questions, where there are any
        saved = document["expected"].get(f"{part}_answer_saving_pct")
        if saved is not None:
            text += f"; {percent(saved)} of its tokens saved ({part} questions)"
            break
    return [("on stop", text)]


def expectation(expected: Document, serving: str) -> list[tuple[str, str]]:
    """What a policy is expected to do, from questions that nothing has touched where there are."""
    effect = expected_effect(expected, serving)
    if effect is None:
        return [("saves", "not measured: nothing was fitted here, and there is no test part")]
    rows = [
        ("saves", f"{saving_words(effect)} ({effect.whose})"),
        (answers_label(effect), f"{accuracy_words(effect)} ({effect.whose})"),
        ("stack", explained(serving)),
    ]
    if others := other_stacks(effect):
        rows.append(("elsewhere", f"the same rule {listed(others)}"))
    elif "saving_by_serving" not in expected:
        rows.append(("elsewhere", "not recorded in this policy; `calibrate` measures it now"))
    if effect.saving_range or effect.risk_range:
        rows.append(BRACKETS)
    return rows


def _refused(document: Document) -> list[tuple[str, str]]:
    refusal = document["refusal"]
    of_right = " of the questions that full thinking gets right" if document["conditional"] else ""
    needed, assumed = refusal["labels_needed"], refusal["assumed_risk"]
    if needed is None:
        labels = "no number of them would be enough at the risk and the costs seen here"
    elif not assumed:
        labels = f"{needed} calibration questions in all are enough, if none of them is lost"
    else:
        labels = (
            f"about {needed} calibration questions in all are enough four times in five, if "
            f"{share(assumed)} of them are lost"
        )
    return [
        (
            "asked",
            f"to promise {document['asked']}"
            if "asked" in document
            else f"to promise that at most {promised(document['alpha'])} are lost{of_right}",
        ),
        ("why not", refusal["reason"]),
        ("labels", labels),
        *_labels(document),
        ("look", _looks(document)),
        ("policy", f"{_files(document)}: it lets every question think to its end"),
    ]


def _tested(screen: Screen, document: Document) -> None:
    rows: dict[str, list[str]] = {}
    for row in document["tested"]:
        if row["certified"]:
            found = f"certified, {counted({**row, 'loss': loss_name(document)}, '')}"
            if not document["certified"]:
                found += ", but saves nothing"
        else:
            found = f"not certified: {row['reason']}"
        rows.setdefault(found, []).append(row["family"])
    screen.title("Rules tested on calibration questions")
    screen.facts(
        (", ".join(families), found if len(families) == 1 else f"each {found}")
        for found, families in rows.items()
    )
