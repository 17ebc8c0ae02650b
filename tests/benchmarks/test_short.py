"""Every benchmark runs to its end in a short form; its figures then mean nothing."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.benchmarks.ladder import SEEDS
from tests.benchmarks.real_traces import MODELS
from tests.blocks.tests import benchmarks
from tests.integration.test_benchmarks import SERVED

SHORT = {
    "deploy": "--questions 100",
    "ladder": "--data FOLDER/ladder --splits 1",
    "real": "--splits 1 --fits 0",
    "real_picture": "FOLDER/rivals.svg --splits 1",
    "real_runs": "FOLDER/runs",
    "real_two_traces": "--draws 2 --fits 1",
    "roofline": "",
    "scale": "100",
    "step": "--questions 5",
}
"""Arguments of each benchmark that needs no server."""

NARROWER: dict[str, dict[str, Any]] = {
    "deploy": {"BUDGETS": (0, 16, 48, 100)},
    "ladder": {"CELLS": (("lost", 0.05), ("drop", 0.10))},
    "real": {"MODELS": MODELS[:1], "ALPHAS": (0.1,), "PREFILLS": (1.0, None)},
    "real_two_traces": {"MODELS": MODELS[:1], "ALPHAS": (0.1,), "SIZES": (200,)},
    "real_picture": {"RUNS": {"one": (MODELS[0], False)}, "ALPHAS": (0.1,)},
    "step": {"REPEATS": 1},
}
"""Cells of tables that have many, and repeats, by constant of the module."""

RESAMPLED = ("assessment.rated", "stats.intervals", "studies.rivals")
"""Modules that resample for figures, which mean nothing here."""


RECORDED = Path(__file__).resolve().parent.parent.parent / "samples" / "recorded" / "real"


def write_ladder(folder: Path) -> None:
    """Replies for `ladder`: those of the smaller model again, as if a larger one had given them."""
    (folder / "ladder").mkdir()
    (folder / "real").symlink_to(RECORDED)
    lines = []
    for first, second in SEEDS:
        for seed in (first, second):
            file = np.load(RECORDED / f"r1-qwen-7b__math500__seed{seed}.npz")
            columns = (file[name].tolist() for name in ("question", "full_code", "total_tokens"))
            for name, code, tokens in zip(*columns, strict=True):
                row = {"id": name, "seed": first, "code": code, "tokens": tokens, "finished": True}
                lines.append(json.dumps(row))
    (folder / "ladder" / "replies-r1-qwen-32b-math500.jsonl").write_text("\n".join(lines))


def test_every_benchmark_has_a_short_form() -> None:
    names = [file.stem for file in benchmarks()]
    assert names == sorted([*SHORT, *SERVED, "probing"])  # that one in test_probing.py


@pytest.mark.slow  # one of them imports torch
@pytest.mark.parametrize("name", SERVED)
def test_one_that_asks_a_server_can_be_asked_what_it_does(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It runs under `-m long` (tests/integration)."""
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        import_module(f"tests.benchmarks.{name}").main()
    assert ended.value.code == 0
    assert "usage" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_runs_to_its_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = import_module(f"tests.benchmarks.{name}")
    if name == "ladder":
        write_ladder(tmp_path)
    for constant, value in NARROWER.get(name, {}).items():
        assert hasattr(module, constant)
        monkeypatch.setattr(module, constant, value)
    for resampled in RESAMPLED:
        monkeypatch.setattr(f"stopadvisor.{resampled}._RESAMPLES", 20)
    words = SHORT[name].replace("FOLDER", str(tmp_path)).split()
    monkeypatch.setattr(sys, "argv", [name, *words])
    assert module.main() in (None, 0, 1)  # 1: a goal was missed, which a short form cannot tell
    printed = capsys.readouterr().out
    assert any(character.isdigit() for character in printed)
