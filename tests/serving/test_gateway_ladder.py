"""The gateway before a ladder's servers, on loopback: as the replay says, whatever a rung does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.cli.main import main
from stopadvisor.ground.errors import EngineError
from stopadvisor.policy.frozen import load_policy, save_policy
from stopadvisor.policy.rung_policies import read_rungs
from stopadvisor.serving.serve_settings import AuditSettings
from tests.engines.rung_server import RungServer, Said, ladder_toml, rung_server, say
from tests.policy_content import GIVES_UP, example_content, ladder_content, policy_from
from tests.policy_content import SERVED_RUNGS as RUNGS
from tests.serving.gateways import WATCHED, Answer, RunningGateway, running, until

N = 24
VOTE = [{"name": "vote", "model": "big", "temperature": 1.0, "repeat": 4, "price": [1.0, 0.1, 1.0]}]


def policy_of(folder: Path, family: str = "cap", **ladder: Any) -> Path:
    content = ladder_content(family, {"rungs": RUNGS, **ladder}, certificate=WATCHED)
    save_policy(policy_from(content), folder / "policy.json", format="json")
    return folder / "policy.json"


def digest_in(folder: Path) -> str:
    return load_policy(folder / "policy.json").digest[:8]


@contextmanager
def ladder_gateway(
    folder: Path,
    *urls: str,
    family: str = "cap",
    rungs: list[dict[str, Any]] = RUNGS,
    rule: dict[str, Any] | None = None,
    **changes: Any,
) -> Iterator[RunningGateway]:
    """A gateway before the servers at some URLs, under a policy of its own."""
    policy = policy_of(folder, family, **{"rungs": rungs, **(rule or {})})
    ladder = read_rungs(Path(ladder_toml(folder / "ladder.toml", rungs, *urls)))
    with running(policy, urls[-1], ladder=ladder, **changes) as gateway:
        yield gateway


def body_of(number: int, **fields: Any) -> dict[str, Any]:
    return {"model": "big", "messages": [{"role": "user", "content": f"Say {number}"}], **fields}


def is_served(number: int) -> bool:
    """Whether the replay serves the small model's reply."""
    return say("tiny", f"Say {number}").tokens <= 500


SERVED = next(n for n in range(N) if is_served(n))
CLIMBS = next(n for n in range(N) if not is_served(n))


def rung_of(answer: Answer) -> str:
    return answer.headers["x-stopadvisor"].rpartition("; rung=")[2]


@pytest.fixture(scope="module")
def server() -> Iterator[RungServer]:
    with rung_server(say) as server:
        yield server


@pytest.fixture
def gateway(server: RungServer, tmp_path: Path) -> Iterator[RunningGateway]:
    server.asked.clear()
    server.keys.clear()
    with ladder_gateway(tmp_path, server.url) as gateway:
        yield gateway


def test_replies_are_those_of_the_replay(
    server: RungServer, gateway: RunningGateway, tmp_path: Path
) -> None:
    digest, served = digest_in(tmp_path), 0
    for number in range(N):
        answer = gateway.ask(body_of(number))
        wanted = "small" if is_served(number) else "large"
        header = f"policy; reason=covered; digest={digest}; rung={wanted}"
        assert (answer.status, answer.headers["x-stopadvisor"]) == (200, header)
        small = say("tiny", f"Say {number}")
        if wanted == "small":
            served += 1
            assert answer.text("content") == small.text
            usage = answer.json["usage"]
            assert usage["completion_tokens"] == small.tokens
            assert usage["total_tokens"] == usage["prompt_tokens"] + small.tokens
            assert usage["stopadvisor"]["asked"] == ["small"]
            assert answer.json["model"] == "big"
        else:
            assert f"The answer is {number}." in answer.text("content")
    assert 0 < served < N
    # The reference is asked as its rung says, and the small model no further than its cap.
    by_model = {name: [b for b in server.asked if b["model"] == name] for name in ("tiny", "big")}
    assert {body["max_tokens"] for body in by_model["tiny"]} == {500}
    assert {body["reasoning_effort"] for body in by_model["big"]} == {"high"}
    assert not any("logprobs" in body for body in server.asked)
    assert (len(by_model["tiny"]), len(by_model["big"])) == (N, N - served)
    record = gateway.record(N)
    assert {each["rung"] for each in gateway.records} == {"small", "large"}
    assert sum(each["discarded_tokens"] for each in gateway.records) == 500 * (N - served)
    assert record["upstream"] == 0
    text = gateway.get("/metrics").body.decode()
    assert f'stopadvisor_rungs_total{{route="policy",rung="small"}} {float(served)}' in text


