"""A rule compared with random stopping: exact expectation, valid p-values, power."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.probes.table import Reference
from stopadvisor.rules.costs import PAPER_WEIGHTS, Costing, full_counts, stopped_counts
from stopadvisor.rules.losses import LOST
from stopadvisor.rules.outcomes import BlindStopping, blind_stopping, measure, measure_rule
from stopadvisor.rules.schedules import GridSchedule
from stopadvisor.rules.scorer import Scorer
from tests.populations import UNSOLVED

COLUMNS = (0, 3, 6)
SCORER = Scorer("confidence", GridSchedule(tuple(UNSOLVED.budgets[c] for c in COLUMNS)), None)


def drawn(n: int, seed: int) -> OpenQuestions:
    """Questions at the probes that the rule makes."""
    return SCORER.view(UNSOLVED.draw(n, np.random.default_rng(seed)))


def by_confidence(table: OpenQuestions, threshold: float) -> np.ndarray:
    thresholds = np.array([threshold])
    return np.asarray(SCORER.curve(table, thresholds).stops(0))


def test_the_expectation_is_that_over_all_deals() -> None:
    table = drawn(7, seed=2)
    stops = np.array([0, 0, 1, 2, 3, 3, 3])
    lost = LOST.of(table)
    every = [sum(lost[i, s] for i, s in enumerate(deal)) for deal in permutations(stops.tolist())]
    found = blind_stopping(table, stops, rng=np.random.default_rng(0))
    assert lost.any()
    assert found.blind_losses == pytest.approx(np.mean(every))
    assert found.losses == lost[np.arange(7), stops].sum()
    exact = np.mean([losses <= found.losses for losses in every])
    assert found.p_value == pytest.approx(exact, abs=0.05)


@pytest.mark.slow
def test_blind_rules_are_seldom_taken_for_informed_ones() -> None:
    rng = np.random.default_rng(3)
    runs, informed = 100, 0
    for seed in range(runs):
        stops = rng.choice(len(COLUMNS) + 1, size=120, p=[0.1, 0.1, 0.1, 0.7])
        found = blind_stopping(drawn(120, seed=seed), stops, rng=rng)
        informed += found.informed
    assert informed / runs <= 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5


def test_a_rule_with_a_signal_is_told_from_chance() -> None:
    table = drawn(2000, seed=4)
    stops = by_confidence(table, -0.4)
    assert 0.1 < (stops < len(COLUMNS)).mean() < 0.9
    found = blind_stopping(table, stops, rng=np.random.default_rng(0))
    assert found.losses < found.blind_losses
    assert found.informed


@pytest.mark.parametrize("reference", ["natural", "last-checkpoint"])
def test_savings_are_measured_from_where_full_thinking_ends(reference: Reference) -> None:
    """Of a published archive at the last checkpoint, and no trace is shorter for a longer tail."""
    table = UNSOLVED.draw(40, np.random.default_rng(6)).with_reference(reference)
    view = SCORER.view(table)
    rows, stops = np.arange(40), np.arange(40) % (len(COLUMNS) + 1)
    costs = stopped_counts(view, "kv-fork").weighed(PAPER_WEIGHTS)
    full = full_counts(view).weighed(PAPER_WEIGHTS)
    found = measure(view, stops, costs, full)
    thought = whole = right = 0
    for row, stop in zip(rows, stops, strict=True):
        end = int(view.trace_tokens[row])
        never = stop == len(COLUMNS)
        right += int(view.full_correct[row] if never else view.correct_online[row, stop])
        if reference == "last-checkpoint":
            end = min(end, int(view.budgets[-1]))
        whole += end
        thought += end if never else int(view.think_tokens[row, stop])
    assert (view.trace_tokens > view.budgets[-1]).any()
    assert found.think_saving_pct == pytest.approx(100 * (1 - thought / whole))
    assert found.total_saving_pct == pytest.approx(
        100 * (1 - costs[rows, stops].sum() / full.sum())
    )
    assert found.losses == LOST.of(view)[rows, stops].sum()
    assert found.correct == right
    nobody, costing = np.full(40, len(COLUMNS)), Costing()
    alone = measure_rule(SCORER, 1.0, table, costing)
    assert alone == measure(view, nobody, costs, costing.full(table))
    assert alone.think_saving_pct == 0.0


def test_never_stopping_knows_nothing() -> None:
    table = drawn(50, seed=5)
    stops = np.full(50, len(COLUMNS))
    found = blind_stopping(table, stops, rng=np.random.default_rng(0))
    assert found == BlindStopping(0, 0.0, 1.0)
    assert not found.informed
