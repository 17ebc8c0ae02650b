"""More from the same labels on real traces: two traces per question, or a sample of labels.

Run from the repository root: ``python -m tests.benchmarks.real_two_traces [--draws N] [--fits N]``,
or with ``--labels N``.
Reads `samples/recorded/real`, MATH-500 alone, of which every question was answered in three passes.

A calibration draws its questions with replacement, and for each two different passes: the first
alone is "one trace", both are "two traces".  One trace is tested by the exact binomial test, two by
the exact trinomial one of "both lost minus none lost"; "twice the labels" has as many further
questions with one trace each, and the oracle knows the risk.  Savings and risks are those of the
whole population, three passes of each question, so that a broken certificate is seen.

The simple rules have nothing to choose, and all 500 questions are their population.  StopAdvisor
chooses its first sequence on one pass of 160 questions, which then leave the population.

With ``--labels N`` calibration questions have no gold, one trace each, and N are labelled.  "First"
counts so few questions that N labels settle them, by the exact binomial test, as was done before;
"sample" is what 160 further questions without gold prefer: all that differ, or that many of them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):  # before numpy is imported
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402
from scipy import stats  # noqa: E402

from stopadvisor.certification.labelling import may_be_lost  # noqa: E402
from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray  # noqa: E402
from stopadvisor.rules.losses import LOST  # noqa: E402
from stopadvisor.stats.adaptive_labels import AskingPlan, LabelTest, preferred_sample, walk  # noqa: E402
from stopadvisor.stats.bounds import last_passed  # noqa: E402
from stopadvisor.stats.trinomial import limit_of_pairs, most_lost  # noqa: E402
from tests.benchmarks.real_advisor import StopAdvisor  # noqa: E402
from tests.benchmarks.real_rivals import Sequence, agreement, fixed_budget, most_losses  # noqa: E402
from tests.benchmarks.real_traces import MODELS, PASSES, load_traces  # noqa: E402

DELTA = 0.05
ALPHAS = (0.05, 0.10)
SIZES = (200, 400)
WAYS = ("one trace", "two traces", "twice the labels", "oracle")
LABELLED = ("no label", "first", "sample", "all labels", "oracle")
LABELLED_SIZES = (240, 400, 1000)
_FIT, _PREFILL = 160, 0.25
_PER_FIT = 25
"""Calibrations after one choice of the way to ask."""
_FOR_THE_LAST = 0.7
"""Share of the labels by "first"; the others are for questions that count at careful thresholds."""


@dataclass(frozen=True)
class Rule:
    """A sequence of thresholds on the population."""

    lost: BoolArray  # (n_passes, n_questions, n_thresholds)
    differs: BoolArray  # (n_passes, n_questions, n_thresholds)
    saving: FloatArray  # (n_thresholds,) percent

    @classmethod
    def of(cls, sequences: list[Sequence], rows: IntArray) -> Rule:
        """From one pass each; of these questions."""
        cost = sum(each.cost[rows].sum(axis=0) for each in sequences)
        full = sum(each.full_cost[rows].sum() for each in sequences)
        lost, differs = (
            np.stack([getattr(each, name)[rows] for each in sequences])
            for name in ("lost", "differs")
        )
        return cls(lost, differs, 100 * (1 - cost / full))

    @property
    def risk(self) -> FloatArray:
        """Share of replies that are lost, (n_thresholds,)."""
        return np.asarray(self.lost.mean(axis=(0, 1)))

    def reached(self, n: int, alpha: float, rng: np.random.Generator) -> dict[str, int]:
        """Last threshold that one calibration certifies, each way; -1 for none."""
        n_passes, n_questions, _ = self.lost.shape
        rows = rng.integers(n_questions, size=2 * n)
        first = rng.integers(n_passes, size=2 * n)
        second = (first + rng.integers(1, n_passes, size=2 * n)) % n_passes
        alone, again = self.lost[first, rows], self.lost[second[:n], rows[:n]]
        both, none = (alone[:n] & again).sum(axis=0), (~alone[:n] & ~again).sum(axis=0)
        most = most_lost(n, limit_of_pairs(alpha), DELTA)
        passed = {
            "one trace": alone[:n].sum(axis=0) <= most_losses(n, alpha, DELTA),
            "two traces": both <= most[none],
            "twice the labels": alone.sum(axis=0) <= most_losses(2 * n, alpha, DELTA),
            "oracle": self.risk <= alpha,
        }
        return {way: last_passed(passed[way]) for way in WAYS}

    def prefers(
        self, n: int, alpha: float, labels: int, rng: np.random.Generator
    ) -> tuple[FloatArray, AskingPlan]:
        """Return the share that differs on fit questions without gold, and the way to ask."""
        n_passes, n_questions, _ = self.lost.shape
        fit = self.differs[rng.integers(n_passes, size=_FIT), rng.integers(n_questions, size=_FIT)]
        level, order = (alpha, DELTA), np.arange(n)
        sample = preferred_sample(fit, self.saving, (n, labels), level, rng=rng)
        return fit.mean(axis=0), AskingPlan(order, sample)

    def labelled(
        self,
        fit: tuple[FloatArray, AskingPlan],
        alpha: float,
        labels: int,
        rng: np.random.Generator,
    ) -> dict[str, int]:
        """The same with few labels, each way."""
        n_passes, n_questions, n_thresholds = self.lost.shape
        differing, plan = fit
        n, order = plan.order.size, plan.order
        at = rng.integers(n_passes, size=n), rng.integers(n_questions, size=n)
        lost, differs = self.lost[at], self.differs[at]

        def reached(counts: BoolArray, most: IntArray, budget: int | None) -> int:
            test = LabelTest(differs & counts, lost & counts, most, self.saving)
            return walk([test], np.zeros(n, bool), order, budget=budget).indices[0]

        enough = _FOR_THE_LAST * labels / np.maximum(differing, 1 / n)
        sizes = np.minimum.accumulate(np.minimum(n, enough).astype(int))
        few = np.array([most_losses(int(size), alpha, DELTA) for size in sizes])
        every = np.full(n_thresholds, most_losses(n, alpha, DELTA))
        everyone = np.ones_like(differs)
        return {
            "no label": reached(everyone, every, 0),
            "first": reached(order[:, None] < sizes, few, labels),
            "sample": reached(plan.labelled(differs), plan.most(differs, alpha, DELTA), labels),
            "all labels": reached(everyone, every, None),
            "oracle": last_passed(self.risk <= alpha),
        }


@dataclass(frozen=True)
class Cell:
    """Many calibrations of one kind of rule."""

    name: str
    compared: tuple[str, str]
    """The way that was and the way that is."""
    saving: dict[str, float]
    """Mean of the certified saving, each way."""
    broken: Counter[str]
    n: int

    @property
    def ahead(self) -> float:
        """Points by which the new way leads."""
        before, now = self.compared
        return self.saving[now] - self.saving[before]

    @property
    def broken_share(self) -> float:
        """Broken certificates of the new way, in percent."""
        return 100 * self.broken[self.compared[1]] / self.n

    @property
    def ok(self) -> bool:
        """Whether its broken certificates are explained by delta."""
        most = int(stats.binom.ppf(0.999, self.n, DELTA))
        return self.broken[self.compared[1]] <= most


def _measured(
    name: str, rules: list[Rule], draws: int, n: int, alpha: float, labels: int | None = None
) -> Cell:
    few = labels is not None
    ways: tuple[str, ...] = LABELLED if few else WAYS
    compared = ("first", "sample") if few else ("one trace", "two traces")
    saving, broken = dict.fromkeys(ways, 0.0), Counter[str]()
    rng = np.random.default_rng([n, round(1000 * alpha)])
    for rule in rules:
        risk = rule.risk
        for number in range(draws):
            if labels is None:
                once = rule.reached(n, alpha, rng)
            else:
                if number % _PER_FIT == 0:
                    fit = rule.prefers(n, alpha, labels, rng)
                once = rule.labelled(fit, alpha, labels, rng)
            for way, index in once.items():
                saving[way] += max(float(rule.saving[index]), 0.0) if index >= 0 else 0.0
                broken[way] += index >= 0 and bool(risk[index] > alpha)
    runs = len(rules) * draws
    return Cell(name, compared, {way: saving[way] / runs for way in ways}, broken, runs)


def _advised(model: str, alpha: float, n: int, number: int) -> Rule:
    """Apply to all other questions what StopAdvisor chooses on one pass of some."""
    contestants = [
        StopAdvisor(load_traces(model, k), None, alpha, DELTA, _PREFILL) for k in range(len(PASSES))
    ]
    every = load_traces(model, 0).rows_of("all")
    mixed = np.random.default_rng([number, _FIT]).permutation(every)
    fit, rest = np.sort(mixed[:_FIT]), np.sort(mixed[_FIT:])
    choice = contestants[number % len(PASSES)].fit(fit, n).choice
    scorer, thresholds = choice.sequences[0].scorer, choice.sequences[0].thresholds
    lost, differs, cost, full = [], [], 0.0, 0.0
    for each in contestants:
        view = scorer.view(each.table.take(rest))
        curve = scorer.curve(view, thresholds)
        lost.append(curve.each(LOST.of(view) > 0))
        differs.append(curve.each(may_be_lost(view)))
        cost = cost + curve.totals(scorer.costs(view, each.costing))[0]
        full += each.full_cost[rest].sum()
    return Rule(np.stack(lost), np.stack(differs), np.asarray(100 * (1 - cost / full)))


def cells(draws: int, fits: int, labels: int | None = None) -> Iterator[Cell]:
    """All of them."""
    every = SIZES if labels is None else LABELLED_SIZES
    for model in MODELS:
        passes = [load_traces(model, number) for number in range(len(PASSES))]
        rows = passes[0].rows_of("all")
        simple = {
            "k equal answers": Rule.of([agreement(t, _PREFILL, 256) for t in passes], rows),
            "fixed budget": Rule.of([fixed_budget(t, _PREFILL) for t in passes], rows),
        }
        for alpha, n in product(ALPHAS, every):
            where = f"{model:11} α {alpha:.2f} n {n}"
            for name, rule in simple.items():
                yield _measured(f"{name:16} {where}", [rule], draws, n, alpha, labels)
            if fits:
                rules = [_advised(model, alpha, n, number) for number in range(fits)]
                yield _measured(
                    f"{'StopAdvisor':16} {where}", rules, draws // fits, n, alpha, labels
                )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.real_two_traces",
        description=(__doc__ or "").split("\n")[0],
    )
    parser.add_argument("--draws", type=int, default=300, help="calibrations of each cell")
    parser.add_argument("--fits", type=int, default=10, help="of StopAdvisor; 0 leaves it out")
    parser.add_argument("--labels", type=int, help="few labels instead of two traces")
    options = parser.parse_args()
    ways = WAYS if options.labels is None else LABELLED
    print(f"{'':44}{''.join(f'{way:>18}' for way in ways)}   ahead  broken")
    found = []
    for cell in cells(options.draws, options.fits, options.labels):
        found.append(cell)
        savings = "".join(f"{cell.saving[way]:18.1f}" for way in ways)
        print(
            f"{cell.name:44}{savings}   {cell.ahead:+5.1f}  {cell.broken_share:.1f} %", flush=True
        )
    ahead = np.mean([cell.ahead for cell in found])
    print(f"{found[0].compared[1]} certifies {ahead:+.2f} points more, mean of {len(found)} cells")
    return 0 if all(cell.ok for cell in found) else 1


if __name__ == "__main__":
    sys.exit(main())
