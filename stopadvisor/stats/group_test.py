"""The test by bets on groups, as `bounds` has the tests on single questions.

`certify_groups` finds a threshold, `GroupTest` foresees what such a calibration will allow and how
many questions it takes.  Knows no files, no models and no command line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy

from stopadvisor.arrays import IntArray
from stopadvisor.stats.bounds import Certified, Multiplicity, NotCertified, last_passed, share_of
from stopadvisor.stats.group_betting import group_limit, group_passes, group_upper_limit

__all__ = ["GroupTest", "certify_groups"]

_MOST_GROUPS = 1_000_000
"""Largest sample that `GroupTest.labels_needed` considers."""


@dataclass(frozen=True)
class GroupTest:
    """How questions that come in groups will be tested.

    For planning groups are taken to be equally large and equally unlucky; the test itself, in
    `certify_groups`, takes nothing of the sort.
    """

    most: int
    """Most questions that a group can hold, fixed before calibration."""
    size: float
    """Questions in a group, on average."""
    lost_together: float = 1.0
    """Lost questions in a group that loses any, on average over fit."""

    def limit(self, n_questions: float, alpha: float, delta: float) -> float:
        """Largest share of lost questions that passes; below 0 where not even none would."""
        groups = self._groups(n_questions)
        return group_limit(
            groups,
            min(n_questions, self.most * groups),
            alpha=alpha,
            delta=delta,
            most=self.most,
            lost_together=self.lost_together,
        )

    def power(self, n_questions: float, alpha: float, delta: float, expected_risk: float) -> float:
        """Chance that so many questions certify a threshold of the expected risk."""
        share = self.limit(n_questions, alpha, delta)
        if share < 0:
            return 0.0
        lost = min(self.lost_together, self.size)
        allowed = math.floor(share * n_questions / lost + 1e-9)
        unlucky = min(expected_risk * self.size / lost, 1.0)
        return float(scipy.stats.binom.cdf(allowed, self._groups(n_questions), unlucky))

    def labels_needed(
        self, alpha: float, delta: float, *, expected_risk: float, power_wanted: float = 0.8
    ) -> int | None:
        """Questions that certify with the power wanted; None where no number would."""
        if expected_risk >= alpha:
            return None

        def enough(groups: int) -> bool:
            return self.power(groups * self.size, alpha, delta, expected_risk) >= power_wanted

        high = 8
        while not enough(high):
            high *= 2
            if high > _MOST_GROUPS:
                return None
        low = 0
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return math.ceil(round(high * self.size, 6))

    def _groups(self, n_questions: float) -> int:
        return max(1, round(n_questions / self.size))


def certify_groups(
    losses: IntArray,
    sizes: IntArray,
    *,
    test: GroupTest,
    alpha: float,
    delta: float,
    multiplicity: Multiplicity = "fixed-sequence",
    expected_risk: float | None = None,
) -> Certified | NotCertified:
    """Find the most aggressive threshold whose risk is at most alpha, of all questions.

    Parameters
    ----------
    losses : ndarray of int, shape (n_groups, n_thresholds)
        Lost questions of each calibration group, thresholds in their order fixed beforehand.
    sizes : ndarray of int, shape (n_groups,)
        Questions of each group.
    test : GroupTest
        Of it the test itself takes `most` alone; the rest counts the labels of a refusal.
    multiplicity, expected_risk
        As for `bounds.certify`.
    """
    share = share_of(delta, losses.shape[1], multiplicity)
    passed = group_passes(losses, sizes, alpha=alpha, delta=share, most=test.most)
    last = last_passed(passed, multiplicity)
    n = int(sizes.sum())
    if last >= 0:
        upper = group_upper_limit(losses[:, last], sizes, delta=delta, most=test.most)
        lost = int(losses[:, last].sum())
        return Certified(
            last, alpha, delta, "betting", multiplicity, n, lost, upper, sizes.size, test.most
        )
    none = np.zeros((sizes.size, 1), dtype=np.int64)
    possible = bool(group_passes(none, sizes, alpha=alpha, delta=share, most=test.most)[0])
    expected = 0.0 if expected_risk is None or not possible else expected_risk
    needed = test.labels_needed(alpha, share, expected_risk=expected)
    counted = f"{n} calibration questions in {sizes.size} groups"
    if not possible:
        reason = (
            f"{counted} cannot exclude a risk above {alpha:g} at confidence {1 - share:g} by "
            f"betting on groups of up to {test.most}, not even with no loss"
        )
    elif losses.shape[1]:
        reason = (
            f"the most careful threshold already loses {int(losses[:, 0].sum())} of {counted}: "
            "more than betting on groups allows"
        )
    else:
        reason = "there is no threshold to test"
    return NotCertified(reason, needed, expected)
