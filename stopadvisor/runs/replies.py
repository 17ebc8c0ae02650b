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

from stopadvisor.answers.grading import Grades
from stopadvisor.answers.normal_form import extract_natural, guess_task, normalize
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
from stopadvisor.workload.inspect_log import read_inspect
from stopadvisor.workload.lines import read_rows, refuse
from stopadvisor.workload.logged import Logged, LogOptions, open_log
from stopadvisor.workload.questions import ASSUMED_TASK

__all__ = [
    "ReplyRecord", "RungReplies", "RungReply",
    "read_replies", "read_reply_logs", "replies_by_rung", "reply_table",
]  # fmt: skip

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


@dataclass(frozen=True)
class RungReplies:
    """The replies of one rung in a run."""

    name: str
    """As `ladder.toml` calls it."""
    replies: int
    """Of each question: more than one where it is repeated."""
    cut: int
    """Replies that were cut: they are never served before the reference."""
    mean_tokens: float
    """Tokens of a reply on average, thinking and answer."""
    accuracy: float | None = None
    """Of imported replies only: share that are right, where all are graded."""


def replies_by_rung(
    records: Sequence[ReplyRecord], ladder: Ladder, *, graded: bool = False
) -> tuple[RungReplies, ...]:
    """Sum up what each rung replied; how many are right only where outcomes may be shown."""
    found = []
    for rung, block in zip(ladder.rungs, ladder.blocks, strict=True):
        replies = [record.rungs[k] for record in records for k in block]
        right, n = [reply.correct for reply in replies if graded], len(replies)
        found.append(
            RungReplies(
                rung.name,
                rung.repeat,
                sum(not reply.finished for reply in replies),
                sum(reply.completion_tokens for reply in replies) / n,
                None if None in right or not right else right.count(True) / n,
            )
        )
    return tuple(found)


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
    data, rows = read_rows(path)
    lines = [RecordedObject(where, row) for where, row in rows]
    found = [(line, _rungs_of(line, ladder)) for line in lines]
    return _recorded(path, hashlib.sha256(data).hexdigest(), found, grader)


def read_reply_logs(
    logs: Mapping[str, Path], ladder: Ladder, grader: Grades, options: LogOptions, task: str | None
) -> Recorded[ReplyRecord]:
    """Read logs of inspect_ai, one of each rung, joined by the ids of their questions.

    A rung that is repeated has as many epochs.  `task` is the kind of all answers; None: as gold
    says.

    Raises
    ------
    WorkloadError
        A log cannot be read or is another rung's, or a question has not one reply of each; the
        message gives file, sample and field.
    """
    if logs.keys() != {rung.name for rung in ladder.rungs}:
        wanted = ", ".join(rung.name for rung in ladder.rungs)
        raise WorkloadError(f"--rung: expected a log of each rung: {wanted}, got {', '.join(logs)}")
    digest, asked = hashlib.sha256(), dict[str, list[Logged]]()
    for rung in ladder.rungs:
        with open_log(file := logs[rung.name]) as opened:
            while data := opened.read(2**20):
                digest.update(data)
        content = read_inspect([file], options)
        for remark in content.left_out:
            raise WorkloadError(remark)
        replies = dict[str, list[Logged]]()
        for entry in sorted(content.entries, key=lambda entry: entry.epoch):
            if entry.name is None:
                refuse(entry.where, "id", "a name for the question", None)
            replies.setdefault(entry.name, []).append(entry)
        for name in {**asked, **replies}:
            found = replies.get(name, [])
            if len(found) != rung.repeat:
                what = f"expected {rung.repeat} of rung {rung.name!r}, got {len(found)}"
                raise WorkloadError(f"{file}: replies to question {name!r}: {what}")
            if rung is not ladder.rungs[0] and name not in asked:
                where, other = found[0].where, logs[ladder.rungs[0].name]
                refuse(where, "id", f"a question of {other} too", name)
            first = asked.setdefault(name, found)[0]
            for entry in found:
                for field in ("messages", "gold"):
                    ours, theirs = getattr(first, field), getattr(entry, field)
                    if ours != theirs:
                        refuse(entry.where, field, f"those of {first.where}: {ours!r:.80}", theirs)
            asked[name] = [*asked[name], *found] if asked[name] is not found else found
    columns = [rung.name for rung in ladder.columns]
    found_lines = [_joined(entries, columns, task) for entries in asked.values()]
    return _recorded(logs[ladder.reference.name], digest.hexdigest(), found_lines, grader)


def _joined(
    entries: Sequence[Logged], columns: Sequence[str], task: str | None
) -> tuple[RecordedObject, list[RecordedObject]]:
    """The line that the logs' replies to one question come to, and each of its replies."""
    first = entries[0]
    task = task or (ASSUMED_TASK if first.gold is None else guess_task(first.gold))
    row = {"id": first.name, "messages": list(first.messages), "gold": first.gold, "task": task}
    replies = []
    for name, entry in zip(columns, entries, strict=True):
        usage = RecordedObject(entry.where, dict(entry.usage or {}), "output.usage.")
        read, decoded = usage.whole("input_tokens"), usage.whole("output_tokens")
        cached, total = usage.whole("input_tokens_cache_read", 0), usage.whole("total_tokens", 0)
        # In inspect_ai the input is what no cache held.  Before its pull request 3341 it was the
        # whole prompt for some providers, whose totals then have no room for cached tokens too.
        in_caches = cached + usage.whole("input_tokens_cache_write", 0)
        prompt = read + in_caches
        if total and in_caches <= read:
            prompt = max(read, min(prompt, total - decoded))
        reply = {
            "name": name,
            "answer": None if entry.reply is None else extract_natural(task, entry.reply),
            "finished": entry.ended and entry.reply is not None,
            "prompt_tokens": prompt,
            "cached_tokens": cached,
            "completion_tokens": decoded,
        }
        replies.append(RecordedObject(entry.where, reply))
    return RecordedObject(first.where, row), replies


def _recorded(
    path: Path,
    sha256: str,
    lines: Sequence[tuple[RecordedObject, Sequence[RecordedObject]]],
    grader: Grades,
) -> Recorded[ReplyRecord]:
    """Records of lines and their replies, graded by gold where they bring no labels."""
    if grader.reads_questions:
        raise WorkloadError("--grader: recorded replies are graded by gold, or bring their labels")
    records, brings_labels = [], False
    first: dict[str, str] = {}
    for line, found in lines:
        labelled = any(reply.fields.get("correct") is not None for reply in found)
        brings_labels |= labelled
        question = question_fields(line, labelled=labelled)
        record = ReplyRecord(**question, rungs=tuple(_reply(each, question) for each in found))
        if (other := first.setdefault(record.id, line.where)) != line.where:
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
        sha256,
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
            whole=tuple(k for k, rung in enumerate(ladder.columns) if rung.policy_digest),
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
