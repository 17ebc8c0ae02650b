"""Signals at each checkpoint, and example questions, out of a probe table.

Works on the questions it is given: who may be shown is decided by whoever gives them.  Knows no
protocol; the score of the rule comes in as an array.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stopadvisor.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.probes.records import ProbeRecord
from stopadvisor.probes.trajectories import TYPES, classify, trajectory
from stopadvisor.report.figures.data import (
    CheckpointFigure,
    QuestionExample,
    SignalFigure,
    Spread,
    TrajectoryStep,
)
from stopadvisor.rules.features import FEATURES, feature_array
from stopadvisor.stats.reliability import auroc

__all__ = ["Stops", "Texts", "checkpoint_accuracy", "examples", "signal_figures"]

_FEWEST = 5
"""Answers of a class at a checkpoint below which deciles say nothing."""
_LONGEST_TEXT = 1500
"""Characters of a question that are shown."""


@dataclass(frozen=True)
class Stops:
    """What one rule does on the questions of a table."""

    family: str
    columns: tuple[int, ...]
    """Checkpoints at which it asks."""
    scores: FloatArray  # (n_questions, n_scheduled)
    """As people know them."""
    threshold: float
    stops: IntArray  # (n_questions,)
    """Position in `columns`; their number for never."""


@dataclass(frozen=True)
class Texts:
    """Words for the questions of a run, by question id."""

    records: Mapping[str, ProbeRecord]
    questions: Mapping[str, str]


def checkpoint_accuracy(table: GradedTable, basis: str) -> CheckpointFigure:
    """Accuracy of stopping every question at each checkpoint."""
    return CheckpointFigure(
        table.budgets,
        table.correct_online.mean(axis=0),
        (~table.ended).mean(axis=0),
        float(table.full_correct.mean()),
        basis,
    )


def signal_figures(
    table: GradedTable, learned: FloatArray | None, columns: tuple[int, ...]
) -> tuple[SignalFigure, ...]:
    """Confidence, entropy, share of votes and the learned score, for right and wrong answers.

    Parameters
    ----------
    table : GradedTable
    learned : ndarray of float, shape (n_questions, n_scheduled), optional
        Out-of-fold probabilities.
    columns : tuple of int
        Checkpoints of `learned`.
    """
    every = tuple(range(table.n_checkpoints))
    votes = feature_array(table, every, FEATURES)[..., FEATURES.index("vote_share")]
    signals: list[tuple[str, FloatArray, tuple[int, ...], int]] = []
    if table.entropy_source != "none":  # the server returned log-probabilities
        signals += [
            ("confidence", np.exp(table.mean_logprob), every, 1),
            ("entropy (nats)", table.mean_entropy, every, -1),
        ]
    signals.append(("vote share", votes, every, 1))
    if learned is not None:
        signals.append(("learned score", learned, columns, 1))
    found = []
    for name, values, at, sign in signals:
        live = ~table.ended[:, at]
        correct = table.stop_correct[:, at]
        found.append(
            SignalFigure(
                name,
                table.budgets[list(at)],
                _spread(values, live & correct),
                _spread(values, live & ~correct),
                auroc(sign * values[live], correct[live]),
            )
        )
    return tuple(found)


def _spread(values: FloatArray, members: BoolArray) -> Spread:
    deciles = np.full((3, values.shape[1]), np.nan)
    for column in range(values.shape[1]):
        inside = values[members[:, column], column]
        if inside.size >= _FEWEST:
            deciles[:, column] = np.quantile(inside, [0.1, 0.5, 0.9])
    return Spread(*deciles)


# --- Examples -------------------------------------------------------------------------------------


def examples(
    table: GradedTable, stops: Stops | None, texts: Texts | None
) -> tuple[QuestionExample, ...]:
    """A win, a loss and an oscillation: of each kind the one in the middle by thinking tokens.

    Notes
    -----
    A win is stopped early with the right answer that full thinking gives too; a loss is stopped
    with a wrong one where full thinking is right.  Without a rule there are neither.
    """
    first = table.samples == 0
    found = []
    if stops is not None:
        columns = np.asarray(stops.columns)
        early = stops.stops < columns.size
        at = columns[np.minimum(stops.stops, columns.size - 1)]
        right = np.take_along_axis(table.correct_online, at[:, None], axis=1)[:, 0]
        early &= first & table.full_correct
        found += [("win", early & right), ("loss", early & ~right)]
    oscillating = classify(trajectory(table)) == TYPES.index("oscillating")
    found.append(("oscillation", first & oscillating))
    rows = [(kind, _middle(table, members)) for kind, members in found]
    return tuple(_example(kind, table, row, stops, texts) for kind, row in rows if row is not None)


def _middle(table: GradedTable, members: BoolArray) -> int | None:
    rows = np.flatnonzero(members)
    if not rows.size:
        return None
    order = rows[np.argsort(table.trace_tokens[rows], kind="stable")]
    return int(order[order.size // 2])


def _example(
    kind: str, table: GradedTable, row: int, stops: Stops | None, texts: Texts | None
) -> QuestionExample:
    name = table.ids[row]
    record = texts.records.get(name) if texts else None
    question = texts.questions.get(name) if texts else None
    if question is not None and len(question) > _LONGEST_TEXT:
        question = question[:_LONGEST_TEXT] + " …"
    scores: dict[int, float] = {}
    stop = None
    if stops is not None:
        scores = dict(zip(stops.columns, stops.scores[row].tolist(), strict=True))
        position = int(stops.stops[row])
        stop = stops.columns[position] if position < len(stops.columns) else None
    ended, known = table.ended[row], table.entropy_source != "none"
    steps = tuple(
        TrajectoryStep(
            int(table.budgets[j]),
            None if record is None else record.checkpoints[j].answer.strip(),
            bool(table.correct_online[row, j]),
            float(np.exp(table.mean_logprob[row, j])) if known else None,
            None if ended[j] else scores.get(j),
            bool(ended[j]),
        )
        for j in range(table.n_checkpoints)
    )
    return QuestionExample(
        kind,
        name,
        question,
        None if record is None else record.gold,
        None if record is None or record.natural_answer is None else record.natural_answer.strip(),
        bool(table.full_correct[row]),
        int(table.trace_tokens[row]),
        steps,
        stop,
        None if stops is None else stops.threshold,
        None if stops is None else stops.family,
    )
