"""The monitor of a promise: what audits count, what gold counts, and what a restart keeps."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.frozen import Policy
from stopadvisor.serving.monitored import monitored
from stopadvisor.serving.monitoring import (
    ALARMS,
    PromiseMonitor,
    WatchSettings,
    exit_code,
    watch_settings,
)
from stopadvisor.stats.exchangeability import ExchangeabilityTest
from stopadvisor.stats.sequential import betting_upper_limit, requests_to_alarm
from tests.long.coverage import ceiling
from tests.long.streams import BROKEN_STREAMS, CALM, calm_monitor, false_alarms
from tests.policy_content import (
    certificate_content,
    example_content,
    full_budget_content,
    policy_from,
)

DIFFERS = WatchSettings("0" * 64, "differs", 0.05, 0.05, 0.05, 0.1, 1e6)
LOST = replace(DIFFERS, loss="lost", alpha=0.02)
DROP = replace(DIFFERS, loss="drop", alpha=0.02)


def request(key: str, stop: int | None = 43, **more: Any) -> dict[str, Any]:
    return {"kind": "request", "t": 1.0, "id": key, "stop": stop, "tokens": 60, **more}


def result(key: str, differs: bool) -> dict[str, Any]:
    return {"kind": "result", "t": 2.0, "id": key, "differs": differs, "tokens": 90}


def limit(requests: int, differing: int) -> float:
    """Of the differing share, where every tenth request is audited."""
    return betting_upper_limit(requests, {10.0: differing}, delta=0.05, least_share=0.1)


def test_differing_replies_raise_the_alarm_and_it_stays() -> None:
    monitor = PromiseMonitor(DIFFERS)
    for k in range(40):
        monitor.apply(request(str(k), share=0.1))
        monitor.apply(result(str(k), differs=True))
    first = monitor.alarms["promise"]
    assert first.watch == "differs"
    for k in range(40, 5_000):
        monitor.apply(request(str(k)))
    assert monitor.alarms["promise"] == first
    assert monitor.processes["differs"].e_value < 20
    monitor.apply({"kind": "reset", "t": 3.0, "by": "somebody"})
    assert not monitor.alarms
    assert monitor.counts["resets"] == 1
    assert monitor.processes["differs"].e_value == 1.0


def test_what_never_stopped_is_full_thinking() -> None:
    monitor = PromiseMonitor(DIFFERS)
    monitor.apply(request("a", stop=None, share=0.1))
    assert monitor.processes["differs"].open_keys() == ()
    assert monitor.counts["audits"] == 1
    assert monitor.counts["audited_stops"] == 0
    assert monitor.upper_limit() is None


def test_shed_audits_count_nothing_in_the_alarm_and_as_lost_in_the_limit() -> None:
    monitor = PromiseMonitor(DIFFERS)
    for k in range(200):
        monitor.apply(request(str(k), share=0.1))
        monitor.apply({"kind": "shed", "t": 1.0, "id": str(k)})
    assert not monitor.alarms
    assert monitor.upper_limit() == limit(200, 200)


def test_equal_replies_lower_the_limit() -> None:
    monitor = PromiseMonitor(DIFFERS)
    for k in range(200):
        monitor.apply(request(str(k), stop=43 if k % 2 else None, share=0.1))
        if k % 2:
            monitor.apply(result(str(k), differs=False))
    assert monitor.upper_limit() == limit(200, 0)


def test_only_gold_can_break_a_promise_about_right_answers() -> None:
    monitor = PromiseMonitor(replace(LOST, differs_limit=0.9))
    for k in range(40):
        for other in range(12):
            monitor.apply(request(f"{k}-{other}"))
        monitor.apply(request(str(k), share=0.1))
        monitor.apply(result(str(k), differs=True))
    assert not monitor.alarms
    assert exit_code(monitor.alarms) == 0
    for k in range(40):
        monitor.settle({str(k): (False, True)})
    assert monitor.alarms["promise"].watch == "lost"
    assert (monitor.counts["gold"], monitor.counts["gold_losses"]) == (40, 40)


@pytest.mark.parametrize("loss", ["lost", "drop"])
def test_differing_replies_are_no_broken_promise_about_right_answers(loss: str) -> None:
    """The promise's alarm, an early warning and a change are told apart, with a delta together."""
    monitor = PromiseMonitor(replace(LOST, loss=loss))
    for k in range(60):
        monitor.apply(request(str(k), share=0.1))
        monitor.apply(result(str(k), differs=True))
        monitor.settle({str(k): (False, False)})
    assert monitor.alarms["early-warning"].watch == "differs"
    assert "promise" not in monitor.alarms
    assert exit_code(monitor.alarms) == 8
    assert [test.delta for test in monitor.settings.tests().values()] == [0.025, 0.025]
    assert [test.change for test in monitor.settings.tests().values()] == [2e6, 2e6]


