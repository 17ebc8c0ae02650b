"""Outcomes, separate from what can be observed online, and a table type for each use of them.

A rule is chosen on fit questions and certified on calibration questions; the certificate holds only
if no choice depended on calibration outcomes.  So code that chooses takes `FitQuestions`, code that
certifies takes `CalibrationQuestions`, and until a look is logged, calibration questions are
`SealedQuestions`: a `ProbeTable` without outcomes.  `runs` decides who may open what.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from stopadvisor.ground.arrays import BoolArray, IntArray
from stopadvisor.ground.errors import CalibrationError, ProbeError
from stopadvisor.probes.asking import OnStop
from stopadvisor.probes.table import ProbeTable, row_numbers

__all__ = [
    "CalibrationQuestions", "FitQuestions", "GradedTable", "OpenQuestions", "Outcomes",
    "SealedQuestions", "require_calibration", "require_fit",
]  # fmt: skip


@dataclass(frozen=True)
class Outcomes:
    """Which answers are right, and full thinking's answers, as read-only arrays."""

    correct: BoolArray  # (n_questions, n_checkpoints) forced answer equals gold
    natural_correct: BoolArray | None  # (n_questions,); None in archives
    visible_correct: BoolArray | None = None  # (n_questions, n_checkpoints)
    """Whether the visible answer after a stop is right (the natural answer, once the trace is
    over); None if none were collected."""
    natural_code: IntArray | None = None  # (n_questions,)
    """The natural answer, numbered as in `ProbeTable.answer_codes`; -1 if empty or missing.  An
    outcome, because a stopped request never shows it."""
    visible_code: IntArray | None = None  # (n_questions, n_checkpoints)
    """The visible answer after a stop, numbered likewise; None if none were collected."""

    def __post_init__(self) -> None:
        for array in self._arrays().values():
            array.flags.writeable = False

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {name: array for name, array in vars(self).items() if array is not None}

    def take(self, rows: NDArray[Any]) -> Outcomes:
        """Outcomes of some questions, by boolean mask or by row numbers."""
        index = row_numbers(rows)
        return replace(self, **{name: array[index] for name, array in self._arrays().items()})

    def select(self, columns: Sequence[int]) -> Outcomes:
        """Outcomes at some checkpoints."""
        return self._at_checkpoints(lambda array: array[:, list(columns)])

    def at(self, columns: IntArray) -> Outcomes:
        """Outcomes of each question at its own choice of probes; see `ProbeTable.at`."""
        inside = np.maximum(columns, 0)
        return self._at_checkpoints(lambda array: np.take_along_axis(array, inside, axis=1))

    def _at_checkpoints(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Outcomes:
        arrays = self._arrays().items()
        return replace(self, **{name: change(array) for name, array in arrays if array.ndim == 2})


@dataclass(frozen=True)
class _WithOutcomes(ProbeTable):
    """A table whose outcomes follow its questions through every selection."""

    _outcomes: Outcomes = field(kw_only=True, repr=False)

    @classmethod
    def of(cls, table: ProbeTable, outcomes: Outcomes) -> Self:
        """A table of this type, made of observations and outcomes."""
        observed = {f.name: getattr(table, f.name) for f in fields(ProbeTable)}
        return cls(**observed, _outcomes=outcomes)

    @property
    def observations(self) -> ProbeTable:
        """The table without its outcomes: only what can be observed online."""
        return ProbeTable(**{f.name: getattr(self, f.name) for f in fields(ProbeTable)})

    def take(self, rows: NDArray[Any]) -> Self:
        """The table of some questions, by boolean mask or by row numbers."""
        return type(self).of(self.observations.take(rows), self._outcomes.take(rows))

    def select(self, columns: Sequence[int]) -> Self:
        """The same questions at some of their checkpoints."""
        return type(self).of(self.observations.select(columns), self._outcomes.select(columns))

    def at(self, columns: IntArray, budgets: Sequence[int] | None = None) -> Self:
        """The same questions, each at its own choice of probes; see `ProbeTable.at`."""
        return type(self).of(self.observations.at(columns, budgets), self._outcomes.at(columns))

    def with_on_stop(self, on_stop: OnStop) -> Self:
        """The same probes under another reply to a stop; see `ProbeTable.with_on_stop`."""
        table = super().with_on_stop(on_stop)
        if table.on_stop == self.on_stop:
            return table
        bare = replace(self._outcomes, visible_correct=None, visible_code=None)
        return replace(table, _outcomes=bare)


@dataclass(frozen=True)
class GradedTable(_WithOutcomes):
    """Probes with their outcomes, on which rules are measured."""

    @property
    def outcomes(self) -> Outcomes:
        """Which answers are right."""
        return self._outcomes

    @property
    def correct(self) -> BoolArray:
        """Whether each forced answer is right."""
        return self._outcomes.correct

    @property
    def natural_correct(self) -> BoolArray | None:
        """Whether the natural answer is right; None in archives."""
        return self._outcomes.natural_correct

    @property
    def full_correct(self) -> BoolArray:
        """Whether full thinking is correct, under the table's reference."""
        if self.reference == "natural":
            assert self.natural_correct is not None  # checked by __post_init__
            return self.natural_correct
        return self.correct[:, -1]

    @property
    def stop_correct(self) -> BoolArray:
        """Whether the reply after a stop, visible or forced, is right.

        A stopping rule has to predict this, so classifiers are fitted on it.
        """
        visible = self._outcomes.visible_correct
        return self.correct if visible is None else visible

    @property
    def full_codes(self) -> IntArray:
        """Full thinking's answers, under the table's reference; shape (n_questions,)."""
        if self.reference == "last-checkpoint":
            return self.answer_codes[:, -1]
        if self._outcomes.natural_code is None:
            raise ProbeError("these probes hold no natural answers to compare with")
        return self._outcomes.natural_code

    @property
    def stop_codes(self) -> IntArray:
        """The reply after a stop, visible or forced; numbered as `answer_codes`."""
        if self.on_stop == "probe":
            return self.answer_codes
        if self._outcomes.visible_code is None:
            raise ProbeError("these probes hold no visible answers to compare with")
        return self._outcomes.visible_code

    @property
    def correct_online(self) -> BoolArray:
        """Whether the user gets a right answer if stopped at each checkpoint.

        Where no probe happens, the question ends by itself with the reference's answer.
        """
        return np.where(self.ended, self.full_correct[:, None], self.stop_correct)


@dataclass(frozen=True)
class FitQuestions(GradedTable):
    """Questions on which rules are chosen; nothing is certified on them."""


@dataclass(frozen=True)
class CalibrationQuestions(GradedTable):
    """Questions opened for a look, to certify on; nothing is chosen on them."""


@dataclass(frozen=True)
class OpenQuestions(GradedTable):
    """Questions whose outcomes are public or were already seen; they may be split freely."""

    def as_fit(self) -> FitQuestions:
        """These questions, to choose on."""
        return FitQuestions.of(self, self.outcomes)

    def as_calibration(self) -> CalibrationQuestions:
        """These questions, to certify on."""
        return CalibrationQuestions.of(self, self.outcomes)

    def sealed(self) -> SealedQuestions:
        """These questions with their outcomes closed."""
        return SealedQuestions.of(self, self.outcomes)


@dataclass(frozen=True)
class SealedQuestions(_WithOutcomes):
    """Questions whose outcomes may not be read yet."""

    def unseal(self) -> OpenQuestions:
        """Open the outcomes.

        Only `runs` may call this: `Source.part` for fit questions, `runs.access` for a look or for
        questions that are open already.
        """
        return OpenQuestions.of(self, self._outcomes)


def require_fit(table: object) -> None:
    """Raise CalibrationError unless a rule may be chosen on these questions."""
    if not isinstance(table, FitQuestions):
        raise CalibrationError(
            f"a rule must be chosen on FitQuestions, got {type(table).__name__}: on other "
            "questions it could not be certified afterwards"
        )


def require_calibration(table: object) -> None:
    """Raise CalibrationError unless a rule may be certified on these questions."""
    if not isinstance(table, CalibrationQuestions):
        raise CalibrationError(
            f"a rule is certified on CalibrationQuestions, got {type(table).__name__}: they "
            "are handed out for a look"
        )
