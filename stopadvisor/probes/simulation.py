"""A documented simulator of probes: to plan a study, to try the tool, and to test certificates.

A population gives fresh, independent questions on each draw, so that a true risk can be measured on
as many as one likes.  Every question is of one of the paper's five trajectory types,
or of two more that are hard on certificates:

- a *trap* is right with full thinking, wrong at every checkpoint, and as confident as can be; the
  profile counts it as beneficial;
- a *relapse* is right at the first checkpoint with middling confidence, then wrong with the
  highest, and right in the end; the profile counts it as early solved.  A careful threshold loses
  it, an aggressive one does not, so the risk is not monotone in the threshold.

Lengths of traces are log-normal, shorter for what is solved early, longer for what is never
solved.  The confidence is a logistic of: right or wrong times `Population.signal`, plus a level
of the question's own, plus a drift along the thinking, plus noise; the entropy follows another,
correlated draw of that noise.  Nothing here was measured on a model.  This module knows no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stopadvisor.ground.constants import PAPER_BUDGETS, PROBE_CAP
from stopadvisor.ground.errors import WorkloadError
from stopadvisor.probes.outcomes import OpenQuestions, make_table
from stopadvisor.probes.table import Reference
from stopadvisor.probes.trajectories import TYPES

__all__ = ["KINDS", "PRESETS", "Population", "parse_profile"]

KINDS = (*TYPES, "trap", "relapse")
"""What a question can be; a population gives each its share."""

_FEWEST_TO_OSCILLATE = 4
"""Wrong, right, wrong, right: checkpoints that an oscillation takes."""


@dataclass(frozen=True)
class Population:
    """A distribution of questions, and of what probing them shows."""

    shares: Mapping[str, float] = field(default_factory=dict)
    """Share of each of `KINDS`, adding up to 1; what is not named has none."""
    signal: float = 1.6
    """How far confidence tells right from wrong, in log-odds."""
    budgets: tuple[int, ...] = PAPER_BUDGETS
    """Thinking tokens at each checkpoint."""
    median_trace: float = 900.0
    """Thinking tokens of a middling question."""
    prompt: int = 120
    """Fewest prompt tokens."""
    papers_costs: bool = False
    """Every answer counts the paper's cap of 48 tokens, prompts count nothing: its accounting."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.shares) - set(KINDS))
        if unknown:
            raise WorkloadError(
                f"profile: expected shares of {', '.join(KINDS)}, got {unknown[0]!r}"
            )
        values = self.shares.values()
        if any(not 0 <= share <= 1 for share in values) or not abs(sum(values) - 1) < 1e-6:
            shown = ", ".join(f"{name}={share:g}" for name, share in self.shares.items())
            raise WorkloadError(
                f"profile: expected shares from 0 to 1 that add up to 1, got {shown or 'none'} "
                f"(sum {sum(values):g})"
            )
        if self.shares.get("oscillating", 0) > 0 and len(self.budgets) < _FEWEST_TO_OSCILLATE:
            raise WorkloadError(
                f"profile: oscillating questions take at least {_FEWEST_TO_OSCILLATE} "
                f"checkpoints, got {len(self.budgets)}"
            )

    def draw(
        self, n: int, rng: np.random.Generator, *, reference: Reference = "natural"
    ) -> OpenQuestions:
        """Draw fresh, independent questions with their probes.

        Under the `reference` ``last-checkpoint``, that of published archives, the last checkpoint
        is right where full thinking is.  Answers are numbered per question: 0 is right.  The
        five-way profile under `reference` gives every question the kind that was drawn, traps and
        relapses as above.
        """
        budgets = np.array(self.budgets, dtype=np.int64)
        m = budgets.size
        shares = np.array([self.shares.get(kind, 0.0) for kind in KINDS])
        kind = rng.choice(len(KINDS), size=n, p=shares)
        early, harmful, unsolved, oscillating, trap, relapse = (
            kind == KINDS.index(name)
            for name in ("early_solved", "harmful", "unsolved", "oscillating", "trap", "relapse")
        )

        trace = self.median_trace * np.exp(0.5 * rng.standard_normal(n))
        trace *= np.where(early, 0.7, np.where(unsolved, 1.3, 1.0))
        # Traps think past the last budget: nothing ends them before they are stopped.
        trace = np.where(trap | relapse, 2.0 * budgets[-1], np.clip(trace, 24, 8192))
        if oscillating.any():  # to be seen wavering takes thinking past the third checkpoint
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
        if oscillating.any():  # never with fewer than three checkpoints
            correct[oscillating] = _wavering(wander[oscillating], ended[oscillating])
        correct[trap] = False
        correct[relapse] = np.arange(m) == 0
        full_correct = ~(harmful | unsolved)
        # After the end of a trace a probe gives what full thinking gave.
        final = ended | (np.arange(m) == m - 1) if reference == "last-checkpoint" else ended
        correct = np.where(final, full_correct[:, None], correct)

        level = rng.standard_normal((n, 1)) * 0.6
        noise = rng.standard_normal((2, n, m))
        base = self.signal * (correct - 0.5) + level + 0.8 * np.arange(m) / m
        sure = base + 0.9 * noise[0]
        other = base + 0.9 * (0.6 * noise[0] + 0.8 * noise[1])
        top = 6 + rng.random((2, n, m))
        certain = trap[:, None] | (relapse[:, None] & (np.arange(m) > 0))
        sure, other = np.where(certain, top[0], sure), np.where(certain, top[1], other)

        changes = np.cumsum(rng.random((n, m)) < 0.35, axis=1)
        codes = np.where(correct, 0, 1 + changes % 4)
        codes[trap | relapse] = ~correct[trap | relapse]  # one wrong answer, held on to
        codes = np.where(ended & ~correct, codes.max(1)[:, None], codes)
        written = rng.poisson(0.3 + 0.6 * ~correct)
        written[:, budgets == 0] = 0  # nothing is thought yet
        probe_tokens = (5 + rng.poisson(4, (n, m))).astype(np.float64)
        prompt = self.prompt + rng.integers(0, 40, n)
        natural_tokens = (8 + rng.poisson(6, n)).astype(np.float64)
        if self.papers_costs:
            probe_tokens[:], natural_tokens[:], prompt[:] = PROBE_CAP, PROBE_CAP, 0
        natural = reference == "natural"
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
            natural_correct=full_correct if natural else None,
            natural_tokens=natural_tokens if natural else None,
            suffix_tokens=0 if self.papers_costs else 6,
            # Wrong full thinking gives the answer after the end of a trace.
            natural_code=np.where(full_correct, 0, np.maximum(codes.max(1), 1))
            if natural
            else None,
        )