def test_the_change_detector_is_an_alarm_of_its_own() -> None:
    monitor = PromiseMonitor(replace(DIFFERS, change=30.0))
    for k in range(40):
        monitor.apply(request(str(k)))
    monitor.apply(request("a", share=0.1))
    monitor.apply(result("a", differs=True))
    assert monitor.processes["differs"].e_value < 20
    assert monitor.alarms.keys() == {"change"}
    assert exit_code(monitor.alarms) == 8


@pytest.mark.parametrize("loss", ["lost", "drop"])
def test_the_order_of_gold_plays_no_part(loss: str) -> None:
    """As many lost as gained: sorted by outcome and looked at line by line, the losses ring."""
    figures = []
    for first in (0, 1):
        monitor = PromiseMonitor(replace(LOST, loss=loss, differs_limit=0.9))
        for k in range(2_000):
            monitor.apply(request(str(k), share=0.1 if k % 20 == 0 else None))
            if k % 20 == 0:
                monitor.apply(result(str(k), differs=True))
        grades = {str(k): (k % 40 == 0, k % 40 != 0) for k in range(0, 2_000, 20)}
        order = sorted(grades, key=lambda key: grades[key][first])
        monitor.settle({key: grades[key] for key in order})
        assert monitor.counts["gold"] == 100
        figures.append((monitor.processes[loss].logs, monitor.processes[loss].sums, monitor.alarms))
        assert ("promise" in monitor.alarms) == (loss == "lost")
    assert figures[0] == figures[1]


def test_an_open_audit_counts_as_a_gain_in_the_alarm_of_a_drop() -> None:
    monitor = PromiseMonitor(replace(DROP, differs_limit=0.9))
    only_losses: dict[str, tuple[bool, bool]] = {}
    for k in range(80):
        for quiet in range(20):
            monitor.apply(request(f"{k}-{quiet}"))
        monitor.apply(request(str(k), share=0.1))
        monitor.apply(result(str(k), differs=k % 2 == 0))
        only_losses |= {str(k): (False, True)} if k % 4 == 0 else {}
    monitor.settle(only_losses)  # of the other half that differ nothing is known
    assert "promise" not in monitor.alarms
    upper = monitor.upper_limit("drop")
    monitor.settle({str(k): (True, False) for k in range(2, 80, 4)})
    assert "promise" not in monitor.alarms
    assert monitor.upper_limit("drop") < upper  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CALM, *BROKEN_STREAMS])
def test_false_alarms_are_rare_at_risk_exactly_alpha(name: str) -> None:
    """With shed and late audits, and gold in any order; `tests.long` has 2,000 streams of each."""
    streams = 16
    assert (false_alarms(name, streams) > ceiling(streams, 1)) == (name in BROKEN_STREAMS)


@pytest.mark.slow
def test_a_false_alarm_of_change_takes_as_long_as_is_said() -> None:
    """On average over streams of fifteen times that length; two detectors share it."""
    case = CALM["differs"]
    rung = [
        monitor.alarms["change"].request if "change" in monitor.alarms else case.requests
        for monitor, _ in (calm_monitor(case, rng) for rng in np.random.default_rng(3).spawn(10))
    ]
    assert np.mean(rung) >= case.settings.change


def test_gains_count_for_drop_alone() -> None:
    lost, drop = PromiseMonitor(LOST), PromiseMonitor(DROP)
    for monitor in (lost, drop):
        monitor.apply(request("a", share=0.1))
        monitor.apply(result("a", differs=True))
        monitor.settle({"a": (True, False)})
    assert (lost.counts["gold_losses"], drop.counts["gold_losses"]) == (0, -1)


