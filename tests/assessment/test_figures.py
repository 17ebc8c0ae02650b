"""Every figure of whole assessments, as they were read and accepted once.

A golden file holds what `assess` writes: the document, and what the report's pictures show.  Of a
long list of figures it holds the sum, and the sum weighted by place.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.cli.main import main
from tests.cli.test_ladder import recorded
from tests.goldens import Goldens
from tests.material import make_run, write_archive

GOLDEN = Path(__file__).parent.parent / "testdata" / "assessments"
LIGHT = "confidence,entropy,agreement,run-stability,fixed-budget"
CASES = {
    "learned": ("sums", "--alpha", "0.15", "--families", "learned,confidence"),
    "light": ("sums", "--alpha", "0.15", "--families", LIGHT, "--serving", "black-box"),
    "limits": ("sums", "--alpha", "lost=0.2,drop=0.1", "--families", "confidence"),
    "proposed": ("sums", "--families", "confidence,fixed-budget"),
    "without-gold": ("bare", "--alpha", "0.15", "--families", LIGHT),
    "archive": ("raw.npz", "--alpha", "0.1", "--families", LIGHT, "--serving", "kv-fork"),
    "ladder": ("ladder", "--alpha", "0.1"),
}
_LONGEST = 8
"""Figures of a list that are held one by one."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("assessed")
    make_run(root / "sums", 240)
    make_run(root / "bare", 240, gold=False, repeated=60)
    write_archive(root / "raw.npz")
    recorded(root / "rungs", 0).rename(root / "ladder")
    return root


@pytest.mark.parametrize("name", CASES)
def test_no_figure_moves(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, goldens: Goldens
) -> None:
    monkeypatch.chdir(folder)
    target, *words = CASES[name]
    out = ("--out", "archive") if target.endswith(".npz") else ()
    assert main(["assess", target, *words, *out, "--no-report", "--quiet"]) == 0
    run = folder / ("archive" if out else target)
    found = {
        file: short(json.loads((run / f"{file}.json").read_text()))
        for file in ("assessment", "figures")
    }
    for volatile in ("run", "workload"):
        found["assessment"].pop(volatile)
    if goldens.update:
        goldens.check(GOLDEN / f"{name}.json", json.dumps(found, indent=0) + "\n")
    expected = json.loads((GOLDEN / f"{name}.json").read_text())
    assert_close(found, expected, name)


def short(value: Any) -> Any:
    """The same with each long list of figures as their number and two sums."""
    if isinstance(value, dict):
        return {key: short(inner) for key, inner in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) <= _LONGEST or not all(isinstance(each, int | float) for each in value):
        return [short(each) for each in value]
    weighted = math.fsum(place * each for place, each in enumerate(value, start=1))
    return [len(value), math.fsum(value), weighted]


def assert_close(found: Any, expected: Any, where: str) -> None:
    """Equal, figures to a millionth."""
    if isinstance(expected, dict):
        assert list(found) == list(expected), where
        for key in expected:
            assert_close(found[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for number, pair in enumerate(zip(found, expected, strict=True)):
            assert_close(*pair, f"{where}[{number}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-9), where
    else:
        assert found == expected, where
