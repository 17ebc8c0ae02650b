"""Early exit with overlap: the stops of resumed thinking, a stream broken off, nothing in vain."""

from __future__ import annotations

import asyncio
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from stopadvisor.cli.main import main
from stopadvisor.engines.http.body import Body, BodyLimits
from stopadvisor.engines.http.client import Client
from stopadvisor.engines.http.completion import read_events
from stopadvisor.engines.openai.early_exit import choose_thinking_mode
from stopadvisor.ground.constants import CUES
from stopadvisor.ground.errors import EngineError, ModelError
from stopadvisor.policy.frozen import save_policy
from stopadvisor.policy.requests import Reply, ThinkingMode, make_requests, policy_plan
from stopadvisor.probes.asking import OnStop
from stopadvisor.probes.trigger import (
    ListedTrigger,
    MarkerTrigger,
    Trigger,
    recorded_positions,
    stride,
)
from tests.engines.fake_server import (
    BREAKS,
    FAULTS,
    FakeServer,
    Story,
    end_id,
    fake_server,
    ids_of,
    words,
)
from tests.engines.test_openai_engine import engine_at
from tests.engines.test_openai_online import (
    BUDGETS,
    CLOSER,
    FORCED,
    LENGTH,
    THINKING,
    VISIBLE,
    bound_at,
    policy_of,
)
from tests.policy_content import trigger_content

WHOLE = LENGTH + VISIBLE
NEVER: dict[str, Any] = {"decision_threshold": 9.0, "threshold": 9.0}


def replied(server: FakeServer, serving: ThinkingMode = "overlap", **changes: Any) -> Reply:
    with engine_at(server) as engine:
        policy = policy_of(engine, **changes)
        server.forget()
        how = policy.content["on_stop"]
        asked = make_requests(["3+4"], policy)
        plan = policy_plan(policy, at_server=True)
        ((_, reply),) = engine.serve(asked, plan, policy, on_stop=how, serving=serving)
    return reply


def same_but_overshoot(reply: Reply, other: Reply) -> bool:
    return replace(reply, seconds=0.0, think_tokens=0) == replace(
        other, seconds=0.0, think_tokens=0
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        NEVER,
        {"on_stop": "answer"},
        {"budgets": [4, LENGTH]},
        {"budgets": [4, LENGTH - 1], **NEVER},
        {"budgets": [0, LENGTH - 1]},
        {"max_think": 10, "budgets": [0, 8], **NEVER},
    ],
    ids=str,
)
@pytest.mark.parametrize("pace", [0.0, 0.004])
def test_replies_are_those_of_resumed_thinking(changes: dict[str, Any], pace: float) -> None:
    with fake_server(pace=pace) as server:
        overlapping, resumed = replied(server, **changes), replied(server, "resume", **changes)
    assert same_but_overshoot(overlapping, resumed)
    if resumed.finish == "stopped":
        assert resumed.think_tokens <= overlapping.think_tokens <= WHOLE
    else:
        assert resumed.think_tokens == overlapping.think_tokens


def test_one_stream_and_a_probe_beside_it_is_all_that_is_asked() -> None:
    with fake_server(pace=0.005) as server:
        reply = replied(server)
        streams = [body for body in server.asked if body.get("stream")]
        probes = [body for body in server.asked if not body.get("stream")]
    assert (reply.stopped_at, reply.budget, reply.n_probes) == (1, 4, 2)
    assert len(streams) == 1
    assert [body["max_tokens"] for body in probes] == [16, 16]
    prompt = streams[0]["prompt"]
    assert probes[1]["prompt"][: len(prompt) + 4] == [*prompt, *THINKING[:4]]


def test_a_stop_breaks_the_stream_off_and_counts_what_came() -> None:
    with fake_server(waits_at=10) as server:
        reply = replied(server)
        assert server.client_left.wait(30), "the stream is broken off"
    assert 4 + CLOSER <= reply.think_tokens <= 10


