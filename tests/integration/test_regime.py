"""Real servers that cache in blocks, or nothing, are told apart."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

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


def assessed(server: VllmServer, folder: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """The document of `assess` at a server; the run is `run` in the folder."""
    workload = write_easiest(folder / "few.jsonl", 60)
    words = ("--engine", "openai", "--base-url", server.base_url, "--model", NAME)
    code = main(
        [
            *("assess", str(workload), "--out", str(folder / "run"), *words),
            *("--concurrency", "32", "--split", "50/50/0", "--budgets", "0,16,43,86"),
            *("--no-preflight", "--no-report", "--json", "--quiet"),
        ]
    )
    text = capsys.readouterr()
    assert code == 0, text.out + text.err
    return json.loads(text.out)


def test_assess_costs_with_what_probing_found(
    vllm: VllmServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = assessed(vllm, tmp_path, capsys)
    kept = read_regime(tmp_path / "run")
    assert kept is not None
    assert document["server"]["regime"] == kept.regime == "prefix-cache"
    assert document["settings"]["cache_block"] == BLOCK
    assert kept.probes is not None
    assert kept.probes.requests > 60
    assert kept.probes.share is not None
    assert kept.probes.share > 0.9
    assert document["recommendation"]["serving"] == document["server"]["regime"]


def test_a_server_that_caches_nothing_is_a_black_box(
    vllm_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = VllmServer(vllm_home, tmp_path, ("--no-enable-prefix-caching",))
    server.start()
    try:
        found = measured(server)
        document = assessed(server, tmp_path, capsys)
    finally:
        server.stop()
    assert (found.regime, found.cache_block) == ("black-box", None)
    kept = read_regime(tmp_path / "run")
    assert kept is not None
    assert document["server"]["regime"] == kept.regime == "black-box"
    assert document["recommendation"]["serving"] == document["server"]["regime"]
