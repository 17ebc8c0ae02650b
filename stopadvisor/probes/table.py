"""The table of all probes: what every analysis reads.

Read-only arrays, questions on axis 0, checkpoints on axis 1.  This module knows no model, no
statistics and no files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stopadvisor.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.errors import ProbeError
from stopadvisor.probes.plan import OnStop
from stopadvisor.probes.records import ProbeRecord

__all__ = ["ProbeTable", "Reference", "answer_codes"]

Reference = Literal["natural", "last-checkpoint"]
"""What full-thinking correct means: the natural answer's grade, or the last forced answer's."""


@dataclass(frozen=True)
class ProbeTable:
    """All probes of a workload as read-only arrays.

    Shapes: ``n_questions`` rows (one per trace), ``n_checkpoints`` columns.
    """

    ids: tuple[str, ...]
    keys: tuple[str, ...]
    """Content hash of each question (archives: their row number)."""
    groups: tuple[str, ...]
    """Questions that must stay together; the key where the workload names no group."""
    samples: IntArray  # (n_questions,)
    tasks: tuple[str, ...]
    categories: tuple[str | None, ...]
    budgets: IntArray  # (n_checkpoints,)
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

    def __post_init__(self) -> None:
        n, m = self.correct.shape
        matrix = ("answer_codes", "mean_logprob", "mean_entropy", "markers", "probe_tokens")
        vector = ("samples", "trace_tokens", "prompt_tokens", "truncated")
        shapes = dict.fromkeys(matrix, (n, m)) | dict.fromkeys(vector, (n,))
        if self.on_stop == "answer":
            shapes |= dict.fromkeys(("visible_correct", "visible_tokens"), (n, m))
        for name, shape in shapes.items():
            found = np.shape(getattr(self, name))
            if found != shape:
                raise ProbeError(f"{name} must have shape {shape}, got {found}")
        if self.budgets.shape != (m,) or (m > 1 and np.any(np.diff(self.budgets) <= 0)):
            raise ProbeError(
                f"budgets must be {m} strictly increasing numbers, got {self.budgets.tolist()!r}"
            )
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
        if self.on_stop == "answer" and self.reference != "natural":
            raise ProbeError("visible answers need the natural reference, got last-checkpoint")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    @property
    def n_questions(self) -> int:
        """Rows: traces."""
        return int(self.correct.shape[0])

    @property
    def n_checkpoints(self) -> int:
        """Columns: probed budgets."""
        return int(self.correct.shape[1])

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
        """The trace is over at this budget, so no probe happens here online."""
        return self.trace_tokens[:, None] <= self.budgets  # (n_questions, n_checkpoints)

    @property
    def think_tokens(self) -> IntArray:
        """Thinking tokens in each prefix."""
        return np.minimum(self.trace_tokens[:, None], self.budgets)

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

        Where the trace is over the question ends by itself with the reference's answer.
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
            if isinstance(value, np.ndarray) and field.name != "budgets":
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
        """Build the table from graded records that share one budget grid.

        Raises
        ------
        ProbeError
            No record, records whose grids or entropy sources differ, or a live checkpoint without
            the visible answer that on-stop ``answer`` takes.
        """
        if not records:
            raise ProbeError("no probes: the run holds no finished question")
        budgets = tuple(c.budget for c in records[0].checkpoints)
        source = records[0].checkpoints[0].entropy_source if budgets else "full"
        for record in records:
            if tuple(c.budget for c in record.checkpoints) != budgets:
                raise ProbeError(
                    f"question {record.id!r} was probed at other budgets than "
                    f"{records[0].id!r}: one grid is required"
                )
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

        def matrix(name: str, kind: Any) -> NDArray[Any]:
            rows = [[getattr(c, name) for c in r.checkpoints] for r in records]
            return np.array(rows, dtype=kind).reshape(len(records), len(budgets))

        def vector(name: str, kind: Any) -> NDArray[Any]:
            return np.array([getattr(r, name) for r in records], dtype=kind)

        table = cls(
            ids=tuple(r.id for r in records),
            keys=tuple(r.key for r in records),
            groups=tuple(r.group or r.key for r in records),
            samples=vector("sample", np.int64),
            tasks=tuple(r.task for r in records),
            categories=tuple(r.category for r in records),
            budgets=np.array(budgets, dtype=np.int64),
            correct=matrix("correct", np.bool_),
            answer_codes=answer_codes(matrix("normalized", object)),
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


def answer_codes(answers: NDArray[Any]) -> IntArray:
    """Number the distinct answers, so that "same answer" is an integer comparison."""
    # As objects: arrays of text drop trailing NULs, and the stepper compares whole strings.
    _, codes = np.unique(answers.astype(object).ravel(), return_inverse=True)
    return codes.reshape(answers.shape).astype(np.int64)
