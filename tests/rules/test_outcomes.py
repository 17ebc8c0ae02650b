"""Savings and serving costs, one question at a time; a rule compared with random stopping."""

from __future__ import annotations

from dataclasses import astuple, replace
from itertools import permutations
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.probes.table import Reference
from stopadvisor.probes.trigger import ListedTrigger
from stopadvisor.rules import costs
from stopadvisor.rules.costs import (
    MONEY,
    PAPER_WEIGHTS,
    REGIMES,
    Asking,
    Costing,
    Weights,
    full_counts,
    stopped_counts,
)
from stopadvisor.rules.losses import LOST
from stopadvisor.rules.outcomes import (
    BlindStopping,
    blind_stopping,
    measure,
    measure_rule,
    serving_costs,
)
from stopadvisor.rules.scorer import Scorer
from tests.populations import UNSOLVED
from tests.rules.test_costs import cases, is_asked, one_question, places, serve

COLUMNS = (0, 3, 6)
SCORER = Scorer("confidence", ListedTrigger(tuple(UNSOLVED.budgets[c] for c in COLUMNS)), None)


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
def test_blind_rules_are_seldom_taken_for_informed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stopadvisor.rules.outcomes._SHUFFLES", 199)  # as exact, and faster
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


# --- Costs of serving -----------------------------------------------------------------------------

PRICES = Weights(0.5, 0.05, 2.0, MONEY, request=3.0)


def some_stops(table: OpenQuestions, asking: Asking, seed: int) -> np.ndarray:
    """A place to stop at, or never, for each question."""
    rng = np.random.default_rng(seed)
    return np.array([rng.choice(places(table, i, asking)) for i in range(table.n_questions)])


def probes_of(table: OpenQuestions, i: int, stop: int, asking: Asking) -> int:
    """Answers that are forced from one question until it stops."""
    live = [p for p in table.positions[i, : stop + 1].tolist() if -1 < p < table.trace_tokens[i]]
    if not asking.before:
        live = live[-1:] if stop < table.n_checkpoints else []
    return sum(is_asked(table, p, asking) for p in live)


@settings(max_examples=50)
@given(cases(), st.integers(0, 2**32 - 1), st.sampled_from([1, 4, 16]))
def test_means_are_those_of_the_server_walked_through(
    case: tuple[OpenQuestions, Asking], seed: int, block: int
) -> None:
    table, asking = case
    stops = some_stops(table, asking, seed)
    probes = sum(probes_of(table, i, stop, asking) for i, stop in enumerate(stops.tolist()))
    full = float(full_counts(table).weighed(PRICES).mean())
    with mock.patch.object(costs, "CACHE_BLOCK", block):
        found = serving_costs(table, stops, PRICES, asking=asking)
    assert tuple(found) == REGIMES
    for regime, row in found.items():
        walked = np.mean(
            [serve(table, i, int(stop), regime, block, asking) for i, stop in enumerate(stops)],
            axis=0,
        )
        assert row.tokens is not None
        assert astuple(row.tokens) == pytest.approx(tuple(walked[:3]))
        cost = 2 * walked[0] + 0.05 * walked[1] + 0.5 * walked[2] + 3 * walked[3]
        assert row.saving_pct == pytest.approx(100 * (1 - cost / full))
        assert row.probes == pytest.approx(probes / table.n_questions)
        assert row.money_per_1000 is not None
        assert astuple(row.money_per_1000) == pytest.approx((cost * 1000 / 1e6, full * 1000 / 1e6))


@settings(max_examples=50)
@given(cases(), st.integers(0, 2**32 - 1))
def test_at_break_even_nothing_is_saved(case: tuple[OpenQuestions, Asking], seed: int) -> None:
    table, asking = case
    stops = some_stops(table, asking, seed)
    # The same stops if nobody had to ask: thinking up to them, and the visible answer if never.
    bare = 0.0
    for i, stop in enumerate(stops):
        bare += 0.5 * table.prompt_tokens[i] + 3
        if stop < table.n_checkpoints:
            bare += 2 * table.positions[i, stop]
            if table.visible_tokens is not None:
                bare += 2 * table.visible_tokens[i, stop]
        else:
            bare += 2 * full_counts(table).decoded[i]
    bare /= table.n_questions
    rows: Any = serving_costs(table, stops, PRICES, asking=asking)
    for regime, row in rows.items():
        # In money for a thousand requests, at prices a million tokens.
        cost, full = 1000 * row.money_per_1000.policy, 1000 * row.money_per_1000.full
        cached = row.tokens.cached
        if row.break_even_cached_price is None:
            assert cached == 0 or cost - 0.05 * cached >= full - 1e-9
        else:
            dearer = replace(PRICES, cached=row.break_even_cached_price)
            again = serving_costs(table, stops, dearer, asking=asking)[regime]
            assert again.saving_pct == pytest.approx(0, abs=1e-6)
            assert (row.break_even_cached_price > 0.05) == (row.saving_pct > 0)
        if row.break_even_probes is None:
            assert row.probes == 0 or min(cost, full) <= bare + 1e-9
        else:
            price_of_one = (cost - bare) / row.probes
            assert bare + row.break_even_probes * price_of_one == pytest.approx(full)
            if abs(row.saving_pct) > 1e-6:
                assert (row.break_even_probes > row.probes) == (row.saving_pct > 0)


def test_serving_costs_by_hand() -> None:
    # P = 100, s = 4, budgets 0/50/80, T = 120, probes of 3/5/7 tokens, natural answer of 20,
    # stopped at 50: thinking alone costs 100 + 50, full 100 + 140, two probes 3 + 5 + 2 · 4.
    rows = serving_costs(one_question(), np.array([1]), PAPER_WEIGHTS)
    row, cached = rows["kv-fork"], rows["prefix-cache"]
    assert row.saving_pct == pytest.approx(100 * (1 - 166 / 240))
    assert row.probes == 2
    assert row.break_even_probes == pytest.approx(2 * 90 / 16)
    assert (row.break_even_cached_price, row.money_per_1000) == (None, None)
    # From the prefix cache: 240 read, 58 decoded, 118 computed anew.
    assert cached.break_even_cached_price == pytest.approx((240 - 58 - 118) / 240)


def test_full_thinking_throughout_has_no_break_even() -> None:
    short = one_question(trace_tokens=np.array([0]))
    for row in serving_costs(short, np.array([3]), PRICES).values():
        assert (row.probes, row.break_even_probes, row.break_even_cached_price) == (0, None, None)
        assert row.saving_pct == pytest.approx(0)