@pytest.mark.parametrize("how", ["escalate", "reply"])
def test_giving_up_is_marked(tmp_path: Path, how: str) -> None:
    """Replies are short and unsure, and each comes at once: nothing between is asked."""
    changes: dict[str, Any] = {"rungs": GIVES_UP["rungs"], "rule": GIVES_UP | {"on_give_up": how}}
    changes["family"] = "rung-confidence"
    with rung_server(say) as server, ladder_gateway(tmp_path, server.url, **changes) as gateway:
        answers = [gateway.ask(body_of(number)) for number in range(4)]
        asked = [body["model"] for body in server.asked]
    wanted = "small" if how == "reply" else "large"
    assert {rung_of(answer) for answer in answers} == {f"{wanted}; gave-up"}
    assert asked == (["tiny"] if how == "reply" else ["tiny", "big"]) * 4
    if how == "reply":
        assert answers[0].json["usage"]["stopadvisor"]["gave_up"] is True


def test_a_rung_with_a_policy_is_held_to_it(tmp_path: Path) -> None:
    own = policy_from(example_content())
    save_policy(own, tmp_path / "small.json", format="json")
    rule = {"rungs": [{**RUNGS[0], "policy_digest": own.digest}, RUNGS[1]]}
    rungs = [{**RUNGS[0], "policy": str(tmp_path / "small.json")}, RUNGS[1]]
    with (
        rung_server(say) as server,
        ladder_gateway(tmp_path, server.url, rungs=rungs, rule=rule) as gateway,
    ):
        server.under = own.digest
        answer = gateway.ask(body_of(SERVED))
    # The rung's own header is not handed on, and it is asked without a cap.
    header = f"policy; reason=covered; digest={digest_in(tmp_path)}; rung=small"
    assert answer.headers["x-stopadvisor"] == header
    (asked,) = server.asked
    assert asked["model"] == "tiny"
    assert "max_tokens" not in asked


def test_a_stream_has_the_same_reply(gateway: RunningGateway) -> None:
    for number in range(8):
        named_alike = {"reasoning_effort": "high", "user": "me", "n": 1}
        usage = {"include_usage": True}
        asked = body_of(number, stream=True, stream_options=usage, **named_alike)
        answer = gateway.ask(asked)
        assert answer.status == 200
        assert rung_of(answer) == ("small" if is_served(number) else "large")
        if is_served(number):
            assert answer.text("content") == say("tiny", f"Say {number}").text
            assert answer.events[-1]["usage"]["stopadvisor"]["rung"] == "small"
        else:
            assert answer.text("content").endswith(f"Theansweris{number}.")


