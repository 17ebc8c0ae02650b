"""Sort the questions on which two stopping rules differ, or one fails, into named cases.

By stops, correctness and costs alone.  Knows no scores, no texts and no files.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray

__all__ = ["CASES", "Case", "RulePair", "find_cases"]

CASES = ("lost-correct", "scalar lost-correct", "overhead failure", "learned wins", "scalar wins")
"""Names of the cases, in the order in which they are listed."""


@dataclass(frozen=True)
class RulePair:
    """A learned and a scalar rule on the same questions."""

    learned_stop: IntArray  # (n_questions,)
    """Checkpoint that answers: where it stops, the last one if it never does."""
    scalar_stop: IntArray  # (n_questions,)
    learned_correct: BoolArray  # (n_questions,)
    scalar_correct: BoolArray  # (n_questions,)
    full_correct: BoolArray  # (n_questions,)
    learned_cost: FloatArray  # (n_questions,)
    """Tokens of the whole request, probes included; so are the other two."""
    scalar_cost: FloatArray  # (n_questions,)
    full_cost: FloatArray  # (n_questions,)


@dataclass(frozen=True)
class Case:
    """Questions of one kind, the clearest first."""

    name: str
    rows: IntArray  # (n_questions_of_the_case,)


def find_cases(rules: RulePair) -> tuple[Case, ...]:
    """Sort questions into cases; a question may belong to several.

    Returns
    -------
    tuple of Case
        ``lost-correct``: full thinking is right and the learned rule wrong.  ``scalar
        lost-correct``: full thinking and the learned rule are right and the scalar rule is wrong.
        ``overhead failure``: the learned rule is right and costs more than full thinking.
        ``learned wins`` and ``scalar wins``: all three are right, and that rule stops earlier than
        the other and is cheaper.  Within a case, the largest difference in cost comes first.

    References
    ----------
    Paper, Appendix "Interpolation and Failure-Case Checks", Table "Failure cases", which lists
    such questions and names the cases without defining them.
    """
    full, learned, scalar = rules.full_correct, rules.learned_correct, rules.scalar_correct
    both = full & learned & scalar
    saved = rules.full_cost - rules.learned_cost
    ahead = rules.scalar_cost - rules.learned_cost
    kinds: tuple[tuple[BoolArray, NDArray[np.float64]], ...] = (
        (full & ~learned, saved),
        (full & learned & ~scalar, rules.full_cost - rules.scalar_cost),
        (learned & (saved < 0), -saved),
        (both & (rules.learned_stop < rules.scalar_stop) & (ahead > 0), ahead),
        (both & (rules.scalar_stop < rules.learned_stop) & (ahead < 0), -ahead),
    )
    cases = []
    for name, (mask, size) in zip(CASES, kinds, strict=True):
        rows = np.flatnonzero(mask)
        cases.append(Case(name, rows[np.argsort(-size[rows], kind="stable")].astype(np.int64)))
    return tuple(cases)
