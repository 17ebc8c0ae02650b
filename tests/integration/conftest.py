"""Fixtures: real vLLM servers on the CPU with the tiny reasoner, skipped without vLLM."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stopadvisor.engines import hf
from stopadvisor.engines.openai import open_servers
from stopadvisor.policy.frozen import Policy, load_policy
from stopadvisor.policy.requests import Request, make_requests
from stopadvisor.serving.serve_settings import ServeSettings
from tests.integration.server import (
    AS_CALIBRATED,
    NAME,
    ROOT,
    TINY_REASONER,
    VllmServer,
    environment,
    server_with,
)
from tests.material import easiest
from tests.missing import skip_without

if TYPE_CHECKING:
    from stopadvisor.engines.hf.engine import HfEngine
    from stopadvisor.engines.openai.engine import OpenAiEngine

SIZES = (16, pytest.param(400, marks=pytest.mark.long))
"""Numbers of questions whose replies are compared with the local engine's."""


AT_ONCE = 32
"""Requests in flight; more share the model's steps and take fewer CPU seconds."""


@pytest.fixture(scope="session")
def vllm_home() -> Path:
    """The virtual environment of vLLM."""
    home = environment()
    if home is None:
        skip_without("a vLLM environment")
    return home


@pytest.fixture(scope="package")
def _vllm_process(
    vllm_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmServer]:
    with VllmServer(vllm_home, tmp_path_factory.mktemp("vllm"), AS_CALIBRATED) as server:
        yield server


@pytest.fixture
def vllm(_vllm_process: VllmServer) -> VllmServer:
    """One server for all tests, restarted if the previous test ended it."""
    if not _vllm_process.answers():
        _vllm_process.kill()
        _vllm_process.start()
    return _vllm_process


@pytest.fixture(scope="session")
def local() -> HfEngine:
    """The same model in the local engine."""
    return hf.load_engine(str(TINY_REASONER), device="cpu", dtype="float32")


@pytest.fixture
def remote(vllm: VllmServer) -> Iterator[OpenAiEngine]:
    """An engine connected to the server."""
    engine = open_servers(NAME, [vllm.base_url], concurrency=AT_ONCE)
    yield engine
    engine.close()


POLICY = ROOT / "policies" / "arithmetic.joblib"


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(POLICY)


@pytest.fixture(scope="module")
def requests(policy: Policy) -> list[Request]:
    return make_requests(easiest(120), policy)


@pytest.fixture(scope="module")
def plugin(vllm_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """vLLM with the bundled policy, which reads the entropy over the whole vocabulary."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copy(POLICY, folder / "policy.joblib")
    with server_with(ServeSettings(folder / "policy.joblib"), vllm_home, folder) as server:
        yield server
