"""Probe records, the lines of ``probes.jsonl``, and the graded table built from them.

Answers with gold were graded when they were recorded.  Answers to questions without gold are graded
here, by whether they agree with full thinking's answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stopadvisor.answers.normal_form import extract_natural, normalize
from stopadvisor.ground.arrays import BoolArray
from stopadvisor.ground.errors import ProbeError
from stopadvisor.probes.asking import OnStop
from stopadvisor.probes.outcomes import OpenQuestions, Outcomes
from stopadvisor.probes.table import NO_PROBE, ProbeTable, Reference, agreeing, answer_codes

__all__ = ["Checkpoint", "Graded", "ProbeRecord", "column", "graded_by_gold", "graded_table"]


class Graded(Protocol):
    """A record that knows whether its answers were graded."""

    @property
    def is_graded(self) -> bool:
        """Whether its answers were graded."""
        ...


@dataclass(frozen=True)
class Checkpoint:
    """One graded forced answer: an entry of ``checkpoints`` in ``probes.jsonl``."""

    budget: int
    answer: str
    normalized: str
    correct: bool | None
    """None if the question has no gold."""
    mean_logprob: float | None
    """None if not recorded, like the entropy."""
    mean_entropy: float | None
    entropy_source: str
    probe_tokens: int
    markers: float
    ended: bool
    visible_answer: str | None = None
    """Only with on-stop ``answer`` and before the trace's end, like the next two fields."""
    visible_correct: bool | None = None
    visible_tokens: int | None = None
    tail_mass: float | None = None
    """Mean probability outside the top k; only with a ``top-k`` entropy."""
    closed_by_itself: bool | None = None
    """Whether the model closed its thinking right after the answer; only with an open cue."""


_VISIBLE = ("visible_answer", "visible_correct", "visible_tokens")


@dataclass(frozen=True)
class ProbeRecord:
    """One line of ``probes.jsonl``."""

    id: str
    key: str
    group: str | None
    sample: int
    task: str
    category: str | None
    gold: str | None
    """None if unknown, and then so are the grades; empty if grades were recorded without it."""
    prompt_tokens: int
    suffix_tokens: int
    trace_tokens: int
    finish: str
    natural_answer: str | None
    natural_correct: bool | None
    natural_answer_tokens: int
    checkpoints: tuple[Checkpoint, ...]
    marker_positions: tuple[int, ...] | None = None
    """Thinking tokens before each marker, probed or not; None if markers were not searched for."""
    cannot_tell: int = 0
    """Answers that the grader could not judge; they count as wrong."""

    @property
    def is_graded(self) -> bool:
        """Whether its answers were graded."""
        return self.natural_correct is not None

    def to_json(self) -> str:
        """One line of JSON, keys in the order of the fields."""
        data = vars(self) | {"checkpoints": [dict(vars(row)) for row in self.checkpoints]}
        for row in data["checkpoints"]:
            if row["visible_tokens"] is None:
                for name in _VISIBLE:
                    del row[name]
            for name in ("tail_mass", "closed_by_itself"):
                if row[name] is None:
                    del row[name]
        if data["marker_positions"] is None:
            del data["marker_positions"]  # only runs that look for markers have them
        if not data["cannot_tell"]:
            del data["cannot_tell"]
        return json.dumps(data, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str) -> ProbeRecord:
        """Read a record back; `where` names file and line for the error message."""
        missing = sorted(_REQUIRED - data.keys())
        if missing:
            raise ProbeError(f"{where}: field {missing[0]!r} is missing")
        try:
            checkpoints = tuple(Checkpoint(**row) for row in data["checkpoints"])
        except TypeError as error:
            raise ProbeError(f"{where}: field 'checkpoints': {error}") from error
        markers = data.get("marker_positions")
        return cls(
            **{name: data[name] for name in _REQUIRED} | {"checkpoints": checkpoints},
            marker_positions=None if markers is None else tuple(markers),
            cannot_tell=data.get("cannot_tell", 0),
        )


_REQUIRED = {f.name for f in fields(ProbeRecord)} - {"marker_positions", "cannot_tell"}


