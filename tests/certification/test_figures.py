"""Every figure that `calibrate` and `verify` print, and of the policy's expectation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.cli.main import main
from stopadvisor.runs.directory import RunDirectory
from tests.cli.test_ladder import recorded
from tests.goldens import Goldens
from tests.material import CERTIFY, keep_records, make_run, write_archive
from tests.schemas import check_valid

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parent.parent / "testdata" / "certificates"
FAST = ("--families", "entropy,confidence")
CASES = {
    "learned": ("sums", *CERTIFY, "--families", "learned,confidence"),
    "limits": ("sums", "--alpha", "lost=0.2,drop=0.15", *CERTIFY[2:], *FAST),
    "looks": ("sums", *CERTIFY, *FAST, "--looks", "2", "--serving", "black-box"),
    "bare": ("bare", "--alpha", "0.2", "--despite", "advice", *FAST),
    "archive": ("raw.npz", *CERTIFY, *FAST),
    "ladder": ("ladder", "--alpha", "0.1"),
    "refused": ("sums", "--alpha", "0.001", *FAST),
    "one-look": ("sums", "--alpha", "0.04", "--despite", "advice", "--looks", "1", *FAST),
}
_OF_THE_DAY = {
    "run", "policy", "promoted", "digest", "head", "ledger_head", "provenance", "created",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("calibrated")
    make_run(root / "sums", 400)
    make_run(root / "bare", 400, gold=False, repeated=60)
    write_archive(root / "raw.npz")
    recorded(root / "rungs", 0).rename(root / "ladder")
    shutil.copytree(root / "sums", root / "fresh")
    fresh = RunDirectory.load(make_run(root / "fresh", 600))
    keep_records(fresh, fresh.records()[300:])
    return root


@pytest.mark.parametrize("name", CASES)
def test_no_figure_moves(
    name: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    goldens: Goldens,
) -> None:
    source, *words = CASES[name]
    monkeypatch.chdir(folder)
    if source == "sums":  # each look at questions of its own
        source = str(shutil.copytree(folder / "sums", tmp_path / "sums"))
    assert main(["calibrate", source, *words, "--json", "--quiet"]) in (0, 3)
    found = json.loads(capsys.readouterr().out)
    check_valid("calibrate", found)
    policy = found["policy"]
    found = {"calibration": timeless(found)}
    if name == "learned":
        assert main(["verify", policy, "fresh", "--json", "--quiet"]) in (0, 3)
        check_valid("verify", verified := json.loads(capsys.readouterr().out))
        found["verification"] = timeless(verified)
    goldens.check_figures(GOLDEN / f"{name}.json", found)


def timeless(value: Any) -> Any:
    """Without what a path or the clock decides."""
    if isinstance(value, dict):
        return {k: timeless(inner) for k, inner in value.items() if k not in _OF_THE_DAY}
    return [timeless(each) for each in value] if isinstance(value, list) else value
