"""The environment of the server is found, awaited while it is built, and missed without a wait."""

from __future__ import annotations

import fcntl
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.integration import server
from tests.integration.server import environment


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOPADVISOR_VLLM", str(tmp_path / "vllm"))
    (tmp_path / "vllm").mkdir()
    return tmp_path / "vllm"


@pytest.mark.parametrize("is_left", [False, True], ids=["never built", "given up"])
def test_one_that_nobody_builds_is_not_waited_for(
    home: Path, is_left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_left:
        Path(f"{home}.lock").touch()
    waits: list[float] = []
    monkeypatch.setattr(
        server, "time", SimpleNamespace(sleep=waits.append, monotonic=time.monotonic)
    )
    assert environment() is None
    assert not waits


@pytest.mark.parametrize("succeeds", [True, False])
def test_one_that_is_being_built_is_waited_for(home: Path, succeeds: bool) -> None:
    def build() -> None:
        if succeeds:
            (home / "finished").touch()
        lock.close()

    with Path(f"{home}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        builder = threading.Timer(0.3, build)
        builder.start()
        assert environment() == (home if succeeds else None)
        assert lock.closed or succeeds
        builder.join()
