"""The course of a promise: what audits count, what gold counts, and what a restart keeps."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from stopadvisor.errors import PolicyError
from stopadvisor.policy.frozen import Policy, build_policy
from stopadvisor.serving.monitoring import Course
from stopadvisor.serving.watch_settings import WatchSettings, watch_settings
from stopadvisor.stats.sequential import mixture_upper_limit
from tests.policy_content import example_content, full_budget_content

DIFFERS = WatchSettings("0" * 64, "differs", 0.05, 0.05, 0.05, 0.1, 1e6)
LOST = replace(DIFFERS, loss="lost", alpha=0.02)
DROP = replace(DIFFERS, loss="drop", alpha=0.02)


def request(key: str, stop: int | None = 43, **more: Any) -> dict[str, Any]:
    return {"kind": "request", "t": 1.0, "id": key, "stop": stop, "tokens": 60, **more}


def result(key: str, differs: bool) -> dict[str, Any]:
    return {"kind": "result", "t": 2.0, "id": key, "differs": differs, "tokens": 90}


def gold(key: str, served: bool, full: bool) -> dict[str, Any]:
    return {"kind": "gold", "id": key, "served": served, "full": full}


def test_differing_replies_raise_the_alarm_and_it_stays() -> None:
    course = Course(DIFFERS)
    for k in range(40):
        course.apply(request(str(k), share=0.1))
        course.apply(result(str(k), differs=True))
    assert course.alarm is not None
    assert (course.alarm.watch, course.alarm.kind) == ("differs", "e-value")
    first = course.alarm
    for k in range(40, 5_000):
        course.apply(request(str(k)))
    assert course.alarm == first
    assert course.processes["differs"].e_value < 20
    course.apply({"kind": "reset", "t": 3.0, "by": "somebody"})
    assert course.alarm is None
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
    assert course.alarm is None
    assert course.upper_limit() == mixture_upper_limit(200, 200, delta=0.05)


def test_equal_replies_lower_the_limit() -> None:
    course = Course(DIFFERS)
    for k in range(200):
        course.apply(request(str(k), stop=43 if k % 2 else None, share=0.1))
        if k % 2:
            course.apply(result(str(k), differs=False))
    assert course.upper_limit() == pytest.approx(mixture_upper_limit(100, 0, delta=0.05) / 2)


def test_only_gold_can_break_a_promise_about_right_answers() -> None:
    course = Course(replace(LOST, differs_limit=0.9))
    for k in range(40):
        for other in range(12):
            course.apply(request(f"{k}-{other}"))
        course.apply(request(str(k), share=0.1))
        course.apply(result(str(k), differs=True))
    assert course.alarm is None
    for k in range(40):
        course.apply(gold(str(k), served=False, full=True))
    assert course.alarm is not None
    assert course.alarm.watch == "lost"
    assert (course.counts["gold"], course.counts["gold_losses"]) == (40, 40)


def test_gains_count_for_drop_alone() -> None:
    lost, drop = Course(LOST), Course(DROP)
    for course in (lost, drop):
        course.apply(request("a", share=0.1))
        course.apply(result("a", differs=True))
        course.apply(gold("a", served=True, full=False))
    assert (lost.counts["gold_losses"], drop.counts["gold_losses"]) == (0, -1)
    assert drop.processes["drop"].e_value < lost.processes["lost"].e_value


def test_gold_of_equal_replies_and_of_strangers_decides_nothing() -> None:
    course = Course(LOST)
    course.apply(request("a", share=0.1))
    course.apply(result("a", differs=False))
    for key in ("a", "stranger"):
        course.apply(gold(key, served=False, full=True))
        course.apply(result(key, differs=True))
    assert course.counts["gold"] == 0
    assert course.counts["resolved"] == 1


@pytest.mark.parametrize("settings", [DIFFERS, LOST])
def test_what_ends_after_a_reset_is_no_place_of_the_course(settings: WatchSettings) -> None:
    course = Course(settings)
    course.apply(request("a", share=0.1))
    course.apply({"kind": "reset", "t": 1.5, "by": "somebody"})
    course.apply(result("a", differs=True))
    course.apply(gold("a", served=False, full=True))
    assert [point.request for point in course.points()] == [1]
    for k in range(40):
        course.apply(request(str(k), share=0.1))
        course.apply(result(str(k), differs=True))
    assert course.alarm is not None
    assert course.points()[-1].upper is not None


def test_a_changed_traffic_is_said_and_is_no_alarm() -> None:
    reference = {"stop": [43.0, 87.0] * 100, "prompt_tokens": [20.0 + k for k in range(100)]}
    course = Course(DIFFERS, reference)
    for k in range(300):
        stop = None if k % 10 else 43
        course.apply(request(str(k), stop=stop, prompt_tokens=20 + 7 * k % 100))
    assert set(course.drifted) == {"stop"}
    assert 10 < course.drifted["stop"] <= 300
    assert course.alarm is None


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


def test_the_course_is_thinned_out() -> None:
    course = Course(DIFFERS)
    for k in range(5_000):
        course.apply(request(str(k), share=0.1))
    points = course.points()
    assert 200 < len(points) <= 1_024
    assert [p.request for p in points] == sorted(p.request for p in points)
    assert points[-1].upper is not None


def policy_with(**fields: Any) -> Policy:
    content = example_content()
    return Policy(build_policy({**content, "certificate": {**content["certificate"], **fields}}))


def test_settings_of_a_policy() -> None:
    policy = policy_with()
    with pytest.raises(PolicyError, match="give --differs-limit"):
        watch_settings(policy, share=0.02)
    given = watch_settings(policy, share=0.02, differs_limit=0.12)
    assert (given.digest, given.loss, given.differs_limit) == (policy.digest, "lost", 0.12)
    assert given.delta == policy.content["certificate"]["delta"]
    assert watch_settings(policy_with(differs_upper=0.2), share=0.02).differs_limit == 0.2
    differs = watch_settings(policy_with(loss="differs"), share=0.02)
    assert differs.differs_limit == differs.alpha
    assert list(differs.tests()) == ["differs"]
    with pytest.raises(PolicyError, match="nothing to watch"):
        watch_settings(Policy(build_policy(full_budget_content())), share=0.02)