class SlowProbes(FakeServer):
    """Takes its time over forced answers, so that the stream is over before them."""

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        if not body.get("stream"):
            time.sleep(0.2)
        return super()._answer(body)


def test_the_decision_on_a_checkpoint_before_the_end_counts_though_the_trace_has_ended() -> None:
    with SlowProbes() as server:
        reply = replied(server)
        never = replied(server, **NEVER)
    assert (reply.finish, reply.stopped_at, reply.budget) == ("stopped", 1, 4)
    # The answer that the model had begun by itself was decoded too, and is not the reply.
    assert reply.think_tokens == WHOLE
    assert (reply.text, reply.visible_tokens) == (" 5", 0)
    # All checkpoints before the end are asked, in order, and none behind it.
    assert (never.finish, never.n_probes) == ("stop", sum(b < LENGTH for b in BUDGETS))
    assert (never.think_tokens, never.visible_tokens) == (LENGTH, VISIBLE)
    assert never.probe_tokens == never.n_probes * FORCED


@pytest.mark.parametrize("fault", [*BREAKS, *(f for f in FAULTS if f != "hang")])
def test_a_stream_that_breaks_is_gone_on_with(fault: str) -> None:
    with fake_server() as server:
        calm = replied(server, **NEVER)
        with engine_at(server) as engine:
            policy = policy_of(engine, budgets=[40], **NEVER)
            server.faults = [fault] * 2
            server.asked.clear()
            asked = make_requests(["3+4"], policy)
            plan = policy_plan(policy, at_server=True)
            ((_, reply),) = engine.serve(asked, plan, policy, serving="overlap")
            streams = [body for body in server.asked if body.get("stream")]
    expected = replace(calm, seconds=0.0, n_probes=0, probe_tokens=0)
    assert replace(reply, seconds=0.0) == expected
    assert len(streams) == 3
    begun = [len(body["prompt"]) - len(streams[0]["prompt"]) for body in streams]
    assert begun == ([0, 3, 6] if fault in BREAKS else [0, 0, 0])
    wanted = [body["max_tokens"] + at for body, at in zip(streams, begun, strict=True)]
    assert len(set(wanted)) == 1


def test_a_server_that_keeps_its_end_to_itself() -> None:
    with fake_server(sends_end=False) as server:
        reply = replied(server, **NEVER)
    assert (reply.finish, reply.text) == ("stop", "Final answer: 7")
    assert reply.visible_tokens == VISIBLE


def test_a_trace_that_ends_at_once() -> None:
    with fake_server(story=Story(thinking="")) as server:
        reply = replied(server)
    assert (reply.finish, reply.think_tokens, reply.n_probes) == ("stop", 0, 0)


def test_a_server_that_goes_on_failing_ends_the_call_with_one_error() -> None:
    with fake_server() as server:
        for fault in ("500", "truncated"):
            server.always = None
            with engine_at(server, retry_timeout=0.2) as engine:
                policy = policy_of(engine)
                requests, plan = make_requests(["3+4"], policy), policy_plan(policy, at_server=True)
                server.always = fault
                with pytest.raises(EngineError, match=r"500 broken|malformed answer"):
                    list(engine.serve(requests, plan, policy, serving="overlap"))


def test_a_call_that_is_cancelled_ends_its_stream() -> None:
    with fake_server() as server:
        with engine_at(server) as engine:
            policy = policy_of(engine, **NEVER)

        async def ask() -> None:
            async with bound_at(server, policy, serving="overlap") as service:
                assert service.mode == "overlap"
                server.waits_at = 10
                server.forget()
                (request,) = make_requests(["3+4"], policy)
                asked = asyncio.create_task(service.answer(request))
                while 10 not in server.streamed:
                    assert not asked.done()
                    await asyncio.sleep(0.01)
                asked.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asked

        asyncio.run(asyncio.wait_for(ask(), 60))
        assert server.client_left.wait(30)


# --- Other triggers ---


