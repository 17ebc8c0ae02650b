"""The course of a promise: what audits count, what gold counts, and what a restart keeps."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.frozen import Policy
from stopadvisor.serving.monitoring import Course, WatchSettings, exit_code, watch_settings
from stopadvisor.stats.sequential import betting_upper_limit
from tests.long.coverage import ceiling
from tests.long.streams import BROKEN_STREAMS, CALM, calm_course, false_alarms
from tests.policy_content import example_content, full_budget_content, policy_from

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
    course = Course(DIFFERS)
    for k in range(40):
        course.apply(request(str(k), share=0.1))
        course.apply(result(str(k), differs=True))
    first = course.alarms["promise"]
    assert first.watch == "differs"
    for k in range(40, 5_000):
        course.apply(request(str(k)))
    assert course.alarms["promise"] == first
    assert course.processes["differs"].e_value < 20
    course.apply({"kind": "reset", "t": 3.0, "by": "somebody"})
    assert not course.alarms
    assert course.counts["resets"] == 1
    assert course.processes["differs"].e_value == 1.0


def test_what_never_stopped_is_full_thinking() -> None:
    course = Course(DIFFERS)
    course.apply(request("a", stop=None, share=0.1))
    assert course.processes["differs"].open_keys() == ()
    assert course.counts["audits"] == 1
    assert course.counts["audited_stops"] == 0
    assert course.upper_limit() is None


def test_shed_audits_count_nothing_in_the_alarm_and_as_lost_in_the_limit() -> None:
    course = Course(DIFFERS)
    for k in range(200):
        course.apply(request(str(k), share=0.1))
        course.apply({"kind": "shed", "t": 1.0, "id": str(k)})
    assert not course.alarms
    assert course.upper_limit() == limit(200, 200)


def test_equal_replies_lower_the_limit() -> None:
    course = Course(DIFFERS)
    for k in range(200):
        course.apply(request(str(k), stop=43 if k % 2 else None, share=0.1))
        if k % 2:
            course.apply(result(str(k), differs=False))
    assert course.upper_limit() == limit(200, 0)


def test_only_gold_can_break_a_promise_about_right_answers() -> None:
    course = Course(replace(LOST, differs_limit=0.9))
    for k in range(40):
        for other in range(12):
            course.apply(request(f"{k}-{other}"))
        course.apply(request(str(k), share=0.1))
        course.apply(result(str(k), differs=True))
    assert not course.alarms
    for k in range(40):
        course.settle({str(k): (False, True)})
    assert course.alarms["promise"].watch == "lost"
    assert (course.counts["gold"], course.counts["gold_losses"]) == (40, 40)


@pytest.mark.parametrize("loss", ["lost", "drop"])
def test_differing_replies_are_no_broken_promise_about_right_answers(loss: str) -> None:
    """The promise's alarm, an early warning and a change are told apart, with a delta together."""
    course = Course(replace(LOST, loss=loss))
    for k in range(60):
        course.apply(request(str(k), share=0.1))
        course.apply(result(str(k), differs=True))
        course.settle({str(k): (False, False)})
    assert course.alarms["early-warning"].watch == "differs"
    assert "promise" not in course.alarms
    assert exit_code(course.alarms) == 8
    assert [test.delta for test in course.settings.tests().values()] == [0.025, 0.025]
    assert [test.change for test in course.settings.tests().values()] == [2e6, 2e6]


def test_the_change_detector_is_an_alarm_of_its_own() -> None:
    course = Course(replace(DIFFERS, change=30.0))
    for k in range(40):
        course.apply(request(str(k)))
    course.apply(request("a", share=0.1))
    course.apply(result("a", differs=True))
    assert course.processes["differs"].e_value < 20
    assert course.alarms.keys() == {"change"}
    assert exit_code(course.alarms) == 8


@pytest.mark.parametrize("loss", ["lost", "drop"])
def test_the_order_of_gold_plays_no_part(loss: str) -> None:
    """As many lost as gained: sorted by outcome and looked at line by line, the losses ring."""
    figures = []
    for first in (0, 1):
        course = Course(replace(LOST, loss=loss, differs_limit=0.9))
        for k in range(2_000):
            course.apply(request(str(k), share=0.1 if k % 20 == 0 else None))
            if k % 20 == 0:
                course.apply(result(str(k), differs=True))
        grades = {str(k): (k % 40 == 0, k % 40 != 0) for k in range(0, 2_000, 20)}
        order = sorted(grades, key=lambda key: grades[key][first])
        course.settle({key: grades[key] for key in order})
        assert course.counts["gold"] == 100
        figures.append((course.processes[loss].logs, course.processes[loss].sums, course.alarms))
        assert ("promise" in course.alarms) == (loss == "lost")
    assert figures[0] == figures[1]


