"""Synthetic populations: the simulator's laws, with the sample sizes at which they are tried.

What breaks certificates on purpose, traps and relapses, scales with the alpha that is certified.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stopadvisor.assessment.choice import Settings
from stopadvisor.assessment.sequences import FitData
from stopadvisor.probes.outcomes import OpenQuestions, make_table
from stopadvisor.probes.simulation import PRESETS, Population
from stopadvisor.probes.table import NO_PROBE, agreeing
from stopadvisor.probes.trajectories import TYPES

__all__ = [
    "FREE_FORM",
    "MARKED",
    "POPULATIONS",
    "KnownPopulation",
    "fit_data",
    "make_table",
    "regraded",
    "renamed",
    "with_own_positions",
    "without_gold",
]

Shares = tuple[float, ...]


MARKED = tuple(range(100, 1900, 100))
"""Where a population that is probed at markers is probed, about."""


@dataclass(frozen=True)
class KnownPopulation:
    """A law of questions, and the sample sizes at which it is tried."""

    name: str
    shares: Shares
    """early, beneficial, harmful, unsolved, oscillating."""
    n_fit: int
    n_calibration: int
    signal: float = Population.signal
    """How far confidence tells right from wrong, in units of its noise."""
    trap_over_alpha: float = 0.0
    """Traps and relapses together are this many alphas of all questions."""
    relapse_share: float = 0.0
    """Of them, how many are relapses."""
    families: tuple[str, ...] | None = None
    """Families that `choose` may use; None for the default."""
    budgets: tuple[int, ...] = Population.budgets
    median_trace: float = Population.median_trace
    prompt: int = Population.prompt
    papers_costs: bool = False
    """Every answer counts the paper's cap of 48 tokens, prompts count nothing: its accounting."""
    at_markers: bool = False
    """Probed as ``--schedule auto`` does: on a stride, and at markers of the question's own."""

    def law(self, alpha: float) -> Population:
        """The law at an alpha, which places the traps of an adversarial one."""
        bad = self.trap_over_alpha * alpha
        total = sum(self.shares)
        shares = {
            name: share / total * (1 - bad) for name, share in zip(TYPES, self.shares, strict=True)
        }
        shares |= {"trap": bad * (1 - self.relapse_share), "relapse": bad * self.relapse_share}
        return Population(
            shares, self.signal, self.budgets, self.median_trace, self.prompt, self.papers_costs
        )

    def draw(self, n: int, rng: np.random.Generator, *, alpha: float = 0.1) -> OpenQuestions:
        """`n` fresh, independent questions."""
        table = self.law(alpha).draw(n, rng)
        return _at_markers(table, rng) if self.at_markers else table


def _at_markers(table: OpenQuestions, rng: np.random.Generator) -> OpenQuestions:
    """All probes but every sixth at markers of the question's own, and none past its end."""
    grid = np.array(table.budgets)
    moved = np.flatnonzero(np.arange(1, grid.size + 1) % 6)
    room = (grid[1] - grid[0]) // 2
    positions = np.tile(grid, (table.n_questions, 1))
    positions[:, moved] += rng.integers(1 - room, room, (table.n_questions, moved.size))
    positions[positions >= table.trace_tokens[:, None]] = NO_PROBE
    return replace(table, positions=positions, marker_positions=positions[:, moved])


def renamed(table: OpenQuestions, prefix: str) -> OpenQuestions:
    """The same questions under other names, so that two draws share no identity."""
    names = tuple(f"{prefix}{i}" for i in range(table.n_questions))
    return replace(table, ids=names, keys=names, groups=names)


def without_gold(table: OpenQuestions) -> OpenQuestions:
    """The same questions before anybody labelled them: graded by agreement with full thinking."""
    n = table.n_questions
    right = agreeing(table.answer_codes, np.where(table.truncated, -1, table.full_codes))
    graded = regraded(table, correct=right, natural_correct=np.ones(n, dtype=np.bool_))
    return replace(graded, by_gold=np.zeros(n, dtype=np.bool_))


def _shares(preset: str) -> Shares:
    return tuple(PRESETS[preset].shares.values())


FREE_FORM = KnownPopulation("oscillating", _shares("free-form"), 400, 400)
"""Profile and AUROC of the confidence (.85) as measured on the tiny model's free-form questions."""

ADVERSARIAL = KnownPopulation(
    "adversarial",
    (0.60, 0.05, 0.05, 0.30, 0.0),
    200,
    200,
    signal=3.0,
    trap_over_alpha=1.05,
    relapse_share=0.25,
)

POPULATIONS = (
    KnownPopulation("mixed", (0.45, 0.25, 0.08, 0.17, 0.05), 160, 160),
    KnownPopulation(
        "early-solved", _shares("early-solved"), 320, 320, signal=PRESETS["early-solved"].signal
    ),
    KnownPopulation("unsolved-heavy", _shares("unsolved"), 200, 200),
    FREE_FORM,
    KnownPopulation("tiny", (0.50, 0.28, 0.05, 0.12, 0.05), 36, 36),
    KnownPopulation("small", (0.50, 0.28, 0.05, 0.12, 0.05), 79, 79),
    ADVERSARIAL,
    replace(ADVERSARIAL, name="adversarial, one chain", families=("confidence",)),
    replace(ADVERSARIAL, name="adversarial, at markers", budgets=MARKED, at_markers=True),
)


def regraded(table: OpenQuestions, **changes: Any) -> OpenQuestions:
    """The same questions with other outcomes; fields as in `Outcomes`."""
    return OpenQuestions.of(table, replace(table.outcomes, **changes))


def fit_data(
    table: OpenQuestions, settings: Settings | None = None, *, most_blocks: int = 1000
) -> FitData:
    """The questions as fit questions, priced as the settings say."""
    how = settings or Settings(alpha=0.15)
    return FitData.build(table.as_fit(), how.costing, most_blocks=most_blocks)


def with_own_positions(table: OpenQuestions, rng: np.random.Generator) -> OpenQuestions:
    """The same probes, moved: each question has as many as chance gives it, where chance wants."""
    n, m = table.positions.shape
    first = np.where(rng.random(n) < 0.3, 0, rng.integers(1, 30, n))
    positions = first[:, None] + np.cumsum(rng.integers(1, 40, (n, m)), axis=1)
    positions[:, 0] = first
    positions[np.arange(m) >= rng.integers(0, m + 1, n)[:, None]] = NO_PROBE
    return replace(table, positions=positions)
