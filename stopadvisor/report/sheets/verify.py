"""The sheet of `verify`: the verdict and its figures, then categories and drift."""

from __future__ import annotations

from stopadvisor.assessment.recommendation import probability_words
from stopadvisor.certification.check_policy import CheckedPolicy
from stopadvisor.policy.shown import counts, promise_of, promised
from stopadvisor.report.headline import (
    change_words,
    saving_words,
    verified_effect,
    verified_headline,
)
from stopadvisor.report.sheet import Fact, Section, Sheet, Tone
from stopadvisor.report.words import BRACKETS, bracketed, explained, plural, share, shell_quote
from stopadvisor.rules.drift import Drift
from stopadvisor.rules.losses import LOSSES

__all__ = ["verify_sheet"]

_DRIFTED = 0.05
_MEANS = {
    "confirmed": "these questions alone certify the promise: keep serving the policy",
    "contradicted": "more is lost than was promised: serve full thinking, and calibrate again",
    "silent": "too few questions, or losses too close to the promise, to decide: probe more",
}
_DRIFT_MEANS = {
    "confirmed": "for it the promise rests only on these fresh questions.",
    "contradicted": "the promise does not cover it, and is broken there.",
    "silent": "the promise does not cover it.",
}
"""What drift means for the promise, by verdict."""
_TONES: dict[str, Tone] = {"confirmed": "good", "contradicted": "bad", "silent": "doubtful"}
_COUNTED = {"lost": "lost", "differs": "different", "drop": "drop"}
"""Names of the counted losses."""


def verify_sheet(checked: CheckedPolicy, *, verbose: bool = False) -> Sheet:
    """Return the sheet; `verbose` adds limits and power."""
    command = f"stopadvisor assess {shell_quote(checked.run)} --alpha {checked.alpha:g}"
    if checked.verdict == "silent" and not _moved(checked):
        command = f"stopadvisor probe WORKLOAD --like {shell_quote(checked.policy)}"
    return Sheet(
        verified_headline(checked),
        _TONES[checked.verdict],
        _facts(checked, verbose=verbose),
        None if checked.verdict == "confirmed" else command,
        sections=(*_categories(checked), *_drift(checked)),
    )


def _facts(checked: CheckedPolicy, *, verbose: bool) -> tuple[Fact, ...]:
    gained = "" if checked.gained is None else f" lost and {checked.gained} gained"
    replies = f"{checked.n} questions"
    if checked.traces is not None:  # two traces each
        replies = f"{checked.traces * checked.n} replies to {replies}"
    means = _MEANS[checked.verdict]
    if checked.verdict == "silent" and _moved(checked):
        means = "these questions decide nothing, and differ from those of calibration (see Drift)"
    facts: list[Fact] = [
        ("means", means),
        (
            _COUNTED[checked.loss or "lost"],
            f"{checked.losses} of {replies}{gained}, {share(checked.risk)}; the "
            f"promise allows {promised(checked.alpha)}",
        ),
        *_limits(checked),
        _accuracy(checked),
        ("saves", saving_words(verified_effect(checked))),
        ("stack", explained(checked.serving)),
    ]
    if verbose or checked.verdict == "silent":
        facts += [
            (
                "limits",
                f"{'different' if checked.loss == 'differs' else 'lost'} are at least "
                f"{share(checked.lower)} and at most {share(checked.upper)}, "
                f"each limit one-sided at {share(1 - checked.delta)}",
            ),
            ("power", _power(checked)),
        ]
    if checked.n_left_out:
        met, repeated = checked.n_met_before, checked.n_repeated
        texts = [
            *([f"{plural(met, 'trace')} of the policy's own questions"] if met else []),
            *(
                [f"{plural(repeated, 'further trace')} of a question or its group"]
                if repeated
                else []
            ),
        ]
        facts.append(("left out", ", ".join(texts)))
    return (*facts, BRACKETS)


def _limits(checked: CheckedPolicy) -> list[Fact]:
    facts = []
    for limit in checked.limits or ():
        replies = limit.n
        if checked.traces is not None and LOSSES[limit.loss].is_binary:
            replies *= checked.traces
        count = counts(limit.loss, replies, limit.lost, limit.gained)
        if limit.category is not None:
            count = f"category {limit.category}: {count}"
        facts.append(("limit", f"{promise_of((limit,))}: {limit.verdict} ({count})"))
    return facts


def _accuracy(checked: CheckedPolicy) -> Fact:
    """Return the change of accuracy, or how replies without gold are graded."""
    effect = verified_effect(checked)
    if effect.change is None:
        return ("no gold", "a reply counts as right if it is what full thinking answers")
    spread = bracketed(checked.accuracy_difference_ci95, 100)
    change = f"{share(checked.full_accuracy)} -> {share(checked.accuracy)}"
    return ("accuracy", f"{change}, {change_words(effect)} {spread}")


def _power(checked: CheckedPolicy) -> str:
    text = (
        f"{checked.n} questions confirm with a probability of "
        f"{probability_words(checked.power_to_confirm)} if {share(checked.expected_risk)} are "
        f"{'different' if checked.loss == 'differs' else 'lost'}, as in calibration"
    )
    if checked.detectable_risk is not None:
        return f"{text}; they contradict four times in five if {share(checked.detectable_risk)} are"
    if checked.gained is not None or checked.traces is not None or checked.loss == "differs":
        return text  # none is computed for a drop, two traces, or replies that stand for lost ones
    return f"{text}; they are too few to contradict anything"


def _categories(checked: CheckedPolicy) -> tuple[Section, ...]:
    if not checked.categories:
        return ()
    return (
        Section(
            "Lost by category (intervals hold for all of them at once)",
            ("", "questions", "lost", "share", "95 % interval"),
            tuple(
                (
                    "(none)" if row.category is None else row.category,
                    str(row.n),
                    str(row.losses),
                    share(row.losses / row.n),
                    bracketed(row.ci95, 100),
                )
                for row in checked.categories
            ),
            ("The promise is about all questions together, not about each category.",),
        ),
    )


def _moved(checked: CheckedPolicy) -> list[Drift]:
    return [row for row in checked.drift if row.adjusted_p < _DRIFTED]


def _drift(checked: CheckedPolicy) -> tuple[Section, ...]:
    if not checked.drift:
        return ()
    moved = _moved(checked)
    if not moved:
        text = (
            "Questions and answers look as they did in calibration: "
            f"{plural(checked.n, 'question')} show no feature that moved (all tested together at "
            "5 %)."
        )
        return (Section("Drift", texts=(text,)),)
    return (
        Section(
            "Features that moved since calibration (all tested together at 5 %)",
            ("feature", "distance (0 to 1)", "adjusted p"),
            tuple((row.feature, f"{row.distance:.3f}", f"{row.adjusted_p:.4f}") for row in moved),
            (f"This traffic is not what was calibrated: {_DRIFT_MEANS[checked.verdict]}",),
        ),
    )
