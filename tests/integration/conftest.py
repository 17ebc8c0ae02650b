"""Real vLLM servers on the CPU serving the tiny reasoner; without vLLM their tests are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stopadvisor.engines import hf
from stopadvisor.engines.hf.engine import HfEngine
from stopadvisor.engines.openai import load_engine
from stopadvisor.engines.openai.engine import OpenAiEngine
from tests.integration.server import AS_CALIBRATED, NAME, TINY_REASONER, VllmServer, environment
from tests.missing import skip_without

SIZES = (60, pytest.param(400, marks=pytest.mark.long))
"""Questions whose stops and answers are held against the local engine's, one by one."""

AT_ONCE = 32
"""Requests: they share steps of the model, so that more at once take fewer CPU seconds."""


@pytest.fixture(scope="session")
def vllm_home() -> Path:
    """The environment that holds vLLM."""
    home = environment()
    if home is None:
        skip_without("a vLLM environment")
    return home


@pytest.fixture(scope="package")
def _vllm_process(
    vllm_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmServer]:
    server = VllmServer(vllm_home, tmp_path_factory.mktemp("vllm"), AS_CALIBRATED)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def vllm(_vllm_process: VllmServer) -> VllmServer:
    """One server for all tests; it is up, whatever the test before did to it."""
    if not _vllm_process.answers():
        _vllm_process.kill()
        _vllm_process.start()
    return _vllm_process


@pytest.fixture(scope="session")
def local() -> HfEngine:
    """The same model on the local engine."""
    return hf.load_engine(str(TINY_REASONER), device="cpu", dtype="float32")


@pytest.fixture
def remote(vllm: VllmServer) -> Iterator[OpenAiEngine]:
    """The server's engine."""
    engine = load_engine(NAME, [vllm.base_url], concurrency=AT_ONCE)
    yield engine
    engine.close()
