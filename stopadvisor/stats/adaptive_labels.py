"""Few labels: ask for one label at a time, only while it can change a decision of the test.

A question can be lost at a threshold only if its reply there differs from its natural answer.  So
without labels the losses lie between 0 and the number of differing replies, and a label is needed
only while that leaves the decision open.  A threshold that passes here also passes with all labels:
asking for fewer never certifies more.  Where an `AskingPlan` settles beforehand that only a sample
counts, "all labels" are those of the sample.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.stats.bounds import Certified, NotCertified, last_passed, max_losses
from stopadvisor.stats.label_sample import labelled_first, most_lost_labelled, sample_limit

__all__ = [
    "AskingPlan", "LabelForecast", "LabelTest", "LabelWalk", "asking_order", "forecast",
    "preferred_sample", "walk",
]  # fmt: skip


@dataclass(frozen=True)
class LabelTest:
    """One sequence of thresholds, with the known losses."""

    differs: BoolArray  # (n_questions, n_thresholds)
    """Whether the reply differs and its label counts; in a sample not every label does."""
    lost: BoolArray  # (n_questions, n_thresholds) subset of differs; read only where known
    most: IntArray | int
    """Most losses that the test allows, per threshold or for all; -1 if even 0 losses fail."""
    savings: FloatArray  # (n_thresholds,) net saving on fit questions, percent

    def saving(self, index: int) -> float:
        """Net saving (percent) if this threshold is certified; 0 for index -1."""
        return max(float(self.savings[index]), 0.0) if index >= 0 else 0.0


@dataclass(frozen=True)
class LabelWalk:
    """Result of a walk: the thresholds that pass, and the labels asked for."""

    indices: tuple[int, ...]
    """Last threshold of each test that is certain to pass; -1 if none is."""
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
    """Rows likely to be asked for, likeliest first; as many as suffice in three cases of four."""


def asking_order(keys: Iterable[str], salt: str) -> IntArray:
    """Rows ordered by hash of salt and key, an order fixed before any label is read."""
    digests = [hashlib.sha256(f"{salt}:{key}".encode()).digest() for key in keys]
    return np.array(sorted(range(len(digests)), key=digests.__getitem__), dtype=np.int64)


def walk(
    tests: Sequence[LabelTest], known: BoolArray, order: IntArray, *, budget: int | None = 0
) -> LabelWalk:
    """Walk along each test to its first failure, asking for labels while a decision is open.

    Parameters
    ----------
    tests : sequence of LabelTest
        Walked in turn; labels carry over to the next.  A test that cannot beat the saving certified
        so far asks for nothing.
    known : ndarray of bool, shape (n_questions,)
        Labels known beforehand.  A question that cannot be labelled is known, and lost where it
        differs.
    order : ndarray of int, shape (n_questions,)
        Rows in the order of asking.
    budget : int, optional
        Most labels to ask for; None for as many as change a decision.

    Notes
    -----
    At each threshold let `lost` be the known losses, and `open` the questions that differ and have
    no label.  The threshold passes if lost + open is within the limit, and fails if lost alone
    exceeds it; otherwise the walk asks for the first open question in the order.  All labels would
    give the same decisions.
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
    """Walk one test; return last threshold passed, rows asked for, row wanted.  Updates `known`."""
    differs, lost = test.differs, test.lost
    most = np.broadcast_to(test.most, differs.shape[1:])
    low = lost[known].sum(axis=0)  # certain losses, (n_thresholds,)
    high = low + differs[~known].sum(axis=0)  # and at worst
    in_order, open_ = differs[order], ~known[order]
    is_worth = bool(test.savings.max(initial=0.0) > saved)
    asked: list[int] = []
    at = 0
    while True:
        # A label only lowers `high`: what has passed stays passed.
        over = high[at:] > most[at:]
        at = at + int(over.argmax()) if over.any() else most.size
        if at == most.size or low[at] > most[at] or not is_worth:
            return at - 1, asked, None
        place = int((in_order[:, at] & open_).argmax())
        row = int(order[place])
        if budget is not None and n_asked + len(asked) >= budget:
            return at - 1, asked, row
        known[row], open_[place] = True, False
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

    A differing question is lost with a probability drawn from its posterior (uniform prior), given
    the labelled questions that differ at some threshold.  A question that differs in two tests
    counts twice there: this is advice, and no certificate depends on it.
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


# --- Which labels count ---------------------------------------------------------------------------


