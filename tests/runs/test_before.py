"""A run directory of the first day: its probes are read today, its policy and looks refused."""

from __future__ import annotations

import lzma
import shutil
from pathlib import Path

import pytest

from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.frozen import load_policy
from stopadvisor.runs.sources import open_source
from tests.material import Call

FIRST = Path(__file__).parents[1] / "testdata" / "runs" / "first"
"""240 sums and the bundled model, probed, assessed and calibrated on 2026-11-21, before looks
were a log and policies had schema 2."""
CALIBRATE = ("calibrate", "run", "--families", "confidence", "--despite", "advice", "--quiet")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run"
    shutil.copytree(FIRST, path)
    packed = path / "probes.jsonl.xz"
    (path / "probes.jsonl").write_bytes(lzma.decompress(packed.read_bytes()))
    packed.unlink()
    return path


@pytest.fixture
def call(run: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    return Call(capsys)


def test_it_keeps_its_split(run: Path) -> None:
    parts = open_source(run).parts.tolist()
    assert [parts.count(part) for part in (0, 1, 2)] == [82, 99, 59]  # fit, calibration, test


def test_its_policy_is_refused(run: Path) -> None:
    with pytest.raises(PolicyError, match="schema 1 and 2 are not read any more"):
        load_policy(run / "policy.joblib")


def test_its_looks_are_not_read_any_more(run: Path, call: Call) -> None:
    code, out, err = call(*CALIBRATE, "--alpha", "0.15")
    assert (code, out) == (2, "")
    assert "ledger.json: looks recorded by stopadvisor 0.1.0 are not read any more" in err
