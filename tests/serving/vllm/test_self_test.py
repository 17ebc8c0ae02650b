"""The self-test at start: an engine that does as it did passes, and each that does not is named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from stopadvisor.ground.errors import ModelError
from stopadvisor.serving.vllm import self_test
from stopadvisor.serving.vllm.self_test import try_engine
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
            yield output

    async def abort(self, name: str) -> None:
        if self.change != "no abort":
            await super().abort(name)


def tried(client: Any) -> None:
    model = bound_at(client, max_logprobs=20).model
    asyncio.run(try_engine(model, FACTS.context, 20))


def test_an_engine_as_it_was_passes() -> None:
    tried(ModelClient())


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
    # Long enough that a request which is not aborted is still running when the wait ends.
    monkeypatch.setattr(self_test, "_TOKENS", 48 if change == "no abort" else 18)
    with pytest.raises(ModelError, match=message):
        tried(Changed(change))