def elsewhere(name: str) -> tuple[Trigger, dict[str, Any]]:
    """A trigger that is no grid, and the changes that make a policy probe there."""
    markers = (tuple(ids_of("So")[:1]), tuple(ids_of("Wait")[:1]))
    triggers: dict[str, Trigger] = {
        "stride": stride(5, 100),
        "stride-stop": stride(5, 100, 3, 11),
        "marker": MarkerTrigger(markers, 3, 9),
        "marker-stop": MarkerTrigger(markers, 3, 9, 20, None, 12),
        "none": ListedTrigger((7,), 7),
    }
    trigger = triggers[name]
    family, linear = ("fixed-budget", 7.0) if name == "none" else ("agreement", 1e9)
    where = trigger_content(trigger, family=family)
    return trigger, {"family": family, "threshold": linear, "decision_threshold": linear, **where}


@pytest.mark.parametrize("on_stop", ["probe", "answer"])
@pytest.mark.parametrize("serving", ["resume", "overlap"])
@pytest.mark.parametrize("name", ["stride", "stride-stop", "marker", "marker-stop", "none"])
def test_policies_probe_and_stop_where_their_trigger_says(
    name: str, serving: ThinkingMode, on_stop: OnStop
) -> None:
    trigger, changes = elsewhere(name)
    at = [
        i
        for i in range(LENGTH)
        if any(THINKING[i] == m[0] for m in getattr(trigger, "markers", ()))
    ]
    expected = recorded_positions(trigger, LENGTH, at)
    assert expected
    with fake_server() as server:
        reply = replied(server, serving, on_stop=on_stop, **changes)
        prompts = [body["prompt"] for body in server.asked]
    stops = expected[-1] == trigger.stop_at
    assert stops == (trigger.stop_at is not None)
    unasked = stops and on_stop == "answer"
    assert reply.n_probes == len(expected) - unasked
    assert reply.budget == (trigger.stop_at if stops else None)
    assert reply.stopped_at == (len(expected) - 1 if stops else None)
    begun = len(prompts[0])
    suffix = [*words().closer.ids, *ids_of(CUES["terse"])]
    probed = [len(p) - begun - len(suffix) for p in prompts if p[-len(suffix) :] == suffix]
    assert probed == list(expected[: len(expected) - unasked])
    if stops:
        assert reply.thinking == words().decode(THINKING[: trigger.stop_at])
        assert (reply.visible_tokens > 0) == (on_stop == "answer")
    else:
        assert (reply.finish, reply.think_tokens) == ("stop", LENGTH)


def test_markers_cost_no_request_a_token() -> None:
    """Resumed thinking is asked for in pieces; what was drawn behind a stop counts as drawn."""
    _, changes = elsewhere("marker")
    with fake_server() as server:
        reply = replied(server, "resume", **changes)
        asked = [body for body in server.asked if body["max_tokens"] != 16]
        assert len(asked) <= LENGTH // 64 + 1 + reply.n_probes < LENGTH / 2
        stopped = replied(
            server, "resume", **changes | {"threshold": 0.0, "decision_threshold": 0.0}
        )
    assert (stopped.finish, stopped.n_probes) == ("stopped", 1)
    assert stopped.budget is not None
    assert stopped.budget < stopped.think_tokens <= 64


# --- Which of the two is used ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen_for", "asked", "used"),
    [
        ("vllm", None, "overlap"),
        ("prefix-cache", None, "resume"),
        ("vllm", "resume", "resume"),
        ("kv-fork", "overlap", "overlap"),
    ],
)
def test_the_policy_says_unless_the_user_does(
    chosen_for: str, asked: ThinkingMode | None, used: ThinkingMode
) -> None:
    with fake_server() as server, engine_at(server) as engine:
        policy = policy_of(engine, serving=chosen_for)
        remarks: list[str] = []
        assert (
            engine.call(choose_thinking_mode, engine.served_model, policy, asked, remarks) == used
        )
    assert remarks == []


