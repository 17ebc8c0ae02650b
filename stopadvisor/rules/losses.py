"""Losses: what a question counts against a rule that stops it, and what a limit on it promises.

Three objects with one interface.  Everything downstream (sequences, tests, looks, certificate,
verification, report) takes one of them and never asks which.  Knows no statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from stopadvisor.ground.arrays import BoolArray, IntArray
from stopadvisor.ground.errors import CalibrationError, ProbeError
from stopadvisor.probes.outcomes import GradedTable

__all__ = [
    "DIFFERS",
    "DROP",
    "LOSSES",
    "LOST",
    "Guarantee",
    "Loss",
    "LossName",
    "loss_named",
    "lost_correct",
]

LossName = Literal["lost", "differs", "drop"]


@dataclass(frozen=True)
class Loss:
    """What a question counts at each place of stopping, and the claim that a limit on it makes."""

    name: LossName
    needs_gold: bool
    """Whether the counts come from grades; without gold nobody can say them."""
    reads_answers: bool
    """Whether the normal forms of replies decide, along with or instead of their grades."""
    values: tuple[int, ...]
    """What one question can count."""
    words: str
    """The claim, with ``{alpha:g}`` for the limit in percent."""
    denominator: str
    """Of what the limit is a share."""
    _at_stops: Callable[[GradedTable], IntArray] = field(repr=False)

    @property
    def is_binary(self) -> bool:
        """Whether a question counts 0 or 1, so that the exact binomial test applies."""
        return self.values == (0, 1)

    def of(self, view: GradedTable) -> IntArray:
        """Count each question, by place of stopping.

        Returns
        -------
        ndarray of int, shape (n_questions, n_probes + 1)
            The last column is never stopping: 0, as where the trace is over or the reply is full
            thinking's own.

        Raises
        ------
        CalibrationError
            The loss takes gold and the questions have none, or the probes hold no answers to
            compare.
        """
        if self.needs_gold and view.graded_by != "gold":
            raise CalibrationError(
                f"loss {self.name!r} takes gold answers, and these questions have none: label "
                "them, or certify --loss differs"
            )
        counts = np.zeros((view.n_questions, view.n_checkpoints + 1), dtype=np.int64)
        counts[:, :-1] = np.where(view.live & ~view.is_full, self._at_stops(view), 0)
        return counts


def lost_correct(correct: BoolArray, full_correct: BoolArray) -> BoolArray:
    """Full thinking right, stopped answer wrong.

    `correct`, (n_questions, n_checkpoints), is that of the answer given when stopped at each
    checkpoint, `full_correct` has shape (n_questions,).  Returns shape (n_questions, n_checkpoints
    + 1): the last column is never stopping, the reference's own answer, loss 0.

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
    """The reply is not this trace's own natural answer (archives: the last checkpoint's).

    Equal normal forms that were graded differently count too: then nothing is lost that does not
    differ, question by question.  So does every stop of a trace that was cut off, because nobody
    knows what it would have said.
    """
    try:
        reply, full = view.stop_codes, view.full_codes[:, None]
    except ProbeError as error:
        raise CalibrationError(f"loss 'differs' compares answers: {error}") from error
    differs = (reply != full) | (reply < 0) | view.truncated[:, None]  # below 0: empty
    differs |= view.stop_correct != view.full_correct[:, None]
    return np.asarray(differs, dtype=np.int64)


def _drop(view: GradedTable) -> IntArray:
    """Lost 1, gained -1; on a trace that was cut off a gain counts 0, or a small cap would buy it.

    References
    ----------
    The mean is the fall of accuracy, full thinking minus stopped.
    """
    full = view.full_correct[:, None]
    gained = ~full & view.stop_correct & ~view.truncated[:, None]
    return np.asarray(_lost(view) - gained, dtype=np.int64)


LOST = Loss(
    "lost",
    True,
    False,
    (0, 1),
    "stopping early turns at most {alpha:g} % of all questions from right to wrong",
    "all questions",
    _lost,
)
DIFFERS = Loss(
    "differs",
    False,
    True,
    (0, 1),
    "at most {alpha:g} % of replies differ from what full thinking would have said",
    "all replies",
    _differs,
)
DROP = Loss(
    "drop",
    True,
    False,
    (-1, 0, 1),
    "accuracy falls by at most {alpha:g} points",
    "all questions",
    _drop,
)
LOSSES: dict[str, Loss] = {loss.name: loss for loss in (LOST, DIFFERS, DROP)}
"""By name, the default first."""


def loss_named(name: str) -> Loss:
    """The loss of a name; raises CalibrationError for another."""
    if name not in LOSSES:
        raise CalibrationError(f"loss must be one of {tuple(LOSSES)}, got {name!r}")
    return LOSSES[name]


@dataclass(frozen=True)
class Guarantee:
    """A limit on one loss, of all questions or of those of one category."""

    loss: LossName
    """What is limited: `lost`, `differs` or `drop`."""
    alpha: float
    """To which share."""
    category: str | None = field(default=None, metadata={"present_with": "alpha"})
    """Of whose questions alone; null for all."""

    def __post_init__(self) -> None:
        loss_named(self.loss)
        if not 0 < self.alpha < 1:
            raise CalibrationError(f"alpha must be in (0, 1), got {self.alpha!r}")

    @property
    def counted(self) -> Loss:
        """The loss that it limits."""
        return LOSSES[self.loss]

    def __str__(self) -> str:
        """As it is asked for."""
        among = "" if self.category is None else f"category={self.category}:"
        return f"{among}{self.loss}={self.alpha:g}"