@pytest.mark.parametrize("settings", [LOST, DROP])
def test_where_full_thinking_was_cut_nothing_is_lost_or_gained(settings: WatchSettings) -> None:
    """As the certificate counts: `rules.losses` has no gain on a trace that was cut off."""
    monitor, uncut = (PromiseMonitor(replace(settings, differs_limit=0.9)) for _ in range(2))
    for k in range(300):
        key, lost = str(k), k % 3 == 0
        for one in (monitor, uncut):
            one.apply(request(key, share=0.1))
            cut = {"cut": True} if one is monitor and not lost else {}
            one.apply(result(key, differs=True) | cut)
            one.settle({key: (not lost, lost)})
    assert (monitor.counts["differing"], monitor.counts["gold"]) == (300, 100)
    assert monitor.counts["gold_losses"] == 100
    assert monitor.alarms["promise"].watch == settings.loss
    # The same gains on traces that ended by themselves make up for the losses of a drop.
    assert ("promise" in uncut.alarms) == (settings.loss == "lost")


def test_gold_of_equal_replies_and_of_strangers_decides_nothing() -> None:
    monitor = PromiseMonitor(LOST)
    monitor.apply(request("a", share=0.1))
    monitor.apply(result("a", differs=False))
    for key in ("a", "stranger"):
        monitor.settle({key: (False, True)})
        monitor.apply(result(key, differs=True))
    assert monitor.counts["gold"] == 0
    assert monitor.counts["resolved"] == 1


@pytest.mark.parametrize("settings", [DIFFERS, LOST])
def test_what_ends_after_a_reset_counts_nothing(settings: WatchSettings) -> None:
    monitor = PromiseMonitor(settings)
    monitor.apply(request("a", share=0.1))
    monitor.apply({"kind": "reset", "t": 1.5, "by": "somebody"})
    monitor.apply(result("a", differs=True))
    monitor.settle({"a": (False, True)})
    assert (monitor.counts["resolved"], monitor.counts["gold"]) == (0, 0)
    for k in range(40):
        monitor.apply(request(str(k), share=0.1))
        monitor.apply(result(str(k), differs=True))
    assert monitor.alarms


def test_a_changed_traffic_is_said_and_is_no_alarm() -> None:
    reference = {"stop": [43.0, 87.0] * 100, "prompt_tokens": [20.0 + k for k in range(100)]}
    monitor = PromiseMonitor(DIFFERS, reference)
    for k in range(300):
        stop = None if k % 10 else 43
        monitor.apply(request(str(k), stop=stop, prompt_tokens=20 + 7 * k % 100))
    assert set(monitor.drifted) == {"stop"}
    assert 10 < monitor.drifted["stop"] <= 300
    assert not monitor.alarms


@pytest.mark.parametrize("stops", [(43, None), (None,)])
def test_traffic_as_at_calibration_has_not_changed(stops: tuple[int | None, ...]) -> None:
    """Few values: ties are broken evenly, and -1 is a request that never stopped."""
    calibrated = [-1.0 if stop is None else float(stop) for stop in stops]
    monitor = PromiseMonitor(DIFFERS, {"stop": calibrated * 50})
    for k in range(1_000):
        monitor.apply(request(str(k), stop=stops[k % len(stops)]))
    assert monitor.drifted == {}
    assert monitor.drift["stop"].capital < 20


@pytest.mark.parametrize(
    ("capital", "drifted"), [(200.0, {"stop", "prompt_tokens"}), (199.0, set())]
)
def test_two_features_drift_falsely_at_most_once_in_a_hundred(
    capital: float, drifted: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ExchangeabilityTest, "update", lambda *_: capital)
    monitor = PromiseMonitor(DIFFERS, {"stop": [43.0], "prompt_tokens": [20.0]})
    monitor.apply(request("a", prompt_tokens=20))
    assert set(monitor.drifted) == drifted


def test_tokens_that_no_record_names_are_none() -> None:
    monitor = PromiseMonitor(DIFFERS)
    monitor.apply(request("a", share=0.1) | {"tokens": None})
    monitor.apply(result("a", differs=False) | {"tokens": None})
    assert (monitor.counts["tokens"], monitor.counts["audit_tokens"]) == (0, 0)


def test_only_what_was_seen_at_calibration_is_watched_for_a_change() -> None:
    reference: dict[str, list[float]] = {"stop": [], "prompt_tokens": [20.0], "colour": [1.0]}
    assert set(PromiseMonitor(DIFFERS, reference).drift) == {"prompt_tokens"}


