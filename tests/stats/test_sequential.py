"""Anytime-valid tests on audits: their guarantees by simulation, and their arithmetic."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from mapie.exchangeability_testing import RiskMonitoring
from scipy import stats

from stopadvisor.ground.errors import CalibrationError
from stopadvisor.stats import sequential
from stopadvisor.stats.sequential import (
    AuditProcess,
    AuditTest,
    betting_upper_limit,
    requests_to_alarm,
)
from tests.long.coverage import ceiling
from tests.long.streams import alarm_times, limits_missed, naive_alarm

TEST = AuditTest(alpha=0.05, delta=0.05, least_share=0.05, change=1e5)


def plain(test: AuditTest, losses: Sequence[tuple[float, int] | None]) -> tuple[float, float]:
    """E-value and detector as the formulas say, factor by factor."""
    products = np.ones(len(test.stakes))
    sums = np.zeros(len(test.stakes))
    for found in losses:
        weighted = 0.0 if found is None else found[1] / found[0]
        factors = 1 + np.array(test.stakes) * (weighted - test.alpha)
        products *= factors
        sums = (sums + 1) * factors
    return float(products.mean()), float(sums.mean())


def test_bets_stand_where_the_page_says() -> None:
    plain = [ratio / (1 / 0.1 - 0.05) for ratio in (0.25, 0.5, 1.0, 2.0, 4.0)]
    assert AuditTest(0.05, least_share=0.1).stakes == pytest.approx(plain, rel=1e-12)
    with_gains = [part / (1 / 0.1 + 0.05) for part in (0.1, 0.2, 0.35, 0.55, 0.8)]
    found = AuditTest(0.05, least_share=0.1, gains=True).stakes
    assert found == pytest.approx(with_gains, rel=1e-12)
    assert AuditTest(0.5, least_share=1.0).stakes[-1] == 0.9 / 0.5  # never a bankrupt bet


@pytest.mark.parametrize("gains", [False, True])
def test_results_in_any_order_give_the_formulas(gains: bool) -> None:
    test = AuditTest(0.05, 0.05, 0.1, gains=gains)
    rng = np.random.default_rng(0)
    for _ in range(20):
        losses: list[tuple[float, int] | None] = []
        process, waiting = AuditProcess(test), []
        for k in range(60):
            if rng.random() < 0.5:
                losses.append(None)
                process.count()
                continue
            share = float(rng.choice([0.1, 0.3]))
            loss = int(rng.choice([-1, 0, 1] if gains else [0, 1]))
            losses.append((share, loss))
            process.audit(k, share)
            waiting.append((k, loss))
            if rng.random() < 0.5:  # one of those that wait, not always the last
                process.resolve(*waiting.pop(int(rng.integers(len(waiting)))))
        for k, loss in waiting:
            process.resolve(k, loss)
        expected = plain(test, losses)
        assert (process.e_value, process.detector) == pytest.approx(expected, rel=1e-9)
        assert process.requests == len(losses)


def test_many_quiet_requests_count_as_one_by_one() -> None:
    one, many = AuditProcess(TEST), AuditProcess(TEST)
    for requests in (2, 498, 0):
        for _ in range(requests):
            one.count()
        many.count(requests)
        assert (many.e_value, many.detector) == pytest.approx((one.e_value, one.detector), rel=1e-9)
        assert many.requests == one.requests


@pytest.mark.parametrize(("gains", "least"), [(False, 0), (True, -1)])
def test_an_open_audit_counts_the_least_in_the_alarm_and_a_loss_in_the_limit(
    gains: bool, least: int
) -> None:
    waiting, settled, lost = (AuditProcess(replace(TEST, gains=gains)) for _ in range(3))
    for process in (waiting, settled, lost):
        process.count(2_000)
        process.audit("a", 0.05)
    settled.resolve("a", least)
    lost.resolve("a", 1)
    assert (waiting.e_value, waiting.detector) == (settled.e_value, settled.detector)
    assert waiting.upper_limit(0.05) == lost.upper_limit(0.05) > settled.upper_limit(0.05)
    waiting.give_up("a")
    assert waiting.e_value == settled.e_value
    assert waiting.upper_limit(0.05) == lost.upper_limit(0.05)
    assert waiting.open_keys() == ()
    found = [{key: n for key, n in each.losses.items() if n} for each in (waiting, settled, lost)]
    assert found == [{20.0: 1}, {-20.0: 1} if gains else {}, {20.0: 1}]
    with pytest.raises(CalibrationError, match="no audit 'a' is open"):
        waiting.resolve("a", 1)


def test_a_state_goes_on_to_the_last_digit() -> None:
    process = AuditProcess(TEST)
    for k in range(5):
        process.audit(str(k), 0.05)
    process.resolve("1", 1)
    other = AuditProcess.restore(TEST, json.loads(json.dumps(process.state())))
    for one in (process, other):
        one.count(7)
        one.resolve("0", 1)
        one.resolve("4", 1)
    assert (other.e_value, other.detector) == (process.e_value, process.detector)


def test_an_alarm_takes_the_mean_of_all_bets() -> None:
    """One bet that won 25 times its stake is none; and nothing overflows."""
    lost = [-50.0] * 4
    for won, e_value, is_broken in ((25, 5, False), (125, 25, True), (99, 19.8, False)):
        process = AuditProcess(TEST, 100, [math.log(won), *lost])
        assert process.e_value == pytest.approx(e_value)
        assert process.is_broken == is_broken
    assert AuditProcess(TEST, 100, [900.0, *lost]).e_value == math.exp(700)


def test_replicas_are_joined_request_by_request() -> None:
    one, other = AuditProcess(TEST), AuditProcess(TEST)
    for process, quiet, shares in ((one, 300, [0.05, 0.05]), (other, 500, [0.05, 0.1, 0.1])):
        process.count(quiet)
        for k, share in enumerate(shares):
            process.audit(k, share)
            process.resolve(k, 1)
    logs = [a + b for a, b in zip(one.logs, other.logs, strict=True)]
    detector = one.detector + other.detector
    one.join(other)
    assert one.requests == 805
    assert one.losses == {20.0: 3, 10.0: 2}
    assert one.e_value == pytest.approx(np.exp(logs).mean())
    assert one.detector == pytest.approx(detector)
    joined = betting_upper_limit(805, {20.0: 3, 10.0: 2}, delta=0.05, least_share=0.05)
    assert one.upper_limit(0.05) == joined


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"alpha": 0.0}, r"alpha must lie in \(0, 1\), got 0.0"),
        ({"alpha": 1.0}, r"alpha must lie in \(0, 1\), got 1.0"),
        ({"delta": 1.0}, r"delta must lie in \(0, 1\), got 1.0"),
        ({"least_share": 0.0}, r"audit share must lie in \(0, 1\], got 0.0"),
        ({"least_share": 1.01}, r"audit share must lie in \(0, 1\], got 1.01"),
        ({"change": 1.0}, "change must be above 1"),
        ({"change": math.inf}, "change must be above 1"),
    ],
)
def test_settings_out_of_range(fields: dict[str, float], words: str) -> None:
    with pytest.raises(CalibrationError, match=words):
        AuditTest(**{"alpha": 0.05, **fields})  # type: ignore[arg-type]


def test_a_change_may_be_barely_above_1() -> None:
    assert AuditTest(0.05, change=1.5).change == 1.5


def test_audits_out_of_range() -> None:
    process = AuditProcess(TEST)
    for share in (0.01, 1.01):
        with pytest.raises(CalibrationError, match=r"share must lie in \[0.05, 1\]"):
            process.audit("a", share)
    process.audit("a", 0.05)
    with pytest.raises(CalibrationError, match="open already"):
        process.audit("a", 0.05)
    with pytest.raises(CalibrationError, match="a loss of -1"):
        process.resolve("a", -1)


@pytest.mark.parametrize(("alpha", "share"), [(0.4, 1.0), (0.9, 1.0), (0.05, 0.01), (0.3, 0.2)])
def test_no_bet_can_go_bankrupt(alpha: float, share: float) -> None:
    for gains in (False, True):
        test = AuditTest(alpha, 0.05, share, gains=gains)
        lowest = (-1 / share if gains else 0.0) - alpha
        assert all(1 + stake * lowest > 0 for stake in test.stakes)


def test_false_alarms_are_rare_for_ever_and_a_naive_test_is_caught() -> None:
    streams, requests = 150, 8_000
    found = alarm_times(TEST, [0.05] * streams, requests=requests, share=0.05, seed=1)
    most = stats.binom.ppf(0.999, streams, TEST.delta)
    assert sum(one.e_value is not None for one in found) <= most
    naive = naive_alarm(TEST, streams=streams, requests=requests, share=0.05, seed=1)
    assert naive > most


def test_a_broken_promise_is_found_in_time() -> None:
    """Medians of the page that asks for them: 3,030 requests at twice alpha, 935 at three times."""
    for times, asked in ((2, 3_030), (3, 935)):
        risk = times * TEST.alpha
        found = alarm_times(TEST, [risk] * 60, requests=12_000, share=0.05, seed=times)
        median = np.median([one.e_value or math.inf for one in found])
        assert median <= 1.35 * asked  # 60 streams; `tests.long` has enough of them for 1.2
        assert requests_to_alarm(TEST, risk, 0.05) <= 1.2 * asked
    assert requests_to_alarm(TEST, 0.01, 0.05) == math.inf


@pytest.mark.parametrize(("risk", "alarms"), [(0.03, False), (0.04, False), (0.2, True)])
def test_the_verdict_is_that_of_another_library(risk: float, alarms: bool) -> None:
    """Where every request is audited, `mapie` watches the same; by other bounds, later."""
    n = 1_200
    (one,) = alarm_times(replace(TEST, least_share=1.0), [risk], requests=n, share=1.0, seed=5)
    (rng,) = np.random.default_rng(5).spawn(1)
    rng.random(n)  # which requests are audited
    losses = (rng.random(n) < risk).astype(int)
    other = RiskMonitoring(risk="accuracy", test_level=0.05, threshold=0.05, warn=False)
    other.update(np.zeros(n, dtype=int), losses)
    assert other.harmful_shift_detected == alarms
    assert (one.e_value is not None) == alarms


@pytest.mark.slow
def test_upper_limits_hold_at_all_times_where_stops_are_rare() -> None:
    """A limit of stops times the share that has stopped does not; `tests.long` has more streams."""
    streams = 60
    most = ceiling(streams, 1)
    ours, times_observed_share = limits_missed(0.02, streams, looks=40)
    assert ours <= most < times_observed_share


def test_upper_limits_of_the_page() -> None:
    """At 2 % of stops differing and 60 % stopped, after 300, 1,000 and 3,000 audits of stops."""
    for audits, most in ((300, 0.036), (1_000, 0.023), (3_000, 0.018)):
        requests, losses = round(audits / 0.6 / 0.05), {20.0: audits // 50}
        limit = betting_upper_limit(requests, losses, delta=0.05, least_share=0.05)
        assert limit == pytest.approx(most, abs=5e-4)


def test_upper_limits_at_their_ends() -> None:
    assert betting_upper_limit(0, {}, delta=0.05, least_share=0.05) == 1.0
    assert betting_upper_limit(2, {1.0: 2}, delta=0.05, least_share=1.0) == 1.0
    assert 0 < betting_upper_limit(100_000, {}, delta=0.05, least_share=0.05) < 0.002
    with pytest.raises(CalibrationError, match="3 of 2 requests have a loss"):
        betting_upper_limit(2, {10.0: 3}, delta=0.05, least_share=0.05)


@pytest.mark.parametrize(
    ("requests", "losses", "least"),
    [(900, {20.0: 4, 10.0: 3}, 0.05), (700, {5.0: 9, -5.0: 4}, 0.2), (60, {}, 1.0)],
)
def test_at_the_upper_limit_the_mean_of_all_bets_is_1_over_delta(
    requests: int, losses: dict[float, int], least: float
) -> None:
    """Bets of 95 and 75 % of the largest, and of a half, a quarter and so on to 2^-14 of it."""
    risk = betting_upper_limit(requests, losses, delta=0.03, least_share=least)
    parts = [0.95, 0.75, *(0.5**k for k in range(1, 15))]
    won = []
    for stake in (part / (1 / least - risk) for part in parts):
        product = (1 + stake * risk) ** (requests - sum(losses.values()))
        for loss, number in losses.items():
            product *= (1 - stake * (loss - risk)) ** number
        won.append(product)
    assert 0 < risk < 1
    assert np.mean(won) == pytest.approx(1 / 0.03, rel=1e-5)


def test_gains_lower_the_upper_limit_of_a_drop() -> None:
    losses = betting_upper_limit(2_000, {20.0: 10}, delta=0.05, least_share=0.05)
    net = betting_upper_limit(2_000, {20.0: 10, -20.0: 4}, delta=0.05, least_share=0.05)
    assert net < losses


@pytest.mark.parametrize(("gains", "gained"), [(False, 0.0), (True, 0.05)])
def test_a_dropped_audit_counts_as_the_least_loss_in_the_delay(gains: bool, gained: float) -> None:
    """As 0 where no loss is below it; as a gain of each request that stops where one may be -1."""
    test, dropped, stops = AuditTest(0.05, 0.05, 0.05, gains=gains), 0.1, 0.6
    seen_up = (1 - dropped) * (0.4 + gained)
    seen_down = (1 - dropped) * gained + dropped * stops if gains else 0.0
    delay = requests_to_alarm(test, 0.4, 0.05, gained=gained, stops=stops, dropped=dropped)
    same = requests_to_alarm(test, seen_up - seen_down, 0.05, gained=seen_down)
    assert delay == same < math.inf
    assert delay > requests_to_alarm(test, 0.4, 0.05, gained=gained)


@pytest.mark.parametrize(
    ("risk", "gained", "share"), [(0.4, 0.0, 0.6), (0.6, 0.05, 0.6), (0.4, 0.25, 1.0)]
)
def test_the_delay_is_that_of_streams_request_by_request(
    risk: float, gained: float, share: float
) -> None:
    gains, stops, dropped = gained > 0, 0.9, 0.05
    test, rng = AuditTest(0.2, 0.05, share - 0.1, gains=gains), np.random.default_rng(0)
    kind, seen, audited = rng.random((3, 400, 400))
    loss = np.where(kind < risk + gained, 1.0, -1.0 * (kind < risk + 2 * gained))
    loss = np.where(seen < dropped, -1.0 * gains * (kind < stops), loss) * (audited < share) / share
    logs = [np.log1p(stake * (loss - test.alpha)).cumsum(axis=1) for stake in test.stakes]
    won = np.logaddexp.reduce(logs) - np.log(len(logs)) >= -np.log(test.delta)
    delays = np.where(won.any(axis=1), won.argmax(axis=1) + 1, np.inf)
    found = requests_to_alarm(test, risk, share, gained=gained, stops=stops, dropped=dropped)
    assert found == pytest.approx(np.median(delays), rel=0.15)


def test_the_delay_at_its_ends() -> None:
    assert requests_to_alarm(TEST, 0.0, 0.05) == math.inf
    every = replace(TEST, alpha=0.2, least_share=1.0)
    products = (1 + np.array(every.stakes) * 0.8) ** np.arange(100)[:, None]  # all are lost
    assert requests_to_alarm(every, 1.0, 1.0) == (products.mean(axis=1) >= 20).argmax()
    with_gains = AuditTest(0.05, 0.05, 0.05, gains=True)
    delays = [requests_to_alarm(with_gains, 0.4, 0.05, dropped=0.1, **stops)
              for stops in ({}, {"stops": 1.0}, {"stops": 0.9})]  # fmt: skip
    assert delays[0] == delays[1] > delays[2]
    # All requests change something: 2e-16 more than all of them, by rounding.
    assert requests_to_alarm(with_gains, 0.9, 1.0, gained=0.05, dropped=0.2) < math.inf


@pytest.mark.slow
def test_open_audits_cost_delay_and_small_bets_still_find_a_drop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At twice a risk of 5 %, where 10 % of requests gain: bets as large as those for a loss of 0
    or 1 never find it where 3 % of audits have no result."""
    test = AuditTest(0.05, 0.025, 0.05, gains=True)

    def delay(dropped: float) -> float:
        return requests_to_alarm(test, 0.1, 0.05, gained=0.1, stops=0.6, dropped=dropped)

    delays = [delay(dropped) for dropped in (0.0, 0.01, 0.03)]
    assert delays == sorted(delays)
    assert delays[0] < 25_000
    assert delays[2] < 80_000
    monkeypatch.setattr(sequential, "_PARTS", (0.25, 0.5, 0.9, 0.9, 0.9))
    assert delay(0.03) > 3 * delays[2]
    assert requests_to_alarm(test, 0.1, 0.05, stops=0.6, dropped=0.2) == math.inf
