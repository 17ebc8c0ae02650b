"""One trace a calibration question beside two, with the same labels, on traces of real models.

Run from the repository root: ``python -m tests.benchmarks.real_two_traces [--draws N] [--fits N]``.
Reads `samples/recorded/real`, MATH-500 alone, of which every question was answered in three passes.

A calibration draws its questions with replacement, and for each two different passes: the first
alone is "one trace", both are "two traces".  One trace is tested by the exact binomial test, two by
the exact trinomial one of "both lost minus none lost"; "twice the labels" has as many further
questions with one trace each, and the oracle knows the risk.  Savings and risks are those of the
whole population, three passes of each question, so that a broken certificate is seen.

The simple rules have nothing to choose, and all 500 questions are their population.  StopAdvisor
chooses its first sequence on one pass of 160 questions, which then leave the population.
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

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray  # noqa: E402
from stopadvisor.stats.bounds import last_passed  # noqa: E402
from stopadvisor.stats.trinomial import limit_of_pairs, most_lost  # noqa: E402
from tests.benchmarks.real_advisor import StopAdvisor  # noqa: E402
from tests.benchmarks.real_rivals import Sequence, agreement, fixed_budget, most_losses  # noqa: E402
from tests.benchmarks.real_traces import MODELS, PASSES, load_traces  # noqa: E402

DELTA = 0.05
ALPHAS = (0.05, 0.10)
SIZES = (200, 400)
WAYS = ("one trace", "two traces", "twice the labels", "oracle")
_FIT, _PREFILL = 160, 0.25


@dataclass(frozen=True)
class Rule:
    """A sequence of thresholds on the population."""

    lost: BoolArray  # (n_passes, n_questions, n_thresholds)
    saving: FloatArray  # (n_thresholds,) percent

    @classmethod
    def of(cls, sequences: list[Sequence], rows: IntArray) -> Rule:
        """From one pass each; of these questions."""
        cost = sum(each.cost[rows].sum(axis=0) for each in sequences)
        full = sum(each.full_cost[rows].sum() for each in sequences)
        return cls(np.stack([each.lost[rows] for each in sequences]), 100 * (1 - cost / full))

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


@dataclass(frozen=True)
class Cell:
    """Many calibrations of one kind of rule."""

    name: str
    saving: dict[str, float]
    """Mean of the certified saving, each way."""
    broken: dict[str, int]
    n: int

    @property
    def ahead(self) -> float:
        """Points by which two traces lead."""
        return self.saving["two traces"] - self.saving["one trace"]

    @property
    def ok(self) -> bool:
        """Whether broken certificates of two traces are explained by delta."""
        return self.broken["two traces"] <= int(stats.binom.ppf(0.999, self.n, DELTA))


def _measured(name: str, rules: list[Rule], draws: int, n: int, alpha: float) -> Cell:
    saving, broken = dict.fromkeys(WAYS, 0.0), Counter[str]()
    rng = np.random.default_rng([n, round(1000 * alpha)])
    for rule in rules:
        risk = rule.risk
        for _ in range(draws):
            for way, index in rule.reached(n, alpha, rng).items():
                saving[way] += max(float(rule.saving[index]), 0.0) if index >= 0 else 0.0
                broken[way] += index >= 0 and bool(risk[index] > alpha)
    runs = len(rules) * draws
    return Cell(name, {way: saving[way] / runs for way in WAYS}, dict(broken), runs)


def _advised(model: str, alpha: float, n: int, number: int) -> Rule:
    """What StopAdvisor chooses on one pass of some questions, on all others."""
    contestants = [
        StopAdvisor(load_traces(model, k), None, alpha, DELTA, _PREFILL) for k in range(len(PASSES))
    ]
    every = load_traces(model, 0).rows_of("all")
    mixed = np.random.default_rng([number, _FIT]).permutation(every)
    fit, rest = np.sort(mixed[:_FIT]), np.sort(mixed[_FIT:])
    choice = contestants[number % len(PASSES)].fit(fit, n).choice
    scorer, thresholds = choice.sequences[0].scorer, choice.sequences[0].thresholds
    lost, cost, full = [], 0.0, 0.0
    for each in contestants:
        view = scorer.view(each.table.take(rest))
        curve = scorer.curve(view, thresholds)
        lost.append(curve.each(scorer.losses(view) > 0))
        cost = cost + curve.totals(scorer.costs(view, each.costing))[0]
        full += each.full_cost[rest].sum()
    return Rule(np.stack(lost), np.asarray(100 * (1 - cost / full)))


def cells(draws: int, fits: int) -> Iterator[Cell]:
    """All of them."""
    for model in MODELS:
        passes = [load_traces(model, number) for number in range(len(PASSES))]
        rows = passes[0].rows_of("all")
        simple = {
            "k equal answers": Rule.of([agreement(t, _PREFILL, 256) for t in passes], rows),
            "fixed budget": Rule.of([fixed_budget(t, _PREFILL) for t in passes], rows),
        }
        for alpha, n in product(ALPHAS, SIZES):
            where = f"{model:11} α {alpha:.2f} n {n}"
            for name, rule in simple.items():
                yield _measured(f"{name:16} {where}", [rule], draws, n, alpha)
            if fits:
                rules = [_advised(model, alpha, n, number) for number in range(fits)]
                yield _measured(f"{'StopAdvisor':16} {where}", rules, draws // fits, n, alpha)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.real_two_traces",
        description=(__doc__ or "").split("\n")[0],
    )
    parser.add_argument("--draws", type=int, default=300, help="calibrations of each cell")
    parser.add_argument("--fits", type=int, default=10, help="of StopAdvisor; 0 leaves it out")
    options = parser.parse_args()
    print(f"{'':44}{''.join(f'{way:>18}' for way in WAYS)}   ahead  broken")
    found = []
    for cell in cells(options.draws, options.fits):
        found.append(cell)
        savings = "".join(f"{cell.saving[way]:18.1f}" for way in WAYS)
        share = f"{100 * cell.broken['two traces'] / cell.n:.1f} %"
        print(f"{cell.name:44}{savings}   {cell.ahead:+5.1f}  {share}", flush=True)
    ahead = np.mean([cell.ahead for cell in found])
    print(f"two traces certify {ahead:+.2f} points more, mean of {len(found)} cells")
    return 0 if all(cell.ok for cell in found) else 1


if __name__ == "__main__":
    sys.exit(main())