def test_a_state_goes_on_to_the_last_digit() -> None:
    def records(first: int, last: int) -> list[dict[str, Any]]:
        found = []
        for k in range(first, last):
            found.append(request(str(k), share=0.1, prompt_tokens=k % 50, first_logprob=-0.1))
            found.append(result(str(k - 1), differs=k % 9 == 0))
        return found

    monitor = PromiseMonitor(LOST, {"prompt_tokens": [1.0, 2.0], "first_logprob": [-0.5]})
    for record in records(0, 50):
        monitor.apply(record)
    other = PromiseMonitor.restore(LOST, json.loads(json.dumps(monitor.state())))
    for record in records(50, 90):
        monitor.apply(record)
        other.apply(record)
    assert other.state() == monitor.state()
    state = monitor.state()
    state["counts"] |= {"strange": 1}
    assert PromiseMonitor.join(LOST, [state, state], None).counts.keys() == monitor.counts.keys()


def state_of_a_gain() -> dict[str, Any]:
    """One request, whose reply was right where full thinking is wrong."""
    monitor = PromiseMonitor(DROP)
    monitor.apply(request("a", share=0.1))
    monitor.apply(result("a", differs=True))
    monitor.settle({"a": (True, False)})
    state: dict[str, Any] = json.loads(json.dumps(monitor.state()))
    assert state["counts"]["gold_losses"] == -1
    return state


def raised(kind: str, time: float = 1.0) -> dict[str, Any]:
    return {kind: {"watch": "drop", "kind": kind, "request": 1, "time": time}}


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["counts"].update(gold_losses=-2),
        lambda state: state["alarms"].update(raised("other")),
        lambda state: state["alarms"].update(raised("promise", math.inf)),
        lambda state: state["processes"]["differs"]["logs"].pop(),
        lambda state: state["processes"]["differs"]["sums"].pop(),
        lambda state: [state["processes"]["differs"][name].pop() for name in ("logs", "sums")],
        lambda state: state["processes"]["differs"]["logs"].append(math.nan),
        lambda state: state["processes"]["differs"]["losses"].append([15.0, 0]),
        lambda state: state["processes"]["differs"]["losses"].append([5.0, 1]),
        lambda state: state["processes"]["differs"]["losses"].append([5.0, -1]),
    ],
    ids=[
        *("more gained than requests", "another alarm", "an alarm at no time", "a log less"),
        *("a sum less", "a stake less", "no number", "a loss beyond the share"),
        *("more losses than requests", "fewer than no losses"),
    ],
)
def test_a_state_that_cannot_be_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    state = state_of_a_gain()
    change(state)
    with pytest.raises(PolicyError, match="a number is out of range"):
        PromiseMonitor.restore(DROP, state)


WATCHING = {"values": [43.0, 86.0], "counts": [1, 2], "bets": [0.3, 0.3, 0.3]}
"""State of a test for drift."""


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["drift"].update(other=WATCHING),
        lambda state: state["drift"].update(stop=WATCHING | {"values": ["x", 86.0]}),
        lambda state: state["drift"].update(stop=WATCHING | {"values": [43.0, math.nan]}),
        lambda state: state["drift"].update(stop=WATCHING | {"counts": [1]}),
        lambda state: state["drift"].update(stop=WATCHING | {"counts": [1, -4]}),
        lambda state: state["drift"].update(stop=WATCHING | {"bets": []}),
        lambda state: state["drift"].update(stop=WATCHING | {"bets": [0.3, 0.3, -0.3]}),
        lambda state: state.update(drifted={"other": 1}),
        lambda state: state["processes"]["differs"].update(requests=10**400),
    ],
    ids=[
        *("unknown feature", "text", "no number", "a count less", "a count below 0", "no bets"),
        *("a bet below 0", "unknown change", "too many requests"),
    ],
)
def test_a_state_that_later_records_would_fail_on_is_refused(
    change: Callable[[dict[str, Any]], object],
) -> None:
    state = state_of_a_gain()
    state["drift"] = {"stop": WATCHING}
    PromiseMonitor.restore(DROP, state)
    change(state)
    with pytest.raises(PolicyError, match="the log's header holds no state"):
        PromiseMonitor.restore(DROP, state)


def test_a_state_that_can_just_be_is_taken() -> None:
    state = state_of_a_gain()
    before = copy.deepcopy(state)
    assert PromiseMonitor.restore(DROP, state).state() == before
    del state["counts"]["resets"]
    for kind in ALARMS:
        state["alarms"] |= raised(kind)
    monitor = PromiseMonitor.restore(DROP, state)
    assert set(monitor.alarms) == set(ALARMS)
    assert monitor.counts["resets"] == 0