def graded_table(
    records: Sequence[ProbeRecord],
    reference: Reference = "natural",
    on_stop: OnStop = "probe",
    parts: Sequence[int] | None = None,
) -> OpenQuestions:
    """Build the table of all records, whose probe positions may differ.

    Parameters
    ----------
    parts : sequence of int, length n_questions, optional
        Each record's part of the split.  A part is graded by gold if all its records have gold,
        otherwise by agreement; by default all records are one part.

    Notes
    -----
    Graded by agreement, a reply is right if its normal form equals that of its own trace's full
    answer, and full thinking is right by definition.  An empty answer equals nothing, so nothing
    agrees with a trace that was cut off or has no answer.

    Raises
    ------
    ProbeError
        There is no record, entropy sources differ, or a live checkpoint lacks the visible answer
        that on-stop ``answer`` takes.
    """
    if not records:
        raise ProbeError("no probes: the run holds no finished question")
    source = next((c.entropy_source for r in records for c in r.checkpoints), "full")
    for record in records:
        for c in record.checkpoints:
            if c.entropy_source != source:
                raise ProbeError(
                    f"question {record.id!r} has entropy source {c.entropy_source!r}, "
                    f"the run {source!r}"
                )
            if on_stop == "answer" and c.visible_tokens is None and not c.ended:
                raise ProbeError(
                    f"question {record.id!r} has no visible answer at budget {c.budget}: "
                    "on-stop answer takes one at every checkpoint before the trace's end"
                )

    sizes = np.array([len(r.checkpoints) for r in records])
    probed = np.arange(sizes.max()) < sizes[:, None]  # (n_questions, n_checkpoints)

    def matrix(name: str, kind: Any, padding: Any = 0) -> NDArray[Any]:
        values = [getattr(c, name) for r in records for c in r.checkpoints]
        padded = np.full(probed.shape, padding, dtype=kind)
        padded[probed] = column(name, values, kind)
        return padded

    def vector(name: str, kind: Any) -> NDArray[Any]:
        return column(name, [getattr(r, name) for r in records], kind)

    written: list[str | None] = [_in_normal_form(r.task, r.natural_answer) for r in records]
    if on_stop == "answer":
        written += [
            _in_normal_form(r.task, c.visible_answer) for r in records for c in r.checkpoints
        ]
    codes, written_codes = answer_codes(matrix("normalized", object), written, probed)
    natural_code = written_codes[: len(records)]
    visible_tokens = visible_correct = visible_code = closed = None
    if all(c.closed_by_itself is not None for r in records for c in r.checkpoints):
        closed = matrix("closed_by_itself", np.bool_)
    trace = vector("trace_tokens", np.int64)
    truncated = np.array([r.finish == "length" for r in records], dtype=np.bool_)
    by_gold = graded_by_gold(records, parts)
    natural_correct = vector("natural_correct", np.bool_)
    correct = matrix("correct", np.bool_)
    if by_gold is not None:
        full = np.where(truncated, -1, natural_code) if reference == "natural" else None
        correct = np.where(by_gold[:, None], correct, agreeing(codes, full))
        natural_correct = natural_correct | ~by_gold
    natural_tokens = vector("natural_answer_tokens", np.float64)
    positions = matrix("budget", np.int64, NO_PROBE)
    if on_stop == "answer":
        over = ~probed | (positions >= trace[:, None])
        right = matrix("visible_correct", np.bool_)
        tokens = matrix("visible_tokens", np.float64)  # None becomes NaN
        visible_code = np.full(probed.shape, -1, dtype=np.int64)
        visible_code[probed] = written_codes[len(records) :]
        if by_gold is not None:
            right = np.where(by_gold[:, None], right, agreeing(visible_code, full))
        visible_correct = np.where(over, natural_correct[:, None], right)
        visible_tokens = np.where(over, natural_tokens[:, None], tokens)
        visible_code = np.where(over, natural_code[:, None], visible_code)
    table = ProbeTable(
        **question_columns(records),
        positions=positions,
        answer_codes=codes,
        mean_logprob=matrix("mean_logprob", np.float64),
        mean_entropy=matrix("mean_entropy", np.float64),
        markers=matrix("markers", np.float64),
        probe_tokens=matrix("probe_tokens", np.float64),
        trace_tokens=trace,
        prompt_tokens=vector("prompt_tokens", np.int64),
        natural_tokens=natural_tokens,
        truncated=truncated,
        suffix_tokens=max(r.suffix_tokens for r in records),
        entropy_source=source,
        reference=reference,
        visible_tokens=visible_tokens,
        marker_positions=_marker_positions(records),
        by_gold=by_gold,
        closed_by_itself=closed,
    )
    outcomes = Outcomes(correct, natural_correct, visible_correct, natural_code, visible_code)
    return OpenQuestions.of(table, outcomes)


def column(name: str, values: Sequence[Any], kind: Any) -> NDArray[Any]:
    """One field of all records; raises TypeError for a type that numpy would convert."""
    allowed = _ALLOWED.get(kind)
    if allowed is not None and (odd := set(map(type, values)) - allowed):
        raise TypeError(f"{name!r} cannot be of type {odd.pop().__name__}")
    return np.array(values, dtype=kind)


_ALLOWED: dict[Any, set[type]] = {
    np.bool_: {bool, type(None)},
    np.int64: {int},
    np.float64: {int, float, type(None)},
}


def question_columns(records: Sequence[Any]) -> dict[str, Any]:
    """The columns of a table that say which question each record is of."""
    return {
        "ids": tuple(r.id for r in records),
        "keys": tuple(r.key for r in records),
        "groups": tuple(r.group or r.key for r in records),
        "samples": np.array([r.sample for r in records], dtype=np.int64),
        "tasks": tuple(r.task for r in records),
        "categories": tuple(r.category for r in records),
    }


def _marker_positions(records: Sequence[ProbeRecord]) -> NDArray[np.int64] | None:
    """Marker positions, (n_questions, n_markers); None unless all records have them."""
    rows = [r.marker_positions for r in records if r.marker_positions is not None]
    if len(rows) < len(records):
        return None
    padded = np.full((len(rows), max(map(len, rows))), NO_PROBE, dtype=np.int64)
    for padded_row, row in zip(padded, rows, strict=True):
        padded_row[: len(row)] = row
    return padded


def graded_by_gold(records: Sequence[Graded], parts: Sequence[int] | None) -> BoolArray | None:
    """Which records are graded by gold, (n_questions,); None for all."""
    graded = np.array([r.is_graded for r in records], dtype=np.bool_)
    if graded.all():
        return None
    part = np.zeros(len(records), dtype=np.int64) if parts is None else np.asarray(parts)
    return ~np.isin(part, part[~graded])


def _in_normal_form(task: str, written: str | None) -> str | None:
    """Normal form of a natural or visible answer; None if it holds no answer."""
    answer = None if written is None else extract_natural(task, written)
    return None if answer is None else normalize(task, answer)
