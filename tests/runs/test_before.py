"""A run directory of the first day, with its policy and its ledger, under today's code."""

from __future__ import annotations

import hashlib
import json
import lzma
import shutil
from pathlib import Path

import pytest

from stopadvisor.policy.frozen import load_policy
from stopadvisor.runs.sources import open_source
from tests.material import Call, caller

FIRST = Path(__file__).parents[1] / "testdata" / "runs" / "first"
"""240 sums and the bundled model, probed, assessed and calibrated on 2026-11-21, before the ledger
was a chain and policies had schema 2."""
CALIBRATE = ("calibrate", "run", "--families", "confidence", "--despite-advice", "--quiet")


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
    return caller(capsys)


def test_it_keeps_its_split(run: Path) -> None:
    parts = open_source(run).parts.tolist()
    assert [parts.count(part) for part in (0, 1, 2)] == [82, 99, 59]  # fit, calibration, test


def test_its_policy_loads_with_its_certificate(run: Path) -> None:
    policy = load_policy(run / "policy.joblib")
    assert policy.content["schema"] == 1
    assert policy.content["certificate"]["losses"] == 12
    assert policy.start() is not None


def test_the_look_that_was_taken_counts(run: Path, call: Call) -> None:
    old = (run / "ledger.json").read_bytes()
    policy = (run / "policy.joblib").read_bytes()
    assert call("assess", "run", "--families", "confidence", "--no-report", "--quiet")[0] == 0
    code, _, err = call(*CALIBRATE, "--alpha", "0.15")
    assert code == 2
    assert "look 1 at these calibration questions" in err
    # The same settings are the same look; nothing of the old policy is lost.
    assert call(*CALIBRATE, "--alpha", "0.2", "--allow-large-alpha")[0] == 0
    ledger = json.loads((run / "ledger.json").read_bytes())
    assert ledger["entries"][0]["kind"] == "taken over"
    assert ledger["entries"][0]["sha256"] == hashlib.sha256(old).hexdigest()
    assert policy in [path.read_bytes() for path in run.glob("*.joblib")]
