"""Replies of a ladder: lines that were recorded elsewhere, ``replies.jsonl``, and their table.

A line is a question with the reply of every rung, in the order of climbing.  Knows no model.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from stopadvisor.answers.grading import Grades
from stopadvisor.answers.normal_form import extract_natural, guess_task, normalize
from stopadvisor.ground.arrays import FloatArray
from stopadvisor.ground.errors import ProbeError, WorkloadError
from stopadvisor.probes.outcomes import OpenQuestions, Outcomes
from stopadvisor.probes.records import column, graded_by_gold, question_columns
from stopadvisor.probes.rungs import Rungs, Spent, Votes
from stopadvisor.probes.table import ProbeTable, agreeing, answer_codes, on_grid
from stopadvisor.runs.ladder import Ladder, Rung
from stopadvisor.runs.recording import (
    LABELS_AS_RECORDED,
    Recorded,
    RecordedObject,
    check_questions,
    label_or_gold,
    question_fields,
)
from stopadvisor.runs.verdicts import grade_records
from stopadvisor.workload.lines import open_file, read_rows, refuse
from stopadvisor.workload.logged import LogContent, Logged
from stopadvisor.workload.questions import ASSUMED_TASK

__all__ = [
    "ReplyRecord", "RungReplies", "RungReply",
    "read_replies", "read_reply_logs", "replies_by_rung", "reply_table",
]  # fmt: skip

_NEVER = 2**40
"""A trace length that no column reaches: every reply of a ladder can be served."""


@dataclass(frozen=True)
class RungReply:
    """One rung's reply to a question."""

    name: str
    answer: str
    """The final answer, as the model wrote it."""
    normalized: str
    correct: bool | None
    """None where the question has no gold."""
    finished: bool
    """It ended by itself; a cut reply is never served in place of the reference."""
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    """Thinking and answer."""
    mean_logprob: float | None
    seconds: float | None = None
    """Time of the request; None if it was not measured."""


@dataclass(frozen=True)
class ReplyRecord:
    """One line of ``replies.jsonl``."""

    id: str
    key: str
    group: str | None
    task: str
    category: str | None
    gold: str | None
    """None if there is neither gold nor labels; empty if there are only labels."""
    rungs: tuple[RungReply, ...]
    cannot_tell: int = 0
    """Answers that the grader could not judge; they count as wrong."""

    sample = 0
    """A question stands once in a ladder's run."""

    @property
    def is_graded(self) -> bool:
        """Whether we know which of its answers are right."""
        return self.gold is not None

    def votes(self) -> list[tuple[str | None, int, float, int]]:
        """Answer of each column, its support and share, and the number of its first reply."""
        so_far, columns = Votes(), []
        for _, block in groupby(self.rungs, attrgetter("name")):
            samples = list(block)
            for made, reply in enumerate(samples, start=1):
                form = (reply.normalized or None) if reply.finished else None
                columns.append(so_far.add(form, made if len(samples) > 1 else 0))
        return columns

    def answered(self) -> list[RungReply | None]:
        """The reply whose answer each column serves: of samples, the first of the plurality."""
        return [None if leader is None else self.rungs[k] for leader, *_, k in self.votes()]

    def to_json(self) -> str:
        """One line of JSON, keys in the order of the fields."""
        data = asdict(self)
        if not data["cannot_tell"]:
            del data["cannot_tell"]
        return json.dumps(data, ensure_ascii=False, allow_nan=False)

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
    """Number of replies to each question."""
    cut: int
    """Cut replies; none is ever served in place of the reference."""
    mean_tokens: float
    """Mean tokens of a reply, thinking and answer."""
    accuracy: float | None = None
    """Share of right replies; left out unless they were imported and all of them are graded."""


def replies_by_rung(
    records: Sequence[ReplyRecord], ladder: Ladder, *, graded: bool = False
) -> tuple[RungReplies, ...]:
    """Summarise the replies of each rung; their accuracy, an outcome, only if `graded`."""
    rows = []
    for rung, block in zip(ladder.rungs, ladder.blocks, strict=True):
        replies = [record.rungs[k] for record in records for k in block]
        right, n = [reply.correct for reply in replies if graded], len(replies)
        rows.append(
            RungReplies(
                rung.name,
                rung.repeat,
                sum(not reply.finished for reply in replies),
                sum(reply.completion_tokens for reply in replies) / n,
                None if None in right or not right else right.count(True) / n,
            )
        )
    return tuple(rows)


def read_replies(path: Path, ladder: Ladder, grader: Grades) -> Recorded[ReplyRecord]:
    """Read and check recorded replies, one question per line.

    ``stopadvisor import replies --help`` names the fields; `rungs` follow the ladder's order, each
    as often as its `repeat`.

    WorkloadError gives ``FILE:LINE`` and the field at fault.
    """
    data, rows = read_rows(path)
    lines = [RecordedObject(where, row) for where, row in rows]
    with_replies = [(line, _rungs_of(line, ladder)) for line in lines]
    return _recorded(path, hashlib.sha256(data).hexdigest(), with_replies, grader)


