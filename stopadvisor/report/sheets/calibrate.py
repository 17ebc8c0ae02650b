"""The sheet of `calibrate`: the certificate or refusal, the policy, and what to expect of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from stopadvisor.assessment.assessed import Repeats
from stopadvisor.certification.issue import CalibratedRun, LookEntry
from stopadvisor.policy.claims import CertificateTerms
from stopadvisor.policy.shown import Certificate, Expected, counted, counts, promised
from stopadvisor.report.headline import (
    accuracy_words,
    answers_label,
    capacity_facts,
    expected_effect,
    other_stacks,
    saving_words,
)
from stopadvisor.report.sheet import Fact, Section, Sheet, Tone
from stopadvisor.report.sheets.plan import label_counts, more_labels
from stopadvisor.report.words import (
    BRACKETS,
    bracketed,
    explained,
    listed,
    number,
    percent,
    rule_headline,
    share,
    shell_quote,
)
from stopadvisor.rules.costs import LADDER
from stopadvisor.rules.families import FIXED_BUDGET, RUNG_FAMILIES

__all__ = [
    "CLOSED_ANSWER", "calibrate_sheet", "evidence", "expectation_facts", "graded_facts", "meaning",
    "pointwise",
]  # fmt: skip

CLOSED_ANSWER = "thinking is closed and the model writes its visible answer"


def calibrate_sheet(run: CalibratedRun, *, verbose: bool = False) -> Sheet:
    """Return the certificate or the refusal, and the policy that was written."""
    facts = _refused(run)
    if run.certificate is not None and run.expected is not None:
        facts = _certified(run, run.certificate, run.expected, verbose=verbose)
    sections = []
    if run.tested and (verbose or not run.certified):
        sections.append(_tested(run))
    if (moved := run.transfer) is not None:
        model = moved.source_model or "no model (an archive)"
        text = (
            f"The rule comes from {moved.source} ({model}, digest {moved.source_digest[:8]}); its "
            "threshold was certified here."
        )
        sections.append(Section("Transfer", texts=(text,)))
    # Next: watch the policy on live traffic; inspect it where it cannot be served.
    file = shell_quote(run.promoted or run.policy)
    command = f"stopadvisor inspect {file}"
    if run.certified and run.serve_with is not None:
        command = f"stopadvisor serve {file} --shadow {shlex.join(run.serve_with)}"
    tone: Tone = "good" if run.certified else "doubtful"
    return Sheet(run.headline, tone, tuple(facts), command, sections=tuple(sections))


# --- Words that `inspect` and the page share ------------------------------------------------------


def evidence(certificate: CertificateTerms) -> str:
    """Say what was counted, and by which test."""
    whom = "calibration questions"
    if certificate.group_claim is not None:
        whom += ", one of each group,"
    return f"{counted(certificate, whom)} (exact test, fixed-sequence)"


def pointwise(certificate: CertificateTerms) -> str:
    """Return the limit at the exported threshold, as if it alone had been tested."""
    return (
        f"at most {share(certificate.upper)} at this threshold alone (confidence "
        f"{share(1 - certificate.chain_delta)}; pointwise, not the promise)"
    )


def meaning(certificate: CertificateTerms, expected: Expected, serving: str) -> Iterator[Fact]:
    """Yield alpha as a share of the answers that full thinking gets right.

    Accuracy is that of test or calibration questions, never of fit questions.  Yields nothing
    without gold, or if the certificate limits differing replies.
    """
    full = expected_effect(expected, serving).full_accuracy
    if full and certificate.loss != "differs":
        alpha, ratio = certificate.alpha, share(certificate.alpha / full)
        what = f"those that {'the reference' if serving == LADDER else 'full thinking'} gets right"
        yield "means", f"{promised(alpha)} of all questions are {ratio} of {what}"


def expectation_facts(expected: Expected, serving: str) -> list[Fact]:
    """Return the expected saving and accuracy of a policy."""
    effect = expected_effect(expected, serving)
    rows = [
        ("saves", f"{saving_words(effect)} ({effect.whose})"),
        (answers_label(effect), f"{accuracy_words(effect)} ({effect.whose})"),
        ("stack", explained(serving)),
    ]
    if others := other_stacks(effect):
        rows.append(("elsewhere", f"the same rule {listed(others)}"))
    if effect.saving_range or effect.risk_range:
        rows.append(BRACKETS)
    return rows


def graded_facts(graded_by: str, repeats: Repeats | None) -> Iterator[Fact]:
    """Yield how replies without gold are graded, and how far to trust that."""
    if graded_by == "agreement":
        yield "no gold", "a reply counts as right if it is what full thinking answers"
    if repeats is not None:
        spread = f"{share(repeats.share)} {bracketed(repeats.ci95, 100)}"
        yield (
            "itself",
            f"full thinking gave another answer to {repeats.differing} of {repeats.questions} fit "
            f"questions when it thought again: {spread}; nothing is subtracted for that",
        )


# --- The facts ------------------------------------------------------------------------------------


def _certified(
    run: CalibratedRun, certificate: Certificate, expected: Expected, *, verbose: bool
) -> Iterator[Fact]:
    yield "promise", certificate.claim
    yield from capacity_facts(expected_effect(expected, run.serving))
    yield from expectation_facts(expected, run.serving)
    yield "rule", rule_headline(str(run.family), run.where)
    if run.on_stop == "answer":
        yield "on stop", _on_stop(expected)
    yield "evidence", evidence(certificate)
    yield from _labels(run)
    yield from meaning(certificate, expected, run.serving)
    yield from graded_facts(run.graded_by, run.repeats)
    yield "policy", _files(run)
    if run.look is not None and (run.look.number > 1 or verbose):
        yield "look", _look(run.look, run.confidence)
    if verbose:
        fitted = expected.fit_total_saving_pct
        if fitted is not None:
            yield "forecast", f"fit questions had predicted a saving of {percent(fitted)}"
        yield "threshold", f"stops when the score reaches {number(run.threshold)}"
        yield "limit", pointwise(certificate)
    if run.transfer is not None:
        return
    if run.changed is not None:
        yield "changed", run.changed
    elif _advised_otherwise(run):
        text = "full thinking"
        if run.advised_family is not None:
            text = rule_headline(run.advised_family, run.advised_where)
        yield "advised", f"`assess` said: {text}"


def _advised_otherwise(run: CalibratedRun) -> bool:
    """Whether the exported rule is another one than `assess` advised."""
    if run.advised_family != run.family:
        return True
    # Calibration chooses among budgets, and among the steps of a path: each is the same rule.
    return run.family not in (FIXED_BUDGET, *RUNG_FAMILIES) and run.advised_where != run.where


def _refused(run: CalibratedRun) -> Iterator[Fact]:
    asked = run.asked or f"that at most {promised(run.alpha)} are lost"
    yield "asked", f"to promise {asked}"
    if run.refusal is not None:
        yield "why not", run.refusal.reason
        yield "labels", _needed(run.refusal.labels_needed, run.refusal.assumed_risk)
    yield from _labels(run)
    yield "look", _look(run.look, run.confidence)
    yield "policy", f"{_files(run)}: it lets every question think to its end"


def _needed(needed: int | None, assumed: float | None) -> str:
    if needed is None:
        return "more of them alone would not be enough at the risk and costs seen here"
    if not assumed:
        return f"{needed} calibration questions in all are enough if none of them is lost"
    return (
        f"about {needed} calibration questions in all are enough four times in five if "
        f"{share(assumed)} of them are lost"
    )


def _files(run: CalibratedRun) -> str:
    """Return the policy's file, and its copy that is in use."""
    if run.promoted is None:
        return run.policy
    return f"{run.policy}, and a copy of it as {Path(run.promoted).name}"


