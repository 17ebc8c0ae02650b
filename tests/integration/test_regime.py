"""Real servers that cache in blocks, or nothing, are told apart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stopadvisor.cli.main import main
from stopadvisor.engines.http.client import Client
from stopadvisor.engines.openai.engine import measure_regime
from stopadvisor.runs.server_regime import RegimeMeasure, read_regime
from tests.integration.server import BLOCK, CONTEXT, NAME, VllmServer
from tests.material import write_easiest

pytestmark = [pytest.mark.integration, pytest.mark.vllm, pytest.mark.slow]


def measured(server: VllmServer) -> RegimeMeasure:
    async def measure() -> RegimeMeasure:
        async with Client([server.base_url], NAME) as client:
            await client.complete(range(200, 230), max_tokens=1)  # the first one warms up
            return await measure_regime(client, range(200, 400), context=CONTEXT)

    return asyncio.run(measure())


def test_a_prefix_cache_is_told_with_its_blocks(vllm: VllmServer) -> None:
    found = measured(vllm)
    assert (found.regime, found.cache_block, found.basis) == (
        "prefix-cache",
        BLOCK,
        "cached-tokens",
    )


def test_probing_keeps_what_its_server_caches(vllm: VllmServer, tmp_path: Path) -> None:
    workload = write_easiest(tmp_path / "few.jsonl", 40)
    words = ("--engine", "openai", "--base-url", vllm.base_url, "--model", NAME, "--quiet")
    out = ("--out", str(tmp_path / "run"), "--concurrency", "32", "--split", "70/30/0")
    budgets = ("--budgets", "0,16,43,86", "--no-preflight")
    assert main(["probe", str(workload), *words, *out, *budgets]) == 0
    kept = read_regime(tmp_path / "run")
    assert kept is not None
    assert (kept.regime, kept.cache_block) == ("prefix-cache", BLOCK)
    assert kept.probes is not None
    assert kept.probes.requests > 40
    assert kept.probes.share is not None
    assert kept.probes.share > 0.9


def test_a_server_that_caches_nothing_is_a_black_box(vllm_home: Path, tmp_path: Path) -> None:
    server = VllmServer(vllm_home, tmp_path, ("--no-enable-prefix-caching",))
    server.start()
    try:
        found = measured(server)
    finally:
        server.stop()
    assert (found.regime, found.cache_block) == ("black-box", None)