def read_reply_logs(
    logs: Mapping[str, Path],
    ladder: Ladder,
    grader: Grades,
    read: Callable[[Rung, Path], LogContent],
    task: str | None,
) -> Recorded[ReplyRecord]:
    """Read one evaluation log per rung and join them by question id.

    A rung with `repeat` has one epoch per sample.  `task` is the answer type of all questions; None
    to guess it from gold.

    WorkloadError if a log cannot be read, lacks replies, or asks other questions than the first; it
    gives file, sample and field.
    """
    if logs.keys() != {rung.name for rung in ladder.rungs}:
        wanted = ", ".join(rung.name for rung in ladder.rungs)
        raise WorkloadError(f"--rung: expected a log of each rung: {wanted}, got {', '.join(logs)}")
    digest, by_rung = hashlib.sha256(), list[tuple[Rung, dict[str, list[Logged]]]]()
    for rung in ladder.rungs:
        with open_file(logs[rung.name]) as opened:
            hashlib.file_digest(opened, lambda: digest)
        by_rung.append((rung, _samples(read(rung, logs[rung.name]))))
    columns, lines = [rung.name for rung in ladder.columns], []
    for name in dict.fromkeys(name for _, replies in by_rung for name in replies):
        for rung, replies in by_rung:
            if (n := len(replies.get(name, []))) != rung.repeat:
                what = f"expected {rung.repeat} of rung {rung.name!r}, got {n}"
                raise WorkloadError(f"{logs[rung.name]}: replies to question {name!r}: {what}")
        first, *others = entries = [entry for _, replies in by_rung for entry in replies[name]]
        for entry in others:
            for field in ("messages", "gold"):
                ours, theirs = getattr(first, field), getattr(entry, field)
                if ours != theirs:
                    refuse(entry.where, field, f"those of {first.where}: {ours!r:.80}", theirs)
        lines.append(_joined(entries, columns, task))
    return _recorded(logs[ladder.reference.name], digest.hexdigest(), lines, grader)


def _samples(content: LogContent) -> dict[str, list[Logged]]:
    """A log's samples of each question, in the order of their epochs."""
    samples: dict[str, list[Logged]] = {}
    if content.left_out:
        raise WorkloadError(content.left_out[0])
    for entry in sorted(content.entries, key=lambda entry: entry.epoch):
        if entry.name is None:
            refuse(entry.where, "id", "a name for the question", None)
        samples.setdefault(entry.name, []).append(entry)
    return samples


def _joined(
    entries: Sequence[Logged], columns: Sequence[str], task: str | None
) -> tuple[RecordedObject, list[RecordedObject]]:
    """A question's line, as in a file of replies, and its replies."""
    first = entries[0]
    task = task or (ASSUMED_TASK if first.gold is None else guess_task(first.gold))
    row = {"id": first.name, "messages": list(first.messages), "gold": first.gold, "task": task}
    replies = []
    for name, entry in zip(columns, entries, strict=True):
        usage = RecordedObject(entry.where, dict(entry.usage or {}), "output.usage.")
        read, decoded = usage.whole("input_tokens"), usage.whole("output_tokens")
        cached, total = usage.whole("input_tokens_cache_read", 0), usage.whole("total_tokens", 0)
        # inspect_ai's input leaves out cached tokens.  Before its pull request 3341 some providers
        # counted the whole prompt; their totals then have no room for cached tokens too.
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
    """Make records of lines and their replies; those without labels are graded by gold."""
    if grader.reads_questions:
        raise WorkloadError("--grader: recorded replies are graded by gold, or have their labels")
    records, brings_labels = [], False
    first: dict[str, str] = {}
    for line, replies in lines:
        labelled = any(reply.fields.get("correct") is not None for reply in replies)
        brings_labels |= labelled
        question = question_fields(line, labelled=labelled)
        record = ReplyRecord(**question, rungs=tuple(_reply(each, question) for each in replies))
        if (other := first.setdefault(record.id, line.where)) != line.where:
            line.refuse("id", f"a question once, it is in {other} too", record.id)
        records.append(record)
    check_questions([line for line, _ in lines], records)
    graded, n_graded = grade_records(records, grader)
    grading = LABELS_AS_RECORDED if brings_labels else dict(grader.identity)
    return Recorded(path, sha256, tuple(graded), n_graded, grading)


def _rungs_of(line: RecordedObject, ladder: Ladder) -> list[RecordedObject]:
    """The replies of a line, which must name the ladder's rungs in order."""
    rows = line.fields.get("rungs")
    wanted = [rung.name for rung in ladder.columns]
    replies = rows if isinstance(rows, list) else []
    names = [reply.get("name") if isinstance(reply, dict) else None for reply in replies]
    if names != wanted:
        line.refuse("rungs", f"a reply of each rung in the ladder's order: {wanted}", names)
    return [RecordedObject(line.where, row, f"rungs[{k}].") for k, row in enumerate(replies)]


