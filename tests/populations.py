"""Synthetic populations: generators of fresh questions with their probes.

A population is a law, not a pool: `draw` gives new questions each time, so that a true risk can be
measured on as many as one likes.  Each question is of one of the paper's five trajectory types or
of two more that exist to break certificates:

- a *trap* is right with full thinking, wrong at every checkpoint, and as confident as can be;
- a *relapse* is right at the first checkpoint with middling confidence, then wrong with the
  highest, and right in the end: a careful threshold loses it, an aggressive one does not, so the
  risk is not monotone in the threshold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stopadvisor.probes import ProbeTable

__all__ = ["FREE_FORM", "POPULATIONS", "Population", "make_table", "renamed"]

KINDS = ("early", "beneficial", "harmful", "unsolved", "oscillating", "trap", "relapse")


@dataclass(frozen=True)
class Population:
    """A law of questions, and the sample sizes at which it is tried."""

    name: str
    shares: tuple[float, float, float, float, float]
    """early, beneficial, harmful, unsolved, oscillating."""
    n_fit: int
    n_calibration: int
    signal: float = 1.6
    """How far confidence tells right from wrong, in units of its noise."""
    trap_over_alpha: float = 0.0
    """Traps and relapses together are this many alphas of all questions."""
    relapse_share: float = 0.0
    """Of them, how many are relapses."""
    families: tuple[str, ...] | None = None
    """Families that `choose` may use; None for the default."""
    budgets: tuple[int, ...] = (0, 128, 192, 256, 384, 512, 640, 768, 1024, 1536)
    median_trace: float = 900.0
    prompt: int = 120
    papers_costs: bool = False
    """Every answer counts the paper's cap of 48 tokens, prompts count nothing: its accounting."""

    def draw(self, n: int, rng: np.random.Generator, *, alpha: float = 0.1) -> ProbeTable:
        """`n` fresh, independent questions; `alpha` places the traps of an adversarial law."""
        budgets = np.array(self.budgets)
        m = budgets.size
        bad = self.trap_over_alpha * alpha
        mass = np.array(self.shares) / sum(self.shares) * (1 - bad)
        law = np.concatenate([mass, [bad * (1 - self.relapse_share), bad * self.relapse_share]])
        kind = rng.choice(len(KINDS), size=n, p=law)
        early, harmful, unsolved, oscillating = kind == 0, kind == 2, kind == 3, kind == 4
        trap, relapse = kind == 5, kind == 6

        trace = self.median_trace * np.exp(0.5 * rng.standard_normal(n))
        trace *= np.where(early, 0.7, np.where(unsolved, 1.3, 1.0))
        # Traps think past the last budget: nothing ends them before they are stopped.
        trace = np.where(trap | relapse, 2.0 * budgets[-1], np.clip(trace, 24, 8192)).astype(
            np.int64
        )

        turn = trace * rng.uniform(0.05, 0.9, n)
        after = budgets >= turn[:, None]  # (n, m)
        correct = after.copy()  # beneficial
        correct[early] = True
        correct[harmful] = ~after[harmful]
        correct[unsolved] = False
        wander = rng.random((n, m)) < np.linspace(0.25, 0.75, m)
        wander[:, 0] = False
        correct[oscillating] = wander[oscillating]
        correct[trap] = False
        correct[relapse] = np.arange(m) == 0
        full_correct = ~(harmful | unsolved)

        level = rng.standard_normal((n, 1)) * 0.6
        noise = rng.standard_normal((2, n, m))
        base = self.signal * (correct - 0.5) + level + 0.8 * np.arange(m) / m
        sure = base + 0.9 * noise[0]
        other = base + 0.9 * (0.6 * noise[0] + 0.8 * noise[1])
        top = 6 + rng.random((2, n, m))
        certain = trap[:, None] | (relapse[:, None] & (np.arange(m) > 0))
        sure, other = np.where(certain, top[0], sure), np.where(certain, top[1], other)
        logprob = -np.logaddexp(0, -sure)
        entropy = 1.2 * np.logaddexp(0, -other)

        changes = np.cumsum(rng.random((n, m)) < 0.35, axis=1)
        codes = np.where(correct, 0, 1 + changes % 4)
        codes[trap] = 1
        codes[relapse] = np.where(np.arange(m) == 0, 0, 1)
        paper = self.papers_costs
        markers = np.cumsum(rng.poisson(0.3 + 0.6 * ~correct), axis=1).astype(float)
        return make_table(
            budgets,
            correct=correct,
            codes=codes,
            logprob=logprob,
            entropy=entropy,
            markers=markers,
            probe_tokens=np.where(paper, 48.0, 5.0 + rng.poisson(4, (n, m))),
            trace=trace.astype(np.int64),
            prompt=np.where(paper, 0, self.prompt + rng.integers(0, 40, n)),
            natural_correct=full_correct,
            natural_tokens=np.where(paper, 48.0, 8.0 + rng.poisson(6, n)),
            suffix_tokens=0 if paper else 6,
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
    prefix: str = "",
) -> ProbeTable:
    """A table of arrays; ids are row numbers behind `prefix`."""
    n = len(correct)
    names = tuple(f"{prefix}{i}" for i in range(n))
    return ProbeTable(
        ids=names,
        keys=names,
        groups=names,
        samples=np.zeros(n, dtype=np.int64),
        tasks=("exact",) * n,
        categories=(None,) * n,
        budgets=np.asarray(budgets, dtype=np.int64),
        correct=correct,
        answer_codes=codes.astype(np.int64),
        mean_logprob=logprob,
        mean_entropy=entropy,
        markers=markers,
        probe_tokens=probe_tokens,
        trace_tokens=trace.astype(np.int64),
        prompt_tokens=prompt.astype(np.int64),
        natural_correct=natural_correct,
        natural_tokens=natural_tokens,
        truncated=np.zeros(n, dtype=np.bool_),
        suffix_tokens=suffix_tokens,
        entropy_source="full",
        reference="natural" if natural_correct is not None else "last-checkpoint",
    )


def renamed(table: ProbeTable, prefix: str) -> ProbeTable:
    """The same questions under other names, so that two draws share no identity."""
    names = tuple(f"{prefix}{i}" for i in range(table.n_questions))
    return replace(table, ids=names, keys=names, groups=names)


FREE_FORM = Population("oscillating", (0.30, 0.36, 0.14, 0.02, 0.18), 400, 400)
"""Profile and AUROC of the confidence (.85) as measured on the tiny model's free-form questions."""

POPULATIONS = (
    Population("mixed", (0.45, 0.25, 0.08, 0.17, 0.05), 160, 160),
    Population("early-solved", (0.72, 0.14, 0.03, 0.08, 0.03), 320, 320, signal=2.2),
    Population("unsolved-heavy", (0.12, 0.16, 0.06, 0.58, 0.08), 200, 200),
    FREE_FORM,
    Population("tiny", (0.50, 0.28, 0.05, 0.12, 0.05), 36, 36),
    Population("small", (0.50, 0.28, 0.05, 0.12, 0.05), 79, 79),
    Population(
        "adversarial",
        (0.60, 0.05, 0.05, 0.30, 0.0),
        200,
        200,
        signal=3.0,
        trap_over_alpha=1.05,
        relapse_share=0.25,
    ),
    Population(
        "adversarial, one chain",
        (0.60, 0.05, 0.05, 0.30, 0.0),
        200,
        200,
        signal=3.0,
        trap_over_alpha=1.05,
        relapse_share=0.25,
        families=("confidence",),
    ),
)
