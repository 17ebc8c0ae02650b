"""The table of all probes, without their outcomes (see `probes.outcomes`).

Read-only arrays, questions on axis 0, checkpoints on axis 1.  Questions may be probed at different
positions; one grid for all is the special case.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.ground.errors import ProbeError
from stopadvisor.probes.asking import OnStop
from stopadvisor.probes.rungs import Rungs

__all__ = [
    "EMPTY_ANSWER", "NO_PROBE", "GradedBy", "ProbeTable", "Reference", "agreeing", "answer_codes",
    "commonly_probed", "grid_positions", "on_grid", "probed_markers", "row_numbers",
]  # fmt: skip

Reference = Literal["natural", "last-checkpoint"]
"""The answer of full thinking: the natural answer, or the last forced answer."""

GradedBy = Literal["gold", "agreement"]
"""How answers are graded: by the workload's gold, or by agreement with full thinking."""

NO_PROBE = -1
"""Value in `ProbeTable.positions` after a question's last probe."""

EMPTY_ANSWER = -2
"""Value in `ProbeTable.answer_codes` for an empty answer."""


def on_grid(budgets: Sequence[int] | NDArray[Any], n_questions: int) -> IntArray:
    """Positions of questions that were all probed at the same budgets.

    Shape (n_questions, n_checkpoints): one row, broadcast without a copy.
    """
    row = np.array(budgets, dtype=np.int64)
    return np.broadcast_to(row, (n_questions, row.size))


_MATRICES = ("positions", "answer_codes", "mean_logprob", "mean_entropy", "markers", "probe_tokens")


