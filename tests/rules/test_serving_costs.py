"""One rule under every regime: tokens, money and break-evens against a walk over requests."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.rules import costs
from stopadvisor.rules.costs import MONEY, PAPER_WEIGHTS, REGIMES, Asking, Weights, full_counts
from stopadvisor.rules.serving_costs import serving_costs
from tests.rules.test_costs import cases, is_asked, one_question, places, serve

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


def test_by_hand() -> None:
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
