"""Replies of a ladder: lines that were recorded elsewhere, ``replies.jsonl``, and their table.

A line is a question with the reply of every rung, in the order of climbing.  Knows no model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stopadvisor.answers.function_grader import Grades
from stopadvisor.answers.normal_form import normalize
from stopadvisor.ground.arrays import FloatArray
from stopadvisor.ground.errors import ProbeError, WorkloadError
from stopadvisor.probes.outcomes import OpenQuestions, Outcomes
from stopadvisor.probes.records import graded_by_gold
from stopadvisor.probes.rungs import Rungs, Spent, votes
from stopadvisor.probes.table import ProbeTable, agreeing, answer_codes, on_grid
from stopadvisor.runs.ladder import Ladder
from stopadvisor.runs.recording import (
    LABELS_AS_RECORDED,
    Recorded,
    RecordedObject,
    label_or_gold,
    question_fields,
)
from stopadvisor.workload.lines import read_rows

__all__ = ["ReplyRecord", "RungReply", "read_replies", "reply_table"]

_NEVER = 2**40
"""Length of a trace that no column reaches: a reply of a ladder can be served at every one."""


@dataclass(frozen=True)
class RungReply:
    """What one rung said."""

    name: str
    answer: str
    """The final answer, as the model wrote it."""
    normalized: str
    correct: bool | None
    """None where the question has no gold."""
    finished: bool
    """It ended by itself; a reply that was cut is never served before the reference."""
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    """Thinking and answer."""
    mean_logprob: float | None


@dataclass(frozen=True)
class ReplyRecord:
    """One line of ``replies.jsonl``."""

    id: str
    key: str
    group: str | None
    task: str
    category: str | None
    gold: str | None
    """None where there is none, as in the grades; empty where grades came without it."""
    rungs: tuple[RungReply, ...]

    @property
    def is_graded(self) -> bool:
        """Whether it is known which of its answers are right."""
        return self.gold is not None

    def to_json(self) -> str:
        """One line of JSON, keys in the order of the fields."""
        return json.dumps(asdict(self), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str) -> ReplyRecord:
        """Read a record back; `where` names file and line for the error message."""
        try:
            replies = tuple(RungReply(**row) for row in data["rungs"])
            return cls(**{**data, "rungs": replies})
        except (KeyError, TypeError) as error:
            raise ProbeError(f"{where}: not a line of replies: {error}") from error


def read_replies(path: Path, ladder: Ladder, grader: Grades) -> Recorded[ReplyRecord]:
    """Read and check recorded replies, one question a line.

    The fields of a line are those of ``stopadvisor import replies --help``; its `rungs` stand in
    the ladder's order, each as often as `repeat` says.

    Raises
    ------
    WorkloadError
        The file cannot be read, or a line is not as it should be; the message gives ``FILE:LINE``
        and the field.
    """
    if grader.reads_questions:
        raise WorkloadError("--grader: recorded replies are graded by gold, or bring their labels")
    data, rows = read_rows(path)
    records, brings_labels = [], False
    first: dict[str, str] = {}
    for where, row in rows:
        line = RecordedObject(where, row)
        found = _rungs_of(line, ladder)
        labelled = any(reply.fields.get("correct") is not None for reply in found)
        brings_labels |= labelled
        question = question_fields(line, labelled=labelled)
        record = ReplyRecord(**question, rungs=tuple(_reply(each, question) for each in found))
        if (other := first.setdefault(record.id, where)) != where:
            line.refuse("id", f"a question once, it stands in {other} too", record.id)
        records.append(record)
    items: list[tuple[str, str, str | None]] = [
        (record.task, record.gold, reply.answer)
        for record in records
        for reply in record.rungs
        if record.gold and reply.correct is None
    ]
    verdicts = iter(grader.grade_many(items))

    def graded(reply: RungReply) -> RungReply:
        return replace(reply, correct=next(verdicts) is True) if reply.correct is None else reply

    return Recorded(
        path,
        hashlib.sha256(data).hexdigest(),
        tuple(replace(r, rungs=tuple(map(graded, r.rungs))) if r.gold else r for r in records),
        len(items),
        LABELS_AS_RECORDED if brings_labels else dict(grader.identity),
    )


def _rungs_of(line: RecordedObject, ladder: Ladder) -> list[RecordedObject]:
    """The replies of a line, each of the rung that stands at its place in the ladder."""
    found = line.fields.get("rungs")
    wanted = [rung.name for rung in ladder.columns]
    replies = found if isinstance(found, list) else []
    names = [reply.get("name") if isinstance(reply, dict) else None for reply in replies]
    if names != wanted:
        line.refuse("rungs", f"a reply of each rung in the ladder's order: {wanted}", names)
    return [RecordedObject(line.where, row, f"rungs[{k}].") for k, row in enumerate(replies)]


def _reply(line: RecordedObject, question: Mapping[str, Any]) -> RungReply:
    answer, finished = line.answer("answer") or "", line.label("finished")
    if finished is None:
        line.refuse("finished", "true, or false where the reply was cut", None)
    prompt, cached = line.whole("prompt_tokens", 0), line.whole("cached_tokens", 0)
    if cached > prompt:
        line.refuse("cached_tokens", f"at most prompt_tokens ({prompt})", cached)
    return RungReply(
        name=str(line.fields["name"]),
        answer=answer,
        normalized=normalize(question["task"], answer),
        correct=label_or_gold(line, "correct", question, answered=True),
        finished=finished,
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=line.whole("completion_tokens"),
        mean_logprob=line.logprob(),
    )


# --- The table ------------------------------------------------------------------------------------


def reply_table(
    records: Sequence[ReplyRecord], ladder: Ladder, parts: Sequence[int] | None = None
) -> OpenQuestions:
    """Build the table of records: a column for each reply, the reference last.

    `parts` is as in `records.graded_table`.

    Raises
    ------
    ProbeError
        No record, or one with other rungs than the ladder's.
    """
    if not records:
        raise ProbeError("no replies: the run holds no finished question")
    wanted = [rung.name for rung in ladder.columns]
    for record in records:
        if [reply.name for reply in record.rungs] != wanted:
            raise ProbeError(f"question {record.id!r} has other rungs than the ladder's {wanted}")

    def matrix(name: str, kind: Any) -> Any:
        return np.array(
            [[getattr(r, name) for r in record.rungs] for record in records], dtype=kind
        )

    finished = matrix("finished", np.bool_)
    texts = np.where(finished, matrix("normalized", object), "")
    single = answer_codes(texts)[0]
    answers, support, share = votes(np.maximum(single, -1), ladder.blocks)
    # Right as the first sample that gave the answer was graded.
    same = (single[:, :, None] == answers[:, None, :]) & (answers[:, None, :] >= 0)
    of_first = np.take_along_axis(matrix("correct", np.bool_), same.argmax(axis=1), axis=1)
    right = np.asarray(same.any(axis=1) & of_first)
    truncated = ~finished[:, list(ladder.blocks[-1])].any(axis=1)
    full = answers[:, -1]
    by_gold = graded_by_gold(records, parts)
    if by_gold is not None:
        right = np.where(by_gold[:, None], right, agreeing(answers, np.where(truncated, -1, full)))
        right[:, -1] |= ~by_gold
    is_reference = np.zeros(single.shape, dtype=np.bool_)
    is_reference[:, -1] = True
    logprob = matrix("mean_logprob", np.float64)
    spent = _spent(ladder, *(matrix(f"{n}_tokens", np.float64) for n in _COUNTED))
    n, m = single.shape
    table = ProbeTable(
        ids=tuple(r.id for r in records),
        keys=tuple(r.key for r in records),
        groups=tuple(r.group or r.key for r in records),
        samples=np.zeros(n, dtype=np.int64),
        tasks=tuple(r.task for r in records),
        categories=tuple(r.category for r in records),
        positions=on_grid(range(1, m + 1), n),
        answer_codes=answers,
        mean_logprob=logprob,
        mean_entropy=np.full((n, m), np.nan),
        markers=np.zeros((n, m)),
        probe_tokens=spent.decoded.copy(),
        trace_tokens=np.full(n, _NEVER, dtype=np.int64),
        prompt_tokens=matrix("prompt_tokens", np.int64)[:, 0].copy(),
        natural_tokens=spent.decoded[:, -1].copy(),
        truncated=truncated,
        suffix_tokens=0,
        entropy_source="none" if np.isnan(logprob).all() else "full",
        reference="natural",
        by_gold=by_gold,
        rungs=Rungs(
            names=tuple(wanted),
            rates=tuple(rung.price for rung in ladder.columns),
            spent=spent,
            served=answers >= 0,
            support=support,
            share=share,
            is_reference=is_reference,
        ),
    )
    return OpenQuestions.of(table, Outcomes(right, right[:, -1].copy(), None, full.copy()))


_COUNTED = ("prompt", "cached", "completion")


def _spent(ladder: Ladder, prompt: FloatArray, cached: FloatArray, decoded: FloatArray) -> Spent:
    """Cost of each column, the samples of one rung added up."""
    rates = np.array([rung.price for rung in ladder.columns]).T  # (3, n_columns)
    read = prompt - cached
    price = read * rates[0] + cached * rates[1] + decoded * rates[2]
    alone = Spent(read, cached, decoded, np.ones_like(price), price)

    def added(values: FloatArray) -> FloatArray:
        blocks = [np.cumsum(values[:, list(block)], axis=1) for block in ladder.blocks]
        return np.concatenate(blocks, axis=1)

    return alone.each(added)
