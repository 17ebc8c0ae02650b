"""The candidate: many sequences on fit questions, one of them chosen, then the exact test.

Sequences are a fixed budget, the tokens for which an answer has stood, the confidence at "Wait"
where it was recorded, and learned scores; each on several schedules, with a cap that ends the
thinking of everybody.  All were worked out on the half ``develop`` alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stopadvisor.arrays import FloatArray, IntArray
from tests.benchmarks.candidate.choice import Choice, choose
from tests.benchmarks.candidate.features import FULL, SHORT, features, log_odds, standing
from tests.benchmarks.candidate.logistic import fit_scores
from tests.benchmarks.candidate.observations import Picked, on_grid, when_waiting
from tests.benchmarks.candidate.schedules import cap_column, first_position, gapped, stride
from tests.benchmarks.candidate.sequences import (
    LEARNED,
    SCALAR,
    ThresholdSequence,
    build,
    fixed_budget,
)
from tests.benchmarks.real_rivals import Outcome, Sequence, most_losses
from tests.benchmarks.real_traces import Traces, Waits

__all__ = ["Candidate", "Chosen"]

_STRIDES = (128, 256, 512)
"""Tokens between two probes; with 64 among them, the choice saved no more."""
_GAPS = (64, 128, 256)
"""Tokens between two probes at "Wait", at least."""
_POWERS = (0.0, 0.5)
"""Of the position, under the tokens for which an answer has stood."""
_RIDGES = {"short": 1.0, "full": 30.0}


@dataclass(frozen=True)
class Candidate:
    """The rule that StopAdvisor is to take in."""

    traces: Traces
    waits: Waits | None
    """Where there are any, learned scores probe there, and see the confidence."""
    alpha: float
    delta: float
    prefill: float

    def fit(self, rows: IntArray, n_calibration: int) -> Chosen:
        """Choose, seeing the outcomes of these questions and of no others."""
        full = self.traces.full_cost(self.prefill)
        sequences = list(self._sequences(rows))
        choice = choose(sequences, full[rows], n_calibration, self.alpha, self.delta)
        return Chosen(choice, full, self.alpha, self.delta)

    def _sequences(self, fit: IntArray) -> Iterator[ThresholdSequence]:
        grid = on_grid(self.traces)
        cap = cap_column(grid, fit)
        at_cap = None if cap is None else grid
        column = -1 if cap is None else cap
        yield fixed_budget(grid, self.prefill, fit)
        views: dict[str, Picked] = {}
        late = first_position(self.traces.think_tokens[fit], int(self.traces.positions[0]))
        for every in _STRIDES:
            for first in sorted({0, late}):
                keep = stride(grid, every, first, cap)
                picked = grid.pick(keep, self.prefill, at_cap, column)
                name = f"every {every}" + (f" from {first}" if first else "")
                views[name] = picked
                for power in _POWERS:
                    if power == 0 and first:
                        continue  # k equal answers as everybody knows them begin at once
                    yield build(
                        f"agreement^{power:g} {name}",
                        SCALAR,
                        picked,
                        fit,
                        standing(picked.seen, power),
                        floor=0.0,
                    )
        if self.waits is not None:
            made, views = when_waiting(self.traces, self.waits), {}
            before = np.inf if cap is None else float(self.traces.positions[cap])
            for gap in _GAPS:
                picked = made.pick(gapped(made, gap, before), self.prefill, at_cap, column)
                views[f"gap {gap}"] = picked
                if picked.seen.logprob is not None:
                    odds = log_odds(picked.seen.logprob)
                    yield build(f"confidence gap {gap}", SCALAR, picked, fit, odds)
        for name, picked in views.items():
            yield from _learned(name, picked, fit)


def _learned(name: str, picked: Picked, fit: IntArray) -> Iterator[ThresholdSequence]:
    """Scores for either target; those for "nothing lost" are what the certificate is about."""
    seen = picked.seen
    targets = {"learned-keeps": picked.then.keeps, "learned": picked.then.correct}
    sizes = {"short": SHORT, "full": FULL}
    columns = {size: features(seen, names) for size, names in sizes.items()}
    for target, labels in targets.items():
        for size, x in columns.items():
            scores = fit_scores(x, labels, seen.scored, fit, _RIDGES[size])
            if scores is not None:
                full_name = f"{target} {size} {name}"
                yield build(full_name, LEARNED, picked, fit, scores.final, scores.left_out)


@dataclass(frozen=True)
class Chosen:
    """The chosen sequence, to be certified at the whole of delta by fixed-sequence testing."""

    choice: Choice
    full_cost: FloatArray  # (n_questions,)
    """In tokens."""
    alpha: float
    delta: float

    def certify(self, rows: IntArray) -> Outcome:
        """Test it on calibration questions (a row may come twice); full thinking if it fails."""
        chosen = self.choice.sequence
        sequence = Sequence(chosen.lost, chosen.cost, self.full_cost)
        limit = most_losses(rows.size, self.alpha, self.delta)
        return sequence.at(sequence.last_passed(rows, limit))
