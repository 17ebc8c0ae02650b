"""A real vLLM server on the CPU serving the tiny reasoner; without one its tests are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.server import VllmServer, environment


@pytest.fixture(scope="session")
def _vllm_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    home = environment()
    if home is None:
        pytest.skip("no vLLM environment: tests/integration/setup-vllm.sh builds it")
    server = VllmServer(home, tmp_path_factory.mktemp("vllm"))
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
