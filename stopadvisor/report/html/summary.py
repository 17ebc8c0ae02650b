"""The report's first screen in words: what to do, what it saves, what is certain, on which stack.

Reads the documents that `assess` and `calibrate` wrote and repeats their numbers; computes none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stopadvisor.assessment.recommendation import PROVISIONAL, probability_words
from stopadvisor.report.words import (
    advised_otherwise,
    advised_point,
    beside,
    percent,
    reason,
    rule_headline,
    share,
)
from stopadvisor.rules.families import rule_name

__all__ = ["Card", "Summary", "reasons", "summarise"]

Document = Mapping[str, Any]
Tone = Literal["good", "open", "plain"]


@dataclass(frozen=True)
class Card:
    """One figure of the first screen."""

    label: str
    value: str
    note: str


@dataclass(frozen=True)
class Summary:
    """What the first screen says."""

    headline: str
    why: str
    cards: tuple[Card, ...]
    tone: Tone
    """``good``: certified; ``open``: not yet; ``plain``: nothing to certify, or refused."""
    certificate: str
    """One sentence."""
    evidence: str
    """What the sentence rests on, or what comes next; may be empty."""
    command: str | None
    """To run next."""
    basis: str


def summarise(document: Document, calibration: Document | None) -> Summary:
    """Put assessment and, where there is one, calibration into a first screen.

    Parameters
    ----------
    document : mapping
        An ``assessment.json``.
    calibration : mapping, optional
        A ``calibration.json``.
    """
    if calibration is not None:
        return _calibrated(document, calibration)
    return _paper(document) if document["protocol"] == "paper" else _assessed(document)


def reasons(document: Document, calibration: Document | None) -> list[str]:
    """The reasons of the advice; what calibration has decided since is not provisional."""
    found: list[str] = []
    for text in document["recommendation"]["reasons"]:
        if calibration is not None and text.startswith(PROVISIONAL):
            text = "Certificate: none; calibration certified no rule that saves anything."
            if calibration["certified"]:
                text = f"Certificate: {calibration['certificate']['claim']}"
        found.append(text)
    return found


def _headline(family: str | None, where: str | None) -> str:
    return "Keep the full thinking budget." if family is None else rule_headline(family, where)


def _why(document: Document) -> str:
    text = reason(document["recommendation"])
    return text[0].upper() + text[1:]


def _why_exported(document: Document, calibration: Document) -> str:
    """The reason of the assessment, where the exported rule is the advised one."""
    if "transfer" in calibration:
        source = calibration["transfer"]["from"]
        return f"The rule is that of {source}; its threshold was certified on this run."
    if not advised_otherwise(calibration):
        return _why(document)
    advised, at = calibration["advised_family"], calibration["advised_where"]
    text = "the full budget"
    if advised is not None:
        text = f"{rule_name(advised)}, {at}"
    return (
        "Calibration decides among the rules that were chosen on fit questions; assess had "
        f"advised {text}."
    )


def _serving_card(document: Document, serving: str, where: str | None) -> Card:
    note = f"asks {where}" if where else "no probes: nothing changes"
    if document.get("server", {}).get("regime") == serving:
        note += "; measured on this server"
    return Card("Serving", serving, note)


def _nothing(document: Document, accuracy: float, whose: str) -> tuple[Card, ...]:
    serving = document["recommendation"]["serving"]
    return (
        Card("Saves", "nothing", "full thinking is what is paid now"),
        Card("Loses", "nothing", "full thinking is the reference"),
        Card("Accuracy", share(accuracy), f"full thinking, {whose}"),
        _serving_card(document, serving, None),
    )


def _assessed(document: Document) -> Summary:
    advice, split, point = document["recommendation"], document["split"], advised_point(document)
    n = split["fit"]
    basis = (
        f"Based on {n} fit questions of {document['workload']['n_questions']}; "
        f"{split['calibration']} for calibration and {split['test']} for test stay closed."
    )
    accuracy = document["fit_full_accuracy"]
    if advice["policy"] == "full-budget" or point is None:
        return Summary(
            _headline(None, None),
            _why(document),
            _nothing(document, accuracy, f"{n} fit questions"),
            "plain",
            "There is nothing to certify: full thinking is the reference itself.",
            "",
            None,
            basis,
        )
    rows = document["serving"].items()
    savings = {name: row["saving_pct"] for name, row in rows if isinstance(row, Mapping)}
    cards = (
        Card(
            "Saves",
            percent(point["fit_total_saving_pct"]),
            f"of the cost, at least {percent(document['fit_saving_lower_pct'])} (one-sided 95%); "
            f"{percent(point['fit_think_saving_pct'])} of the thinking"
            + beside(savings, advice["serving"]),
        ),
        Card("May lose", share(point["fit_risk"]), "of all questions, estimated"),
        Card("Accuracy", share(point["fit_accuracy"]), f"with full thinking {share(accuracy)}"),
        _serving_card(document, advice["serving"], advice.get("where")),
    )
    return Summary(
        _headline(advice["family"], advice.get("where")),
        _why(document),
        cards,
        "open",
        f"Not yet certified: run calibrate to show that at most {share(document['alpha'])} of all "
        "questions become wrong that full thinking gets right; estimated chance "
        f"{probability_words(document['chance_to_certify'])}.",
        f"That opens {split['calibration']} calibration questions, which nobody has seen.",
        f"stopadvisor calibrate {document['run']} --alpha {document['alpha']:g}",
        basis,
    )


def _paper(document: Document) -> Summary:
    advice, split, point = document["recommendation"], document["split"], advised_point(document)
    basis = (
        f"The paper's protocol: thresholds from {split['calibration']} calibration questions, "
        f"figures from {split['test']} test questions, every question open."
    )
    tests = f"{split['test']} test questions"
    saving, lost, accuracy = "nothing", "nothing", share(document["full_accuracy"])
    stops = advice["policy"] != "full-budget" and point is not None
    if stops and point is not None:
        saving, lost = percent(point["total_saving_pct"]), share(point["test_risk"])
        accuracy = share(point["test_accuracy"])
    return Summary(
        _headline(advice["family"] if stops else None, advice.get("where")),
        _why(document),
        (
            Card("Saves", saving, f"of all tokens, {tests}"),
            Card("Lost", lost, tests),
            Card("Accuracy", accuracy, f"with full thinking {share(document['full_accuracy'])}"),
            _serving_card(document, advice["serving"], advice.get("where") if stops else None),
        ),
        "plain",
        "This protocol reproduces the published analysis; it certifies nothing that is exported.",
        "Act on the deploy protocol, and on what calibrate certifies.",
        None,
        basis,
    )


def _needed(labels: int, assumed: float | None) -> str:
    """Labels that a certificate would take; documents of before do not say at which risk."""
    if assumed is None:
        return f"About {labels} labelled calibration questions would be needed."
    if not assumed:
        return f"{labels} labelled calibration questions are needed, and none of them lost."
    return f"About {labels} would be needed where {share(assumed)} of them are lost."


def _calibrated(document: Document, calibration: Document) -> Summary:
    look, expected = calibration["look"], calibration["expected"]
    tested = calibration["tested"]
    opened = max((row["n"] for row in tested), default=0)
    certificate = calibration["certificate"]
    # A refusal from before the field was written counts as plain.
    conditional = (certificate or calibration).get("conditional", False)
    whom = " that full thinking gets right" if conditional else ""
    # A failed look does not show how many full thinking gets right.
    of_right = conditional and (look is None or look.get("opened", True))
    that = f"{whom} and that" if of_right else " that"
    basis = (
        "No calibration question was opened; pictures show fit questions."
        if look is None
        else f"Calibrated on {opened} questions{that} chose nothing, look number "
        f"{look['number']} at them; pictures show fit questions, except where they say calibration."
    )
    if not calibration["certified"]:
        refusal = calibration["refusal"]
        needed = refusal["labels_needed"]
        if "fit_full_accuracy" in document:
            accuracy = document["fit_full_accuracy"]
            whose = f"{document['split']['fit']} fit questions"
        else:  # assessed under the paper's protocol
            accuracy, whose = document["full_accuracy"], "all questions"
        return Summary(
            _headline(None, None),
            "Calibration certified no rule that saves anything.",
            _nothing(document, accuracy, whose),
            "plain",
            f"Not certified at alpha = {share(calibration['alpha'])}"
            + (f" of the questions{whom}" if conditional else "")
            + f": {refusal['reason']}.",
            "" if needed is None else _needed(needed, refusal.get("assumed_risk")),
            None,
            basis,
        )
    return Summary(
        _headline(calibration["family"], calibration["where"]),
        _why_exported(document, calibration),
        _expected_cards(document, calibration, expected),
        "good",
        str(certificate["claim"]),
        f"{certificate['losses']} of {certificate['n']} calibration questions{whom}"
        f"{_in_groups(certificate)} were lost "
        f"({certificate['bound']} test, {certificate['multiplicity']}, look number "
        f"{look['number']}). The exported threshold is {calibration['threshold']:.4g}.",
        f"stopadvisor inspect {calibration['policy']}",
        basis,
    )


def _in_groups(certificate: Document) -> str:
    """How questions were counted where groups hold several."""
    if "groups" in certificate:
        return f" in {certificate['groups']} groups of up to {certificate['group_cap']}"
    return ", one of each group," if "group_claim" in certificate else ""


def _expected_cards(
    document: Document, calibration: Document, expected: Document
) -> tuple[Card, ...]:
    serving = _serving_card(document, calibration["serving"], calibration["where"])
    other = beside(expected.get("saving_by_serving", {}), calibration["serving"])
    if "test_n" not in expected and "calibration_n" in expected:
        whose = f"{expected['calibration_n']} calibration questions"
        low, high = expected["calibration_total_saving_band95"]
        return (
            Card(
                "Saves",
                percent(expected["calibration_total_saving_pct"]),
                f"of the cost, 95% {percent(low)} to {percent(high)}, {whose}; "
                f"{percent(expected['calibration_think_saving_pct'])} of the thinking{other}",
            ),
            Card("Loses", share(expected["calibration_risk"]), whose),
            Card(
                "Accuracy",
                share(expected["calibration_accuracy"]),
                f"with full thinking {share(expected['calibration_full_accuracy'])}, {whose}",
            ),
            serving,
        )
    if "test_n" not in expected:
        saving, risk = expected["fit_total_saving_pct"], expected["fit_risk"]
        return (
            Card("Saves", "-" if saving is None else percent(saving), "of the cost, fit questions"),
            Card("Loses", "-" if risk is None else share(risk), "of all fit questions"),
            serving,
        )
    tests = f"{expected['test_n']} test questions"
    spread = expected["test_total_saving_ci95"]
    low, high = (share(v) for v in expected["test_risk_ci95"])
    return (
        Card(
            "Saves",
            percent(expected["test_total_saving_pct"]),
            (f"of the cost, 95% {percent(spread[0])} to {percent(spread[1])}, " if spread else "")
            + f"{tests}; {percent(expected['test_think_saving_pct'])} of the thinking{other}",
        ),
        Card("Loses", share(expected["test_risk"]), f"95% {low} to {high}, {tests}"),
        Card(
            "Accuracy",
            share(expected["test_accuracy"]),
            f"with full thinking {share(expected['test_full_accuracy'])}, {tests}",
        ),
        serving,
    )