@dataclass(frozen=True)
class ProbeTable:
    """All probes of a workload as read-only arrays.

    There is one row per trace (``n_questions``), and one column per probe of the question with the
    most probes (``n_checkpoints``).  Other rows are padded with values that are never read.
    """

    ids: tuple[str, ...]
    keys: tuple[str, ...]
    """Content hash of each question (archives: their row number)."""
    groups: tuple[str, ...]
    """Group of each question, which must stay together; its key if the workload names none."""
    samples: IntArray  # (n_questions,)
    tasks: tuple[str, ...]
    categories: tuple[str | None, ...]
    positions: IntArray  # (n_questions, n_checkpoints)
    """Thinking tokens before each probe, increasing; `NO_PROBE` after the last one."""
    answer_codes: IntArray  # (n_questions, n_checkpoints)
    """Equal numbers mean equal normalised answers; `EMPTY_ANSWER` for an empty one."""
    mean_logprob: FloatArray  # (n_questions, n_checkpoints)
    """NaN if not recorded, as in `mean_entropy`."""
    mean_entropy: FloatArray  # (n_questions, n_checkpoints)
    markers: FloatArray  # (n_questions, n_checkpoints) marker count in the prefix
    probe_tokens: FloatArray  # (n_questions, n_checkpoints)
    trace_tokens: IntArray  # (n_questions,)
    prompt_tokens: IntArray  # (n_questions,)
    natural_tokens: FloatArray | None  # (n_questions,); None in archives
    truncated: BoolArray  # (n_questions,) thinking was cut at max_think
    suffix_tokens: int
    entropy_source: str
    reference: Reference
    """The answer of full thinking in this table."""
    visible_tokens: FloatArray | None = None  # (n_questions, n_checkpoints)
    """Tokens of the visible answer after a stop, including closer and ending token; those of the
    natural answer, once the trace is over.  None if no visible answers were collected."""
    marker_positions: IntArray | None = None  # (n_questions, n_markers)
    """Thinking tokens before each marker, probed or not, increasing; `NO_PROBE` after the last.
    None if markers were not searched for."""
    by_gold: BoolArray | None = None  # (n_questions,)
    """Which questions are graded by gold, the others by agreement; None if all are."""
    closed_by_itself: BoolArray | None = None  # (n_questions, n_checkpoints)
    """Whether the model closed its thinking right after the answer; None unless the cue was
    open."""
    rungs: Rungs | None = None
    """Costs of each column, if columns are replies of a ladder; positions then count from 1.  None
    for probes of a trace, whose costs follow from their positions."""

    def __post_init__(self) -> None:
        self._check_positions()
        for name in ("mean_logprob", "mean_entropy", "markers", "probe_tokens"):
            values = getattr(self, name)
            # Unknown means are NaN.
            bad = np.isinf(values) if name.startswith("mean_") else ~np.isfinite(values)
            if bad.any():
                row, column = (int(i) for i in np.argwhere(bad)[0])
                raise ProbeError(
                    f"{name} must be finite, got {values[row, column]} "
                    f"for question {self.ids[row]!r} at checkpoint {column}"
                )
        if self.reference == "natural" and self.natural_tokens is None:
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
        """Check that positions increase, and store a grid as one broadcast row."""
        rows = self.positions
        if rows.strides[0] and len(rows) and (rows == rows[0]).all() and NO_PROBE not in rows[0]:
            object.__setattr__(self, "positions", on_grid(rows[0], len(rows)))
        rows = self._rows
        before, after = rows[:, :-1], rows[:, 1:]
        wrong = (rows < (0 if self.is_grid else NO_PROBE)).any(axis=1)
        wrong |= ((after != NO_PROBE) & ((after <= before) | (before == NO_PROBE))).any(axis=1)
        if wrong.any():
            row = int(wrong.argmax())
            what = "budgets" if self.is_grid else f"positions of question {self.ids[row]!r}"
            raise ProbeError(f"{what} must be strictly increasing, got {rows[row].tolist()!r}")

    @property
    def _matrices(self) -> tuple[str, ...]:
        """Names of this table's arrays that have a column for each checkpoint."""
        optional = ("visible_tokens", "closed_by_itself")
        return (*_MATRICES, *(name for name in optional if getattr(self, name) is not None))

    @property
    def _rows(self) -> IntArray:
        """Positions to compute with: a grid's single row, which numpy broadcasts."""
        return self.positions[:1] if self.is_grid else self.positions

    @property
    def n_questions(self) -> int:
        """Number of rows (traces)."""
        return int(self.answer_codes.shape[0])

    @property
    def n_checkpoints(self) -> int:
        """Number of columns (most probes of any question)."""
        return int(self.answer_codes.shape[1])

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
            Questions were probed at different positions, or there are no questions.
        """
        if not self.is_grid or not self.n_questions:
            raise ProbeError(
                "this takes one grid of budgets for all questions, as `probe --schedule grid` "
                "makes it; these were probed at positions of their own"
                if self.n_questions
                else "no question, so no budgets"
            )
        return np.asarray(self.positions[0])

    @property
    def padded_positions(self) -> IntArray:
        """Positions, 0 where there is no probe; (n_questions or 1 for a grid, n_checkpoints)."""
        return np.maximum(self._rows, 0)

    def columns_of(self, wanted: IntArray) -> IntArray:
        """Column of each position, -1 if there is none; `wanted` is (n_questions, n_wanted)."""
        n, m = self.positions.shape
        width = int(max(self.positions.max(initial=0), wanted.max(initial=0))) + 2
        rows = np.arange(n)[:, None] * width
        # Padding follows the last probe; as the largest number of its row it keeps the row sorted.
        have = np.where(self.positions == NO_PROBE, width - 1, self.positions) + rows
        index = np.searchsorted(have.ravel(), np.maximum(wanted, 0) + rows)
        index = np.minimum(index, n * m - 1)
        found = (have.ravel()[index] == wanted + rows) & (wanted != NO_PROBE)
        return np.where(found, index % m, -1)

    @property
    def live(self) -> BoolArray:
        """Where a probe happens online: there is one, and the trace is not over yet."""
        before_end = self.trace_tokens[:, None] > self._rows  # (n_questions, n_checkpoints)
        return before_end if self.is_grid else before_end & (self._rows != NO_PROBE)

    @property
    def on_stop(self) -> OnStop:
        """What a stopped question gets: ``answer`` if visible answers were collected."""
        return "probe" if self.visible_tokens is None else "answer"

    @property
    def graded_by(self) -> GradedBy:
        """How these questions are graded; ``gold`` only if all of them are."""
        if self.by_gold is None:
            return "gold"
        return "gold" if self.by_gold.size and bool(self.by_gold.all()) else "agreement"

    @property
    def group_ids(self) -> tuple[str, ...]:
        """Group names as a policy stores them: hashed, or the question's key if it has none."""
        return tuple(
            key if group == key else hashlib.sha256(group.encode()).hexdigest()
            for key, group in zip(self.keys, self.groups, strict=True)
        )

    @property
    def is_full(self) -> BoolArray:
        """Which replies are full thinking's own; shape (n_questions or 1, n_checkpoints)."""
        if self.rungs is not None:
            return self.rungs.is_reference
        is_last = np.zeros((1, self.n_checkpoints), dtype=bool)
        is_last[:, -1:] = self.reference == "last-checkpoint"
        return is_last

    @property
    def ended(self) -> BoolArray:
        """Where no probe happens online: the opposite of `live`."""
        return ~self.live

    @property
    def think_tokens(self) -> IntArray:
        """Thinking tokens in each prefix, 0 where there is no probe; for a ladder, all tokens."""
        if self.rungs is not None:
            decoded: IntArray = self.rungs.spent.decoded.astype(np.int64)
            return decoded
        return np.minimum(self.trace_tokens[:, None], self.padded_positions)

    @property
    def full_think_tokens(self) -> IntArray:
        """Tokens of full thinking, (n_questions,); for a ladder, all tokens of the reference."""
        if self.rungs is not None:
            return np.asarray(self.think_tokens[:, -1])
        if self.reference == "natural":
            return self.trace_tokens
        return np.asarray(np.minimum(self.trace_tokens, self.budgets[-1]), dtype=np.int64)

    def with_reference(self, reference: Reference) -> Self:
        """The same probes under another reference; the last checkpoint's answer is forced.

        Raises
        ------
        ProbeError
            The answers were graded by agreement with the current reference.
        """
        if reference != self.reference and self.graded_by == "agreement":
            raise ProbeError(
                f"the {reference} reference, which the paper's protocol takes, needs gold for "
                "every question: these answers are graded by whether they agree with the "
                f"{self.reference} one"
            )
        table = self if reference == "natural" else self.with_on_stop("probe")
        return replace(table, reference=reference)

    def with_on_stop(self, on_stop: OnStop) -> Self:
        """The same probes with another reply after a stop.

        Raises
        ------
        ProbeError
            ``answer`` was asked for, but no visible answers were collected.
        """
        if on_stop == self.on_stop:
            return self
        if on_stop == "answer":
            raise ProbeError(
                "on-stop answer needs visible answers; these probes hold none: probe with "
                "--on-stop answer"
            )
        return replace(self, visible_tokens=None)

    def take(self, rows: NDArray[Any]) -> Self:
        """The table of some questions, by boolean mask or by row numbers."""
        index = row_numbers(rows)
        numbers = index.tolist()  # Python integers index a tuple faster than numpy's
        changes: dict[str, Any] = {}
        for field in fields(ProbeTable):
            value = getattr(self, field.name)
            if field.name == "positions" and self.is_grid and self.n_questions:
                changes["positions"] = on_grid(value[0], len(index))
            elif isinstance(value, np.ndarray):
                changes[field.name] = value[index]
            elif isinstance(value, tuple):
                changes[field.name] = tuple(map(value.__getitem__, numbers))
            elif isinstance(value, Rungs):
                changes[field.name] = value.map(lambda array: array[index])
        return replace(self, **changes)

    def select(self, columns: Sequence[int]) -> Self:
        """The same questions at some of their checkpoints."""
        return replace(
            self, **{name: getattr(self, name)[:, list(columns)] for name in self._matrices}
        )

    def at(self, columns: IntArray, budgets: Sequence[int] | None = None) -> Self:
        """The same questions, each at its own choice of probes.

        Parameters
        ----------
        columns : ndarray of int, shape (n_questions, n_probes)
            Columns of this table, increasing in each row, followed by -1 for no probe.
        budgets : sequence of int, length n_probes, optional
            The grid, if the result has one; -1 then marks questions that end earlier.
        """
        inside = np.maximum(columns, 0)
        changes: dict[str, Any] = {
            name: np.take_along_axis(getattr(self, name), inside, axis=1) for name in self._matrices
        }
        if budgets is None:
            changes["positions"] = np.where(columns < 0, NO_PROBE, changes["positions"])
        else:
            changes["positions"] = on_grid(budgets, self.n_questions)
        return replace(self, **changes)


