"""What can be seen at each checkpoint, of right and of wrong forced answers.

Works on the questions it is given, and knows no protocol: the score of a rule comes in as an array.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stopadvisor.ground.arrays import BoolArray, FloatArray, Numbers, numbers
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.rules.features import feature_array
from stopadvisor.stats.reliability import auroc

__all__ = ["CheckpointAccuracy", "Signal", "Spread", "checkpoint_accuracy", "signals_of"]

_FEWEST = 5
"""Answers of a class at a checkpoint below which deciles say nothing."""


@dataclass(frozen=True)
class CheckpointAccuracy:
    """Accuracy of stopping everything at a checkpoint, and who is still thinking there."""

    budgets: tuple[int, ...]
    """Thinking tokens at each checkpoint."""
    accuracy: tuple[float, ...]
    """Of stopping everything there."""
    thinking: tuple[float, ...]
    """Share of the traces that are not over yet."""
    full_accuracy: float
    """Of full thinking."""


@dataclass(frozen=True)
class Spread:
    """Deciles of one signal at each checkpoint; None where too few answers are of the class."""

    low: Numbers
    """10 %."""
    middle: Numbers
    """The median."""
    high: Numbers
    """90 %."""


@dataclass(frozen=True)
class Signal:
    """One signal at each checkpoint, for right and for wrong forced answers."""

    name: str
    """As people know it."""
    budgets: tuple[int, ...]
    """Thinking tokens at each checkpoint."""
    right: Spread
    """Of right answers."""
    wrong: Spread
    """Of wrong ones."""
    auroc: float | None
    """Over all live checkpoints, in the direction in which the signal speaks for right answers."""


def checkpoint_accuracy(table: GradedTable) -> CheckpointAccuracy:
    """Accuracy of stopping every question at each checkpoint."""
    return CheckpointAccuracy(
        tuple(table.budgets.tolist()),
        tuple(table.correct_online.mean(axis=0).tolist()),
        tuple((~table.ended).mean(axis=0).tolist()),
        float(table.full_correct.mean()),
    )


def signals_of(
    table: GradedTable, learned: tuple[GradedTable, FloatArray] | None
) -> tuple[Signal, ...]:
    """Confidence, entropy, share of votes and the learned score, for right and wrong answers.

    Parameters
    ----------
    table : GradedTable
        On one grid.
    learned : tuple of GradedTable and ndarray of float, optional
        The questions at the probes of the learned rule, and its out-of-fold probabilities,
        (n_questions, n_probes).  Left out where they are on no grid.
    """
    votes = feature_array(table, names=("vote_share",))[..., 0]
    signals: list[tuple[str, GradedTable, FloatArray, int]] = []
    if table.knows_logprob:
        signals.append(("confidence", table, np.exp(table.mean_logprob), 1))
    if table.knows_entropy:
        signals.append(("entropy (nats)", table, table.mean_entropy, -1))
    signals.append(("vote share", table, votes, 1))
    if learned is not None and learned[0].is_grid:
        signals.append(("learned score", *learned, 1))
    found = []
    for name, view, values, sign in signals:
        live, correct = view.live, view.stop_correct
        found.append(
            Signal(
                name,
                tuple(view.budgets.tolist()),
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
    return Spread(*map(numbers, deciles))
