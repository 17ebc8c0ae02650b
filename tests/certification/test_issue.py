"""Issuing a policy without a command line: which files are written, and what lies beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.assessment.settings import SettingsOverrides
from stopadvisor.certification.certify import Certification, CertifyRequest
from stopadvisor.certification.certify_transfer import TransferCertification
from stopadvisor.certification.issue import Issued, PolicyFiles, PolicyTarget, issue
from stopadvisor.errors import OutputError
from stopadvisor.policy.folder import calibration_of
from stopadvisor.policy.frozen import load_policy
from stopadvisor.runs.directory import CALIBRATION
from stopadvisor.runs.sources import open_source
from tests.material import archive_arrays, looks_of, write_archive


def describe(
    found: Certification | TransferCertification, files: PolicyFiles
) -> dict[str, str | list[str]]:
    return {"digest": found.content["digest"], "remarks": list(files.remarks)}


def issued(archive: Path, target: PolicyTarget, alpha: float) -> Issued[dict[str, Any]]:
    overrides = SettingsOverrides(alpha=alpha, families=("confidence",))
    request = CertifyRequest(overrides, allow_large_alpha=True, despite_advice=True)
    return issue(open_source(archive, folder=archive.parent), request, target, describe)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return write_archive(tmp_path / "raw.npz", **archive_arrays(300, 4))


def test_a_policy_is_written_and_put_in_use(archive: Path) -> None:
    found = issued(archive, PolicyTarget("json"), 0.3)
    file, copy = found.files.policy, archive.parent / "policy.json"
    assert file.name.startswith("policy-a30-")
    assert found.files.promoted == copy
    assert load_policy(file).digest == load_policy(copy).digest == found.document["digest"]
    for beside in (calibration_of(file), archive.with_name(CALIBRATION)):
        assert json.loads(beside.read_bytes()) == found.document


def test_a_file_of_ones_own_is_never_written_over(archive: Path) -> None:
    mine = archive.with_name("mine.joblib")
    target = PolicyTarget(out=mine)
    first = issued(archive, target, 0.3)
    assert (first.files, first.document["remarks"]) == (PolicyFiles(mine, None), [])
    (archive.parent / "other").mkdir()
    other = write_archive(archive.parent / "other" / "raw.npz", **archive_arrays(300, 4, seed=1))
    second = issued(other, target, 0.3)
    assert second.files.policy.name.startswith("mine-a30-")
    (remark,) = second.document["remarks"]
    assert f"the new one is {second.files.policy}" in remark


def test_no_look_is_spent_on_a_file_that_cannot_be_written(archive: Path) -> None:
    with pytest.raises(OutputError, match="it is a folder"):
        issued(archive, PolicyTarget(out=archive.parent), 0.3)
    assert looks_of(archive.parent) == []