def grid_positions(table: ProbeTable) -> tuple[int, ...]:
    """Positions at which every question still thinking was probed; all budgets of a grid."""
    if table.is_grid and table.n_questions:
        return tuple(table.budgets.tolist())
    live = table.live
    positions, probed = np.unique(table.positions[live], return_counts=True)
    thinking = table.n_questions - np.searchsorted(
        np.sort(table.trace_tokens), positions, side="right"
    )
    return tuple(positions[probed == thinking].tolist())


def commonly_probed(table: ProbeTable, positions: Sequence[int]) -> tuple[int, ...]:
    """Those of the positions at which every question still thinking was probed."""
    wanted = on_grid(positions, table.n_questions)
    goes_on = table.trace_tokens[:, None] > wanted
    there = (~goes_on | (table.columns_of(wanted) >= 0)).all(axis=0)
    return tuple(np.array(positions, dtype=np.int64)[there].tolist())


def probed_markers(table: ProbeTable) -> int | None:
    """Largest N such that every trace was probed at its first N markers; None if at all of them."""
    if table.marker_positions is None:
        raise ProbeError("these traces were not searched for markers")
    wanted = table.marker_positions
    there = wanted != NO_PROBE
    missing = there & (table.columns_of(wanted) < 0)
    if not missing.any():
        return None
    first = np.where(missing.any(axis=1), missing.argmax(axis=1), wanted.shape[1])
    return int(first.min())


