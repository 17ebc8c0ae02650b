"""Issue a policy without a command line: which files are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stopadvisor.assessment.settings import SettingsOverrides
from stopadvisor.certification.certify import CertifyRequest
from stopadvisor.certification.issue import CalibratedRun, PolicyTarget, issue
from stopadvisor.ground.errors import OutputError
from stopadvisor.ground.results import from_document
from stopadvisor.policy.frozen import load_policy
from stopadvisor.policy.run_policies import calibration_of
from stopadvisor.report.headline import calibrated_headline
from stopadvisor.runs.directory import CALIBRATION
from stopadvisor.runs.sources import open_source
from tests.material import archive_arrays, looks_of, write_archive


def issued(archive: Path, target: PolicyTarget, alpha: float) -> CalibratedRun:
    overrides = SettingsOverrides(alpha=alpha, families=("confidence",))
    request = CertifyRequest(overrides, despite=("advice", "large-alpha"))
    source = open_source(archive, folder=archive.parent)
    return issue(source, request, target, calibrated_headline)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return write_archive(tmp_path / "raw.npz", **archive_arrays(300, 4))


def test_a_policy_is_written_and_put_in_use(archive: Path) -> None:
    result = issued(archive, PolicyTarget(), 0.3)
    file, copy = Path(result.policy), archive.parent / "policy.joblib"
    assert file.name.startswith("policy-a30-")
    assert result.promoted == str(copy)
    assert load_policy(file).digest == load_policy(copy).digest == result.digest
    for beside in (calibration_of(file), archive.with_name(CALIBRATION)):
        assert from_document(CalibratedRun, json.loads(beside.read_bytes()), beside) == result


def test_a_file_named_by_the_user_is_never_overwritten(archive: Path) -> None:
    mine = archive.with_name("mine.joblib")
    target = PolicyTarget(out=mine)
    first = issued(archive, target, 0.3)
    assert (first.policy, first.promoted) == (str(mine), None)
    (archive.parent / "other").mkdir()
    other = write_archive(archive.parent / "other" / "raw.npz", **archive_arrays(300, 4, seed=1))
    second = issued(other, target, 0.3)
    assert Path(second.policy).name.startswith("mine-a30-")
    assert second.remarks[-1].endswith(f"the new one is {second.policy}")


def test_no_look_is_spent_on_a_file_that_cannot_be_written(archive: Path) -> None:
    with pytest.raises(OutputError, match="it is a folder"):
        issued(archive, PolicyTarget(out=archive.parent), 0.3)
    with pytest.raises(OutputError, match="the file that is there holds no policy"):
        issued(archive, PolicyTarget(out=archive), 0.3)
    assert looks_of(archive.parent) == []
