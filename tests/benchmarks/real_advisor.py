"""StopAdvisor as a contestant: its own choice and its own test, through its public functions.

Recorded traces become a table of probes at ten budgets, the way `stopadvisor probe` chooses them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stopadvisor.arrays import FloatArray, IntArray
from stopadvisor.assessment.choice import Choice, Settings, choose
from stopadvisor.certification.calibration import calibrate
from stopadvisor.collection.pilot import PILOT_QUESTIONS, auto_budgets
from stopadvisor.constants import PAPER_CACHED_WEIGHT
from stopadvisor.probes.outcomes import OpenQuestions, Outcomes
from stopadvisor.probes.table import ProbeTable, on_grid
from stopadvisor.rules.costs import Weights, full_counts, stopped_counts
from tests.benchmarks.real_rivals import CUE_TOKENS, Outcome
from tests.benchmarks.real_traces import Traces, Waits

__all__ = ["StopAdvisor"]

_NEVER_ASKED = -1.0
"""Mean log-probability (nats) where no "Wait" came yet: unsure, and no outlier for a linear model.

Of -5, -1 and -0.3 this one saves most."""
_WITH_CONFIDENCE = ("learned", "confidence", "run-stability", "confidence-leap")
"""Families; entropies were not recorded."""


@dataclass(frozen=True)
class StopAdvisor:
    """`choose` on fit questions and `calibrate` on calibration questions, as they are today."""

    traces: Traces
    waits: Waits | None
    """Where there are any, a probe's confidence is that of the last "Wait" before it."""
    alpha: float
    delta: float
    prefill: float

    def fit(self, rows: IntArray, n_calibration: int) -> _Chosen:
        pilot = self.traces.think_tokens[rows[:PILOT_QUESTIONS]]
        table = self._table(_columns(self.traces, auto_budgets(pilot.tolist())))
        weights = Weights(self.prefill, PAPER_CACHED_WEIGHT, 1.0, "tokens")
        settings = Settings(
            alpha=self.alpha, delta=self.delta, weights=weights, allow_truncated=True
        )
        if self.waits is not None:
            settings = replace(settings, families=_WITH_CONFIDENCE)
        return _Chosen(choose(table.take(rows).as_fit(), n_calibration, settings), table)

    def _table(self, columns: IntArray) -> OpenQuestions:
        traces, n = self.traces, len(self.traces.questions)
        codes = traces.codes[:, columns]
        logprob = np.zeros(codes.shape)
        if self.waits is not None:
            logprob = _last_confidence(self.waits, traces.positions[columns])
        table = ProbeTable(
            ids=traces.questions,
            keys=traces.questions,
            groups=traces.questions,
            samples=np.zeros(n, dtype=np.int64),
            tasks=("math",) * n,
            categories=(None,) * n,
            positions=on_grid(traces.positions[columns], n),
            answer_codes=codes,
            mean_logprob=logprob,
            mean_entropy=np.zeros(codes.shape),
            markers=traces.markers[:, columns].astype(np.float64),
            probe_tokens=traces.probe_tokens[:, columns].astype(np.float64),
            trace_tokens=traces.think_tokens.copy(),
            prompt_tokens=traces.prompt_tokens.copy(),
            natural_tokens=(traces.total_tokens - traces.think_tokens).astype(np.float64),
            truncated=traces.truncated.copy(),
            suffix_tokens=CUE_TOKENS,
            entropy_source="full" if self.waits is not None else "none",
            reference="natural",
        )
        return OpenQuestions.of(table, Outcomes(codes == 1, traces.full_correct.copy()))


@dataclass(frozen=True)
class _Chosen:
    choice: Choice
    table: OpenQuestions
    """Of all questions."""

    def certify(self, rows: IntArray) -> Outcome:
        table, settings = self.table, self.choice.settings
        names = tuple(f"calibration {number}" for number in range(rows.size))
        drawn = replace(table.take(rows), ids=names, keys=names, groups=names)
        rule = calibrate(self.choice, drawn.as_calibration()).rule
        if rule is None:
            full = full_counts(table).weighed(settings.weights)
            return Outcome(np.zeros(table.n_questions, dtype=bool), full)
        scorer = rule.scorer
        stops = scorer.curve(table, np.array([rule.threshold])).stops(0)
        costs = stopped_counts(table, scorer.schedule, settings.serving).weighed(settings.weights)
        every = np.arange(table.n_questions)
        return Outcome(scorer.losses(table)[every, stops], costs[every, stops])


def _columns(traces: Traces, budgets: tuple[int, ...]) -> IntArray:
    """The recorded positions nearest to some budgets."""
    step = int(traces.positions[0])
    nearest = np.rint(np.array(budgets) / step).astype(np.int64) - 1
    return np.unique(np.clip(nearest, 0, traces.positions.size - 1))


def _last_confidence(waits: Waits, budgets: IntArray) -> FloatArray:
    """Mean log-probability of the last trial answer before each budget."""
    before = waits.live[:, :, None] & (waits.positions[:, :, None] <= budgets)
    count = before.sum(axis=1)  # (n_questions, n_budgets)
    last = np.take_along_axis(waits.mean_logprob, np.maximum(count - 1, 0), axis=1)
    return np.where(count > 0, last, _NEVER_ASKED)