def _look(look: LookEntry | None, confidence: float | None) -> str:
    if look is None:
        return "none was taken: no calibration question was opened"
    planned = "" if look.planned is None else f" of {look.planned} planned"
    return (
        f"number {look.number}{planned} at these calibration questions: confidence "
        f"{share(confidence)}"
    )


def _labels(run: CalibratedRun) -> Iterator[Fact]:
    """Yield how many labels there are and what more would buy, if a run was labelled."""
    if run.labels is not None:
        yield "gold", label_counts(run.labels)
        yield "more gold", more_labels(run.labels)


def _on_stop(expected: Expected) -> str:
    saved, whose = expected.calibration_answer_saving_pct, "calibration"
    if expected.test_answer_saving_pct is not None:
        saved, whose = expected.test_answer_saving_pct, "test"
    if saved is None:
        return CLOSED_ANSWER
    return f"{CLOSED_ANSWER}; {percent(saved)} of its tokens saved ({whose} questions)"


def _tested(run: CalibratedRun) -> Section:
    rows: dict[str, list[str]] = {}
    for row in run.tested:
        text = f"not certified: {row.reason}"
        if row.certified:
            numbers = (row.n, row.losses or 0, row.gained or 0, row.both, row.one)
            text = f"certified, {counts(run.loss or 'lost', *numbers)}"
            text += "" if run.certified else ", but saves nothing"
        rows.setdefault(text, []).append(row.family)
    return Section(
        "Rules tested on calibration questions",
        rows=tuple(
            (", ".join(families), text if len(families) == 1 else f"each {text}")
            for text, families in rows.items()
        ),
    )
