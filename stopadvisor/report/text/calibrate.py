"""A calibration for people: what is certain, what is exported, what to expect of it.

Reads the document that ``calibration.json`` holds, so that screen and file say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from stopadvisor.report.text.screen import Screen
from stopadvisor.report.words import (
    advised_otherwise,
    beside,
    in_unit,
    interval,
    number,
    percent,
    share,
    shell_quote,
)

__all__ = ["evidence", "expectation", "show_calibration"]

Document = Mapping[str, Any]


def show_calibration(document: Document, out: TextIO) -> None:
    """Print what `calibrate` found."""
    screen = Screen(out)
    if document["certified"]:
        screen.headline("Certified.", "good")
        screen.text(document["certificate"]["claim"])
        screen.facts(_certified(document))
    else:
        screen.headline("Not certified: the policy written never stops early.", "doubtful")
        screen.facts(_refused(document))
    shown = document["promoted"] or document["policy"]
    screen.command(f"stopadvisor inspect {shell_quote(shown)}")
    if document["tested"]:
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
    return (
        f"{certificate['losses']} of {certificate['n']} {whom} lost ({test}, "
        f"{certificate['multiplicity']})"
    )


def _alpha(certificate: Document) -> str:
    if certificate["conditional"]:
        return f"{share(certificate['alpha'])} of the questions that full thinking gets right"
    return (
        f"{share(certificate['alpha'])}, which is "
        f"{share(certificate['alpha_over_full_accuracy'])} of the full-thinking accuracy"
    )


def _certified(document: Document) -> list[tuple[str, str]]:
    certificate, expected = document["certificate"], document["expected"]
    rows = [
        (
            "exported",
            f"{document['family']}, stop when its score reaches {number(document['threshold'])}",
        ),
        ("asks", document["where"]),
        *_on_stop(document),
        *expectation(expected, document["serving"]),
        (
            "evidence",
            f"{evidence(certificate)}; at this threshold alone the risk is at most "
            f"{share(certificate['upper'])} (confidence {share(1 - certificate['chain_delta'])}; "
            "not what is certified)",
        ),
        ("alpha", _alpha(certificate)),
        ("look", _looks(document)),
        ("policy", _files(document)),
    ]
    if "transfer" in document:
        return rows
    if document["changed"] is not None:
        rows.append(("changed", document["changed"]))
    elif advised_otherwise(document):
        text = document["advised_family"] or "the full budget"
        if document["advised_family"] is not None:
            text += (
                f", {document['advised_where']}, expected to save "
                f"{percent(document['advised_fit_total_saving_pct'])} (fit questions)"
            )
        rows.append(("advised", f"by assess: {text}"))
    return rows


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
    fitted = percent(expected["fit_total_saving_pct"])
    where = f"{serving}{in_unit(expected.get('weights'))}"
    other = beside(expected.get("saving_by_serving", {}), serving)
    is_fitted = expected["fit_total_saving_pct"] is not None  # a transferred rule is not, here
    if "test_n" not in expected and "calibration_n" in expected:
        n = expected["calibration_n"]
        said = (f"; fit said {fitted})" if is_fitted else ")") + other
        band = interval(expected["calibration_total_saving_band95"])
        return [
            (
                "saves",
                f"{percent(expected['calibration_total_saving_pct'])} {band} of the cost under "
                f"{where}, {percent(expected['calibration_think_saving_pct'])} of the "
                f"thinking ({n} calibration questions{said}",
            ),
            (
                "loses",
                f"{share(expected['calibration_risk'])} of all questions; accuracy "
                f"{share(expected['calibration_full_accuracy'])} -> "
                f"{share(expected['calibration_accuracy'])} (calibration questions)",
            ),
        ]
    if "test_n" not in expected:  # written before savings were measured in calibration
        if not is_fitted:
            return [("saves", "not measured: nothing was fitted here, and there is no test part")]
        return [
            ("saves", f"{fitted} of the cost under {where} (fit questions, no test part)"),
            ("loses", f"{share(expected['fit_risk'])} of all questions (fit questions)"),
        ]
    n = expected["test_n"]
    return [
        (
            "saves",
            f"{percent(expected['test_total_saving_pct'])} "
            f"{interval(expected['test_total_saving_ci95'])} of the cost under {where}, "
            f"{percent(expected['test_think_saving_pct'])} of the thinking ({n} test questions"
            + (f"; fit said {fitted})" if is_fitted else ")")
            + other,
        ),
        (
            "loses",
            f"{share(expected['test_risk'])} {interval(expected['test_risk_ci95'], 100)} of all "
            f"questions; accuracy {share(expected['test_full_accuracy'])} -> "
            f"{share(expected['test_accuracy'])} (test questions)",
        ),
    ]


def _refused(document: Document) -> list[tuple[str, str]]:
    refusal = document["refusal"]
    of_right = " of the questions that full thinking gets right" if document["conditional"] else ""
    needed, assumed = refusal["labels_needed"], refusal["assumed_risk"]
    if needed is None:
        labels = "no number of them would be enough at the risk and the costs seen here"
    elif not assumed:
        labels = f"{needed} calibration questions in all would be enough, if none of them is lost"
    else:
        labels = (
            f"about {needed} calibration questions in all would be enough four times in five, if "
            f"{share(assumed)} of them are lost"
        )
    return [
        ("why", refusal["reason"]),
        ("labels", labels),
        ("asked", f"at most {share(document['alpha'])} lost{of_right}"),
        ("look", _looks(document)),
        ("policy", f"{_files(document)} (full budget: no probes, natural end)"),
    ]


def _tested(screen: Screen, document: Document) -> None:
    rows: dict[str, list[str]] = {}
    for row in document["tested"]:
        if row["certified"]:
            found = f"certified, {row['losses']} of {row['n']} lost"
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
