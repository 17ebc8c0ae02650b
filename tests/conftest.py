"""Settings of all tests (no network, no user settings, two threads), and how workers share files.

With `pytest -n` each worker takes whole files, the longest first, and a single one takes all tests
of vLLM servers.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from tests import missing
from tests.goldens import Goldens

if TYPE_CHECKING:
    from tests.material import Call

gc.disable()  # until all tests are collected

# Before any test imports torch or a tokenizer.
os.environ["HF_HUB_OFFLINE"] = "1"
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # the other threads are other workers
else:
    os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small matrices: threads wait for each other
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background jobs ignore SIGINT, and processes that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A deadline would fail correct tests on a busy machine.  The same examples everywhere make failures
# reproducible.
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update-goldens`."""
    parser.addoption(
        "--update-goldens",
        action="store_true",
        help="rewrite golden files and generated README blocks",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Hide torch from transformers in the fast tier, which runs no model.

    Otherwise loading a tokenizer would import torch, which takes seconds.
    """
    if config.getoption("numprocesses", None) or not _leaves_out(config, "slow", "integration"):
        return
    with pytest.MonkeyPatch.context() as patch, suppress(ImportError):
        patch.setitem(sys.modules, "torch", None)
        patch.setenv("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
        from transformers.utils import is_torch_available

        is_torch_available()  # it remembers the answer


def _leaves_out(config: pytest.Config, *marks: str) -> bool:
    """Whether `-m` deselects all tests with any of these marks."""
    return {f"not {mark}" for mark in marks} <= set(config.getoption("markexpr").split(" and "))


@pytest.fixture(scope="session")
def goldens(pytestconfig: pytest.Config) -> Goldens:
    """Golden files, compared or, with `--update-goldens`, written."""
    return Goldens(update=bool(pytestconfig.getoption("update_goldens")))


@pytest.fixture(autouse=True)
def _no_user_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore a developer's own model, and write no report pages."""
    monkeypatch.delenv("STOPADVISOR_MODEL", raising=False)
    monkeypatch.setenv("STOPADVISOR_REPORT", "0")


@pytest.fixture(scope="session", autouse=True)
def _no_gpu_to_price() -> Generator[None]:
    """Hide this machine's GPU, so that prices are computed for an H100."""
    from stopadvisor.runs import prices

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prices, "_DRIVER", Path("/nonexistent"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Generator[None]:
    """Leave written files to the kernel: no test's files have to outlive a power cut.

    Tests of durability put a function of their own in this place.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _certificates_read_once() -> Generator[None]:
    """Read certificates once for all HTTP clients: it takes them longest, and no test uses TLS."""
    import httpx2

    with pytest.MonkeyPatch.context() as patch:
        read = cache(httpx2.create_ssl_context)
        patch.setattr("httpx2._transports.default.create_ssl_context", read)
        yield


@pytest.fixture(scope="session")
def assessed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scripted run of 500 questions, assessed at alpha 0.15; copy it before you change it."""
    from stopadvisor.cli.main import main
    from tests.material import make_run

    path = make_run(tmp_path_factory.mktemp("assessed") / "run", 500)
    assert main(["assess", str(path), "--alpha", "0.15", "--no-report", "--quiet"]) == 0
    return path


@pytest.fixture(scope="session")
def calibrated_run(assessed_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`assessed_run`, calibrated at alpha 0.15; copy it before you change it."""
    from stopadvisor.cli.main import main
    from tests.material import CERTIFY

    path = tmp_path_factory.mktemp("calibrated") / "run"
    shutil.copytree(assessed_run, path)
    assert main(["calibrate", str(path), *CERTIFY, "--quiet"]) == 0
    return path


@pytest.fixture(scope="session")
def run_without_gold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scripted, assessed run of 500 questions without gold; copy it before you change it.

    Its first 100 fit questions have two traces each.
    """
    from stopadvisor.cli.main import main
    from tests.material import make_run

    path = tmp_path_factory.mktemp("bare") / "run"
    make_run(path, 500, fractions=(0.4, 0.6, 0.0), gold=False, repeated=100)
    words = ["--families", "confidence,entropy,fixed-budget", "--alpha", "0.1"]
    assert main(["assess", str(path), "--alpha", "0.15", *words, "--no-report", "--quiet"]) == 0
    return path


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """The command line, in an empty working directory."""
    from tests.material import Call

    monkeypatch.chdir(tmp_path)
    return Call(capsys)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without pictures, which take most of their time."""
    pytest.importorskip("matplotlib", reason="matplotlib (extra report) draws the page")
    monkeypatch.setattr("stopadvisor.report.html.charts.pictures", lambda *_: [])


_REAL_MODEL = {"tiny_reasoner"}
"""Fixtures that run the bundled model; tests that use one are integration tests."""
_RANDOM_MODELS = {"random_model", "windowed_model"}
"""Fixtures that import torch, which takes seconds of CPU time; tests that use one are slow."""

_SERVED = "tests/integration/"
"""Tests of vLLM servers, which are forked from one process and keep most of a core busy."""
_FIRST = (_SERVED, "tests/engines/test_hf_probe.py", "tests/long/")
"""What workers begin with.  In a new environment the first import of torch compiles it, for 12 CPU
seconds: one worker does so while servers start and simulations run."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files that `-m` deselects as a whole: torch alone takes seconds."""
    expression = config.getoption("markexpr")
    if collection_path.suffix != ".py" or re.search(r"[()]|\bor\b", expression):
        return None  # "not slow" inside an alternative may still select slow tests
    marks = re.search(r"^pytestmark = (.*)", collection_path.read_text("utf-8"), re.MULTILINE)
    found = re.findall(r"pytest\.mark\.(\w+)", marks[1]) if marks else []
    return any(_leaves_out(config, mark) for mark in found) or None


@pytest.hookimpl(tryfirst=True)  # before `-m` deselects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark integration tests, put the longest files first, skip `gpu` tests without a device.

    A long file that starts last would keep one worker busy while the others are idle.  A file's
    length is estimated by its number of slow tests.  Files of equal length are mixed: tests of
    servers wait, and if all workers waited at once, no core would be busy.
    """
    slow: Counter[Path] = Counter()
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if _REAL_MODEL.intersection(fixtures):
            item.add_marker("integration")
        if _RANDOM_MODELS.intersection(fixtures):
            item.add_marker("slow")
        slow[item.path] += any(map(item.get_closest_marker, ("slow", "integration", "browser")))

    def order(item: pytest.Item) -> tuple[int, int, int]:
        for place, first in enumerate(_FIRST):
            if item.nodeid.startswith(first):
                return place, 0, 0
        return len(_FIRST), -slow[item.path], crc32(item.nodeid.partition("::")[0].encode())

    items.sort(key=order)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_cuda():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=missing.needs("a CUDA device")))


def _has_cuda() -> bool:
    """Whether torch finds a CUDA device; without a driver we need not import it to tell."""
    if not Path("/dev/nvidia0").exists():
        return False
    import torch

    return torch.cuda.is_available()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, fail tests that are skipped because a program is missing."""
    report = yield
    missing.failed_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for files that are skipped as a whole."""
    report = yield
    missing.failed_in_ci(report)
    return report


def pytest_collection_finish() -> None:
    """Exempt modules and tests, 700,000 objects, from garbage collection."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to one worker, and all tests of vLLM servers to one."""
    if config.getoption("dist") != "loadfile":
        return None

    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist ships no types
        def _split_scope(self, nodeid: str) -> str:
            scope: str = super()._split_scope(nodeid)
            return _SERVED if scope.startswith(_SERVED) else scope

    return Scheduling(config, log)