def test_of_several_servers_the_earliest_alarm_is_the_alarm() -> None:
    states = []
    for time in (5.0, 2.0, 9.0):
        monitor = PromiseMonitor(DIFFERS)
        for k in range(40):
            monitor.apply(request(str(k), share=0.1) | {"t": time})
            monitor.apply(result(str(k), differs=True) | {"t": time})
        states.append(monitor.state())
    assert PromiseMonitor.join(DIFFERS, states, None).alarms["promise"].time == 2.0


def policy_with(**fields: Any) -> Policy:
    return policy_from(example_content(certificate=certificate_content(**fields)))


def test_settings_of_a_policy() -> None:
    policy = policy_with()
    with pytest.raises(PolicyError, match="calibrate it again"):
        watch_settings(policy, share=0.02)
    policy = policy_with(differs_upper=0.12)
    given = watch_settings(policy, share=0.02)
    assert (given.digest, given.loss, given.differs_limit) == (policy.digest, "lost", 0.12)
    assert given.delta == policy.content["certificate"]["delta"]
    assert given.change == 1_000_000
    differs = watch_settings(policy_with(loss="differs"), share=0.02)
    assert differs.differs_limit == differs.alpha
    assert list(differs.tests()) == ["differs"]
    with pytest.raises(PolicyError, match="nothing to watch"):
        watch_settings(policy_from(full_budget_content()), share=0.02)


@pytest.mark.parametrize("loss", ["lost", "drop"])
def test_the_figures_of_a_monitor(loss: str) -> None:
    counts: dict[str, Any] = {"losses": 9, "gained": 5, "n": 240, "alpha": 0.05, "upper": 0.0498}
    policy = policy_with(differs_upper=0.1, loss=loss, **(counts if loss == "drop" else {}))
    certificate = policy.terms.certificate
    assert certificate is not None
    monitor = PromiseMonitor(watch_settings(policy, share=0.1))
    before = monitored(monitor, policy, (), replicas=1)
    assert (before.verdict, before.alarm, before.upper) == ("no-audits", None, None)
    assert (before.saved_tokens, before.dropped_share, before.unresolved) == (None, 0.0, 0)
    for k in range(100):
        monitor.apply(request(str(k), stop=43 if k < 60 else None, share=0.1))
    for k in range(49):
        monitor.apply(result(str(k), differs=False))
    monitor.apply({"kind": "shed", "t": 1.0, "id": "49"})
    found = monitored(monitor, policy, ("a remark",), replicas=2)
    assert (found.verdict, found.replicas, found.remarks) == ("no-alarm", 2, ("a remark",))
    assert (found.stopped, found.unresolved, found.dropped_share) == (60, 11, 0.02)
    assert found.saved_tokens == 60 * 90
    assert [(watch.watch, watch.is_promise) for watch in found.watched] == [
        ("differs", False),
        (loss, True),
    ]
    test, gained = monitor.settings.tests()[loss], (certificate.gained or 0) / certificate.n
    for delay, times in zip(found.delay, (2, 3), strict=True):
        risk = times * certificate.alpha
        usual = requests_to_alarm(test, risk, 0.1, gained=gained)
        shed = requests_to_alarm(test, risk, 0.1, gained=gained, stops=0.6, dropped=0.02)
        assert (delay.times, delay.undropped, delay.requests) == (times, usual, shed)
        assert math.isfinite(shed)
    assert [delay.undropped for delay in before.delay] == [d.undropped for d in found.delay]


def test_the_most_severe_alarm_is_the_alarm() -> None:
    policy = policy_with(differs_upper=0.1, alpha=0.5, alpha_over_full_accuracy=0.6)
    monitor = PromiseMonitor(watch_settings(policy, share=0.1))
    for k in range(80):
        monitor.apply(request(str(k), share=0.1))
        monitor.apply(result(str(k), differs=True))
    found = monitored(monitor, policy, (), replicas=1)
    assert [alarm.kind for alarm in found.alarms] == ["early-warning", "change"]
    assert (found.verdict, found.alarm) == ("alarm", found.alarms[0])


def test_no_alarm_is_awaited_where_every_reply_would_be_lost() -> None:
    policy = policy_with(differs_upper=0.6, alpha=0.5, alpha_over_full_accuracy=0.6)
    monitor = PromiseMonitor(watch_settings(policy, share=0.1))
    found = monitored(monitor, policy, (), replicas=1)
    assert [(delay.times, delay.requests) for delay in found.delay] == [(2, None), (3, None)]
