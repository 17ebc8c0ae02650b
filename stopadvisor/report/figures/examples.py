"""Example questions with their texts, as the report shows them.

Which questions are examples is decided by `assessment.examples`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stopadvisor.assessment.diagnostics import Stops, choose_examples
from stopadvisor.ground.errors import WorkloadError
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.probes.records import ProbeRecord
from stopadvisor.probes.table import NO_PROBE
from stopadvisor.report.figures.data import QuestionExample, TrajectoryStep
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.imported import IMPORTED
from stopadvisor.runs.sources import Source
from stopadvisor.workload.questions import read_workload

__all__ = ["Texts", "examples"]

_LONGEST_TEXT = 1500
"""Characters of a question that are shown."""


@dataclass(frozen=True)
class Texts:
    """Words for the questions of a run, by question id; empty where it has none."""

    records: Mapping[str, ProbeRecord]
    questions: Mapping[str, str]
    remarks: tuple[str, ...]
    """What examples cannot show, and why."""

    @classmethod
    def of(cls, source: Source) -> Texts:
        """Read questions and forced answers of a run."""
        if source.manifest is None:
            remark = "A published archive holds no texts: examples show no question or answer."
            if source.simulated:
                remark = "Simulated probes have no texts: examples show no question."
            return cls({}, {}, (remark,))
        records = {r.id: r for r in RunDirectory.load(source.folder).records() if r.sample == 0}
        remarks: tuple[str, ...] = ()
        if source.simulated:
            remarks = ("Simulated probes have no texts: examples show no question.",)
        elif source.manifest["engine"]["engine"] == IMPORTED:
            remarks = ("Imported probes bring no questions along: examples show answers alone.",)
        try:
            workload = read_workload(source.manifest["workload"]["path"])
        except WorkloadError:
            gone = "The workload file is gone, so that examples show no question."
            return cls(records, {}, remarks or (gone,))
        texts = {q.key: "\n\n".join(m["content"] for m in q.messages) for q in workload.questions}
        return cls(
            records, {i: texts[r.key] for i, r in records.items() if r.key in texts}, remarks
        )


def examples(table: GradedTable, stops: Stops | None, texts: Texts) -> tuple[QuestionExample, ...]:
    """The chosen examples, with what was forced at each checkpoint."""
    return tuple(
        _example(found.kind, table, found.row, stops, texts)
        for found in choose_examples(table, stops)
    )


def _example(
    kind: str, table: GradedTable, row: int, stops: Stops | None, texts: Texts
) -> QuestionExample:
    name = table.ids[row]
    record = texts.records.get(name)
    question = texts.questions.get(name)
    if question is not None and len(question) > _LONGEST_TEXT:
        question = question[:_LONGEST_TEXT] + " …"
    stop = None
    if stops is not None and stops.stops[row] < table.n_checkpoints:
        stop = int(stops.stops[row])
    positions = table.positions[row]
    answers = {} if record is None else {c.budget: c.answer.strip() for c in record.checkpoints}
    ended, confidence = table.ended[row], np.exp(table.mean_logprob[row])
    known = np.isfinite(confidence) & (table.entropy_source != "none")
    steps = tuple(
        TrajectoryStep(
            int(positions[j]),
            answers.get(int(positions[j])),
            bool(table.correct_online[row, j]),
            float(confidence[j]) if known[j] else None,
            None if ended[j] or stops is None else float(stops.scores[row, j]),
            bool(ended[j]),
        )
        for j in np.flatnonzero(positions != NO_PROBE).tolist()
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
