"""Early exit over HTTP at a scripted server: stops, requests, counted tokens."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stopadvisor.engines.http.client import Client
from stopadvisor.engines.openai.early_exit import PolicyService, bind_policy
from stopadvisor.engines.openai.engine import OpenAiEngine
from stopadvisor.engines.openai.served_model import open_client
from stopadvisor.ground.constants import CUES
from stopadvisor.ground.errors import ModelError, PolicyError
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import Reply, make_requests, policy_plan
from stopadvisor.probes.asking import OnStop
from stopadvisor.probes.trigger import ListedTrigger, MarkerTrigger, Trigger, stride
from tests.engines.fake_server import FakeServer, Story, fake_server, ids_of, words
from tests.engines.online_policies import bound
from tests.engines.test_openai_engine import engine_at
from tests.policy_content import family_content, full_budget_content, trigger_content
from tests.probes.test_trigger import walked

THINKING = ids_of(Story().thinking)
LENGTH = len(THINKING)
CLOSER = len(words().closer.ids)
BUDGETS = [0, 4, 12, 16, 200]
FORCED = len(ids_of(" 7")) + 1
"""Tokens of a forced answer, including its newline."""
ANSWER = Story().visible
VISIBLE = CLOSER + len(ids_of(ANSWER)) + 1


CONFIDENT = {
    name: family_content("confidence")[name]
    for name in ("family", "threshold", "decision_threshold")
}
"""Changes that make a policy read log-probabilities."""
UNSURE = {name: family_content("entropy")[name] for name in CONFIDENT}
"""Changes that make a policy read entropies."""


def policy_of(engine: OpenAiEngine, /, **changes: Any) -> Policy:
    """Stops when an answer repeats: at 4, where it is 5 again."""
    own = {
        "budgets": BUDGETS,
        "sampling": {"greedy": True, "temperature": None, "seed": 5},
        "entropy_source": "top-k:20",
    }
    return bound(engine, family_content("run-stability", 2.0), **own | changes)


NEVER: dict[str, Any] = {"decision_threshold": 9.0, "threshold": 9.0}


def policy_at(server: FakeServer, **changes: Any) -> Policy:
    with engine_at(server) as engine:
        return policy_of(engine, **changes)


def one(server: FakeServer, *, policy: Policy | None = None, **changes: Any) -> Reply:
    """The reply to one question."""
    with engine_at(server) as engine:
        policy = policy or policy_of(engine, **changes)
        asked, plan = make_requests(["3+4"], policy), policy_plan(policy, at_server=True)
        ((number, reply),) = engine.serve(asked, plan, policy)
    assert number == 0
    return reply


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # The tokens that show whether the trace ends at the checkpoint are decoded too.
        ({}, ("stopped", 1, 4, " 5", "5", 2, 4 + CLOSER, 0)),
        ({"on_stop": "answer"}, ("stopped", 1, 4, ANSWER, "7", 2, 4 + CLOSER, VISIBLE)),
        (NEVER, ("stop", None, None, ANSWER, "7", 4, LENGTH, VISIBLE)),
        # A trace that ends just at a checkpoint is not probed there.
        ({"budgets": [4, LENGTH]}, ("stop", None, None, ANSWER, "7", 1, LENGTH, VISIBLE)),
        (
            NEVER | {"budgets": [4, LENGTH - 1]},
            ("stop", None, None, ANSWER, "7", 2, LENGTH, VISIBLE),
        ),
        (
            NEVER | {"max_think": 10, "budgets": [0, 8]},
            ("length", None, None, None, None, 2, 10, 0),
        ),
    ],
    ids=["stopped", "visible", "never", "ends at a checkpoint", "just after one", "cut"],
)
def test_a_reply_and_what_it_took(changes: dict[str, Any], expected: tuple[Any, ...]) -> None:
    with fake_server() as server:
        reply = one(server, **changes)
    names = "finish stopped_at budget text answer n_probes think_tokens visible_tokens"
    assert tuple(getattr(reply, name) for name in names.split()) == expected
    assert reply.probe_tokens == reply.n_probes * FORCED
    length = reply.budget if reply.finish == "stopped" else reply.think_tokens
    assert reply.thinking == words().decode(THINKING[:length])


@pytest.mark.parametrize("on_stop", ["probe", "answer"])
def test_what_is_sent_is_prompt_and_thinking_as_they_stood(on_stop: str) -> None:
    with fake_server() as server:
        reply = one(server, on_stop=on_stop)
        prompts = [body["prompt"] for body in server.asked]
        tokens = [body["max_tokens"] for body in server.asked]
    prompt, closer = prompts[0], list(words().closer.ids)
    suffix = [*closer, *ids_of(CUES["terse"])]
    sent: list[list[int]] = [[], suffix, THINKING[:CLOSER], [*THINKING[:4], *suffix]]
    sent += [[*THINKING[:4], *closer]] if on_stop == "answer" else []
    assert prompts == [[*prompt, *after] for after in sent]
    assert tokens[:4] == [CLOSER, 16, 4, 16]
    assert reply.prompt_tokens == len(prompt)


def test_every_part_is_drawn_with_the_seed_of_its_place() -> None:
    """Parts with one seed would be drawn with the same random numbers."""
    sampling = {"greedy": False, "temperature": 0.7, "seed": 5}
    with fake_server() as server:
        policy = policy_at(server, on_stop="answer", sampling=sampling)
        one(server, policy=policy)
        drawn = [body for body in server.asked if "seed" in body]
    prompt = len(drawn[0]["prompt"])
    places = [len(body["prompt"]) - prompt for body in drawn]
    assert places == [0, CLOSER, 4 + CLOSER]
    key = make_requests(["3+4"], policy)[0].prompt.key
    names = [f"5:{key}:0:{place}".encode() for place in places]
    seeds = [int.from_bytes(hashlib.sha256(name).digest()[:4], "big") >> 1 for name in names]
    assert [body["seed"] for body in drawn] == seeds


def test_a_trace_that_ends_at_once_is_not_probed() -> None:
    with fake_server(story=Story(thinking="")) as server:
        reply = one(server)
    assert (reply.finish, reply.think_tokens, reply.n_probes) == ("stop", 0, 0)


def test_without_a_rule_nothing_is_probed() -> None:
    with fake_server() as server, engine_at(server) as engine:
        policy = policy_of(engine)
        asked = make_requests(["3+4"], policy)
        ((_, reply),) = engine.serve(asked, engine.policy_plan(policy), None)
        assert len(server.asked) == 1
    assert (reply.finish, reply.n_probes, reply.probe_tokens) == ("stop", 0, 0)


def test_a_policy_that_never_stops_asks_for_no_log_probabilities() -> None:
    with fake_server() as server, engine_at(server) as engine:
        policy = bound(engine, full_budget_content())
        asked = make_requests(["3+4"], policy)
        ((_, reply),) = engine.serve(asked, engine.policy_plan(policy), policy)
        assert all("logprobs" not in body for body in server.asked)
    assert reply.finish == "stop"


def test_as_many_are_asked_at_once_as_there_are_places() -> None:
    with fake_server(delay=0.02) as server, engine_at(server) as engine:
        policy = policy_of(engine)
        asked = make_requests([f"{i}+4" for i in range(12)], policy)
        server.most_at_once = 0
        replies = dict(engine.serve(asked, engine.policy_plan(policy), policy, batch_size=3))
        assert server.most_at_once == 3
    assert sorted(replies) == list(range(12))
    assert {reply.budget for reply in replies.values()} == {4}


# --- Other triggers ---


def elsewhere(name: str) -> tuple[Trigger, dict[str, Any]]:
    """Return a trigger other than a grid, and the changes that give it to a policy."""
    markers = (tuple(ids_of("So")[:1]), tuple(ids_of("Wait")[:1]))
    triggers: dict[str, Trigger] = {
        "stride": stride(5, 100),
        "stride-stop": stride(5, 100, 3, 11),
        "marker": MarkerTrigger(markers, 3, 9),
        "marker-stop": MarkerTrigger(markers, 3, 9, None, 12),
        "none": ListedTrigger((7,), 7),
    }
    trigger = triggers[name]
    family, linear = ("fixed-budget", 7.0) if name == "none" else ("agreement", 1e9)
    where = trigger_content(trigger, family=family)
    return trigger, {"family": family, "threshold": linear, "decision_threshold": linear, **where}


@pytest.mark.parametrize("on_stop", ["probe", "answer"])
@pytest.mark.parametrize("name", ["stride", "stride-stop", "marker", "marker-stop", "none"])
def test_policies_probe_and_stop_where_their_trigger_says(name: str, on_stop: OnStop) -> None:
    trigger, changes = elsewhere(name)
    expected = walked(trigger, THINKING, [])
    assert expected
    with fake_server() as server:
        reply = one(server, on_stop=on_stop, **changes)
        prompts = [body["prompt"] for body in server.asked]
    stops = trigger.stop_at is not None
    assert stops == (expected[-1] == trigger.stop_at)
    asked = expected[:-1] if stops and on_stop == "answer" else expected
    assert reply.n_probes == len(asked)
    assert reply.budget == (trigger.stop_at if stops else None)
    assert reply.stopped_at == (len(expected) - 1 if stops else None)
    suffix = [*words().closer.ids, *ids_of(CUES["terse"])]
    begun = len(prompts[0]) + len(suffix)
    assert [len(p) - begun for p in prompts if p[-len(suffix) :] == suffix] == asked
    if stops:
        assert reply.thinking == words().decode(THINKING[: trigger.stop_at])
        assert (reply.visible_tokens > 0) == (on_stop == "answer")
    else:
        assert (reply.finish, reply.think_tokens) == ("stop", LENGTH)


def test_markers_cost_no_request_a_token() -> None:
    """Thinking is requested in parts; tokens after a stop count as decoded."""
    _, changes = elsewhere("marker")
    with fake_server() as server:
        reply = one(server, **changes)
        asked = [body for body in server.asked if body["max_tokens"] != 16]
        assert len(asked) <= LENGTH // 64 + 1 + reply.n_probes < LENGTH / 2
        stopped = one(server, **changes | {"threshold": 0.0, "decision_threshold": 0.0})
    assert (stopped.finish, stopped.n_probes) == ("stopped", 1)
    assert stopped.budget is not None
    assert stopped.budget < stopped.think_tokens <= 64


# --- Binding a policy to a server -----------------------------------------------------------------


@asynccontextmanager
async def bound_at(server: FakeServer, policy: Policy) -> AsyncIterator[PolicyService]:
    served = await open_client(Client([server.url], "tiny-reasoner", retry_timeout=1.0))
    try:
        yield bind_policy(policy, served)
    finally:
        await served.client.aclose()


def _ask(server: FakeServer, policy: Policy) -> tuple[Reply, list[str]]:
    async def ask() -> tuple[Reply, list[str]]:
        async with bound_at(server, policy) as service:
            server.asked.clear()
            (request,) = make_requests(["3+4"], policy)
            return await service.answer(request), service.remarks

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (UNSURE | {"entropy_source": "full"}, "entropy source 'full', got 'top-k:20'"),
        (UNSURE | {"entropy_source": "top-k:30"}, "source 'top-k:30', got 'top-k:20'"),
        ({"model": None, "engine": None}, "bound to no model"),
    ],
    ids=lambda value: "" if isinstance(value, str) else ", ".join(value),
)
def test_a_policy_that_does_not_fit_the_server_is_refused(
    changes: dict[str, Any], said: str
) -> None:
    with fake_server() as server:
        policy = policy_at(server, **changes)
        with pytest.raises(PolicyError, match=said):
            _ask(server, policy)


@pytest.mark.parametrize("top_limit", [20, 0])
def test_a_policy_that_reads_answers_alone_was_calibrated_anywhere(top_limit: int) -> None:
    with fake_server(top_limit=top_limit) as server:
        with engine_at(server) as engine:
            own = policy_of(engine).content["engine"]
            policy = policy_of(engine, engine=own | {"name": "hf"}, entropy_source="full")
        reply, remarks = _ask(server, policy)
        assert not any(body.get("logprobs") for body in server.asked)
    (remark,) = remarks
    assert "the engine is 'openai' here, was 'hf' at calibration" in remark
    assert "run `stopadvisor verify` before you rely on it" in remark
    assert reply.budget == 4


@pytest.mark.parametrize("source", ["full", "top-k:30"])
def test_a_policy_that_reads_no_entropy_takes_any_source(source: str) -> None:
    """A token's own log-probability is the same in every source."""
    with fake_server(top_limit=20) as server:
        with engine_at(server) as engine:
            policy = policy_of(engine, **CONFIDENT, entropy_source=source)
            assert engine.entropy_for(policy) == source
            assert engine.policy_plan(policy).entropy == "top-k:1"
        reply, _ = _ask(server, policy)
        asked = {body.get("logprobs") for body in server.asked if body.get("stop")}
    assert reply.n_probes > 0
    assert 1 in asked


