"""The self-test at start: an engine that does as it did passes, and each that does not is named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from stopadvisor.ground.errors import ModelError
from stopadvisor.serving.vllm import self_test
from stopadvisor.serving.vllm.engine_model import Position
from stopadvisor.serving.vllm.self_test import _SelfTest, try_engine
from tests.serving.vllm.fake_engine import FACTS, bound_at
from tests.serving.vllm.test_parity import ModelClient

pytestmark = pytest.mark.integration


class Changed(ModelClient):
    """Does one thing otherwise than vLLM 0.32."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.change = change

    async def generate(
        self, ids: Any, parameters: Mapping[str, Any], name: str, **options: Any
    ) -> AsyncGenerator[Any, None]:
        kind = name.removeprefix("stopadvisor-self-test-")
        if self.change == "another prefix" and kind == "part":
            ids = ids[:-1]
        if self.change == "no probes" and kind.startswith("probe"):
            raise RuntimeError("the engine does not like it")
        number = 0
        asked = super().generate(ids, parameters, name, **options)
        async for output in asked:
            number += 1
            new = output.outputs[0]
            if self.change == "a token lost" and kind == "think" and number == 5:
                continue
            if self.change == "figures merged" and kind == "merged" and number > 1:
                new.logprobs.logprobs = [value - 1.0 for value in new.logprobs.logprobs]
            if self.change == "no abort" and kind == "abort-think":
                await asyncio.sleep(0.01)  # it is still running when the wait ends
            yield output

    async def abort(self, name: str) -> None:
        if self.change != "no abort":
            await super().abort(name)


def tried(client: Any) -> None:
    model = bound_at(client, max_logprobs=20).model
    asyncio.run(try_engine(model, FACTS.context, 20))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("another prefix", "self-test: a probe's prefix gives token"),
        ("a token lost", "self-test: thinking on gives"),
        ("figures merged", "self-test: merged outputs gives figures"),
        ("no probes", "self-test: a request fails: RuntimeError"),
        ("no abort", "self-test: an aborted request gives no end"),
    ],
)
def test_an_engine_that_changed_does_not_serve(
    change: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_test, "_ENDS_WITHIN", 0.02)
    monkeypatch.setattr(self_test, "_TOKENS", 18)
    with pytest.raises(ModelError, match=message):
        tried(Changed(change))


class Recorded(ModelClient):
    """Notes what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, int, Mapping[str, Any]]] = []
        """Kind, number of ids, and parameters."""

    async def generate(
        self, ids: Any, parameters: Mapping[str, Any], name: str, **options: Any
    ) -> AsyncGenerator[Any, None]:
        kind = name.removeprefix("stopadvisor-self-test-")
        self.sent.append((kind, len(ids), parameters))
        async for output in super().generate(ids, parameters, name, **options):
            yield output

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        """Parameters of the requests of a kind."""
        return [parameters for name, _, parameters in self.sent if name == kind]


def test_an_engine_as_it_was_passes_and_goes_on_to_each_last_token() -> None:
    """Each request is greedy."""
    client = Recorded()
    tried(client)
    kinds = ("whole", "think", "think", "merged", "part", "abort-think")
    asked = [kind for kind, _, _ in client.sent if not kind.startswith("probe")]
    assert asked == list(kinds)
    for kind in kinds:
        for parameters in client.of(kind):
            assert parameters["ignore_eos"]
            assert (parameters["temperature"], parameters["repetition_penalty"]) == (0.0, 1.0)
    assert ["stream_interval" in parameters for parameters in client.of("think")] == [False, True]
    lengths = {kind: length for kind, length, _ in client.sent}
    (whole,), (part,) = client.of("whole"), client.of("part")
    assert lengths["part"] - lengths["whole"] == whole["max_tokens"] // 2
    assert part["max_tokens"] == 2


@pytest.mark.parametrize(("most", "asked"), [(-1, 2), (0, 0), (1, 1), (5, 2)])
def test_no_more_log_probabilities_are_asked_for_than_the_engine_gives(
    most: int, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_test, "_TOKENS", 6)
    client: Any = Recorded()
    asyncio.run(try_engine(bound_at(client, max_logprobs=20).model, FACTS.context, most))
    assert {parameters["logprobs"] for parameters in client.of("whole")} == {asked}


def test_four_tokens_after_the_prompt_are_room_enough() -> None:
    client: Any = Recorded()
    model = bound_at(client, max_logprobs=20).model
    prompt = len(model.chat.prompt_ids(self_test._QUESTION))
    asyncio.run(try_engine(model, prompt + 5, 20))
    assert [parameters["max_tokens"] for parameters in client.of("whole")] == [4]
    with pytest.raises(ModelError, match="no room to think"):
        asyncio.run(try_engine(model, prompt + 4, 20))


def rows(*likeliest: list[float]) -> list[Position]:
    return [Position(values[0], values) for values in likeliest]


@pytest.mark.parametrize(
    ("second", "ids", "others", "passes"),
    [
        ([-0.1, -2.5], [1, 2, 3], [-0.1, -0.1, -0.2], True),
        ([-0.7, -0.8], [1, 9, 9], [-0.1, -5.0, -5.0], True),  # two tokens may swap
        ([-0.1, -2.5], [1, 9, 9], [-0.1, -0.1, -0.2], False),
        ([-0.1], [1, 9, 9], [-0.1, -0.1, -0.2], False),
        ([-0.7, -0.8], [1, 9, 9], [-0.6, -0.7, -0.7], False),
        ([-0.1, -2.5], [9, 2, 3], [-5.0, -0.1, -0.2], True),  # not one token is the same
    ],
)
def test_tokens_are_compared_up_to_the_first_that_may_be_another(
    second: list[float], ids: list[int], others: list[float], passes: bool
) -> None:
    trial = object.__new__(_SelfTest)
    trial.ids = [1, 2, 3]
    trial.rows = rows([-0.1, -0.3] if ids[0] == 9 else [-0.1, -2.5], second, [-0.2, -2.5])
    theirs = rows(*([other, -9.0] for other in others))
    if passes:
        trial._compare("it", ids, theirs)
    else:
        with pytest.raises(ModelError, match="self-test: it gives"):
            trial._compare("it", ids, theirs)