@dataclass(frozen=True)
class AskingPlan:
    """Which differing replies get labels; fixed before a label is read."""

    order: IntArray  # (n_questions,) rows in the order of asking
    labels: int | None = None
    """Label only the first N differing replies at each threshold; None for all."""

    @property
    def is_sample(self) -> bool:
        """Whether only a sample of the differing replies is labelled."""
        return self.labels is not None and self.labels < self.order.size

    def labelled(self, differs: BoolArray) -> BoolArray:
        """Which labels count at each threshold, (n_questions, n_thresholds)."""
        if self.labels is None or not self.is_sample:
            return differs
        return labelled_first(differs, self.order, self.labels)

    def most(self, differs: BoolArray, alpha: float, delta: float) -> IntArray:
        """Most labelled replies that may be lost at each threshold; -1 where none may."""
        n, n_thresholds = differs.shape
        if self.labels is None or not self.is_sample:
            return np.full(n_thresholds, max_losses(n, alpha, delta) if delta > 0 else -1)
        if delta <= 0:
            return np.full(n_thresholds, -1)
        return np.asarray(most_lost_labelled(n, self.labels, alpha, delta)[differs.sum(axis=0)])

    def test(
        self, differs: BoolArray, lost: BoolArray, savings: FloatArray, alpha: float, delta: float
    ) -> LabelTest:
        """The test of one sequence; shapes as in `LabelTest`."""
        labelled = self.labelled(differs)
        return LabelTest(labelled, lost & labelled, self.most(differs, alpha, delta), savings)

    def certify(
        self, differs: BoolArray, lost: BoolArray, alpha: float, delta: float
    ) -> Certified | NotCertified:
        """Test a sequence on a sample of the differing replies.

        `differs` and `lost` have shape (n_questions, n_thresholds); `lost` must be true for
        differing replies without a label.
        """
        n = len(differs)
        counts, differing = (lost & self.labelled(differs)).sum(axis=0), differs.sum(axis=0)
        most = self.most(differs, alpha, delta)
        last = last_passed(counts <= most)
        at = max(last, 0)
        losses, d, labels = int(counts[at]), int(differing[at]), self.labels or n
        if last < 0:
            return NotCertified(
                f"the most careful threshold already loses {losses} of the {min(d, labels)} "
                f"labelled of {d} replies that differ among {n} calibration questions; at most "
                f"{max(int(most[at]), 0)} are allowed",
                None,
                None,
            )
        upper = min(sample_limit(losses, d, n, labels, delta), alpha)
        return Certified(last, alpha, delta, n, losses, upper, differing=d, planned_labels=labels)


_SAMPLED = (0.6, 1.0)
"""Sample sizes tried, as shares of the planned labels: which differing replies come first changes
along the thresholds, so labels of earlier thresholds use up the plan too."""
_LOST = (1 / 8, 1 / 4, 1 / 2, 3 / 4)
"""Shares of the differing replies assumed lost; the true one is unknown."""
_DRAWS = 8
_AHEAD = 0.5
"""Points of saving by which a sample must lead, because it leaves no delta for a second rule."""


def preferred_sample(
    differs: BoolArray,
    savings: FloatArray,
    sizes: tuple[int, int],
    level: tuple[float, float],
    *,
    rng: np.random.Generator,
) -> int | None:
    """How many of the differing replies to label at each threshold; None for all of them.

    Simulates calibrations on questions drawn from the fit questions: each differing question is
    lost with an assumed probability, and labelling ends with the last planned label.

    Parameters
    ----------
    differs : ndarray of bool, shape (n_fit, n_thresholds)
        Of fit questions.
    savings : ndarray of float, shape (n_thresholds,)
        In percent.
    sizes : tuple of int
        Number of calibration questions, and of planned labels.
    level : tuple of float
        Alpha and delta.
    """
    n, planned = sizes
    nobody, order = np.zeros(n, dtype=np.bool_), np.arange(n)
    samples = sorted({max(1, round(share * planned)) for share in _SAMPLED})
    ways = [AskingPlan(order), *(AskingPlan(order, size) for size in samples if size < n)]
    saved = np.zeros(len(ways))
    for share in _LOST * _DRAWS:
        drawn = differs[rng.integers(len(differs), size=n)]
        lost = drawn & (rng.random(n) < share)[:, None]
        for k, way in enumerate(ways):
            test = way.test(drawn, lost, savings, *level)
            saved[k] += walk([test], nobody, order, budget=planned).saving([test])
    best = int(saved.argmax())
    leads = saved[best] - saved[0] > _AHEAD * len(_LOST) * _DRAWS
    return ways[best].labels if leads else None
