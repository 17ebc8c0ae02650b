"""The three losses: what a stopped question counts, and the claim that a limit on it makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from stopadvisor.ground.arrays import BoolArray, IntArray
from stopadvisor.ground.errors import CalibrationError, ProbeError
from stopadvisor.probes.outcomes import GradedTable

__all__ = ["DIFFERS", "DROP", "LOSSES", "LOST", "Guarantee", "Loss", "LossName", "lost_correct"]

LossName = Literal["lost", "differs", "drop"]


@dataclass(frozen=True)
class Loss:
    """What a question counts wherever it stops, and the claim that a limit on it makes."""

    name: LossName
    needs_gold: bool
    """Whether gold answers are needed to count it."""
    reads_answers: bool
    """Whether it compares answers, not just grades."""
    is_binary: bool
    """Whether a question counts 0 or 1, so that the exact binomial test applies; else -1, 0, 1."""
    words: str
    """The claim, with ``{alpha:g}`` for the limit in percent."""
    _at_stops: Callable[[GradedTable], IntArray] = field(repr=False)

    def of(self, view: GradedTable) -> IntArray:
        """Count each question, depending on where it stops.

        Returns
        -------
        ndarray of int, shape (n_questions, n_probes + 1)
            0 in the last column (never stopping), and where the trace is over or the reply is full
            thinking's own.

        Raises
        ------
        CalibrationError
            The loss needs gold and the questions have none, or the probes hold no answers to
            compare.
        """
        if self.needs_gold and view.graded_by != "gold":
            raise CalibrationError(
                f"loss {self.name!r} needs gold answers, and these questions have none: label "
                "them, or certify --loss differs"
            )
        counts = np.zeros((view.n_questions, view.n_checkpoints + 1), dtype=np.int64)
        counts[:, :-1] = np.where(view.live & ~view.is_full, self._at_stops(view), 0)
        return counts


def lost_correct(correct: BoolArray, full_correct: BoolArray) -> BoolArray:
    """Whether full thinking is right and the answer after an early stop wrong.

    `correct`, (n_questions, n_checkpoints), grades the answer given when stopped at each
    checkpoint; `full_correct` has shape (n_questions,).  Returns shape (n_questions, n_checkpoints
    + 1); the last column, for never stopping, is False.

    References
    ----------
    Paper, Section "Lost-Correct Risk Calibration".
    """
    loss = np.zeros((correct.shape[0], correct.shape[1] + 1), dtype=bool)
    loss[:, :-1] = full_correct[:, None] & ~correct
    return loss


def _lost(view: GradedTable) -> IntArray:
    return lost_correct(view.stop_correct, view.full_correct)[:, :-1].astype(np.int64)


def _differs(view: GradedTable) -> IntArray:
    """Whether the reply differs from this trace's natural answer (archives: the last checkpoint's).

    Equal normal forms with different grades differ too, so every lost question differs.  So does
    every stop of a trace that was cut off, because its full answer is unknown.
    """
    try:
        reply, full = view.stop_codes, view.full_codes[:, None]
    except ProbeError as error:
        raise CalibrationError(f"loss 'differs' compares answers: {error}") from error
    differs = (reply != full) | (reply < 0) | view.truncated[:, None]  # below 0: empty
    differs |= view.stop_correct != view.full_correct[:, None]
    return np.asarray(differs, dtype=np.int64)


def _drop(view: GradedTable) -> IntArray:
    """Count 1 for lost and -1 for gained; the mean is the fall of accuracy.

    A gain on a trace that was cut off counts 0: otherwise a small cap would create gains.
    """
    full = view.full_correct[:, None]
    gained = ~full & view.stop_correct & ~view.truncated[:, None]
    return np.asarray(_lost(view) - gained, dtype=np.int64)


LOST = Loss(
    "lost",
    needs_gold=True,
    reads_answers=False,
    is_binary=True,
    words="stopping early turns at most {alpha:g} % of all questions from right to wrong",
    _at_stops=_lost,
)
DIFFERS = Loss(
    "differs",
    needs_gold=False,
    reads_answers=True,
    is_binary=True,
    words="at most {alpha:g} % of replies differ from what full thinking would have said",
    _at_stops=_differs,
)
DROP = Loss(
    "drop",
    needs_gold=True,
    reads_answers=False,
    is_binary=False,
    words="accuracy falls by at most {alpha:g} points",
    _at_stops=_drop,
)
LOSSES: dict[str, Loss] = {loss.name: loss for loss in (LOST, DIFFERS, DROP)}
"""Losses by name, the default first."""


@dataclass(frozen=True)
class Guarantee:
    """A limit on one loss, for all questions or for one category."""

    loss: LossName
    """The limited loss: `lost`, `differs` or `drop`."""
    alpha: float
    """The limit."""
    category: str | None = field(default=None, metadata={"present_with": "alpha"})
    """The category it covers; null for all questions."""

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise CalibrationError(f"loss must be one of {tuple(LOSSES)}, got {self.loss!r}")
        if not 0 < self.alpha < 1:
            raise CalibrationError(f"alpha must be in (0, 1), got {self.alpha!r}")

    @property
    def counted(self) -> Loss:
        """The limited loss."""
        return LOSSES[self.loss]

    def __str__(self) -> str:
        """The guarantee as written on the command line."""
        among = "" if self.category is None else f"category={self.category}:"
        return f"{among}{self.loss}={self.alpha:g}"
