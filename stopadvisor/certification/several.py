"""Testing what is more than one loss of 0 or 1: a drop, several losses, categories, two traces.

A threshold passes only if every limit passes at all of delta (intersection–union): if any limit is
broken at a threshold, its own test wrongly passes there with a probability of at most delta.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stopadvisor.assessment.limits import allowed, counted_rows, fewest, most_of
from stopadvisor.assessment.settings import Settings
from stopadvisor.ground.arrays import BoolArray, IntArray
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.probes.table import ProbeTable
from stopadvisor.rules.losses import Guarantee
from stopadvisor.rules.scorer import Scorer
from stopadvisor.stats.bounds import (
    Certified,
    Guaranteed,
    NotCertified,
    StopCurve,
    last_passed,
    upper_limit,
)
from stopadvisor.stats.trinomial import drop_limit, risk_of_pairs

__all__ = ["Counts", "certify_all", "check_categories", "counts_of"]


@dataclass(frozen=True)
class Counts:
    """What one guarantee counts of calibration questions along the thresholds."""

    guarantee: Guarantee
    n: int
    lost: IntArray  # (n_thresholds,)
    """Questions that count 1; of two traces each, those of which both do."""
    gained: IntArray  # (n_thresholds,)
    """Questions that count -1; of two traces each, those of which none counts 1."""
    traces: int = 1
    """Of each question, with losses of 0 and 1."""

    def passed(self, delta: float) -> BoolArray:
        """Where the limit passes by itself, (n_thresholds,)."""
        most = most_of(self.guarantee, self.n, delta, self.traces)
        return self.lost <= allowed(most, self.gained)

    def at(self, index: int, delta: float) -> Guaranteed:
        """What was shown at one threshold."""
        lost, gained = int(self.lost[index]), int(self.gained[index])
        alpha, category = self.guarantee.alpha, self.guarantee.category
        if self.traces == 2:
            upper = min(risk_of_pairs(lost, gained, self.n, delta), alpha)
            one = self.n - lost - gained
            counts = (2 * lost + one, 0, upper, category, lost, one, gained)
            return Guaranteed(self.guarantee.loss, alpha, self.n, *counts)
        if self.guarantee.counted.is_binary:
            upper = upper_limit(lost, self.n, delta)
        else:
            # Found by halving: never above the limit that the test has excluded.
            upper = min(drop_limit(lost, gained, self.n, delta), self.guarantee.alpha)
            upper = max(upper, 0.0)
        return Guaranteed(self.guarantee.loss, alpha, self.n, lost, gained, upper, category)


def counts_of(
    curve: StopCurve, scorer: Scorer, view: GradedTable, settings: Settings, traces: int = 1
) -> list[Counts]:
    """Count every guarantee along the thresholds.

    With two traces a question the view holds all first ones, then all second ones in the same
    order; a drop counts the first alone.
    """
    counts, n = [], view.n_questions // traces
    for guarantee in settings.guarantees:
        among = np.zeros((view.n_questions, 1), dtype=bool)
        among[counted_rows(view, guarantee)] = True
        if traces == 2 and guarantee.counted.is_binary:
            is_lost = curve.each(scorer.losses(view, guarantee.counted) > 0).reshape(2, n, -1)
            both, none = is_lost.all(axis=0), ~is_lost.any(axis=0)
            both, none = ((found & among[:n]).sum(axis=0) for found in (both, none))
            counts.append(Counts(guarantee, int(among[:n].sum()), both, none, traces))
            continue
        among[n:] = False
        values = scorer.losses(view, guarantee.counted) * among
        lost, gained = (
            curve.totals(np.maximum(sign * values, 0))[0].round().astype(np.int64)
            for sign in (1, -1)
        )
        counts.append(Counts(guarantee, int(among.sum()), lost, gained))
    return counts


def certify_all(
    counts: list[Counts], *, delta: float, labels: int | None, assumed_risk: float | None
) -> Certified | NotCertified:
    """Find the most aggressive threshold at which every limit passes.

    Parameters
    ----------
    labels, assumed_risk : optional
        What a refusal says that it would take, and at which share lost.
    """
    passed = np.array([each.passed(delta) for each in counts])  # (n_losses, n_thresholds)
    last = last_passed(np.logical_and.reduce(passed))
    if last < 0:
        failed = counts[int(np.argmin(passed[:, 0]))]
        return NotCertified(_why(failed, delta), labels, assumed_risk)
    guaranteed = tuple(each.at(last, delta) for each in counts)
    first = guaranteed[0]
    return Certified(
        last,
        first.alpha,
        delta,
        first.n,
        first.lost,
        first.upper,
        first.gained if not counts[0].guarantee.counted.is_binary else None,
        guaranteed if len(guaranteed) > 1 else (),
        first.both,
        first.one,
        first.none,
    )


def _why(failed: Counts, delta: float) -> str:
    guarantee, n = failed.guarantee, failed.n
    lost = f"{int(failed.lost[0])} of {n}"
    what = {"lost": "lost", "differs": "differ", "drop": "lost"}[guarantee.loss]
    gained = "" if guarantee.counted.is_binary else f" and {int(failed.gained[0])} gained"
    if failed.traces == 2:
        gained = f" with both replies and {n - int((failed.lost + failed.gained)[0])} with one"
    return (
        f"at the most careful threshold {lost} calibration questions {what}{gained}: that does not "
        f"exclude more than {guarantee} at confidence {1 - delta:g}"
    )


def check_categories(questions: ProbeTable, settings: Settings) -> tuple[str, ...]:
    """Hold each category to the fewest questions that its limit takes; opens no outcome.

    Returns
    -------
    tuple of str
        How many each category has, and how many its limit takes at the least.

    Raises
    ------
    CalibrationError
        A category has fewer, or none.
    """
    found = []
    for each in settings.guarantees:
        if each.category is None:
            continue
        n = counted_rows(questions, each).size
        known = sorted({name for name in questions.categories if name is not None})
        if not n:
            raise CalibrationError(
                f"no calibration question is of category {each.category!r}; there are "
                f"{', '.join(map(repr, known)) or 'none'}"
            )
        needed = fewest(each, settings.delta)
        if n < needed:
            raise CalibrationError(
                f"category {each.category!r} has {n} calibration questions, and "
                f"{each.loss}={each.alpha:g} takes at least {needed} of which none is lost: no "
                "calibration question was opened"
            )
        found.append(
            f"{each}: {n} calibration questions are of that category; {needed} are the fewest that "
            "can show it"
        )
    return tuple(found)