def _wavering(wander: NDArray[np.bool_], ended: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Right or wrong of oscillating questions: wrong first, then right and wrong again at least.

    The last checkpoint takes no part: in an archive it is the full reference.
    """
    found = wander.copy()
    found[:, 0] = False
    relapses = found[:, 1:-2] & ~found[:, 2:-1] & ~ended[:, 2:-1]  # (n, m - 3)
    steady = ~relapses.any(1)
    found[steady, 1], found[steady, 2] = True, False
    return found


# --- Populations with names -----------------------------------------------------------------------


def _of_types(*shares: float) -> dict[str, float]:
    return dict(zip(TYPES, shares, strict=True))


PRESETS = {
    "free-form": Population(_of_types(0.30, 0.36, 0.14, 0.02, 0.18)),
    "early-solved": Population(_of_types(0.72, 0.14, 0.03, 0.08, 0.03), signal=2.2),
    "unsolved": Population(_of_types(0.12, 0.16, 0.06, 0.58, 0.08)),
}
"""One population for each of the three regimes that the paper finds."""


def parse_profile(text: str) -> Population:
    """Read a population's name, or shares such as ``early_solved=0.5,unsolved=0.5``.

    ``early`` is short for ``early_solved``.

    Raises
    ------
    WorkloadError
        No such name or kind, or shares that do not add up to 1.
    """
    if "=" not in text:
        if text not in PRESETS:
            raise WorkloadError(
                f"profile: expected one of {', '.join(PRESETS)}, or shares such as "
                f"early_solved=0.5,unsolved=0.5, got {text!r}"
            )
        return PRESETS[text]
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        name = {"early": "early_solved"}.get(name, name)
        try:
            share = float(value)
        except ValueError:
            raise WorkloadError(f"profile: expected KIND=SHARE, got {part!r}") from None
        if name in shares:
            raise WorkloadError(f"profile: expected each kind once, got {name!r} twice")
        shares[name] = share
    return Population(shares)
