"""Refusals that show no calibration outcome: before a look is taken, and after one that failed.

A later look may depend on an earlier one through nothing but its failure, so a failed look says
that it failed, and what fit questions knew beforehand.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stopadvisor.assessment.choice import Choice, Settings
from stopadvisor.assessment.forecasts import counted_labels, first_useful_risk, risk_to_expect
from stopadvisor.assessment.limits import counted_rows, most_of
from stopadvisor.assessment.recommendation import Recommendation, deciding_reason
from stopadvisor.certification.calibration import Calibration
from stopadvisor.certification.entering import counted_traces
from stopadvisor.probes.table import ProbeTable
from stopadvisor.stats.bounds import NotCertified, certify_thresholds

__all__ = ["advised_against", "refused_beforehand", "without_figures"]

_NOTHING_SAVES = (
    "no rule saves anything on fit questions: no calibration question was opened, and no look spent"
)
_FAILED = (
    "no threshold that saves anything passed the test. A failed look shows no figure, so that "
    "another one may follow; with --looks 1 it shows all, and is the only one"
)


def refused_beforehand(choice: Choice, questions: ProbeTable) -> NotCertified | None:
    """Say why no look could end in an exported rule, where that is certain; opens nothing."""
    if choice.nothing is not None:
        return NotCertified(f"{choice.nothing}; no calibration question was opened", None, None)
    if all(first_useful_risk(choice.fit, sequence) is None for sequence in choice.sequences):
        return NotCertified(_NOTHING_SAVES, None, None)
    why = _not_at_best(choice.settings, questions)
    if why is None:
        return None
    return NotCertified(
        f"{why}: none was opened, and no look spent", *_labels(choice.settings, choice)
    )


def _not_at_best(settings: Settings, questions: ProbeTable) -> str | None:
    """Why even a calibration in which no question is lost, or each is gained, shows nothing."""
    rows = counted_traces(questions, settings)
    if settings.is_plain and len(rows) == 1:
        none = np.zeros(1, dtype=np.int64)
        best = certify_thresholds(none, rows.size, alpha=settings.alpha, delta=settings.delta)
        return best.reason if isinstance(best, NotCertified) else None
    table = questions.take(rows[0])
    for each in settings.guarantees:
        traces = len(rows) if each.counted.is_binary else 1
        # The last entry is for as many gained, or not lost with either trace, as there are.
        if most_of(each, counted_rows(table, each).size, settings.delta, traces)[-1] < 0:
            asked = ", ".join(map(str, settings.guarantees))
            return (
                f"{table.n_questions} calibration questions cannot show {asked} at confidence "
                f"{1 - settings.delta:g}, whatever their answers are"
            )
    return None


def advised_against(choice: Choice, advice: Recommendation) -> NotCertified | None:
    """The advice as a refusal, where it is full thinking; opens nothing."""
    if advice.policy != "full-budget":
        return None
    reason = deciding_reason(advice.policy, advice.reasons).rstrip(".")
    step, _, why = reason.partition(": ")
    needed, expected = _labels(choice.settings, choice)
    # More labels raise a chance; they make no probe cheaper, and no rule wiser.
    helps = choice.advised is None or step == "Certificate"
    return NotCertified(
        f"the advice is full thinking ({why}), and calibrate follows it: no calibration question "
        "was opened, and no look spent; --despite advice certifies all the same",
        needed if helps else None,
        expected if helps else None,
    )


def without_figures(
    calibration: Calibration, settings: Settings, choice: Choice | None = None
) -> Calibration:
    """A failed calibration as it may be shown, without anything that its look has opened."""
    refusal = NotCertified(_FAILED, *_labels(settings, choice))
    tested = tuple(
        (family, NotCertified("it failed", None, None)) for family, _ in calibration.tested
    )
    return replace(
        calibration, refusal=refusal, tested=tested, n_counted=calibration.first.n_questions
    )


def _labels(settings: Settings, choice: Choice | None) -> tuple[int | None, float]:
    """Labels at the risk that fit questions expect, else the fewest that certify no loss at all."""
    expected = 0.0 if choice is None else risk_to_expect(choice.fit, choice.sequences)
    return counted_labels(settings, settings.delta, expected), expected