def _reply(line: RecordedObject, question: Mapping[str, Any]) -> RungReply:
    answer, finished = line.answer("answer") or "", line.label("finished")
    if finished is None:
        line.refuse("finished", "true, or false where the reply was cut", None)
    if "answer" not in line.fields and line.fields.get("correct") is None and question["gold"]:
        line.refuse("answer", "the reply's, or null where it has none", None)
    prompt, cached = line.whole("prompt_tokens", 0), line.whole("cached_tokens", 0)
    if cached > prompt:
        line.refuse("cached_tokens", f"at most prompt_tokens ({prompt})", cached)
    normalized = normalize(question["task"], answer)
    correct = label_or_gold(line, "correct", question, answered=True)
    if correct and finished and not normalized:
        # The table takes it for wrong; if it is the reference's, nothing could be lost there.
        line.refuse("correct", "an answer where it is true, or false", True)
    return RungReply(
        name=str(line.fields["name"]),
        answer=answer,
        normalized=normalized,
        correct=correct,
        finished=finished,
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=line.whole("completion_tokens"),
        mean_logprob=line.logprob(),
        seconds=line.number("seconds", "a number >= 0", 0.0, math.inf),
    )


# --- The table ------------------------------------------------------------------------------------


def reply_table(
    records: Sequence[ReplyRecord], ladder: Ladder, parts: Sequence[int] | None = None
) -> OpenQuestions:
    """Build the table of records: one column per reply, the reference last.

    `parts` is as in `records.graded_table`.  ProbeError without records, or if one has other rungs.
    """
    if not records:
        raise ProbeError("no replies: the run holds no finished question")
    wanted = [rung.name for rung in ladder.columns]
    for record in records:
        if [reply.name for reply in record.rungs] != wanted:
            raise ProbeError(f"question {record.id!r} has other rungs than the ladder's {wanted}")

    def matrix(name: str, kind: Any) -> Any:
        values = [getattr(reply, name) for record in records for reply in record.rungs]
        return column(name, values, kind).reshape(len(records), -1)

    finished = matrix("finished", np.bool_)
    texts = np.where(finished, matrix("normalized", object), "")
    votes = np.array([record.votes() for record in records], dtype=object)
    support, share, first = (votes[..., k] for k in (1, 2, 3))
    first = first.astype(np.int64)
    answers = np.maximum(np.take_along_axis(answer_codes(texts)[0], first, axis=1), -1)
    # An answer is right if the first sample that gave it was graded right.
    right = (answers >= 0) & np.take_along_axis(matrix("correct", np.bool_), first, axis=1)
    truncated = ~finished[:, list(ladder.blocks[-1])].any(axis=1)
    full = answers[:, -1]
    by_gold = graded_by_gold(records, parts)
    if by_gold is not None:
        right = np.where(by_gold[:, None], right, agreeing(answers, np.where(truncated, -1, full)))
        right[:, -1] |= ~by_gold
    logprob = matrix("mean_logprob", np.float64)
    spent = _spent(ladder, *(matrix(name, np.float64) for name in _MEASURED))
    n, m = answers.shape
    table = ProbeTable(
        **question_columns(records),
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
            support=support.astype(np.int64),
            share=share.astype(np.float64),
            is_reference=np.tile(np.arange(m) == m - 1, (n, 1)),
            whole=tuple(k for k, rung in enumerate(ladder.columns) if rung.policy_digest),
        ),
    )
    return OpenQuestions.of(table, Outcomes(right, right[:, -1].copy(), None, full.copy()))


_MEASURED = ("prompt_tokens", "cached_tokens", "completion_tokens", "seconds")


def _spent(
    ladder: Ladder, prompt: FloatArray, cached: FloatArray, decoded: FloatArray, seconds: FloatArray
) -> Spent:
    """Cost of each column, summed over the samples of a rung so far.

    Times are unknown unless every reply was timed, and where a rung is sampled several times,
    because those requests overlap.
    """
    if np.isnan(seconds).any() or len(ladder.columns) > len(ladder.rungs):
        seconds = np.full_like(seconds, np.nan)
    rates = np.array([rung.price for rung in ladder.columns]).T  # (3, n_columns)
    read = prompt - cached
    price = read * rates[0] + cached * rates[1] + decoded * rates[2]
    single = Spent(read, cached, decoded, np.ones_like(price), price, seconds)

    def added(values: FloatArray) -> FloatArray:
        blocks = [np.cumsum(values[:, list(block)], axis=1) for block in ladder.blocks]
        return np.concatenate(blocks, axis=1)

    return single.each(added)
