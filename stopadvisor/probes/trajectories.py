"""The five trajectory types of the paper, their shares, and the regime these predict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stopadvisor.ground.arrays import BoolArray
from stopadvisor.ground.constants import (
    EARLY_SOLVED_LEARNED_MAX,
    EARLY_SOLVED_SCALAR,
    OSCILLATING_MATERIAL,
    REGIME_DRAWS,
    UNSOLVED_FULL_BUDGET,
)
from stopadvisor.ground.errors import ProbeError
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.stats.intervals import exact_interval

__all__ = ["TYPES", "Profile", "Regime", "Share", "classify", "profile", "regime", "trajectory"]

TYPES = ("early_solved", "beneficial", "harmful", "unsolved", "oscillating")
Regime = Literal["learned", "scalar", "full-budget", "mixed"]


def trajectory(table: GradedTable) -> BoolArray:
    """Correctness along each question's thinking, ending with full thinking.

    Under the paper's ``last-checkpoint`` reference, the forced answers: (n_questions,
    n_checkpoints).  Under ``natural``, what the user would get at each checkpoint, and one more
    column for the natural answer.
    """
    if table.reference == "last-checkpoint":
        return table.correct
    return np.concatenate([table.correct_online, table.full_correct[:, None]], axis=1)


def classify(correct: BoolArray) -> NDArray[np.int8]:
    """Classify trajectories into the five types.

    `correct` has shape (n_questions, n_checkpoints), its last column full thinking.  Returns an
    index into `TYPES` for each question, (n_questions,).

    References
    ----------
    Paper, Section "Trajectory Structure Predicts the Regime".  "At most one flip" and "multiple
    flips" of a trajectory that starts wrong and ends right mean one, and three or more: the
    number is odd.
    """
    if correct.ndim != 2 or correct.shape[1] < 2:
        raise ProbeError(f"trajectories must have shape (N, m >= 2), got {correct.shape}")
    first, last = correct[:, 0], correct[:, -1]
    flips = (correct[:, 1:] != correct[:, :-1]).sum(axis=1)
    ever = correct.any(axis=1)
    conditions = [first & last, ~first & last & (flips <= 1), ~last & ever, ~ever]
    return np.select(conditions, [0, 1, 2, 3], default=4).astype(np.int8)


@dataclass(frozen=True)
class Share:
    """Questions of one type."""

    count: int
    """Number of questions of this type."""
    share: float
    """Their share of all questions."""
    ci95: tuple[float, float]
    """Exact (Clopper-Pearson) interval of the share, pointwise."""


@dataclass(frozen=True)
class Profile:
    """The five shares, and the regime they predict."""

    shares: Mapping[str, Share]
    predicted: Regime
    stability: float
    """Share of draws from the Dirichlet posterior (counts + 1/2) with the same regime."""
    n_questions: int


def regime(early_solved: float, unsolved: float, oscillating: float) -> Regime:
    """Regime predicted by a profile (shares in 0–1).

    The cut-offs map the paper's eight profiles to its verdicts, with a margin.
    """
    if unsolved >= UNSOLVED_FULL_BUDGET:
        return "full-budget"
    if early_solved >= EARLY_SOLVED_SCALAR and oscillating < OSCILLATING_MATERIAL:
        return "scalar"
    if oscillating >= OSCILLATING_MATERIAL and early_solved < EARLY_SOLVED_LEARNED_MAX:
        return "learned"
    return "mixed"


def profile(correct: BoolArray, *, rng: np.random.Generator) -> Profile:
    """Count the five types and predict the regime.

    `correct` has shape (n_questions, n_checkpoints); `rng` is used only for the stability.
    """
    counts = np.bincount(classify(correct), minlength=len(TYPES))
    n = int(counts.sum())
    if n == 0:
        raise ProbeError("a profile needs at least one question, got none")
    shares = {}
    for name, count in zip(TYPES, counts.tolist(), strict=True):
        shares[name] = Share(count, count / n, exact_interval(count, n))

    def of(values: NDArray[np.float64]) -> Regime:
        named = dict(zip(TYPES, values.tolist(), strict=True))
        return regime(named["early_solved"], named["unsolved"], named["oscillating"])

    predicted = of(counts / n)
    draws = rng.dirichlet(counts + 0.5, size=REGIME_DRAWS)  # (REGIME_DRAWS, 5)
    stability = float(np.mean([of(draw) == predicted for draw in draws]))
    return Profile(shares, predicted, stability, n)
