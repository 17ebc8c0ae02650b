"""`stopadvisor monitor`: the verdict of logs on screen, and as JSON, and the way on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.policy.frozen import Policy, load_policy, save_policy
from stopadvisor.policy.shown import certificate_of
from stopadvisor.serving.audit_log import AuditLog
from stopadvisor.serving.monitoring import drift_reference, watch_settings
from tests.goldens import Goldens
from tests.material import Call
from tests.policy_content import certificate_content, example_content, ladder_content, policy_from
from tests.schemas import check_valid

FILES = Path(__file__).parent.parent / "testdata" / "monitor"
LOGS = Path("audits")
POLICY = Path("policy.joblib")


class Clock:
    """One minute a request."""

    now = 1_700_000_000.0

    def __call__(self) -> float:
        self.now += 60
        return self.now


def write_policy(**fields: object) -> Policy:
    content = example_content()
    content["certificate"] = {**content["certificate"], "differs_upper": 0.07, **fields}
    served = {"stop": [43.0, 86.0, -1.0] * 40, "prompt_tokens": [20.0, 31.0] * 60}
    content["served"] = served
    save_policy(policy_from(content), POLICY)
    return load_policy(POLICY)


def write_log(policy: Policy, *, lost_from: int, requests: int, folder: Path = LOGS) -> AuditLog:
    """A log in which every 20th request is audited, and every stop differs from one on."""
    settings = replace(watch_settings(policy, share=0.05), change=1e5)
    log = AuditLog(folder, settings, drift_reference(policy), clock=Clock())
    for k in range(requests):
        audit = {"share": 0.05} if k % 20 == 7 else {}
        stop = (43, 86, None)[k % 3]
        log.write(
            "request", id=f"r{k}", stop=stop, tokens=60, prompt_tokens=(20, 31)[k % 2], **audit
        )
        if audit and stop is not None:
            log.write("result", id=f"r{k}", differs=k >= lost_from, tokens=25)
    return log


@pytest.fixture(name="call")
def of_one_command(call: Call) -> Call:
    return call.of("monitor")


def test_quiet_traffic(call: Call, goldens: Goldens) -> None:
    policy = write_policy(loss="differs")
    write_log(policy, lost_from=10**9, requests=600)
    code, out, err = call(POLICY, LOGS)
    assert (code, err) == (0, "")
    goldens.check(FILES / "quiet.txt", out)


def test_the_delay_takes_shed_audits_as_drawn_at_random_and_says_so(call: Call) -> None:
    """A gateway cancels long ones more often, and these differ more often."""
    log = write_log(write_policy(loss="differs"), lost_from=10**9, requests=600)
    for k in range(20):
        log.write("request", id=f"shed-{k}", stop=43, share=0.05)
        log.write("shed", id=f"shed-{k}")
    found = " ".join(call(POLICY, LOGS)[1].split())
    assert "50.0% of audits were given up, as if at random: without that twice the limit" in found


@pytest.mark.slow
def test_an_alarm_and_its_reset(call: Call, goldens: Goldens) -> None:
    policy = write_policy()
    log = write_log(policy, lost_from=600, requests=1_500)
    assert log.monitor.alarms
    code, out, _ = call(POLICY, LOGS)
    assert code == 8
    goldens.check(FILES / "alarm.txt", out)
    code, out, _ = call(POLICY, LOGS, "--json")
    document = json.loads(out)
    check_valid("monitor", document)
    assert code == 8
    assert document["alarm"]["request"] == log.monitor.alarms["early-warning"].request
    assert 600 < document["alarm"]["request"] < 1_100
    assert [one["kind"] for one in document["alarms"]] == ["early-warning", "change"]
    assert [w["is_promise"] for w in document["watched"]] == [False, True]
    assert [w["delta"] for w in document["watched"]] == [0.025, 0.025]
    assert document["audit_tokens"] == 25 * document["resolved"]
    assert document["upper"] == log.monitor.upper_limit()
    code, out, _ = call(POLICY, LOGS, "--reset", "A. Smith")
    assert code == 0
    assert "each reset began a new stream" in " ".join(out.split())
    assert call.json(POLICY, LOGS)["resets"] == 1


def test_evidence_is_not_reset_before_it_is_an_alarm(call: Call) -> None:
    policy = write_policy()
    log = write_log(policy, lost_from=0, requests=60)
    (file,) = LOGS.iterdir()
    before = file.read_bytes()
    assert log.monitor.processes["differs"].e_value > 1
    code, _, err = call(POLICY, LOGS, "--reset", "A. Smith")
    assert (code, file.read_bytes()) == (2, before)
    assert "no alarm is on: --reset would only discard the evidence" in err


@pytest.mark.parametrize("group_claim", ["groups", None])
def test_what_a_promise_about_groups_means_here_is_said(
    call: Call, group_claim: str | None
) -> None:
    policy = write_policy(loss="differs", group_claim=group_claim)
    write_log(policy, lost_from=10**9, requests=20)
    said = any("every request counts" in remark for remark in call.json(POLICY, LOGS)["remarks"])
    assert said == (group_claim is not None)


def test_the_promise_of_a_ladder_is_worded_as_in_inspect(call: Call) -> None:
    certificate = certificate_content(loss="differs", differs_upper=0.07)
    policy = policy_from(ladder_content("cap", certificate=certificate))
    save_policy(policy, POLICY)
    write_log(policy, lost_from=10**9, requests=20)
    promise = call.json(POLICY, LOGS)["claim"]
    shown = certificate_of(policy.terms)
    assert shown is not None
    assert promise == shown.claim
    assert "the reference" in promise


def test_gold_breaks_the_promise_itself(call: Call) -> None:
    policy = write_policy(differs_upper=0.9)
    log = write_log(policy, lost_from=0, requests=1_500)
    assert not log.monitor.alarms
    lines = [
        {"id": f"r{k}", "served_correct": False, "full_correct": True} for k in range(7, 1_500, 20)
    ]
    Path("gold.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, out, _ = call(POLICY, LOGS, "--gold", "gold.jsonl", "--json")
    document = json.loads(out)
    assert code == 6
    assert document["alarm"] == document["alarms"][0]
    assert document["alarm"]["watch"] == "lost"
    assert [one["kind"] for one in document["alarms"]] == ["promise", "change"]
    assert document["gold"] == document["gold_losses"] == document["resolved"]


def test_gold_finds_the_requests_of_several_servers(call: Call) -> None:
    policy, folders = write_policy(), [Path("audits/a").absolute(), Path("audits/b")]
    for folder in folders:
        write_log(policy, lost_from=0, requests=60, folder=folder)
    line = {"id": "r7", "served_correct": False, "full_correct": True}
    Path("gold.jsonl").write_text(json.dumps(line) + "\n")
    document = json.loads(call(POLICY, *folders, "--gold", "gold.jsonl", "--json")[1])
    assert (document["replicas"], document["gold"]) == (2, 2)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"id": "a"}', "gold.jsonl:2: expected 'id', a text, and 'served_correct'"),
        ("nonsense", "gold.jsonl:2: expected one JSON object"),
        ("[" * 100_000, "gold.jsonl:2: expected one JSON object"),
        ('{"id": 1, "served_correct": true, "full_correct": true}', "gold.jsonl:2: expected 'id'"),
        ('{"id": "r7", "served_correct": true, "full_correct": true}', "'r7' is named twice"),
    ],
)
def test_gold_that_cannot_be_used(call: Call, line: str, words: str) -> None:
    write_log(write_policy(), lost_from=0, requests=10)
    good = '{"id": "r7", "served_correct": true, "full_correct": true}'
    Path("gold.jsonl").write_text(f"{good}\n{line}\n")
    err = call.refused(POLICY, LOGS, "--gold", "gold.jsonl")
    assert words in err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"settings": {"alpha": 0.9}}, "expected the policy's own alpha"),
        ({"settings": {"delta": 1e-9}}, "expected the policy's own delta"),
        ({"settings": {"digest": "0" * 64}}, "expected the policy's own digest"),
        ({"settings": {"alpha": "x"}}, "line 1: expected the header"),
        ({"state": {"processes": 5}}, "the log's header holds no state"),
        ({"state": []}, "the log's header holds no state"),
    ],
)
def test_a_header_that_hides_something(call: Call, change: dict[str, Any], words: str) -> None:
    write_log(write_policy(), lost_from=0, requests=10)
    (path,) = LOGS.iterdir()
    header, *rest = path.read_text().splitlines()
    found = json.loads(header)
    for name, value in change.items():
        found[name] = {**found[name], **value} if name == "settings" else value
    path.write_text("\n".join([json.dumps(found), *rest]) + "\n")
    err = call.refused(POLICY, LOGS)
    assert words in err


def test_a_state_cannot_hide_the_alarm_of_its_evidence(call: Call) -> None:
    log = write_log(write_policy(), lost_from=0, requests=600)
    assert log.monitor.alarms
    (path,) = LOGS.iterdir()
    header = json.loads(path.read_text().splitlines()[0])
    header["state"] = {**log.monitor.state(), "alarm": None}
    path.write_text(json.dumps(header) + "\n")
    assert call(POLICY, LOGS)[0] == 8


def change_log(change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    (path,) = LOGS.iterdir()
    header, *lines = path.read_text().splitlines()
    records = change([json.loads(line) for line in lines])
    path.write_text("\n".join([header, *map(json.dumps, records)]) + "\n")


@pytest.mark.parametrize("forged", ["result", "shed"])
def test_a_result_that_contradicts_another_is_refused(call: Call, forged: str) -> None:
    log = write_log(write_policy(), lost_from=0, requests=600)
    assert log.monitor.alarms

    def forge(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        before = {"kind": forged, "differs": False}
        return [
            one
            for record in records
            for one in ([{**record, **before}] if record["kind"] == "result" else []) + [record]
        ]

    change_log(forge)
    err = call.refused(POLICY, LOGS)
    assert ", line 11: field 'id': 'r7' has another result above" in " ".join(err.split())
    # The same word twice changes nothing.
    change_log(lambda records: [r for r in records if r["kind"] != "shed" and r.get("differs", 1)])
    change_log(lambda records: [r for r in records for _ in range(1 + (r["kind"] == "result"))])
    assert call(POLICY, LOGS)[0] == 8


def test_without_a_log_of_the_policy(call: Call) -> None:
    write_policy()
    LOGS.mkdir()
    assert "no audit log of this policy in audits" in call.refused(POLICY, LOGS)
