"""Example questions: a win, a loss and an oscillation, chosen by what one rule does on them.

Works on the questions it is given: who may be shown is decided by whoever gives them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.probes.trajectories import TYPES, classify, trajectory

__all__ = ["ChosenExample", "Stops", "choose_examples"]


@dataclass(frozen=True)
class Stops:
    """What one rule does on the questions of a table, at whose checkpoints it probes."""

    family: str
    scores: FloatArray  # (n_questions, n_checkpoints)
    """As people know them."""
    threshold: float
    stops: IntArray  # (n_questions,)
    """Checkpoint; their number for never."""


@dataclass(frozen=True)
class ChosenExample:
    """One question of a table."""

    kind: str
    """``win``, ``loss`` or ``oscillation``."""
    row: int


def choose_examples(table: GradedTable, stops: Stops | None) -> list[ChosenExample]:
    """Of each kind the question in the middle by thinking tokens.

    Notes
    -----
    A win is stopped early with the right answer that full thinking gives too; a loss is stopped
    with a wrong one where full thinking is right.  Without a rule there are neither.
    """
    first = table.samples == 0
    found = []
    if stops is not None:
        early = stops.stops < table.n_checkpoints
        at = np.minimum(stops.stops, table.n_checkpoints - 1)
        right = np.take_along_axis(table.correct_online, at[:, None], axis=1)[:, 0]
        early &= first & table.full_correct
        found += [("win", early & right), ("loss", early & ~right)]
    oscillating = classify(trajectory(table)) == TYPES.index("oscillating")
    found.append(("oscillation", first & oscillating))
    rows = [(kind, _middle(table, members)) for kind, members in found]
    return [ChosenExample(kind, row) for kind, row in rows if row is not None]


def _middle(table: GradedTable, members: BoolArray) -> int | None:
    rows = np.flatnonzero(members)
    if not rows.size:
        return None
    order = rows[np.argsort(table.trace_tokens[rows], kind="stable")]
    return int(order[order.size // 2])
