"""The server that the other tests here talk to: it is vLLM, in float32, and caches in blocks."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from tests.integration.server import BLOCK, CONTEXT, NAME, VllmServer

pytestmark = [pytest.mark.integration, pytest.mark.vllm, pytest.mark.slow]


def _post(server: VllmServer, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{server.base_url}/{path}",
        json.dumps({"model": NAME} | body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def test_it_serves_the_tiny_reasoner(vllm: VllmServer) -> None:
    with urllib.request.urlopen(f"{vllm.base_url}/models", timeout=60) as reply:
        (model,) = json.load(reply)["data"]
    assert (model["id"], model["max_model_len"]) == (NAME, CONTEXT)


def test_a_prefix_comes_back_from_its_cache_in_whole_blocks(vllm: VllmServer) -> None:
    prompt = [200 + i % 97 for i in range(2 * BLOCK + 7)]
    asked = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "return_token_ids": True}
    first, second = _post(vllm, "completions", asked), _post(vllm, "completions", asked)
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 2 * BLOCK
    assert first["choices"][0]["token_ids"] == second["choices"][0]["token_ids"]
