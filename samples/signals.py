"""How well signals rank right forced answers above wrong ones, and what stopping by them saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

__all__ = ["Probed", "aurocs", "print_signals"]

Array = NDArray[np.float64]

LOSSES = (0.02, 0.05, 0.10, 0.15)
"""Shares of questions that stopping may turn from right to wrong, for the saving column."""


class Probed(Protocol):
    """The fields of a trajectory that signals read."""

    gold: str
    natural: str
    answers: list[str]
    """Forced answers at the checkpoints; more may follow."""
    logprobs: list[float]
    entropies: list[float]
    probe_tokens: list[int]
    markers: list[int]

    @property
    def trace(self) -> Sequence[int]:
        """Thinking tokens; their number matters here."""
        ...


@dataclass(frozen=True)
class Signals:
    """Scores at every checkpoint, and what they are to foresee."""

    live: NDArray[np.bool_]  # (n_questions, n_checkpoints) the model still thinks
    right: NDArray[np.bool_]  # (n_questions, n_checkpoints)
    scores: dict[str, Array]  # each (n_questions, n_checkpoints)

    def auroc(self, name: str) -> float:
        """How well a score ranks right answers above wrong ones, over live checkpoints."""
        return float(roc_auc_score(self.right[self.live], self.scores[name][self.live]))


def features(trajectory: Probed, budgets: Sequence[int]) -> Array:
    """Return the eight features at each budget, from what stands before it only."""
    rows = []
    run = 0
    for j, budget in enumerate(budgets):
        answer = trajectory.answers[j]
        same = j > 0 and answer == trajectory.answers[j - 1]
        run = run + 1 if same else 1
        vote = trajectory.answers[: j + 1].count(answer) / (j + 1)
        density = trajectory.markers[j] / max(budget, 1)
        rows.append(
            [
                budget / budgets[-1],
                j,
                trajectory.logprobs[j],
                trajectory.entropies[j],
                same,
                run,
                vote,
                density,
            ]
        )
    return np.array(rows, dtype=float)  # (n_checkpoints, 8)


def _signals(trajectories: Sequence[Probed], budgets: Sequence[int]) -> Signals | None:
    """Scores of every signal, learned ones out of fold; None where all answers are alike."""
    live = np.array([[b < len(t.trace) for b in budgets] for t in trajectories])
    x = np.stack([features(t, budgets) for t in trajectories])  # (n_questions, n_checkpoints, 8)
    right = np.array([[a == t.gold for a in t.answers[: len(budgets)]] for t in trajectories])
    groups = np.repeat(np.arange(len(trajectories)), len(budgets)).reshape(live.shape)[live]
    if len(set(right[live])) < 2:
        return None

    logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    boosted = HistGradientBoostingClassifier(random_state=0, max_depth=3)
    scores = {"confidence": x[..., 2], "entropy": -x[..., 3], "run-stability": x[..., 5]}
    for name, model in {"learned": logistic, "boosted": boosted}.items():
        table = np.full(live.shape, -np.inf)
        with threadpool_limits(1):  # small fits: threads would wait for each other
            found = cross_val_predict(
                model, x[live], right[live], groups=groups, cv=GroupKFold(5), method="predict_proba"
            )
        table[live] = found[:, 1]
        scores[name] = table
    return Signals(live, right, scores)


def aurocs(trajectories: Sequence[Probed], budgets: Sequence[int]) -> dict[str, float]:
    """Each signal's AUROC while the model still thinks; empty where all answers are alike."""
    signals = _signals(trajectories, budgets)
    return {} if signals is None else {name: signals.auroc(name) for name in signals.scores}


def print_signals(trajectories: Sequence[Probed], budgets: Sequence[int]) -> None:
    """Print each signal's AUROC and its best saving at some shares of lost right answers.

    Learned scores are out of fold, grouped by question; thresholds are chosen on the same
    questions, so the savings describe the workload and promise nothing.
    """
    signals = _signals(trajectories, budgets)
    if signals is None:
        print("  all forced answers alike; no signal to rank")
        return
    live, right = signals.live, signals.right
    for name, score in signals.scores.items():
        auroc = signals.auroc(name)
        savings = [_saving(trajectories, budgets, score, live, right, loss) for loss in LOSSES]
        pairs = zip(LOSSES, savings, strict=True)
        columns = "  ".join(f"{100 * loss:.0f} %: {100 * saving:.1f}" for loss, saving in pairs)
        print(f"  {name:14s} AUROC {auroc:.3f}  saving (%) at lost {columns}")


def _saving(
    trajectories: Sequence[Probed],
    budgets: Sequence[int],
    score: Array,
    live: NDArray[np.bool_],
    right: NDArray[np.bool_],
    most_lost: float,
) -> float:
    """Return the best net token saving with at most this share of lost right answers."""
    n = np.arange(len(trajectories))
    spent = np.array([np.cumsum(t.probe_tokens[: len(budgets)]) for t in trajectories])
    lengths = np.array([len(t.trace) for t in trajectories])
    natural = np.array([t.natural == t.gold for t in trajectories])
    full = lengths + np.array([t.probe_tokens[-1] for t in trajectories])
    best = 0.0
    for threshold in np.unique(np.quantile(score[live], np.linspace(0, 1, 201))):
        stop = live & (score >= threshold)
        stopped = stop.any(1)
        at = np.where(stopped, stop.argmax(1), 0)
        probes = np.where(stopped, spent[n, at], (np.where(live, 1, 0).sum(1)) * 2)
        cost = np.where(stopped, np.array(budgets)[at], full) + probes
        if (stopped & natural & ~right[n, at]).mean() <= most_lost:
            best = max(best, 1 - float(cost.mean() / full.mean()))
    return best
