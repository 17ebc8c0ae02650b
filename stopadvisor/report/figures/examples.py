"""Example questions with their texts, as the report shows them.

Which questions are examples is decided by `assessment.examples`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stopadvisor.assessment.examples import Stops, choose_examples
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.probes.records import ProbeRecord
from stopadvisor.report.figures.data import QuestionExample, TrajectoryStep

__all__ = ["Texts", "examples"]

_LONGEST_TEXT = 1500
"""Characters of a question that are shown."""


@dataclass(frozen=True)
class Texts:
    """Words for the questions of a run, by question id."""

    records: Mapping[str, ProbeRecord]
    questions: Mapping[str, str]


def examples(
    table: GradedTable, stops: Stops | None, texts: Texts | None
) -> tuple[QuestionExample, ...]:
    """The chosen examples, with what was forced at each checkpoint."""
    return tuple(
        _example(found.kind, table, found.row, stops, texts)
        for found in choose_examples(table, stops)
    )


def _example(
    kind: str, table: GradedTable, row: int, stops: Stops | None, texts: Texts | None
) -> QuestionExample:
    name = table.ids[row]
    record = texts.records.get(name) if texts else None
    question = texts.questions.get(name) if texts else None
    if question is not None and len(question) > _LONGEST_TEXT:
        question = question[:_LONGEST_TEXT] + " …"
    scores: dict[int, float] = {}
    stop = None
    if stops is not None:
        scores = dict(zip(stops.columns, stops.scores[row].tolist(), strict=True))
        position = int(stops.stops[row])
        stop = stops.columns[position] if position < len(stops.columns) else None
    ended, known = table.ended[row], table.entropy_source != "none"
    steps = tuple(
        TrajectoryStep(
            int(table.budgets[j]),
            None if record is None else record.checkpoints[j].answer.strip(),
            bool(table.correct_online[row, j]),
            float(np.exp(table.mean_logprob[row, j])) if known else None,
            None if ended[j] else scores.get(j),
            bool(ended[j]),
        )
        for j in range(table.n_checkpoints)
    )
    return QuestionExample(
        kind,
        name,
        question,
        None if record is None else record.gold,
        None if record is None or record.natural_answer is None else record.natural_answer.strip(),
        bool(table.full_correct[row]),
        int(table.trace_tokens[row]),
        steps,
        stop,
        None if stops is None else stops.threshold,
        None if stops is None else stops.family,
    )
