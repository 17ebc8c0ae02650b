"""Synthetic populations: laws of questions and of what probing them shows, and sample sizes.

Each draw gives fresh, independent questions, so that a true risk can be measured on any number of
them.  A question has one of the paper's five trajectory types, or one of two more that break
certificates on purpose and scale with the certified alpha:

- a *trap* is right with full thinking, wrong at every checkpoint, and as confident as can be;
- a *relapse* is right at the first checkpoint with medium confidence, then wrong with the highest,
  and right in the end.  A careful threshold loses it, an aggressive one does not, so the risk is
  not monotone in the threshold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopadvisor.assessment.choice import Settings
from stopadvisor.assessment.sequences import (
    FULL_FEATURES,
    FitData,
    ThresholdSequence,
    learned_sequence,
    scalar_sequence,
)
from stopadvisor.ground.constants import PAPER_BUDGETS, PROBE_CAP
from stopadvisor.probes.outcomes import OpenQuestions, Outcomes
from stopadvisor.probes.table import NO_PROBE, ProbeTable, agreeing, on_grid
from stopadvisor.probes.trajectories import TYPES
from stopadvisor.rules.families import LEARNED_FAMILIES
from stopadvisor.rules.scorer import Schedule

__all__ = [
    "FREE_FORM", "MARKED", "POPULATIONS", "UNSOLVED", "KnownPopulation", "draw_kinds",
    "fit_data", "make_table", "regraded", "renamed", "sequence", "sequence_if_any",
    "with_own_positions", "without_gold",
]  # fmt: skip

Shares = tuple[float, ...]

KINDS = (*TYPES, "trap", "relapse")
"""Types of questions."""

MARKED = tuple(range(100, 1900, 100))
"""Approximate positions of probes at markers."""


@dataclass(frozen=True)
class KnownPopulation:
    """A law of questions, and the sample sizes at which it is tried."""

    name: str
    shares: Shares
    """Weights of early, beneficial, harmful, unsolved and oscillating questions."""
    n_fit: int = 100
    n_calibration: int = 100
    signal: float = 1.6
    """How well confidence tells right from wrong, in log-odds."""
    trap_over_alpha: float = 0.0
    """Share of traps and relapses together, as a multiple of alpha."""
    relapse_share: float = 0.0
    """Share of relapses among them."""
    families: tuple[str, ...] | None = None
    """Families that `choose` may use; None for the default."""
    budgets: tuple[int, ...] = PAPER_BUDGETS
    median_trace: float = 900.0
    """Median thinking tokens, before effects of the type."""
    prompt: int = 120
    """Fewest prompt tokens."""
    papers_costs: bool = False
    """The paper's accounting: every answer counts its cap of 48 tokens, prompts count nothing."""
    at_markers: bool = False
    """Whether to probe as ``--schedule auto`` does: on a stride, and at each question's markers."""

    def draw(self, n: int, rng: np.random.Generator, *, alpha: float = 0.1) -> OpenQuestions:
        """`n` fresh, independent questions."""
        bad = self.trap_over_alpha * alpha
        total = sum(self.shares)
        shares = {
            name: share / total * (1 - bad) for name, share in zip(TYPES, self.shares, strict=True)
        }
        shares |= {"trap": bad * (1 - self.relapse_share), "relapse": bad * self.relapse_share}
        table = draw_kinds(self, shares, n, rng)
        return _at_markers(table, rng) if self.at_markers else table


