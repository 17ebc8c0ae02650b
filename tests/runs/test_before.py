"""A run directory of 0.1.0: its probes are still read, its policy and looks are refused."""

from __future__ import annotations

import lzma
import shutil
from pathlib import Path

import pytest

from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.frozen import load_policy
from stopadvisor.runs.sources import open_source
from tests.material import CERTIFY, Call

FIRST = Path(__file__).parents[1] / "testdata" / "runs" / "first"
"""240 sums and the bundled model, probed, assessed and calibrated on 2026-11-21, before looks
were a log and policies had schema 2."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run"
    shutil.copytree(FIRST, path)
    packed = path / "probes.jsonl.xz"
    (path / "probes.jsonl").write_bytes(lzma.decompress(packed.read_bytes()))
    packed.unlink()
    return path


def test_its_split_is_kept_and_its_policy_and_looks_are_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = open_source(run).parts.tolist()
    assert [parts.count(part) for part in (0, 1, 2)] == [82, 99, 59]  # fit, calibration, test
    with pytest.raises(PolicyError, match="schema 1 and 2 are not read any more"):
        load_policy(run / "policy.joblib")
    for command in (("calibrate", "run", *CERTIFY), ("report", "run")):
        refusal = Call(capsys).refused(*command)
        assert "ledger.json: looks recorded by stopadvisor 0.1.0 are not read any more" in refusal
        assert "again with --out new/RUN, in a folder without old runs" in refusal