def test_a_server_that_streams_no_ids_is_found_out() -> None:
    with fake_server(streams_ids=False) as server, engine_at(server) as engine:
        policy = policy_of(engine, serving="vllm")
        remarks: list[str] = []
        assert (
            engine.call(choose_thinking_mode, engine.served_model, policy, None, remarks)
            == "resume"
        )
        assert "chosen for vllm" in remarks[0]
        assert "streams token ids" in remarks[0]
        with pytest.raises(ModelError, match="streams token ids"):
            engine.call(choose_thinking_mode, engine.served_model, policy, "overlap", remarks)


def test_run_overlaps_where_the_policy_was_chosen_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.dumps({"question": f"{i}+4", "gold": "5"}) for i in range(6)]
    (tmp_path / "sums.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with fake_server() as server:
        with engine_at(server) as engine:
            save_policy(policy_of(engine, serving="vllm"), tmp_path / "policy.joblib")

        def run(out: str, *more: str) -> tuple[int, str, str]:
            server.asked.clear()
            files = (str(tmp_path / "policy.joblib"), str(tmp_path / "sums.jsonl"))
            to = ("--engine", "openai", "--base-url", server.url, "--concurrency", "2")
            code = main(["run", *files, "--out", str(tmp_path / out), *to, *more])
            text = capsys.readouterr()
            return code, text.out, text.err

        code, out, _ = run("one.jsonl", "--json", "--quiet")
        assert (code, json.loads(out)["serving"]) == (0, "overlap")
        assert sum(bool(body.get("stream")) for body in server.asked) == 1 + 6
        code, out, _ = run("two.jsonl", "--serving", "resume", "--json", "--quiet")
        assert (code, json.loads(out)["serving"]) == (0, "resume")
        assert not any(body.get("stream") for body in server.asked)
        code, out, _ = run("three.jsonl", "--compare-full")
        assert code == 0
        assert "streamed on while a probe ran" in out
        code, out, err = run("one.jsonl", "--serving", "resume")
        assert code != 0, "answers that cost otherwise are not mixed"
        assert "under other settings" in err
    answers = [
        [json.loads(line)["normalized"] for line in (tmp_path / name).read_text().splitlines()]
        for name in ("one.jsonl", "two.jsonl", "three.jsonl")
    ]
    assert answers[0] == answers[1] == answers[2]


def test_serving_belongs_to_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tmp_path / "p"), str(tmp_path / "w"), "--serving", "overlap"]) == 2
    assert "--serving belongs to --engine openai" in capsys.readouterr().err


# --- Reading a stream -----------------------------------------------------------------------------


def events_of(*chunks: bytes) -> list[Any]:
    async def given() -> Any:
        for chunk in chunks:
            yield chunk

    async def read() -> list[Any]:
        body = Body(httpx2.Response(200, content=given()), BodyLimits(), math.inf)
        return [event async for event in read_events(body.lines())]

    return asyncio.run(read())


def test_events_are_cut_at_newlines_alone() -> None:
    said = "a\u2028b\x85c\x0bd"
    line = b"data: " + json.dumps({"text": said}, ensure_ascii=False).encode() + b"\r\n\r\n"
    whole = b": hello\n\n" + line + b"event: x\n" + line + b"data: [DONE]\n\n" + line
    expected = [{"text": said}] * 2
    assert events_of(whole) == expected
    assert events_of(*(whole[i : i + 1] for i in range(len(whole)))) == expected


def test_a_stream_may_be_left_when_enough_came() -> None:
    async def ask() -> tuple[Any, list[int]]:
        came: list[int] = []

        def take(new: Any) -> bool:
            came.extend(new)
            return len(came) < 5

        async with Client([server.url], "tiny-reasoner") as client:
            prompt = ids_of("3+4")
            return await client.stream(prompt, take, max_tokens=50), came

    with fake_server() as server:
        answer, came = asyncio.run(ask())
    assert answer.finish_reason == "closed"
    assert list(answer.token_ids or ()) == came == THINKING[:5]
    assert end_id() not in came
