"""StopAdvisor as a contestant: its own choice and its own test, through its public functions.

Recorded traces become a table of probes, as `stopadvisor import probes` would make it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopadvisor.assessment.choice import Choice, Settings, choose
from stopadvisor.ground.arrays import FloatArray, IntArray
from stopadvisor.ground.constants import PAPER_CACHED_WEIGHT
from stopadvisor.probes.outcomes import OpenQuestions, Outcomes
from stopadvisor.probes.table import EMPTY_ANSWER, NO_PROBE, ProbeTable, on_grid
from stopadvisor.rules.costs import Costing, Weights, mean_context
from stopadvisor.rules.model_shape import PRESETS, model_shape
from stopadvisor.rules.roofline import Roofline, accelerator
from stopadvisor.studies.rivals import certified
from tests.benchmarks.real_rivals import CUE_TOKENS, Outcome
from tests.benchmarks.real_traces import Traces, Waits

__all__ = ["StopAdvisor"]

CONFIGS = {
    "qwen3-8b": PRESETS["8b"],
    "r1-qwen-7b": PRESETS["8b"]
    | {
        "num_hidden_layers": 28,
        "hidden_size": 3584,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944,
        "vocab_size": 152064,
    },
}
"""Shapes of the recorded models."""


@dataclass(frozen=True)
class StopAdvisor:
    """`choose` on fit questions and `calibrate` on calibration questions."""

    traces: Traces
    waits: Waits | None
    """With them, each "Wait" is probed too, and only there with log-probabilities."""
    alpha: float
    delta: float
    prefill: float
    """Price of a token that is read, a decoded one at 1."""
    inside_vllm: str | None = None
    """A model: costs are then those inside vLLM on an H100, computed for it."""
    families: tuple[str, ...] = Settings().families

    def fit(self, rows: IntArray, n_calibration: int) -> _Chosen:
        settings = Settings(
            alpha=self.alpha,
            delta=self.delta,
            serving=self.costing.serving,
            weights=self.costing.weights,
            allow_truncated=True,
            families=self.families,
        )
        questions = self.table.take(rows).as_fit()
        return _Chosen(choose(questions, n_calibration, settings), self.table)

    @cached_property
    def costing(self) -> Costing:
        """Prices and stack of the costs."""
        if self.inside_vllm is None:
            return Costing(weights=Weights(self.prefill, PAPER_CACHED_WEIGHT, 1.0, "tokens"))
        engine = Roofline(model_shape(CONFIGS[self.inside_vllm]), accelerator("h100"))
        return Costing("vllm", engine.weights(mean_context(self.table)))

    @property
    def full_cost(self) -> FloatArray:
        """Cost of full thinking, shape (n_questions,)."""
        return self.costing.full(self.table)

    @cached_property
    def table(self) -> OpenQuestions:
        """All questions, graded by gold."""
        traces, n = self.traces, len(self.traces.questions)
        probes = _on_grid(traces) if self.waits is None else _with_waits(traces, self.waits)
        table = ProbeTable(
            ids=traces.questions,
            keys=traces.questions,
            groups=traces.questions,
            samples=np.zeros(n, dtype=np.int64),
            tasks=("math",) * n,
            categories=(None,) * n,
            positions=probes.positions,
            answer_codes=np.where(probes.codes == 0, EMPTY_ANSWER, probes.codes),
            mean_logprob=probes.logprob,
            mean_entropy=np.full(probes.codes.shape, np.nan),
            markers=probes.markers.astype(np.float64),
            probe_tokens=probes.tokens.astype(np.float64),
            trace_tokens=traces.think_tokens.copy(),
            prompt_tokens=traces.prompt_tokens.copy(),
            natural_tokens=(traces.total_tokens - traces.think_tokens).astype(np.float64),
            truncated=traces.truncated.copy(),
            suffix_tokens=CUE_TOKENS,
            entropy_source="none" if self.waits is None else "full",
            reference="natural",
            marker_positions=None if self.waits is None else self.waits.positions.copy(),
        )
        # Answers at a "Wait" are numbered otherwise.
        natural = np.where(traces.full_codes == 0, -1, traces.full_codes)
        return OpenQuestions.of(
            table,
            Outcomes(
                probes.codes == 1,
                traces.full_correct.copy(),
                natural_code=natural if self.waits is None else None,
            ),
        )


@dataclass(frozen=True)
class _Chosen:
    choice: Choice
    table: OpenQuestions
    """All questions."""

    def certify(self, rows: IntArray) -> Outcome:
        found = certified(self.choice, self.table, rows)
        return Outcome(found.lost, found.cost)


@dataclass(frozen=True)
class _Probes:
    """Arrays of shape (n_questions, n_probes)."""

    positions: IntArray
    codes: IntArray
    logprob: FloatArray
    tokens: IntArray
    markers: IntArray


def _on_grid(traces: Traces) -> _Probes:
    unknown = np.full(traces.codes.shape, np.nan)
    positions = on_grid(traces.positions, len(traces.questions))
    return _Probes(positions, traces.codes, unknown, traces.probe_tokens, traces.markers)


def _with_waits(traces: Traces, waits: Waits) -> _Probes:
    """Grid and "Wait" together, in the order of positions; "Wait" wins where both fall together."""
    grid = _on_grid(traces)
    step = int(traces.positions[0])
    column = np.clip(waits.positions // step - 1, 0, traces.positions.size - 1)
    counted = np.take_along_axis(traces.markers, column, axis=1)
    at_waits = _Probes(
        waits.positions,
        waits.codes,
        waits.mean_logprob,
        waits.probe_tokens,
        np.where(waits.positions >= step, counted, 0),
    )
    live = np.where(traces.live, grid.positions, NO_PROBE)
    both = np.concatenate([waits.positions, live], axis=1)
    order = np.argsort(np.where(both == NO_PROBE, np.iinfo(np.int64).max, both), 1, kind="stable")
    ordered = np.take_along_axis(both, order, axis=1)
    again = np.zeros(ordered.shape, dtype=bool)
    again[:, 1:] = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != NO_PROBE)
    ordered[again] = NO_PROBE
    back = np.argsort(ordered == NO_PROBE, axis=1, kind="stable")
    found = np.take_along_axis(order, back, axis=1)
    width = int((ordered != NO_PROBE).sum(axis=1).max())

    def joined(name: str) -> NDArray[Any]:
        parts = [getattr(at_waits, name), getattr(grid, name)]
        return np.take_along_axis(np.concatenate(parts, axis=1), found, axis=1)[:, :width]

    positions = np.take_along_axis(ordered, back, axis=1)[:, :width]
    return _Probes(positions, *(joined(n) for n in ("codes", "logprob", "tokens", "markers")))