def test_thinking_of_a_rung_is_reasoning(server: RungServer, tmp_path: Path) -> None:
    def thinks(model: str, question: str) -> Said:
        return replace(say("big", question), tokens=50)

    with rung_server(thinks) as server, ladder_gateway(tmp_path, server.url) as gateway:
        message = gateway.ask(body_of(3)).json["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("1 + 1", "The answer is 3.")


def test_what_is_not_asked_as_the_reference_was_is_passed_on(
    server: RungServer, gateway: RunningGateway
) -> None:
    asked = body_of(1, reasoning_effort="low")
    assert gateway.ask(asked).way == "passthrough; reason=thinking"
    assert server.asked == [asked]


@pytest.mark.parametrize(
    "fault", ["500", "400", "slow", "broken", "strange", "logprob", "count", "gone"]
)
def test_a_cheap_rung_that_fails_is_climbed_past(tmp_path: Path, fault: str) -> None:
    with rung_server(say, tiny=fault) as server:
        cheap = "http://127.0.0.1:9/v1" if fault == "gone" else server.url
        timeouts = {"total": 4.0 if fault == "slow" else 20.0}
        with ladder_gateway(tmp_path, cheap, server.url, timeouts=timeouts) as gateway:
            answers = [gateway.ask(body_of(number)) for number in range(3)]
            text = gateway.get("/metrics").body.decode()
    assert [rung_of(answer) for answer in answers] == ["large"] * 3
    assert all(f"The answer is {n}." in a.text("content") for n, a in enumerate(answers))
    assert 'stopadvisor_rungs_down_total{rung="small"} 3.0' in text


@pytest.mark.parametrize(
    ("error", "noted"), [(KeyError("canary"), "KeyError"), (EngineError("canary"), None)]
)
def test_a_climb_that_fails_costs_no_request(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch, error: Exception, noted: str | None
) -> None:
    """The reference answers; only a fault of the gateway's own is noted."""

    async def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("stopadvisor.serving.gateway.app.climb", fail)
    answer = gateway.ask(body_of(SERVED))
    assert (answer.status, answer.way) == (200, "passthrough; reason=failed")
    assert f"The answer is {SERVED}." in answer.text("content")
    assert gateway.record().get("error") == noted
    assert "canary" not in gateway.logged.getvalue()


def test_a_reference_that_is_down_is_an_error_of_its_own(tmp_path: Path) -> None:
    with rung_server(say, big="500") as server, ladder_gateway(tmp_path, server.url) as gateway:
        assert rung_of(gateway.ask(body_of(SERVED))) == "small"
        assert gateway.ask(body_of(CLIMBS)).status == 500


def test_a_shadow_serves_the_reference(server: RungServer, tmp_path: Path) -> None:
    with ladder_gateway(tmp_path, server.url, shadow=True) as gateway:
        answer = gateway.ask(body_of(SERVED))
        assert gateway.record()["rung"] == "small"
    assert answer.way.startswith("shadow; reason=covered")
    assert rung_of(answer) == "large"
    assert "<think>" in answer.text("content")


def test_a_clients_key_stays_with_the_references_server(server: RungServer, tmp_path: Path) -> None:
    own = "Bearer of-the-client"
    server.keys.clear()
    with rung_server(say) as other, ladder_gateway(tmp_path, other.url, server.url) as gateway:
        gateway.ask(body_of(CLIMBS), Authorization=own)
    assert (other.keys, server.keys) == ([""], [own])
    server.keys.clear()
    with ladder_gateway(tmp_path, server.url) as gateway:
        gateway.ask(body_of(CLIMBS), Authorization=own)
    assert server.keys == [own, own], "a cheap rung at the same server takes it too"


def test_a_climb_whose_time_runs_out_asks_no_further(tmp_path: Path) -> None:
    rule = {"asked": [0, 1, 2], "path": [[9.0, 2.0, 2.0]]}
    changes: dict[str, Any] = {"family": "rung-agreement", "rungs": VOTE, "rule": rule}
    changes["timeouts"] = {"total": 1.0}
    with (
        rung_server(say, big="slow") as server,
        ladder_gateway(tmp_path, server.url, **changes) as gateway,
    ):
        answer = gateway.ask(body_of(5))
        assert (answer.status, answer.json["error"]["type"]) == (504, "upstream_error")
        assert len(server.asked) == 2, "the first two of its samples"


def audit(folder: Path) -> AuditSettings:
    return AuditSettings(1.0, folder / "audits", at_once=64)


def test_audits_ask_the_reference_too(server: RungServer, tmp_path: Path, capsys: Any) -> None:
    # Where it is short the small model is right, but for these: every tenth says something else.
    def errs(model: str, question: str) -> Said:
        said = say(model, question)
        wrong = model == "tiny" and question.endswith("0")
        return replace(said, text="The answer is 77.") if wrong else said

    served = [number for number in range(N) if is_served(number)]
    with (
        rung_server(errs) as server,
        ladder_gateway(tmp_path, server.url, audit=audit(tmp_path)) as gateway,
    ):
        for number in range(N):
            gateway.ask(body_of(number))
        (auditor,) = gateway.gateway.auditors._by_digest.values()
        until(lambda: auditor.log.monitor.counts["resolved"] == len(served))
    differing = sum(number % 10 == 0 for number in served)
    assert differing > 0
    capsys.readouterr()
    words = ["monitor", str(tmp_path / "policy.json"), str(tmp_path / "audits"), "--json"]
    main(words)
    found = json.loads(capsys.readouterr().out)
    assert (found["requests"], found["stopped"]) == (N, len(served))
    assert (found["resolved"], found["differing"]) == (len(served), differing)
    assert found["audit_tokens"] == 300 * len(served)


@pytest.mark.parametrize("cut", [True, False])
def test_an_audit_says_whether_the_reference_was_cut(tmp_path: Path, cut: bool) -> None:
    rungs = [RUNGS[0], RUNGS[1] | ({"max_tokens": 200} if cut else {})]
    with (
        rung_server(say) as server,
        ladder_gateway(tmp_path, server.url, rungs=rungs, audit=audit(tmp_path)) as gateway,
    ):
        gateway.ask(body_of(SERVED))
        (auditor,) = gateway.gateway.auditors._by_digest.values()
        until(lambda: auditor.log.monitor.counts["resolved"] == 1)
        assert auditor.log.monitor.counts["differing"] == cut
    (path,) = (tmp_path / "audits").iterdir()
    assert ('"cut":true' in path.read_text()) == cut


def test_samples_of_a_vote_are_continued_by_its_audit(tmp_path: Path) -> None:
    """As its promise is about the vote of the same samples, the audit draws the missing ones."""
    rule = {"asked": [0, 1, 2], "path": [[9.0, 2.0, 2.0]]}
    changes: dict[str, Any] = {"family": "rung-agreement", "rungs": VOTE, "rule": rule}
    changes["audit"] = audit(tmp_path)
    with rung_server(say) as server, ladder_gateway(tmp_path, server.url, **changes) as gateway:
        answer = gateway.ask(body_of(5))
        (auditor,) = gateway.gateway.auditors._by_digest.values()
        until(lambda: auditor.log.monitor.counts["resolved"] == 1)
        assert len(server.asked) == 4
    assert answer.json["usage"]["stopadvisor"]["asked"] == ["vote", "vote"]
    assert answer.json["usage"]["completion_tokens"] == 600
    assert auditor.log.monitor.counts["audit_tokens"] == 4 * 300


@pytest.mark.parametrize(
    ("rung", "words", "message"),
    [
        (
            {},
            ["--upstream", "http://127.0.0.1:9/v1"],
            "--upstream: expected it in the --ladder file",
        ),
        ({"engine": "hf"}, [], "the gateway asks only servers"),
        ({"model": "other"}, [], "calibrated with model 'tiny' of rung 'small'"),
    ],
)
def test_what_cannot_climb_does_not_start(
    tmp_path: Path, capsys: Any, rung: dict[str, Any], words: list[str], message: str
) -> None:
    policy = policy_of(tmp_path)
    rows = [{**RUNGS[0], **rung}, RUNGS[1]]
    file = ladder_toml(tmp_path / "ladder.toml", rows, "http://127.0.0.1:9/v1")
    if "engine" in rung:
        text = Path(file).read_text().replace('base_url = "http://127.0.0.1:9/v1"\n', "", 1)
        Path(file).write_text(text)
    assert main(["serve", str(policy), "--ladder", file, *words]) == 2
    assert message in capsys.readouterr().err
    assert main(["serve", str(policy), "--upstream", "http://127.0.0.1:9/v1"]) == 2
    assert "--ladder ladder.toml" in capsys.readouterr().err
