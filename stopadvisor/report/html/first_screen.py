"""The report's first screen in words: what to do, what it saves, what is certain, on which stack.

Reads the documents that `assess` and `calibrate` wrote and repeats their numbers; computes none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from stopadvisor.assessment.assess import Repeats
from stopadvisor.assessment.recommendation import PROVISIONAL, probability_words
from stopadvisor.certification.calibrated import CalibratedRun
from stopadvisor.policy.promises import counted, promised, says_lost
from stopadvisor.report.headline import (
    Effect,
    assessed_effect,
    assessed_headline,
    calibrated_headline,
    change_words,
    expected_effect,
    measured_regime,
    other_stacks,
)
from stopadvisor.report.sheets.assess import next_command
from stopadvisor.report.sheets.calibrate import graded_facts
from stopadvisor.report.words import (
    advised_otherwise,
    advised_point,
    cost_noun,
    explained,
    listed,
    percent,
    points,
    rule_headline,
    share,
    why,
)
from stopadvisor.results import to_document
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


def summarise(document: Document, calibration: CalibratedRun | None) -> Summary:
    """Put assessment and, where there is one, calibration into a first screen."""
    if calibration is not None:
        found = _calibrated(document, calibration)
    else:
        found = _paper(document) if document["protocol"] == "paper" else _assessed(document)
    return replace(found, basis=" ".join([found.basis, *_without_gold(document)]))


def _without_gold(document: Document) -> list[str]:
    """What stands for right answers in cards, pictures and tables where gold is missing."""
    by, repeats = document["workload"]["graded_by"], document.get("repeats")
    facts = graded_facts(by, None if repeats is None else Repeats(**repeats))
    return [f"{label.capitalize()}: {text}." for label, text in facts]


def reasons(document: Document, calibration: CalibratedRun | None) -> list[str]:
    """The reasons of the advice; what calibration has decided since is not provisional."""
    found: list[str] = []
    for text in document["recommendation"]["reasons"]:
        if calibration is not None and text.startswith(PROVISIONAL):
            text = "Certificate: none; calibration certified no rule that saves anything."
            if calibration.certificate is not None:
                text = f"Certificate: {calibration.certificate.claim}"
        found.append(text)
    return found


def _why_exported(document: Document, calibration: CalibratedRun) -> str:
    """The reason of the assessment, where the exported rule is the advised one."""
    if calibration.transfer is not None:
        source = calibration.transfer.source
        return f"The rule is that of {source}; its threshold was certified on this run."
    if not advised_otherwise(calibration):
        return why(document)
    advised, at = calibration.advised_family, calibration.advised_where
    text = "the full budget"
    if advised is not None:
        text = f"{rule_name(advised)}, {at}"
    return (
        "Calibration decides among the rules that were chosen on fit questions; assess had "
        f"advised {text}."
    )


def _stack_card(effect: Effect, measured: str | None) -> Card:
    """The stack that the figures are for, what a probe costs there, and the others."""
    serving = effect.serving
    note = explained(serving).removeprefix(f"{serving}: ")
    if measured == serving:
        note = f"as this server was measured; {note}"
    if others := other_stacks(effect):
        note += f". The same rule {listed(others)}"
    return Card("Stack", serving, note)


def _saving_card(effect: Effect) -> Card:
    spread = ""
    if effect.saving_range is not None:
        low, high = map(percent, effect.saving_range)
        spread = f", 95% {low} to {high}"
    thinking = "" if effect.think_pct is None else f"; {percent(effect.think_pct)} of the thinking"
    return Card(
        _saves(effect.saving_pct),
        percent(abs(effect.saving_pct)),
        f"of {cost_noun(effect.unit)}{spread}{thinking}; {effect.whose}",
    )


def _saves(saving: float) -> str:
    return "Saves" if saving >= 0 else "Costs more"


_COUNTED = {"differs": ("Differs", "of replies differ from full thinking")}
"""Label and note of what a loss counts; else lost questions."""


def _loss_cards(effect: Effect, alpha: float) -> list[Card]:
    """What is lost against what was promised, and the accuracy against that of full thinking."""
    label, what = _COUNTED.get(effect.loss, ("Loses", "of questions lost"))
    spread = ""
    if effect.risk_range is not None:
        low, high = map(share, effect.risk_range)
        spread = f"; 95% {low} to {high}"
    # A promise about accuracy stands with the accuracy, which is all that it counts.
    falls = effect.loss == "drop"
    promise = "" if falls else f", promise {promised(alpha)}"
    risk = "-" if effect.risk is None else share(effect.risk)
    found = [] if falls else [Card(label, risk, f"{what}{promise}{spread}; {effect.whose}")]
    if effect.change is not None:
        promise = f", promise at most -{points(100 * alpha)}" if falls else ""
        found.append(
            Card(
                "Accuracy",
                share(effect.accuracy),
                f"{change_words(effect)} against {share(effect.full_accuracy)} of full thinking"
                f"{promise}; {effect.whose}",
            )
        )
    return found


def _cards(effect: Effect, alpha: float, measured: str | None) -> tuple[Card, ...]:
    """What is saved, what is lost, and on which stack; a measured server comes first."""
    own = None if measured is None else effect.savings.get(measured)
    first = []
    if own is not None and measured != effect.serving:
        first.append(
            Card(
                f"{_saves(own)} on this server",
                percent(abs(own)),
                f"of {cost_noun(effect.unit)}: {measured}, as measured; the other cards are for "
                f"{effect.serving}, as asked for",
            )
        )
    return (
        *first,
        _saving_card(effect),
        *_loss_cards(effect, alpha),
        _stack_card(effect, measured),
    )


def _nothing(document: Document, accuracy: float, whose: str) -> tuple[Card, ...]:
    serving = document["recommendation"]["serving"]
    bare = document["workload"].get("graded_by") == "agreement"
    return (
        Card("Saves", "nothing", "full thinking is what is paid now"),
        Card("Loses", "nothing", "full thinking is the reference"),
        *([] if bare else [Card("Accuracy", share(accuracy), f"of full thinking, {whose}")]),
        Card("Stack", serving, "no probes: nothing changes"),
    )


def _assessed(document: Document) -> Summary:
    advice, split = document["recommendation"], document["split"]
    effect, n = assessed_effect(document), split["fit"]
    closed = f"{split['calibration']} stay closed for calibrate"
    if split["test"]:
        closed += f", {split['test']} for a test after it"
    basis = f"Based on {n} of {document['workload']['n_questions']} questions (fit); {closed}."
    if effect is None:
        return Summary(
            assessed_headline(document),
            why(document),
            _nothing(document, document["fit_full_accuracy"], f"{n} fit questions"),
            "plain",
            "There is nothing to certify: full thinking is the reference itself.",
            "",
            None,
            basis,
        )
    promise = "all questions turn from right to wrong"
    if effect.loss == "differs":
        promise = "replies differ from what full thinking would have said"
    return Summary(
        assessed_headline(document),
        f"{rule_headline(advice['family'], advice.get('where'))} {why(document)}",
        _cards(effect, document["alpha"], measured_regime(document)),
        "open",
        f"Not yet certified: these are estimates, the saving at least "
        f"{percent(document['fit_saving_lower_pct'])} (one-sided 95%). `calibrate` can promise "
        f"that at most {promised(document['alpha'])} of {promise}; probability "
        f"{probability_words(document['chance_to_certify'])}.",
        f"That opens {split['calibration']} calibration questions, which nobody has seen.",
        next_command(document),
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
    text = why(document)
    if stops:
        text = f"{rule_headline(advice['family'], advice.get('where'))} {text}"
    stack = explained(advice["serving"]).removeprefix(f"{advice['serving']}: ")
    return Summary(
        assessed_headline(document),
        text,
        (
            Card("Saves", saving, f"of all tokens, {tests}"),
            Card("Loses", lost, f"of {tests}, promise {promised(document['alpha'])}"),
            Card(
                "Accuracy",
                accuracy,
                f"{tests}; full thinking {share(document['full_accuracy'])}, all questions",
            ),
            Card("Stack", advice["serving"], stack if stops else "no probes: nothing changes"),
        ),
        "plain",
        "This protocol reproduces the published analysis; it certifies nothing that is exported.",
        "Act on the deploy protocol, and on what calibrate certifies.",
        None,
        basis,
    )


def _needed(labels: int, assumed: float | None) -> str:
    """How many labels a certificate needs."""
    if not assumed:
        return f"{labels} labelled calibration questions are needed, and none of them lost."
    return f"About {labels} would be needed where {share(assumed)} of them are lost."


def _calibrated(document: Document, calibration: CalibratedRun) -> Summary:
    look, certificate, expected = calibration.look, calibration.certificate, calibration.expected
    opened = max((row.n for row in calibration.tested), default=0)
    basis = (
        "No calibration question was opened; pictures show fit questions."
        if look is None
        else f"Calibrated on {opened} questions that chose nothing, look number {look.number} at "
        "them; pictures show fit questions, except where they say calibration."
    )
    if certificate is None or expected is None or look is None:
        refusal = calibration.refusal
        if "fit_full_accuracy" in document:
            accuracy = document["fit_full_accuracy"]
            whose = f"{document['split']['fit']} fit questions"
        else:  # assessed under the paper's protocol
            accuracy, whose = document["full_accuracy"], "all questions"
        needed = None if refusal is None else refusal.labels_needed
        return Summary(
            calibration.headline,
            "Calibration certified no rule that saves anything.",
            _nothing(document, accuracy, whose),
            "plain",
            f"Asked for: at most {promised(calibration.alpha)} of the questions lost. Not "
            f"certified: {'' if refusal is None else refusal.reason}.",
            "" if refusal is None or needed is None else _needed(needed, refusal.assumed_risk),
            None,
            basis,
        )
    measured = measured_regime(document)
    rule = rule_headline(str(calibration.family), calibration.where)
    return Summary(
        calibrated_headline(expected, calibration.serving, measured),
        f"{rule} {_why_exported(document, calibration)}",
        _cards(expected_effect(expected, calibration.serving), calibration.alpha, measured),
        "good",
        certificate.claim,
        f"{_counted(to_document(certificate))} ({certificate.bound} test, "
        f"{certificate.multiplicity}, look number {look.number}). The exported threshold is "
        f"{calibration.threshold or 0.0:.4g}.",
        f"stopadvisor inspect {calibration.promoted or calibration.policy}",
        basis,
    )


def _counted(certificate: Document) -> str:
    """What calibration found, as the claim rests on it."""
    who = f"calibration questions{_in_groups(certificate)}"
    if says_lost(certificate):
        return f"{certificate['losses']} of {certificate['n']} {who} were lost"
    return counted(certificate, who)


def _in_groups(certificate: Document) -> str:
    """How questions were counted where groups hold several."""
    return ", one of each group," if "group_claim" in certificate else ""
