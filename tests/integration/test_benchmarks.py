"""Benchmarks that need a server run to their end in a short form; the figures mean nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from tests.benchmarks.plugin import policy_of, served
from tests.integration.server import VllmServer
from tests.material import easiest

pytestmark = [pytest.mark.integration, pytest.mark.vllm, pytest.mark.long]

SERVED = {
    "gateway": "--base-url URL --rounds 1 --requests 4",
    "goodput": "--slo e2e=30 --minutes 0.1 --block 20",
    "plugin": "--only stops --rounds 1 --questions 4",
    "roofline_here": "--rounds 1",
}
"""Arguments by benchmark."""

SHORT_THINKING = {"read_workload": lambda _: SimpleNamespace(questions=easiest(80))}
CELLS: dict[str, dict[str, Any]] = {
    "gateway": {"PASSED": ((True, 8),), "STOPPED": ((True, 8),), **SHORT_THINKING},
    "goodput": SHORT_THINKING,
    "plugin": {"AT_ONCE": (8,), **SHORT_THINKING},
    "roofline_here": {"SIZES": (), "BATCHES": (1, 2), "TIMED": 2},
}
"""Constants that shorten each benchmark to few questions and one cell of its table."""


@pytest.fixture(scope="module")
def stopping() -> Iterator[VllmServer]:
    """The server that `goodput` and `plugin` would each start."""
    with served(policy_of("stops")) as server:
        yield server


@pytest.mark.parametrize("name", SERVED)
def test_runs_to_its_end(
    name: str,
    vllm: VllmServer,
    stopping: VllmServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = SERVED[name].replace("URL", vllm.base_url).split()
    monkeypatch.setattr(sys, "argv", [name, *words])
    module = import_module(f"tests.benchmarks.{name}")
    monkeypatch.setattr(module, "served", lambda policy: nullcontext(stopping), raising=False)
    for constant, cells in CELLS.get(name, {}).items():
        monkeypatch.setattr(module, constant, cells)
    assert module.main() in (None, 0, 1)  # 1: a goal was missed, which a short form cannot tell
    printed = capsys.readouterr().out
    assert any(character.isdigit() for character in printed)