def draw_kinds(
    law: KnownPopulation, shares: Mapping[str, float], n: int, rng: np.random.Generator
) -> OpenQuestions:
    """`n` questions under a law, of `KINDS` in these shares.

    Trace lengths are log-normal, shorter for early-solved and longer for unsolved questions.  The
    confidence is a logistic of: right or wrong times the signal, plus the question's own level,
    plus a drift along the thinking, plus noise; the entropy follows another, correlated draw of the
    noise.  Answers are numbered per question: 0 is right.
    """
    budgets = np.array(law.budgets, dtype=np.int64)
    m = budgets.size
    kind = rng.choice(len(KINDS), size=n, p=[shares.get(kind, 0.0) for kind in KINDS])
    early, harmful, unsolved, oscillating, trap, relapse = (
        kind == KINDS.index(name)
        for name in ("early_solved", "harmful", "unsolved", "oscillating", "trap", "relapse")
    )

    trace = law.median_trace * np.exp(0.5 * rng.standard_normal(n))
    trace *= np.where(early, 0.7, np.where(unsolved, 1.3, 1.0))
    # Traps think past the last budget: they do not end before they are stopped.
    trace = np.where(trap | relapse, 2.0 * budgets[-1], np.clip(trace, 24, 8192))
    if oscillating.any():  # to waver visibly, they must think past the third checkpoint
        trace[oscillating] = np.maximum(trace[oscillating], budgets[2] + 1)
    lengths = trace.astype(np.int64)
    ended = budgets >= lengths[:, None]  # (n, m)

    turn = lengths * rng.uniform(0.05, 0.9, n)
    after = budgets >= turn[:, None]  # (n, m)
    correct = after.copy()  # beneficial
    correct[early] = True
    correct[harmful] = ~after[harmful]
    correct[unsolved] = False
    wander = rng.random((n, m)) < np.linspace(0.25, 0.75, m)
    if oscillating.any():  # there are none with fewer than three checkpoints
        correct[oscillating] = _wavering(wander[oscillating], ended[oscillating])
    correct[trap] = False
    correct[relapse] = np.arange(m) == 0
    full_correct = ~(harmful | unsolved)
    # After the end of a trace, probes give the answer of full thinking.
    correct = np.where(ended, full_correct[:, None], correct)

    level = rng.standard_normal((n, 1)) * 0.6
    noise = rng.standard_normal((2, n, m))
    base = law.signal * (correct - 0.5) + level + 0.8 * np.arange(m) / m
    sure = base + 0.9 * noise[0]
    other = base + 0.9 * (0.6 * noise[0] + 0.8 * noise[1])
    top = 6 + rng.random((2, n, m))
    certain = trap[:, None] | (relapse[:, None] & (np.arange(m) > 0))
    sure, other = np.where(certain, top[0], sure), np.where(certain, top[1], other)

    changes = np.cumsum(rng.random((n, m)) < 0.35, axis=1)
    codes = np.where(correct, 0, 1 + changes % 4)
    codes[trap | relapse] = ~correct[trap | relapse]  # the same wrong answer throughout
    codes = np.where(ended & ~correct, codes.max(1)[:, None], codes)
    written = rng.poisson(0.3 + 0.6 * ~correct)
    written[:, budgets == 0] = 0  # no thinking yet
    probe_tokens = (5 + rng.poisson(4, (n, m))).astype(np.float64)
    prompt = law.prompt + rng.integers(0, 40, n)
    natural_tokens = (8 + rng.poisson(6, n)).astype(np.float64)
    if law.papers_costs:
        probe_tokens[:], natural_tokens[:], prompt[:] = PROBE_CAP, PROBE_CAP, 0
    return make_table(
        budgets,
        correct=correct,
        codes=codes,
        logprob=-np.logaddexp(0, -sure),
        entropy=1.2 * np.logaddexp(0, -other),
        markers=written.cumsum(axis=1).astype(np.float64),
        probe_tokens=probe_tokens,
        trace=lengths,
        prompt=prompt,
        natural_correct=full_correct,
        natural_tokens=natural_tokens,
        suffix_tokens=0 if law.papers_costs else 6,
        # If full thinking is wrong, its answer is the one after the trace's end.
        natural_code=np.where(full_correct, 0, np.maximum(codes.max(1), 1)),
    )


def make_table(
    budgets: NDArray[np.int64],
    *,
    correct: NDArray[np.bool_],
    codes: NDArray[np.int64],
    logprob: NDArray[np.float64],
    entropy: NDArray[np.float64],
    markers: NDArray[np.float64],
    probe_tokens: NDArray[np.float64],
    trace: NDArray[np.int64],
    prompt: NDArray[np.int64],
    natural_correct: NDArray[np.bool_] | None,
    natural_tokens: NDArray[np.float64] | None,
    suffix_tokens: int = 6,
    natural_code: NDArray[np.int64] | None = None,
) -> OpenQuestions:
    """Build a table from arrays named as in `ProbeTable` and `Outcomes`; ids are numbered."""
    n = len(correct)
    names = tuple(map(str, range(n)))
    table = ProbeTable(
        ids=names,
        keys=names,
        groups=names,
        samples=np.zeros(n, dtype=np.int64),
        tasks=("exact",) * n,
        categories=(None,) * n,
        positions=on_grid(budgets, n),
        answer_codes=codes.astype(np.int64),
        mean_logprob=logprob,
        mean_entropy=entropy,
        markers=markers,
        probe_tokens=probe_tokens,
        trace_tokens=trace.astype(np.int64),
        prompt_tokens=prompt.astype(np.int64),
        natural_tokens=natural_tokens,
        truncated=np.zeros(n, dtype=np.bool_),
        suffix_tokens=suffix_tokens,
        entropy_source="full",
        reference="natural" if natural_correct is not None else "last-checkpoint",
    )
    return OpenQuestions.of(table, Outcomes(correct, natural_correct, None, natural_code))