def agreeing(codes: IntArray, full: IntArray | None = None) -> BoolArray:
    """Whether each forced answer equals that of full thinking, (n_questions, n_checkpoints).

    Parameters
    ----------
    codes : ndarray of int, shape (n_questions, n_checkpoints)
        Forced answers, as in `ProbeTable.answer_codes`; an empty one equals nothing.
    full : ndarray of int, shape (n_questions,), optional
        Answer of full thinking, negative if there is none.  By default the last forced answer,
        which always agrees with itself.
    """
    if full is not None:
        same: BoolArray = (codes == full[:, None]) & (full >= 0)[:, None]
        return same
    agrees = agreeing(codes, codes[:, -1])
    agrees[:, -1] = True
    return agrees


def row_numbers(rows: NDArray[Any]) -> NDArray[Any]:
    """Turn a boolean mask into row numbers; row numbers stay."""
    return np.flatnonzero(rows) if rows.dtype == bool else rows


def answer_codes(
    answers: NDArray[Any], natural: Sequence[str | None] = (), probed: BoolArray | None = None
) -> tuple[IntArray, IntArray]:
    """Number the distinct answers, so that "same answer" is an integer comparison.

    Parameters
    ----------
    answers : ndarray of str, shape (n_questions, n_checkpoints)
    natural : sequence of str or None, optional
        Natural answers, numbered likewise.
    probed : ndarray of bool, shape (n_questions, n_checkpoints), optional
        Where there is an answer; everywhere by default.

    Returns
    -------
    codes : ndarray of int, shape (n_questions, n_checkpoints)
        `EMPTY_ANSWER` for an empty answer, -1 for none.
    natural_codes : ndarray of int, shape of `natural`
        -1 for an empty or missing answer.
    """
    exists = np.ones(answers.shape, dtype=bool) if probed is None else probed
    # As objects: arrays of text drop trailing NULs, but the stepper compares whole strings.
    texts = answers[exists].astype(object)
    distinct, numbers = np.unique(texts, return_inverse=True)
    codes = np.full(answers.shape, -1, dtype=np.int64)
    codes[exists] = np.where(texts == "", EMPTY_ANSWER, numbers)
    known = {text: number for number, text in enumerate(distinct.tolist())}
    natural_codes = [known.setdefault(text, len(known)) if text else -1 for text in natural]
    return codes, np.array(natural_codes, dtype=np.int64)
