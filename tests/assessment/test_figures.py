"""Every figure that `assess` writes: its document, and what the report's pictures show."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest

from stopadvisor.cli.main import main
from stopadvisor.runs.sources import ASSESSMENT
from tests.cli.test_ladder import recorded
from tests.goldens import Goldens
from tests.material import make_run, write_archive
from tests.schemas import check_valid

pytestmark = pytest.mark.slow

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
        file: json.loads((run / f"{file}.json").read_text()) for file in ("assessment", "figures")
    }
    check_valid("assess", found["assessment"])
    for volatile in ("run", "workload"):
        found["assessment"].pop(volatile)
    # Last digits, and with them this digest, differ between processors.
    assert found["figures"].pop("assessment") == sha256((run / ASSESSMENT).read_bytes()).hexdigest()
    goldens.check_figures(GOLDEN / f"{name}.json", found)