def _wavering(wander: NDArray[np.bool_], ended: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Correctness of oscillating questions: wrong first, then at least right and wrong again.

    The last checkpoint does not count: in an archive it is the full reference.
    """
    found = wander.copy()
    found[:, 0] = False
    relapses = found[:, 1:-2] & ~found[:, 2:-1] & ~ended[:, 2:-1]  # (n, m - 3)
    steady = ~relapses.any(1)
    found[steady, 1], found[steady, 2] = True, False
    return found


def _at_markers(table: OpenQuestions, rng: np.random.Generator) -> OpenQuestions:
    """Move all probes except every sixth to the question's own markers; none past its end."""
    grid = np.array(table.budgets)
    moved = np.flatnonzero(np.arange(1, grid.size + 1) % 6)
    room = (grid[1] - grid[0]) // 2
    positions = np.tile(grid, (table.n_questions, 1))
    positions[:, moved] += rng.integers(1 - room, room, (table.n_questions, moved.size))
    positions[positions >= table.trace_tokens[:, None]] = NO_PROBE
    return replace(table, positions=positions, marker_positions=positions[:, moved])


def renamed(table: OpenQuestions, prefix: str) -> OpenQuestions:
    """The same questions under other names, so that two draws share none."""
    names = tuple(f"{prefix}{i}" for i in range(table.n_questions))
    return replace(table, ids=names, keys=names, groups=names)


def drawn(n: int, seed: int, prefix: str = "c") -> OpenQuestions:
    """Questions of the first population, named by a prefix."""
    return renamed(POPULATIONS[0].draw(n, np.random.default_rng(seed)), prefix)


def without_gold(table: OpenQuestions) -> OpenQuestions:
    """The same questions without labels: graded by agreement with full thinking."""
    n = table.n_questions
    right = agreeing(table.answer_codes, np.where(table.truncated, -1, table.full_codes))
    graded = regraded(table, correct=right, natural_correct=np.ones(n, dtype=np.bool_))
    return replace(graded, by_gold=np.zeros(n, dtype=np.bool_))


FREE_FORM = KnownPopulation("oscillating", (0.30, 0.36, 0.14, 0.02, 0.18), 400, 400)
"""Profile and AUROC of confidence (.85) as measured on the tiny model's free-form questions."""

UNSOLVED = KnownPopulation("unsolved-heavy", (0.12, 0.16, 0.06, 0.58, 0.08), 200, 200)

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
    KnownPopulation("early-solved", (0.72, 0.14, 0.03, 0.08, 0.03), 320, 320, signal=2.2),
    UNSOLVED,
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


def fit_data(table: OpenQuestions, settings: Settings | None = None) -> FitData:
    """The questions as fit questions, at the prices of the settings."""
    return FitData.build(table.as_fit(), settings or Settings(alpha=0.15))


def sequence_if_any(fit: FitData, family: str, schedule: Schedule) -> ThresholdSequence | None:
    """The sequence of any family on a schedule, of learned ones with `FULL_FEATURES`."""
    if family in LEARNED_FAMILIES:
        return learned_sequence(fit, family, schedule, FULL_FEATURES)
    return scalar_sequence(fit, family, schedule)


def sequence(fit: FitData, family: str, schedule: Schedule) -> ThresholdSequence:
    """The sequence of a family on a schedule, even if it would be no candidate."""
    found = sequence_if_any(fit, family, schedule)
    assert found is not None
    return found


def with_own_positions(table: OpenQuestions, rng: np.random.Generator) -> OpenQuestions:
    """The same probes, a random number for each question, at random positions."""
    n, m = table.positions.shape
    first = np.where(rng.random(n) < 0.3, 0, rng.integers(1, 30, n))
    positions = first[:, None] + np.cumsum(rng.integers(1, 40, (n, m)), axis=1)
    positions[:, 0] = first
    positions[np.arange(m) >= rng.integers(0, m + 1, n)[:, None]] = NO_PROBE
    return replace(table, positions=positions)