def test_an_open_audit_counts_as_a_gain_in_the_alarm_of_a_drop() -> None:
    course = Course(replace(DROP, differs_limit=0.9))
    only_losses: dict[str, tuple[bool, bool]] = {}
    for k in range(80):
        for quiet in range(20):
            course.apply(request(f"{k}-{quiet}"))
        course.apply(request(str(k), share=0.1))
        course.apply(result(str(k), differs=k % 2 == 0))
        only_losses |= {str(k): (False, True)} if k % 4 == 0 else {}
    course.settle(only_losses)  # of the other half that differ nothing is known
    assert "promise" not in course.alarms
    upper = course.upper_limit("drop")
    course.settle({str(k): (True, False) for k in range(2, 80, 4)})
    assert "promise" not in course.alarms
    assert course.upper_limit("drop") < upper  # type: ignore[operator]


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
        course.alarms["change"].request if "change" in course.alarms else case.requests
        for course, _ in (calm_course(case, rng) for rng in np.random.default_rng(3).spawn(10))
    ]
    assert np.mean(rung) >= case.settings.change


def test_gains_count_for_drop_alone() -> None:
    lost, drop = Course(LOST), Course(DROP)
    for course in (lost, drop):
        course.apply(request("a", share=0.1))
        course.apply(result("a", differs=True))
        course.settle({"a": (True, False)})
    assert (lost.counts["gold_losses"], drop.counts["gold_losses"]) == (0, -1)


def test_gold_of_equal_replies_and_of_strangers_decides_nothing() -> None:
    course = Course(LOST)
    course.apply(request("a", share=0.1))
    course.apply(result("a", differs=False))
    for key in ("a", "stranger"):
        course.settle({key: (False, True)})
        course.apply(result(key, differs=True))
    assert course.counts["gold"] == 0
    assert course.counts["resolved"] == 1


@pytest.mark.parametrize("settings", [DIFFERS, LOST])
def test_what_ends_after_a_reset_counts_nothing(settings: WatchSettings) -> None:
    course = Course(settings)
    course.apply(request("a", share=0.1))
    course.apply({"kind": "reset", "t": 1.5, "by": "somebody"})
    course.apply(result("a", differs=True))
    course.settle({"a": (False, True)})
    assert (course.counts["resolved"], course.counts["gold"]) == (0, 0)
    for k in range(40):
        course.apply(request(str(k), share=0.1))
        course.apply(result(str(k), differs=True))
    assert course.alarms


def test_a_changed_traffic_is_said_and_is_no_alarm() -> None:
    reference = {"stop": [43.0, 87.0] * 100, "prompt_tokens": [20.0 + k for k in range(100)]}
    course = Course(DIFFERS, reference)
    for k in range(300):
        stop = None if k % 10 else 43
        course.apply(request(str(k), stop=stop, prompt_tokens=20 + 7 * k % 100))
    assert set(course.drifted) == {"stop"}
    assert 10 < course.drifted["stop"] <= 300
    assert not course.alarms


def test_a_state_goes_on_to_the_last_digit() -> None:
    def records(first: int, last: int) -> list[dict[str, Any]]:
        found = []
        for k in range(first, last):
            found.append(request(str(k), share=0.1, prompt_tokens=k % 50, first_logprob=-0.1))
            found.append(result(str(k - 1), differs=k % 9 == 0))
        return found

    course = Course(LOST, {"prompt_tokens": [1.0, 2.0], "first_logprob": [-0.5]})
    for record in records(0, 50):
        course.apply(record)
    other = Course.restore(LOST, json.loads(json.dumps(course.state())))
    for record in records(50, 90):
        course.apply(record)
        other.apply(record)
    assert other.state() == course.state()
    state = course.state()
    state["counts"] |= {"strange": 1}
    assert Course.join(LOST, [state, state], None).counts.keys() == course.counts.keys()


def policy_with(**fields: Any) -> Policy:
    content = example_content()
    return policy_from({**content, "certificate": {**content["certificate"], **fields}})


def test_settings_of_a_policy() -> None:
    policy = policy_with()
    with pytest.raises(PolicyError, match="calibrate it again"):
        watch_settings(policy, share=0.02)
    policy = policy_with(differs_upper=0.12)
    given = watch_settings(policy, share=0.02)
    assert (given.digest, given.loss, given.differs_limit) == (policy.digest, "lost", 0.12)
    assert given.delta == policy.content["certificate"]["delta"]
    differs = watch_settings(policy_with(loss="differs"), share=0.02)
    assert differs.differs_limit == differs.alpha
    assert list(differs.tests()) == ["differs"]
    with pytest.raises(PolicyError, match="nothing to watch"):
        watch_settings(policy_from(full_budget_content()), share=0.02)
