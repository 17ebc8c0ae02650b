"""What every test gets: no network, no user settings, two threads; `gpu` tests need a GPU.

And how `pytest -n` shares the tests out: a worker takes whole files, and one takes the vLLM server.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.goldens import Goldens

# Before torch or a tokenizer is first imported, by whichever test does so.
os.environ["HF_HUB_OFFLINE"] = "1"
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # the other threads are other workers
else:
    os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small matrices: threads wait for each other
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in the background so, and processes that tests interrupt inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Busy machines make deadlines fail tests that are right; the same examples everywhere make a
# failure one that anybody can see again.
settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes golden files."""
    parser.addoption(
        "--update-goldens",
        action="store_true",
        help="write golden files and generated pages as the code makes them today",
    )


@pytest.fixture(scope="session")
def goldens(pytestconfig: pytest.Config) -> Goldens:
    """Golden files, compared or, with `--update-goldens`, written."""
    return Goldens(update=bool(pytestconfig.getoption("update_goldens")))


@pytest.fixture(autouse=True)
def _no_user_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a developer's own model out of the tests, and pages that no test looks at."""
    monkeypatch.delenv("STOPADVISOR_MODEL", raising=False)
    monkeypatch.setenv("STOPADVISOR_REPORT", "0")


_SERVED = "tests/integration/"
"""Tests of one vLLM server, which takes half a minute to start and most of a core."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of the server first; skip those marked `gpu` where there is no CUDA device."""
    # They are one worker's and the longest piece of work: begun last, it would end alone.
    items.sort(key=lambda item: not item.nodeid.startswith(_SERVED))
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return  # torch takes seconds to import, and most runs hold no such test

    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep what is made once for a file, or for the vLLM server, in one worker."""
    if config.getoption("dist") != "loadfile":
        return None

    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist ships no types
        def _split_scope(self, nodeid: str) -> str:
            scope: str = super()._split_scope(nodeid)
            return _SERVED if scope.startswith(_SERVED) else scope

    return Scheduling(config, log)
