"""The paper's protocol and its accounting, step by step against loops and figures by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopadvisor.ground.errors import CalibrationError
from stopadvisor.paper import protocol as paper
from stopadvisor.paper.protocol import (
    MatchedRisk,
    PaperSetting,
    first_stops,
    match_risk,
    paper_costs,
    paper_split,
    threshold_grid,
)
from stopadvisor.probes.outcomes import GradedTable, OpenQuestions
from stopadvisor.stats import intervals
from stopadvisor.stats.intervals import MOST_BLOCKS, Interval
from tests.populations import POPULATIONS
from tests.rules.test_costs import one_question


def table(n: int, seed: int) -> OpenQuestions:
    drawn = POPULATIONS[3].draw(n, np.random.default_rng(seed))
    return drawn.with_reference("last-checkpoint")


@given(st.lists(st.lists(st.integers(0, 5), min_size=4, max_size=4), min_size=1), st.integers(0, 6))
def test_the_first_checkpoint_that_reaches_the_threshold_stops(
    scores: list[list[int]], threshold: int
) -> None:
    found = first_stops(np.array(scores, dtype=float), threshold)
    for row, stop in zip(scores, found.tolist(), strict=True):
        reached = [j for j, s in enumerate(row) if s >= threshold]
        assert stop == (reached[0] if reached else 3)


def test_the_grid_is_quantiles_unique_scores_and_no_stop() -> None:
    # Recipe, by hand: quantiles 0, .005, .01 … .98, .99, .995, 1; the scores if at most 500; max+1.
    few = np.random.default_rng(0).standard_normal((40, 10))
    q = [0, 0.005, *[k / 100 for k in range(1, 99)], 0.99, 0.995, 1.0]
    expected = sorted({*np.quantile(few, q).tolist(), *few.ravel().tolist(), few.max() + 1})
    assert threshold_grid(few).tolist() == pytest.approx(expected, abs=1e-12)
    many = np.random.default_rng(1).standard_normal((60, 10))
    assert threshold_grid(many).size == 104
    assert threshold_grid(many)[-1] == many.max() + 1


def compared(probes: GradedTable, alpha: float) -> MatchedRisk:
    setting, split = PaperSetting.build(probes), paper_split(probes.n_questions)
    (row,) = match_risk(setting, *split, alphas=[alpha], delta=0.05)
    return row


def test_the_bootstrap_is_paired_over_questions() -> None:
    probes = table(400, 4)
    row = compared(probes, 0.2)
    assert row.learned.feasible
    assert row.scalar.feasible
    gain = row.learned.total_saving_pct - row.scalar.total_saving_pct
    assert row.delta_saving_pp.low <= gain <= row.delta_saving_pp.high
    assert row.delta_saving_pp.median == pytest.approx(gain, abs=0.5)


@pytest.mark.parametrize(
    ("feasible", "low", "high", "verdict"),
    [
        ((True, True), 0.1, 1.0, "learned better"),
        ((True, True), -1.0, -0.1, "scalar better"),
        ((True, True), -0.1, 0.1, "comparable"),
        ((False, True), 0.1, 1.0, "inconclusive"),
        ((True, False), -1.0, -0.1, "inconclusive"),
    ],
)
def test_verdicts(feasible: tuple[bool, bool], low: float, high: float, verdict: str) -> None:
    points = [paper.PaperRule(ok, "learned", 0.5, 100, 0.0, 1.0, 10.0, 10.0) for ok in feasible]
    found = paper._verdict(points[0], points[1], Interval((low + high) / 2, (low, high)))
    assert found == verdict


@pytest.mark.slow
def test_many_questions_are_resampled_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    table = POPULATIONS[3].draw(5000, np.random.default_rng(5))
    setting = PaperSetting.build(table)
    rows = paper_split(5000)
    spreads = []
    for most in (MOST_BLOCKS, 5000):
        monkeypatch.setattr(intervals, "MOST_BLOCKS", most)
        (found,) = match_risk(setting, *rows, alphas=[0.15], delta=0.05, n_resamples=4000)
        spreads.append(found.delta_saving_pp)
    blocked, plain = spreads
    width = plain.high - plain.low
    assert width > 0
    assert blocked.high - blocked.low == pytest.approx(width, rel=0.1)
    assert blocked.median == pytest.approx(plain.median, abs=0.1 * width)


def test_nothing_feasible_is_no_stop_and_says_so() -> None:
    row = compared(table(60, 5), 0.05)
    assert not row.learned.feasible
    assert not row.scalar.feasible
    assert row.verdict == "inconclusive"
    assert row.difference is None
    assert row.learned.test_risk == 0


def test_too_few_questions_are_refused() -> None:
    with pytest.raises(CalibrationError, match="at least 10 questions"):
        PaperSetting.build(table(9, 6))


def test_the_papers_accounting_by_hand() -> None:
    # Recipe: min(T, B_j) + 48 (j + 1); prefix-cache adds 0.1 B_j (j + 1), black-box the sum of
    # the prefixes probed so far; full is T + 48.
    found = paper_costs(one_question(trace_tokens=np.array([60])))
    assert found.thinking.tolist() == [[0, 50, 60]]
    assert found.total.tolist() == [[48, 146, 204]]
    assert found.prefix_cache.tolist() == [[48, 146 + 0.1 * 50 * 2, 204 + 0.1 * 80 * 3]]
    assert found.black_box.tolist() == [[48, 146 + 50, 204 + 130]]
    assert found.full_total.tolist() == [108]