def test_log_probabilities_of_every_token_are_the_full_entropy() -> None:
    everything = len(words().tokenizer)
    with fake_server(top_limit=everything) as server:
        with engine_at(server) as engine:
            policy = policy_of(engine, **UNSURE, entropy_source="full")
            assert engine.entropy_for(policy) == "full"
        reply, _ = _ask(server, policy)
        assert everything in {body.get("logprobs") for body in server.asked}
    assert reply.n_probes > 0


def test_a_context_that_cuts_the_certified_cap_is_refused() -> None:
    with fake_server(context=700) as server, engine_at(server) as engine:
        policy = policy_of(engine)
        with pytest.raises(ModelError, match=r"cap of 400 thinking tokens is beyond the server's"):
            list(
                engine.serve(
                    make_requests(["3+4"], policy), policy_plan(policy, at_server=True), policy
                )
            )


def test_a_prompt_that_leaves_less_than_the_certified_cap_is_told() -> None:
    with fake_server(context=400 + CLOSER + 512 + 12) as server, engine_at(server) as engine:
        policy = policy_of(engine)
        asked = make_requests(["3+4", "please tell me: 3+4 or 4+3, which of them is 7?"], policy)
        replies = dict(engine.serve(asked, engine.policy_plan(policy), policy))
        assert len(replies) == 2
        told = [r for r in engine.remarks if "leave less of the server's context" in r]
    assert len(told) == 1
