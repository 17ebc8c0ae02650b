"""One chat request under a policy at a scripted engine: stops, shown text, counted tokens."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from stopadvisor.engines.live import LiveAnswer, LiveRequest
from stopadvisor.ground.errors import EngineError
from stopadvisor.policy.requests import Request
from stopadvisor.policy.session import Stop
from stopadvisor.probes.asking import Prompt
from stopadvisor.probes.trigger import ListedTrigger
from stopadvisor.serving.eligibility import CoveredRequest
from stopadvisor.serving.metrics import Metrics, RequestRecord
from stopadvisor.serving.responder import ChatReply, Responder, Sender, TextStream
from tests.engines.fake_server import Story, ids_of, words
from tests.engines.test_openai_online import CLOSER, LENGTH, NEVER, THINKING, VISIBLE
from tests.policy_content import (
    family_content,
    full_budget_content,
    open_cue_content,
    trigger_content,
)
from tests.serving.vllm.fake_engine import FACTS, QUESTION, FakeEngine, bound_at, policy_of


@dataclass
class Shown:
    """An observer that records the text it is shown."""

    shows: bool = True
    parts: list[tuple[str, str]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.streams = {kind: TextStream(words().decode) for kind in ("reasoning", "content")}

    def _take(self, kind: str, ids: Sequence[int], *, last: bool = False) -> None:
        if text := self.streams[kind].take(ids, last=last):
            self.parts.append((kind, text))

    def reasoning(self, ids: Sequence[int]) -> None:
        self._take("reasoning", ids)

    def content(self, ids: Sequence[int]) -> None:
        self._take("content", ids)

    def probed(self, seconds: float, failed: Exception | None) -> None:
        self.seconds += [seconds] if failed is None else []

    def text(self, kind: str) -> str:
        self._take(kind, [], last=True)
        return "".join(text for found, text in self.parts if found == kind)


@dataclass
class Found:
    """A finished request as its client sees it."""

    answer: LiveAnswer
    counts: RequestRecord
    finish: str
    content: str | None

    @property
    def stop(self) -> Stop | None:
        return self.answer.stop

    @property
    def shadow(self) -> Stop | None:
        return self.answer.shadow

    @property
    def reasoning(self) -> str:
        return words().decode(self.answer.trace.ids[: self.answer.thinking])


def answered(
    engine: FakeEngine,
    *,
    shadow: bool = False,
    reader: Shown | None = None,
    within: float | None = None,
    max_logprobs: int = 20,
    **changes: Any,
) -> Found:
    policy = policy_of(changes.pop("content", None), **changes)
    sent: list[Any] = []

    async def ask() -> Found:
        model = bound_at(engine, policy, max_logprobs=max_logprobs).model
        model = model.for_request("chatcmpl-1", None)
        trace = model.begin(model.chat.prompt_ids(QUESTION), Prompt("key", tuple(QUESTION)))
        live = LiveRequest(model, trace, policy, "numeric", reader, shadow)
        async with asyncio.timeout(within):
            found = await live.answer()

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        record = RequestRecord("1", route="shadow" if shadow else "policy")
        request = Request(trace.prompt, "numeric")
        covered = CoveredRequest(request, None, stream=False, include_usage=False)
        responder = Responder(
            covered,
            model,
            ChatReply("m"),
            Sender(send, record),
            Metrics(CollectorRegistry()),
            shows_cached=True,
        )
        responder._note(found)
        await responder._whole(found)
        (choice,) = json.loads(sent[1]["body"])["choices"]
        return Found(found, record, choice["finish_reason"], choice["message"]["content"])

    return asyncio.run(ask())


def fixed(position: int) -> dict[str, Any]:
    content = family_content("fixed-budget")
    trigger = trigger_content(ListedTrigger((position,), stop_at=position), family="fixed-budget")
    linear = {"decision_threshold": float(position), "threshold": position}
    return {"content": content | {**trigger, **linear}, "budgets": []}


SHORT = {"probe": policy_of().content["probe"] | {"answer_cap": 2}}
SHORTENED = words().decode(ids_of(Story().visible)[:2])
FORCED, WHOLE = "Final answer: 5", Story().visible
REPLIES: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "stopped": ({}, (4, None, 4, 2, 0, "stop", FORCED)),
    "visible": ({"on_stop": "answer"}, (4, None, 4, 2, VISIBLE, "stop", WHOLE)),
    "never": (NEVER, (None, None, LENGTH, 4, VISIBLE, "stop", WHOLE)),
    "cut": (NEVER | {"max_think": 10, "budgets": [0, 8]}, (None, None, 10, 2, 0, "length", None)),
    "short": (NEVER | SHORT, (None, None, LENGTH, 4, CLOSER + 2, "length", SHORTENED)),
    "shadow": ({"shadow": True}, (None, 4, LENGTH, 2, VISIBLE, "stop", WHOLE)),
    "fixed": (fixed(12), (12, None, 12, 1, 0, "stop", "Final answer: 7")),
    "fixed, visible": (
        fixed(12) | {"on_stop": "answer"},
        (12, None, 12, 0, VISIBLE, "stop", WHOLE),
    ),
    "fixed, shadow": (fixed(12) | {"shadow": True}, (None, 12, LENGTH, 1, VISIBLE, "stop", WHOLE)),
    "full budget": (
        {"content": full_budget_content(), "budgets": []},
        (None, None, LENGTH, 0, VISIBLE, "stop", WHOLE),
    ),
}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("changes", "expected"), REPLIES.values(), ids=REPLIES)
def test_a_reply_and_what_it_took(
    changes: dict[str, Any], expected: tuple[Any, ...], streamed: bool
) -> None:
    engine, reader = FakeEngine(), Shown() if streamed else None
    found = answered(engine, reader=reader, **changes)
    counts, stops = found.counts, (found.answer.stop, found.answer.shadow)
    stop, shadow = (None if each is None else each.position for each in stops)
    took = (stop, shadow, counts.reasoning_tokens, counts.probes, counts.visible_tokens)
    assert (*took, found.finish, found.content) == expected
    assert found.reasoning == words().decode(THINKING[: counts.reasoning_tokens])
    drawn = len(found.answer.trace.ids)
    if stop is not None:
        assert drawn == stop + counts.discarded_tokens
        # Tokens during one probe and the abort; each turn of the event loop is a token here.
        last = counts.probe_tokens // max(counts.probes, 1)
        assert CLOSER <= counts.discarded_tokens <= last + 2 + streamed
    elif found.finish == "stop":
        assert counts.discarded_tokens == 0
        assert not any("think" in name for name in engine.aborted)
    assert (counts.usage()["stopadvisor"]["budget"], counts.cached_tokens) == (stop, 16)
    if reader is not None:
        assert len(reader.seconds) == counts.probes
        assert reader.text("reasoning") == found.reasoning
        # A forced answer is sent with the reply, not shown as content.
        assert reader.text("content") == ((found.content or "") if counts.visible_tokens else "")
        pieces = [kind for kind, _ in reader.parts]
        assert pieces.count("content") > 1 or counts.visible_tokens <= CLOSER + 2, (
            "shown as it comes"
        )
    assert not engine.running


def test_thinking_wakes_nobody_before_it_is_waited_for() -> None:
    """A first output, one at each checkpoint, what was held back, and the end."""
    engine = FakeEngine(pace=0.001)
    found = answered(engine, **NEVER, budgets=[4, 12])
    assert found.stop is None
    (outputs,) = (n for name, n in engine.outputs.items() if name.endswith("-think"))
    assert outputs <= 6 < len(found.answer.trace.ids)
    every = FakeEngine(pace=0.001)
    answered(every, reader=Shown(), **NEVER, budgets=[4, 12])
    assert len(found.answer.trace.ids) in every.outputs.values(), "a stream shows each token"


def test_what_was_held_back_is_counted_at_a_stop() -> None:
    engine = FakeEngine(pace=0.001)
    found = answered(engine)
    (drawn,) = (n for name, n in engine.decoded.items() if name.endswith("-think"))
    assert len(found.answer.trace.ids) == drawn
    assert found.answer.trace.ids == THINKING[:drawn]
    assert not found.answer.trace.end.over, "an audit can think on"


def test_thinking_that_somebody_aborts_is_an_error() -> None:
    engine = FakeEngine(pace=0.001, ended={"chatcmpl-1-think"})
    with pytest.raises(EngineError, match="gave up the thinking"):
        answered(engine)


@pytest.mark.parametrize(("off", "again"), [(0.0, True), (0.01, False)])
def test_an_entropy_that_does_not_decide_is_asked_for_in_whole(off: float, again: bool) -> None:
    """The likeliest tokens give an interval; a threshold inside it needs the exact entropy."""
    likely = math.exp(-0.25)
    exact = 0.25 * likely - (1 - likely) * math.log((1 - likely) / (FACTS.vocabulary - 1))
    content = family_content("entropy", -exact - off)
    engine = FakeEngine()
    found = answered(engine, content=content, entropy_source="full", max_logprobs=-1)
    asked = [parameters.logprobs for kind, _, parameters, _ in engine.asked if kind == "probe"]
    assert asked[:2] == ([64, -1] if again else [64])
    decoded = sum(n for name, n in engine.decoded.items() if "-probe-" in name)
    assert found.counts.probe_tokens == decoded, "those of both requests count"
    assert found.answer.failed_probes == 0
    assert again or found.stop is not None


SPREAD = (-0.9, -1.2, -1.9, -2.6, *[-6.0] * 16)
"""Log-probabilities whose first one contributes much of the entropy."""
SPREAD_ENTROPY = -math.fsum(math.exp(x) * x for x in SPREAD)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_replies_do_not_depend_on_when_outputs_are_fetched(seed: int, streamed: bool) -> None:
    """vLLM merges outputs that a busy event loop fetches together; decisions must not change."""
    content = family_content("entropy", -SPREAD_ENTROPY + 0.1)  # just not sure enough to stop
    late = random.Random(seed)
    engine = FakeEngine(likeliest=SPREAD, fetched_late=late, pace=0.0005)
    reader = Shown() if streamed else None
    found = answered(engine, reader=reader, content=content)
    assert found.stop is None
    assert (found.content, found.reasoning) == (Story().visible, Story().thinking)
    assert (found.answer.failed_probes, found.counts.probes) == (0, 4)
    if reader is not None:
        assert reader.text("reasoning") == Story().thinking
        assert reader.text("content") == Story().visible
    decoded = sum(engine.decoded.values())
    counts = found.counts
    assert decoded == counts.completion_tokens


def test_nothing_after_a_checkpoint_is_shown_before_its_probe_is_judged() -> None:
    """During a long probe thinking goes on, but none of it is shown."""
    engine, reader = FakeEngine(hangs=("probe",)), Shown()
    with pytest.raises(TimeoutError):
        answered(engine, reader=reader, within=0.3, budgets=[4, 12])
    assert reader.text("reasoning") == words().decode(THINKING[:4])


@pytest.mark.parametrize("shadow", [False, True])
def test_a_model_that_would_close_its_thinking_by_itself(shadow: bool) -> None:
    """With an open cue, one request gives the answer and what follows it."""
    said = {0: " 5\nWait", 4: " 5\nWait", 12: " 7\n</think>\n\nIt is"}
    engine = FakeEngine(story=Story(forced=said.__getitem__, cue="open:\n\nFinal answer:"))
    content = open_cue_content(
        features=["closed_by_itself"], mean=[0.0], scale=[1.0], coef=[2.0], intercept=0.0,
        decision_threshold=1.0, threshold=1 / (1 + math.exp(-1.0)), order=[],
    )  # fmt: skip
    probe = policy_of().content["probe"] | {"open_cue": True}
    found = answered(engine, shadow=shadow, content=content, probe=probe, budgets=[0, 4, 12])
    stop = found.shadow if shadow else found.stop
    assert stop is not None
    assert (stop.position, found.counts.probes) == (12, 3)
    assert found.content == (Story().visible if shadow else "Final answer: 7")


@pytest.mark.parametrize("streamed", [False, True])
def test_a_probe_that_fails_means_to_think_on(streamed: bool) -> None:
    engine = FakeEngine(fails=("probe",))
    found = answered(engine, reader=Shown() if streamed else None)
    assert (found.content, found.reasoning) == (Story().visible, Story().thinking)
    assert (found.answer.failed_probes, found.counts.probes) == (1, 0)
    assert [kind for kind, *_ in engine.asked] == ["think", "probe"]


def test_missing_log_probabilities_are_a_probe_that_fails() -> None:
    engine = FakeEngine(without_logprobs=True)
    found = answered(engine, content=family_content("confidence"))
    assert (found.answer.failed_probes, found.content) == (1, Story().visible)


def test_probes_are_cheap() -> None:
    """A probe requests only the log-probabilities that the rule reads.

    It is one request with one output, or two if the answer follows a newline.
    """
    engine = FakeEngine()
    answered(engine)
    for kind, _, parameters, priority in engine.asked:
        assert not hasattr(parameters, "logprobs")
        assert priority == (-1 if kind == "probe" else 0)
    for said, requests in ((" 7\n", 1), ("\n\n 7\n", 2)):
        for family, expected in (("confidence", 0), ("entropy", 20)):
            engine = FakeEngine(story=Story(forced=dict.fromkeys(range(30), said).__getitem__))
            found = answered(engine, content=family_content(family))
            probes = [parameters for kind, _, parameters, _ in engine.asked if kind == "probe"]
            assert [parameters.logprobs for parameters in probes] == [expected] * len(probes)
            assert len(probes) == found.counts.probes * requests
            assert found.answer.failed_probes == 0
            probed = [n for name, n in engine.outputs.items() if "-probe-" in name]
            assert sum(probed) == len(probes)


def test_what_is_asked_is_prompt_thinking_closer_and_cue() -> None:
    engine = FakeEngine()
    answered(engine)
    prompt = words().prompt_ids(QUESTION)
    suffix = words().suffix_ids(policy_of().content["probe"]["cue"]["text"])
    asked = {kind: ids for kind, ids, *_ in engine.asked}
    assert asked["think"] == prompt
    assert asked["probe"] == [*prompt, *THINKING[:4], *suffix]
