"""How often full thinking differs from itself: questions that thought twice.

Agreement with full thinking can mean no more than full thinking's agreement with itself.  The share
is shown beside a promise about differing replies, and never subtracted from anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stopadvisor.probes.outcomes import FitQuestions
from stopadvisor.stats.intervals import exact_interval

__all__ = ["Repeats", "repeats_of"]


@dataclass(frozen=True)
class Repeats:
    """Fit questions that have two full traces."""

    questions: int
    differing: int
    """Of them, how many were answered otherwise the second time; no answer equals none."""
    ci95: tuple[float, float]
    """Exact (Clopper-Pearson) interval of their share."""

    @property
    def share(self) -> float:
        """Of the questions that thought twice, those that were answered otherwise."""
        return self.differing / self.questions


def repeats_of(fit: FitQuestions) -> Repeats | None:
    """Compare the first two traces of each fit question; None where none has two."""
    second = {key: row for row, key in enumerate(fit.keys) if fit.samples[row] == 1}
    pairs = [
        (row, second[key])
        for row, key in enumerate(fit.keys)
        if fit.samples[row] == 0 and key in second
    ]
    # Copies of a question share its content, and are the same question.
    pairs = list({fit.keys[row]: (row, other) for row, other in pairs}.values())
    if not pairs:
        return None
    rows = np.array(pairs)  # (n_pairs, 2)
    answers = np.where(fit.truncated, -1, fit.full_codes)[rows]
    differing = int(((answers[:, 0] != answers[:, 1]) | (answers[:, 0] < 0)).sum())
    return Repeats(len(pairs), differing, exact_interval(differing, len(pairs)))
