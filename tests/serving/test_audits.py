"""Audits while serving: who is picked, what is compared, what is shed, and what an alarm does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from stopadvisor.ground.errors import OutputError
from stopadvisor.policy.frozen import Policy
from stopadvisor.serving import monitoring
from stopadvisor.serving.audit_log import find_series, reset
from stopadvisor.serving.audits import AuditedReply, Auditor, Auditors, FullThinking
from stopadvisor.serving.metrics import Metrics
from stopadvisor.serving.serve_settings import AuditSettings
from tests.policy_content import (
    certificate_content,
    example_content,
    full_budget_content,
    policy_from,
)

Finish = Callable[[], Awaitable[FullThinking]]


def policy(**fields: Any) -> Policy:
    certificate = certificate_content(**{"loss": "differs", **fields})
    return policy_from(example_content(certificate=certificate))


def auditor(
    folder: Path, ended: list[int] | None = None, watched: Policy | None = None, **fields: Any
) -> Auditor:
    settings = AuditSettings(**{"share": 1.0, "folder": folder, "at_once": 1_000, **fields})
    registry = CollectorRegistry()
    leave = ([] if ended is None else ended).append
    return Auditor(watched or policy(), settings, Metrics(registry), leave)


def served(key: str, answer: str | None = "42", stop: int | None = 43) -> AuditedReply:
    return AuditedReply(key, stop, answer, "numeric", 60, 20)


def finished(text: str | None = "The answer is 42.", tokens: int = 30) -> Finish:
    async def finish() -> FullThinking:
        return FullThinking(text, tokens)

    return finish


def run(found: Auditor, *requests: tuple[AuditedReply, Finish]) -> None:
    async def go() -> None:
        for request, finish in requests:
            found.served(request, finish)
        await found.drain(5)

    asyncio.run(go())


@pytest.mark.parametrize(
    ("answer", "text", "differs"),
    [
        ("42", "So it is 42", False),
        ("42.0", "The answer is 42.", False),
        ("41", "The answer is 42.", True),
        ("", "The answer is 42.", True),
        (None, "The answer is 42.", True),
        ("42", None, True),  # cut: it said nothing
        ("42", "", True),
    ],
)
def test_replies_are_compared_by_the_normal_form(
    tmp_path: Path, answer: str | None, text: str | None, differs: bool
) -> None:
    found = auditor(tmp_path)
    run(found, (served("a", answer), finished(text)))
    assert found.log.monitor.counts["resolved"] == 1
    assert found.log.monitor.counts["differing"] == differs
    assert found.log.monitor.counts["audit_tokens"] == 30


def test_a_share_is_picked_by_the_key_alone(tmp_path: Path) -> None:
    one, two = auditor(tmp_path / "1", share=0.1), auditor(tmp_path / "2", share=0.1)
    one.key = two.key = bytes(32)
    names = [f"r{k}" for k in range(3_000)]
    for found in (one, two):
        run(found, *((served(name, stop=None), finished()) for name in names))
    assert one.log.monitor.counts["audits"] == two.log.monitor.counts["audits"]
    assert 230 < one.log.monitor.counts["audits"] < 370
    exported = one.metrics.text()[0].decode()
    assert f'audit_upper_limit{{digest="{one.policy.digest[:8]}"}} 1.0' in exported, "unknown"
    # They were not stopped: there is nothing to think to its end.
    assert "stopadvisor_audit_tokens_total 0.0" in exported
    three = auditor(tmp_path / "3", share=0.1)
    three.key = bytes(range(32))
    assert {name for name in names if three._picks(name)} != {n for n in names if one._picks(n)}


@pytest.mark.parametrize("cut", [True, False])
def test_a_result_says_whether_full_thinking_was_cut(tmp_path: Path, cut: bool) -> None:
    async def finish() -> FullThinking:
        return FullThinking(None, 30, cut)

    found = auditor(tmp_path, watched=policy(loss="drop", gained=0, differs_upper=0.1))
    run(found, (served("a"), finish))
    (path,) = tmp_path.iterdir()
    record = json.loads(path.read_text().splitlines()[-1])
    assert (record["differs"], record.get("cut", False)) == (True, cut)
    # Cut, it counts 0 as at calibration; thinking that ended without an answer waits for gold.
    assert found.log.monitor.processes["drop"].is_open("/a") == (not cut)


@pytest.mark.parametrize("picked", [True, False])
@pytest.mark.parametrize("logprob", [-0.5, None])
def test_a_line_holds_what_was_served(tmp_path: Path, picked: bool, logprob: float | None) -> None:
    """The log-probability only if it was asked for, the share only if it is audited."""
    found = auditor(tmp_path, share=0.5)
    name = next(name for name in map(str, range(99)) if found._picks(name) == picked)
    run(found, (replace(served(name), first_logprob=logprob), finished()))
    (path,) = tmp_path.iterdir()
    _, line, *results = map(json.loads, path.read_text().splitlines())
    fields = {"id": name, "stop": 43, "tokens": 60, "prompt_tokens": 20}
    fields |= {} if logprob is None else {"first_logprob": logprob}
    fields |= {"share": 0.5} if picked else {}
    assert {key: value for key, value in line.items() if key not in ("t", "kind")} == fields
    assert len(results) == picked


def test_what_is_too_much_is_shed_and_what_fails_is_counted(tmp_path: Path) -> None:
    async def fails() -> FullThinking:
        raise RuntimeError("the engine is gone")

    found = auditor(tmp_path, at_once=1)
    run(found, (served("a"), finished()), (served("b"), finished()))
    run(found, (served("c"), fails))
    counts = found.log.monitor.counts
    assert (counts["audits"], counts["resolved"], counts["shed"]) == (3, 1, 2)
    text = found.metrics.text()[0].decode()
    assert 'stopadvisor_audits_total{result="shed"} 1.0' in text
    assert 'stopadvisor_audits_total{result="failed"} 1.0' in text


def test_a_server_that_is_too_busy_audits_nothing(tmp_path: Path) -> None:
    async def go() -> None:
        found.served(served("a"), None)

    found = auditor(tmp_path)
    asyncio.run(go())
    counts = found.log.monitor.counts
    assert (counts["audits"], counts["shed"]) == (1, 1)


def test_what_is_exported_is_at_most_a_hundred_requests_old(tmp_path: Path) -> None:
    found = auditor(tmp_path, share=0.01)
    quiet = [name for name in map(str, range(200)) if not found._picks(name)]
    shown = []
    for names in (quiet[:99], quiet[99:100]):
        run(found, *((served(name), finished()) for name in names))
        text = found.metrics.text()[0].decode()
        shown.append(float(text.split('watch="differs"} ')[1].split()[0]))
    assert shown[0] == 1.0 > shown[1] == found.log.monitor.processes["differs"].e_value


def test_policies_that_promise_something_are_audited_and_once(tmp_path: Path) -> None:
    own, other = policy(), policy_from(full_budget_content())
    settings = AuditSettings(0.1, tmp_path)
    audited = Auditors(settings, Metrics(CollectorRegistry()), lambda code: None)
    nobody = Auditors(None, Metrics(CollectorRegistry()), lambda code: None)
    for auditors in (audited, nobody):
        auditors.open([own, other])
        assert auditors.of(other) is None
        assert not auditors.is_shadowed(own)
        assert not auditors.is_shadowed(other)
    first = audited.of(own)
    assert first is not None
    audited.open([own])
    assert audited.of(own) is first
    assert nobody.of(own) is None


def test_audits_that_take_too_long_are_given_up_at_the_end(tmp_path: Path) -> None:
    async def for_ever() -> FullThinking:
        await asyncio.sleep(3_600)
        raise AssertionError

    async def go() -> None:
        found.served(served("a"), for_ever)
        await asyncio.sleep(0)
        await found.drain(0.01)

    found = auditor(tmp_path)
    asyncio.run(go())
    assert found.log.monitor.counts["shed"] == 1


def test_an_audit_that_is_shed_before_it_begins_is_counted(tmp_path: Path) -> None:
    async def go() -> None:
        found.served(served("a"), finished())
        found.shed()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    found = auditor(tmp_path)
    asyncio.run(go())
    assert found.log.monitor.counts["shed"] == 1
    assert not found._running


def test_a_log_that_cannot_be_written_fails_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OutputError("cannot write audits: no space left")

    found = auditor(tmp_path)
    monkeypatch.setattr(found.log, "write", full)
    run(found, (served("a"), finished()))
    assert set(caplog.messages) == {"cannot write audits: no space left"}


def test_an_alarm_acts_once_is_exported_and_acts_again_at_a_restart(tmp_path: Path) -> None:
    ended: list[int] = []
    found = auditor(tmp_path, ended, on_alarm="exit")
    run(found, *((served(str(k), "7"), finished()) for k in range(80)))
    # Of the promise at once, and of the change as soon as its detector rings, too.
    assert ended == [6, 6]
    assert not found.is_shadowed()
    text = found.metrics.text()[0].decode()
    digest = found.policy.digest[:8]
    for alarm, value in (("promise", 1.0), ("early-warning", 0.0), ("change", 1.0)):
        assert f'audit_alarm{{alarm="{alarm}",digest="{digest}"}} {value}' in text
    shown = f'audit_e_value{{digest="{digest}",watch="differs"}} '
    assert float(text.split(shown)[1].split()[0]) > 20
    again: list[int] = []
    assert auditor(tmp_path, again, on_alarm="shadow").is_shadowed()
    assert again == []
    auditor(tmp_path, again, on_alarm="exit")
    assert again == [6]


def test_a_reset_ends_an_exported_alarm_without_another_request(tmp_path: Path) -> None:
    """A policy that a reload replaced gets none."""
    found = auditor(tmp_path)
    run(found, *((served(str(k), "7"), finished()) for k in range(80)))
    shown = f'audit_alarm{{alarm="promise",digest="{found.policy.digest[:8]}"}} '
    assert f"{shown}1.0" in found.metrics.text()[0].decode()
    reset(find_series([tmp_path], found.policy.digest), "A. Smith")
    assert f"{shown}0.0" in found.metrics.text()[0].decode()


def test_an_early_warning_is_not_said_to_be_a_broken_promise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    watched = policy(loss="lost", differs_upper=0.1)
    monkeypatch.setattr(monitoring, "CHANGE", 1e300)
    found = auditor(tmp_path, ended, watched, on_alarm="exit")
    run(found, *((served(str(k), "7"), finished()) for k in range(80)))
    assert ended == [8]
    (message,) = caplog.messages
    assert message.startswith(
        f"ALARM (early-warning) of policy {found.policy.digest[:8]}, at request "
    )
    assert message.endswith("than calibration saw; the promise may still hold")
    text = found.metrics.text()[0].decode()
    digest = found.policy.digest[:8]
    assert f'audit_alarm{{alarm="promise",digest="{digest}"}} 0.0' in text
    assert f'audit_alarm{{alarm="early-warning",digest="{digest}"}} 1.0' in text


def test_no_text_is_written(tmp_path: Path) -> None:
    run(auditor(tmp_path), (served("a", "1234567"), finished("The secret is 7654321")))
    (path,) = tmp_path.iterdir()
    assert "1234567" not in path.read_text()
    assert "7654321" not in path.read_text()
