"""Few labels: ask for one label at a time, only while it can change a decision of the test.

A question can be lost at a threshold only if its reply there differs from its natural answer.  So
without labels the number of losses is between 0 and the number of differing replies, and a label is
needed only while that leaves a decision open.  Every threshold that passes here passes with full
labels too: stopping early can never certify more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray

__all__ = ["LabelForecast", "LabelTest", "LabelWalk", "asking_order", "forecast", "walk"]


@dataclass(frozen=True)
class LabelTest:
    """One sequence of thresholds, with the known losses."""

    differs: BoolArray  # (n_questions, n_thresholds)
    """Whether the reply differs and its label counts; in a sample not all of these do."""
    lost: BoolArray  # (n_questions, n_thresholds) subset of differs; read only where known
    most: IntArray | int
    """Most losses that the test allows, per threshold or for all; -1 if it allows none at all."""
    savings: FloatArray  # (n_thresholds,) net saving on fit questions, percent

    def saving(self, index: int) -> float:
        """Net saving (percent) if this threshold is certified; 0 for index -1."""
        return max(float(self.savings[index]), 0.0) if index >= 0 else 0.0


@dataclass(frozen=True)
class LabelWalk:
    """Result of a walk: the thresholds that pass, and the labels it took."""

    indices: tuple[int, ...]
    """Last threshold of each test that passes for certain; -1 if none does."""
    asked: IntArray  # rows in the order of asking
    known: BoolArray  # (n_questions,) labels known at the end
    wanted: int | None
    """Row to ask for next; None if no label can change a decision."""

    def saving(self, tests: Sequence[LabelTest]) -> float:
        """Net saving of the best certified threshold (percent)."""
        reached = zip(tests, self.indices, strict=True)
        return max((test.saving(index) for test, index in reached), default=0.0)


@dataclass(frozen=True)
class LabelForecast:
    """What is certified now, and the expected gain from further labels."""

    walk: LabelWalk
    saving_pct: float
    """Net saving that is certified now."""
    labels: float
    """Expected number of further labels worth asking for."""
    saving_pp: float
    """Expected points of net saving that these labels add."""
    likely: IntArray
    """Rows likely to be asked for, likeliest first: enough of them in three cases out of four."""


def asking_order(keys: Iterable[str], salt: str) -> IntArray:
    """Rows in an order that is fixed before any label is read: by hash of salt and key."""
    digests = [hashlib.sha256(f"{salt}:{key}".encode()).digest() for key in keys]
    return np.array(sorted(range(len(digests)), key=digests.__getitem__), dtype=np.int64)


def walk(
    tests: Sequence[LabelTest], known: BoolArray, order: IntArray, *, budget: int | None = 0
) -> LabelWalk:
    """Walk along each test to its first failure, asking for labels while a decision is open.

    Parameters
    ----------
    tests : sequence of LabelTest
        Walked in turn; labels carry over to the next.  A test that cannot save more than an earlier
        one has certified asks for nothing.
    known : ndarray of bool, shape (n_questions,)
        Labels known beforehand.  Questions that cannot be labelled are known, and lost where they
        differ.
    order : ndarray of int, shape (n_questions,)
        Rows in the order of asking.
    budget : int, optional
        Most labels to ask for; None for as many as change a decision.

    Notes
    -----
    At each threshold let `lost` be the known losses, and `open` the questions that differ and are
    not labelled.  The threshold passes if lost + open is within the limit, and fails if lost alone
    exceeds it; otherwise the first open question in the order is asked for.  Full labels would give
    the same decisions.
    """
    known = known.copy()
    indices: list[int] = []
    asked: list[int] = []
    wanted, saved = None, 0.0
    for test in tests:
        index, asks, wanted_here = _go(test, known, order, budget, len(asked), saved)
        asked += asks
        indices.append(index)
        wanted = wanted_here if wanted is None else wanted
        saved = max(saved, test.saving(index))
    return LabelWalk(tuple(indices), np.array(asked, dtype=np.int64), known, wanted)


def _go(
    test: LabelTest,
    known: BoolArray,
    order: IntArray,
    budget: int | None,
    n_asked: int,
    saved: float,
) -> tuple[int, list[int], int | None]:
    """Walk one test: last threshold passed, rows asked for, row wanted; updates `known`."""
    differs, lost = test.differs, test.lost
    most = np.broadcast_to(test.most, differs.shape[1:])
    low = lost[known].sum(axis=0)  # losses for certain, (n_thresholds,)
    high = low + differs[~known].sum(axis=0)  # and at worst
    in_order = differs[order]
    asked: list[int] = []
    while True:
        over = high > most
        at = int(over.argmax()) if over.any() else over.size
        if at == over.size or low[at] > most[at] or test.savings.max(initial=0.0) <= saved:
            return at - 1, asked, None
        row = int(order[(in_order[:, at] & ~known[order]).argmax()])
        if budget is not None and n_asked + len(asked) >= budget:
            return at - 1, asked, row
        known[row] = True
        asked.append(row)
        low += lost[row]
        high -= differs[row] & ~lost[row]


def forecast(
    tests: Sequence[LabelTest],
    known: BoolArray,
    order: IntArray,
    *,
    rng: np.random.Generator,
    n_draws: int = 50,
) -> LabelForecast:
    """Forecast the gain from further labels, by continuing the walk with simulated ones.

    A differing question is lost if its natural answer is right.  How often that happens is drawn
    from its posterior (uniform prior), given the labelled questions that differ somewhere.
    """
    lost = n = 0
    for test in tests:
        differing = test.differs[known].any(axis=1)
        lost += int(test.lost[known][differing].any(axis=1).sum())
        n += int(differing.sum())
    now = walk(tests, known, order)
    saving_now = now.saving(tests)
    labels, saving = [], []
    often = np.zeros(known.size, dtype=np.int64)
    for share in rng.beta(1 + lost, 1 + n - lost, n_draws):
        right = rng.random(known.size) < share
        drawn = [
            replace(t, lost=np.where(known[:, None], t.lost, t.differs & right[:, None]))
            for t in tests
        ]
        end = walk(drawn, known, order, budget=None)
        labels.append(end.asked.size)
        often[end.asked] += 1
        saving.append(end.saving(drawn) - saving_now)
    ranked = order[np.argsort(-often[order], kind="stable")]
    enough = min(int(np.quantile(labels, 0.75, method="higher")), int((often > 0).sum()))
    return LabelForecast(
        now, saving_now, float(np.mean(labels)), float(np.mean(saving)), ranked[:enough]
    )
