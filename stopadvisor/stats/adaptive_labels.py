"""Few labels: which questions a test along a fixed sequence has to know, asked for one at a time.

A question can be lost at a threshold only where its reply there differs from its natural answer.
So without any label the losses lie between none and the differing replies, and a label is worth
asking for only while that leaves a decision open.  Every threshold that passes here passes with
full labels too: nothing that ends the asking early can add to what is certified.  Knows no
questions, no answers and no files.
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
    """One sequence of thresholds with what is known of its losses."""

    differs: BoolArray  # (n_questions, n_thresholds)
    """Whether the reply may be lost and its label counts."""
    lost: BoolArray  # (n_questions, n_thresholds) only where it differs; read where known
    most: IntArray | int
    """Most losses that the test allows, at each threshold or at all; -1 where it passes nothing."""
    savings: FloatArray  # (n_thresholds,) net saving on fit questions, percent

    def saving(self, index: int) -> float:
        """Net saving where this threshold is certified (percent); 0 for none."""
        return max(float(self.savings[index]), 0.0) if index >= 0 else 0.0


@dataclass(frozen=True)
class LabelWalk:
    """How far the labels carry."""

    indices: tuple[int, ...]
    """Last threshold of each test that passes for certain; -1 where none does."""
    asked: IntArray  # rows in the order in which they were asked for
    known: BoolArray  # (n_questions,) labels known by the end
    wanted: int | None
    """Row to ask for next; None where no label can change a decision."""

    def saving(self, tests: Sequence[LabelTest]) -> float:
        """Net saving of the best certified threshold (percent)."""
        reached = zip(tests, self.indices, strict=True)
        return max((test.saving(index) for test, index in reached), default=0.0)


@dataclass(frozen=True)
class LabelForecast:
    """How far the labels carry, and what all others worth asking for are expected to bring."""

    walk: LabelWalk
    saving_pct: float
    """Net saving that is certified now."""
    labels: float
    """How many are still worth asking for."""
    saving_pp: float
    """Points of net saving that they add to what is certified."""
    likely: IntArray
    """Rows that are likely to be asked for, the likeliest first: enough of them in three cases of
    four."""


def asking_order(keys: Iterable[str], salt: str) -> IntArray:
    """Rows in an order that is fixed before any label is read: by hash of salt and key."""
    digests = [hashlib.sha256(f"{salt}:{key}".encode()).digest() for key in keys]
    return np.array(sorted(range(len(digests)), key=digests.__getitem__), dtype=np.int64)


def walk(
    tests: Sequence[LabelTest], known: BoolArray, order: IntArray, *, budget: int | None = 0
) -> LabelWalk:
    """Go along each test to its first failure, and ask for labels where it is open.

    Parameters
    ----------
    tests : sequence of LabelTest
        Taken in turn; a label asked for one is known to the next.  One that cannot save more than
        what an earlier one has certified asks for nothing.
    known : ndarray of bool, shape (n_questions,)
        Labels known beforehand.  Whoever cannot be labelled is known, and lost where it differs.
    order : ndarray of int, shape (n_questions,)
        Rows in the order of asking.
    budget : int, optional
        Most labels to ask for; None for as many as change a decision.

    Notes
    -----
    At each threshold, of `lost` known losses and `open` questions that differ and are not labelled:
    it passes where lost + open is at most the limit, fails where lost alone is above it, and
    otherwise the first open question in the order is asked for.  Pass and fail are those of full
    labels.
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
    """One test: last threshold passed, rows asked for, row wanted; `known` is filled in."""
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
    """Expect what further labels bring: the walk goes on with labels drawn by what is known.

    A question that differs is lost if its natural answer is right.  How often that is so is taken
    from the labelled questions that differ somewhere, with one of each kind added.
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
    more = float(np.mean(labels)), float(np.mean(saving))
    return LabelForecast(now, saving_now, *more, ranked[:enough])
