"""The table of all probes: what every analysis reads.

Read-only arrays, questions on axis 0, checkpoints on axis 1.  Each question may have been probed at
positions of its own; one grid for all is the special case.  This module knows no model, no
statistics and no files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stopadvisor.answers.normal_form import extract_natural, normalize
from stopadvisor.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.errors import ProbeError
from stopadvisor.probes.plan import OnStop
from stopadvisor.probes.records import ProbeRecord

__all__ = ["NO_PROBE", "ProbeTable", "Reference", "answer_codes", "on_grid"]

Reference = Literal["natural", "last-checkpoint"]
"""What full-thinking correct means: the natural answer's grade, or the last forced answer's."""

NO_PROBE = -1
"""Stands in `ProbeTable.positions` where a question has no further probe."""


def on_grid(budgets: Sequence[int] | NDArray[Any], n_questions: int) -> IntArray:
    """Positions of questions that were all probed at the same budgets.

    Returns
    -------
    ndarray of int, shape (n_questions, n_checkpoints)
        One row, shown `n_questions` times: it takes no more room than the budgets.
    """
    row = np.array(budgets, dtype=np.int64)
    return np.broadcast_to(row, (n_questions, row.size))


@dataclass(frozen=True)
class ProbeTable:
    """All probes of a workload as read-only arrays.

    Shapes: ``n_questions`` rows (one per trace), ``n_checkpoints`` columns: as many as the question
    with the most probes has.  The others are padded behind their last probe; what the arrays hold
    there is never read.
    """

    ids: tuple[str, ...]
    keys: tuple[str, ...]
    """Content hash of each question (archives: their row number)."""
    groups: tuple[str, ...]
    """Questions that must stay together; the key where the workload names no group."""
    samples: IntArray  # (n_questions,)
    tasks: tuple[str, ...]
    categories: tuple[str | None, ...]
    positions: IntArray  # (n_questions, n_checkpoints)
    """Thinking tokens before each probe, increasing; `NO_PROBE` behind the last one."""
    correct: BoolArray  # (n_questions, n_checkpoints) forced answer equals gold
    answer_codes: IntArray  # (n_questions, n_checkpoints) equal numbers = same normalised answer
    mean_logprob: FloatArray  # (n_questions, n_checkpoints)
    mean_entropy: FloatArray  # (n_questions, n_checkpoints)
    markers: FloatArray  # (n_questions, n_checkpoints) marker count in the prefix
    probe_tokens: FloatArray  # (n_questions, n_checkpoints)
    trace_tokens: IntArray  # (n_questions,)
    prompt_tokens: IntArray  # (n_questions,)
    natural_correct: BoolArray | None  # (n_questions,); None in archives
    natural_tokens: FloatArray | None  # (n_questions,); None in archives
    truncated: BoolArray  # (n_questions,) thinking was cut at max_think
    suffix_tokens: int
    entropy_source: str
    reference: Reference
    """What full-thinking correct means in this table."""
    visible_correct: BoolArray | None = None  # (n_questions, n_checkpoints)
    """Whether the visible answer after a stop is right; None where none was collected.

    Where the trace is over, here and in `visible_tokens`, it is the natural answer.
    """
    visible_tokens: FloatArray | None = None  # (n_questions, n_checkpoints)
    """Tokens of that answer, closer and ending token included."""
    natural_code: IntArray | None = None  # (n_questions,)
    """The natural answer, numbered as in `answer_codes`; -1 where it is empty or there is none."""

    def __post_init__(self) -> None:
        n, m = self.correct.shape
        matrix = (
            "positions",
            "answer_codes",
            "mean_logprob",
            "mean_entropy",
            "markers",
            "probe_tokens",
        )
        vector = ["samples", "trace_tokens", "prompt_tokens", "truncated"]
        if self.natural_code is not None:
            vector.append("natural_code")
        shapes = dict.fromkeys(matrix, (n, m)) | dict.fromkeys(vector, (n,))
        if self.on_stop == "answer":
            shapes |= dict.fromkeys(("visible_correct", "visible_tokens"), (n, m))
        for name, shape in shapes.items():
            found = np.shape(getattr(self, name))
            if found != shape:
                raise ProbeError(f"{name} must have shape {shape}, got {found}")
        self._check_positions()
        for name in ("mean_logprob", "mean_entropy", "markers", "probe_tokens"):
            bad = ~np.isfinite(getattr(self, name))
            if bad.any():
                row, column = (int(i) for i in np.argwhere(bad)[0])
                raise ProbeError(
                    f"{name} must be finite, got {getattr(self, name)[row, column]} "
                    f"for question {self.ids[row]!r} at checkpoint {column}"
                )
        if self.reference == "natural" and self.natural_correct is None:
            raise ProbeError("the natural reference needs natural answers; these probes hold none")
        if self.reference == "last-checkpoint" and not self.is_grid:
            raise ProbeError(
                "the last-checkpoint reference needs one grid for all questions; these were probed "
                "at positions of their own"
            )
        if self.on_stop == "answer" and self.reference != "natural":
            raise ProbeError("visible answers need the natural reference, got last-checkpoint")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    def _check_positions(self) -> None:
        """Check that positions increase, and keep a grid as one row."""
        rows = self.positions
        if rows.strides[0] and len(rows) and (rows == rows[0]).all() and NO_PROBE not in rows[0]:
            object.__setattr__(self, "positions", on_grid(rows[0], len(rows)))
        rows = self._rows
        before, after = rows[:, :-1], rows[:, 1:]
        wrong = (rows < (0 if self.is_grid else NO_PROBE)).any(axis=1)
        wrong |= ((after != NO_PROBE) & (after <= before)).any(axis=1)
        wrong |= ((after != NO_PROBE) & (before == NO_PROBE)).any(axis=1)
        if not wrong.any():
            return
        row = int(wrong.argmax())
        whose = "budgets" if self.is_grid else f"positions of question {self.ids[row]!r}"
        raise ProbeError(
            f"{whose} must be strictly increasing numbers >= 0, got {rows[row].tolist()!r}"
        )

    @property
    def _rows(self) -> IntArray:
        """The positions to compute with: of a grid its one row, which numpy spreads over all."""
        return self.positions[:1] if self.is_grid else self.positions

    @property
    def n_questions(self) -> int:
        """Rows: traces."""
        return int(self.correct.shape[0])

    @property
    def n_checkpoints(self) -> int:
        """Columns: probes of the question that has the most."""
        return int(self.correct.shape[1])

    @property
    def is_grid(self) -> bool:
        """Whether all questions were probed at the same budgets."""
        return bool(self.positions.strides[0] == 0)

    @property
    def budgets(self) -> IntArray:
        """The budgets of a grid; shape (n_checkpoints,).

        Raises
        ------
        ProbeError
            Questions were probed at positions of their own, or there is none.
        """
        if not self.is_grid or not self.n_questions:
            raise ProbeError(
                "this takes one grid of budgets for all questions; these were probed at positions "
                "of their own"
                if self.n_questions
                else "no question, so no budgets"
            )
        return np.asarray(self.positions[0])

    def positions_at(self, schedule: Sequence[int] | NDArray[np.int64]) -> IntArray:
        """Positions of the columns of a schedule, 0 where there is no probe.

        Returns
        -------
        ndarray of int, shape (n_questions, n_scheduled), or (1, n_scheduled) for a grid
        """
        return np.maximum(self._rows[:, np.asarray(schedule, dtype=np.int64)], 0)

    @property
    def live(self) -> BoolArray:
        """Where a probe happens online: the trace goes on, and the question has such a probe."""
        found = self.trace_tokens[:, None] > self._rows  # (n_questions, n_checkpoints)
        return found if self.is_grid else found & (self._rows != NO_PROBE)

    @property
    def on_stop(self) -> OnStop:
        """What a stopped question gets: ``answer`` where visible answers were collected."""
        return "probe" if self.visible_correct is None else "answer"

    @property
    def group_ids(self) -> tuple[str, ...]:
        """What a policy stores of each row's group: its hash, or the question's key without one."""
        return tuple(
            key if group == key else hashlib.sha256(group.encode()).hexdigest()
            for key, group in zip(self.keys, self.groups, strict=True)
        )

    @property
    def ended(self) -> BoolArray:
        """Where no probe happens online: the opposite of `live`."""
        return ~self.live

    @property
    def think_tokens(self) -> IntArray:
        """Thinking tokens in each prefix; 0 where there is no probe."""
        return np.minimum(self.trace_tokens[:, None], np.maximum(self._rows, 0))

    @property
    def full_correct(self) -> BoolArray:
        """Whether full thinking is correct, under the table's reference."""
        if self.reference == "natural":
            assert self.natural_correct is not None  # held by __post_init__
            return self.natural_correct
        return self.correct[:, -1]

    @property
    def stop_correct(self) -> BoolArray:
        """Whether the reply of a stop is right, the visible answer or the forced one.

        This is what a stopping rule is to foresee, so classifiers are fitted on it.
        """
        return self.correct if self.visible_correct is None else self.visible_correct

    @property
    def correct_online(self) -> BoolArray:
        """Correctness of what the caller gets when stopped at each checkpoint.

        Where no probe happens the question ends by itself with the reference's answer.
        """
        return np.where(self.ended, self.full_correct[:, None], self.stop_correct)

    def with_reference(self, reference: Reference) -> ProbeTable:
        """The same probes under another full reference; the last checkpoint's answer is forced."""
        table = self if reference == "natural" else self.with_on_stop("probe")
        return replace(table, reference=reference)

    def with_on_stop(self, on_stop: OnStop) -> ProbeTable:
        """The same probes under another reply to a stop.

        Raises
        ------
        ProbeError
            ``answer``, and no visible answers were collected.
        """
        if on_stop == self.on_stop:
            return self
        if on_stop == "answer":
            raise ProbeError(
                "on-stop answer needs visible answers; these probes hold none: probe with "
                "--on-stop answer"
            )
        return replace(self, visible_correct=None, visible_tokens=None)

    def take(self, rows: NDArray[Any]) -> ProbeTable:
        """The table of some questions, by boolean mask or by row numbers."""
        index = np.flatnonzero(rows) if rows.dtype == bool else rows
        changes: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "positions" and self.is_grid and self.n_questions:
                changes["positions"] = on_grid(value[0], len(index))
            elif isinstance(value, np.ndarray):
                changes[field.name] = value[index]
            elif isinstance(value, tuple):
                changes[field.name] = tuple(value[i] for i in index)
        return replace(self, **changes)

    @classmethod
    def from_records(
        cls,
        records: Sequence[ProbeRecord],
        reference: Reference = "natural",
        on_stop: OnStop = "probe",
    ) -> ProbeTable:
        """Build the table from graded records, each with positions of its own.

        Raises
        ------
        ProbeError
            No record, records whose entropy sources differ, or a live checkpoint without the
            visible answer that on-stop ``answer`` takes.
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
            found = np.full(probed.shape, padding, dtype=kind)
            found[probed] = np.array(values, dtype=kind)
            return found

        def vector(name: str, kind: Any) -> NDArray[Any]:
            return np.array([getattr(r, name) for r in records], dtype=kind)

        codes, natural_code = answer_codes(
            matrix("normalized", object), [_natural(r) for r in records], probed
        )
        table = cls(
            ids=tuple(r.id for r in records),
            keys=tuple(r.key for r in records),
            groups=tuple(r.group or r.key for r in records),
            samples=vector("sample", np.int64),
            tasks=tuple(r.task for r in records),
            categories=tuple(r.category for r in records),
            positions=matrix("budget", np.int64, NO_PROBE),
            correct=matrix("correct", np.bool_),
            answer_codes=codes,
            mean_logprob=matrix("mean_logprob", np.float64),
            mean_entropy=matrix("mean_entropy", np.float64),
            markers=matrix("markers", np.float64),
            probe_tokens=matrix("probe_tokens", np.float64),
            trace_tokens=vector("trace_tokens", np.int64),
            prompt_tokens=vector("prompt_tokens", np.int64),
            natural_correct=vector("natural_correct", np.bool_),
            natural_tokens=vector("natural_answer_tokens", np.float64),
            truncated=np.array([r.finish == "length" for r in records], dtype=np.bool_),
            suffix_tokens=max(r.suffix_tokens for r in records),
            entropy_source=source,
            reference=reference,
            natural_code=natural_code,
        )
        if on_stop == "probe":
            return table
        assert table.natural_tokens is not None  # records hold natural answers
        assert table.natural_correct is not None
        ended = table.ended
        right = matrix("visible_correct", np.bool_)
        tokens = matrix("visible_tokens", np.float64)  # None becomes NaN
        return replace(
            table,
            visible_correct=np.where(ended, table.natural_correct[:, None], right),
            visible_tokens=np.where(ended, table.natural_tokens[:, None], tokens),
        )


def _natural(record: ProbeRecord) -> str | None:
    """The natural answer in its normal form, as forced answers have one; None without any."""
    if record.natural_answer is None:
        return None
    answer = extract_natural(record.task, record.natural_answer)
    return None if answer is None else normalize(record.task, answer)


def answer_codes(
    answers: NDArray[Any],
    natural: Sequence[str | None] = (),
    probed: BoolArray | None = None,
) -> tuple[IntArray, IntArray]:
    """Number the distinct answers, so that "same answer" is an integer comparison.

    Parameters
    ----------
    answers : ndarray of str, shape (n_questions, n_checkpoints)
    natural : sequence of str or None, optional
        Natural answers, numbered alike.
    probed : ndarray of bool, shape (n_questions, n_checkpoints), optional
        Where there is an answer; everywhere by default.

    Returns
    -------
    codes : ndarray of int, shape (n_questions, n_checkpoints)
        -1 where there is none.
    natural_codes : ndarray of int, shape of `natural`
        -1 where it is empty or there is none.
    """
    there = np.ones(answers.shape, dtype=bool) if probed is None else probed
    # As objects: arrays of text drop trailing NULs, and the stepper compares whole strings.
    distinct, numbers = np.unique(answers[there].astype(object), return_inverse=True)
    codes = np.full(answers.shape, -1, dtype=np.int64)
    codes[there] = numbers
    known = {text: number for number, text in enumerate(distinct.tolist())}
    found = [known.setdefault(text, len(known)) if text else -1 for text in natural]
    return codes, np.array(found, dtype=np.int64)
