"""`calibrate --from`: a policy of one workload certified on another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stopadvisor.cli.main import main
from stopadvisor.policy.frozen import load_policy
from stopadvisor.runs.directory import RunDirectory
from tests.material import CERTIFY, Call, looks_of, make_run
from tests.policy_content import certificate_in

pytestmark = pytest.mark.slow

SOURCE, TARGET = Path("source.joblib"), Path("runs/target")
ALPHA = ["--alpha", "0.15"]


@pytest.fixture(scope="module")
def material(probed_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy, and a run of questions that came after those that made it."""
    root = tmp_path_factory.mktemp("transfer")
    shutil.copytree(probed_run, root / "old")
    words = [*ALPHA, "--families", "learned", "--out", str(root / SOURCE), "--quiet"]
    priced = ["--price", "0.5/0.05/2", "--serving", "prefix-cache"]
    assert main(["calibrate", *CERTIFY, str(root / "old"), *words, *priced]) == 0
    make_run(root / "runs" / "target", 600)
    target = RunDirectory.load(root / TARGET)
    target.rewrite(target.records()[300:])
    return root


@pytest.fixture(name="call")
def with_material(call: Call, material: Path) -> Call:
    shutil.copytree(material, ".", dirs_exist_ok=True)
    return call


def test_the_rule_is_the_sources_and_all_but_the_test_questions_certify_it(call: Call) -> None:
    found = call.json("calibrate", *CERTIFY, TARGET, "--from", SOURCE)
    policy, source = load_policy(found["policy"]).content, load_policy(SOURCE).content
    assert policy["coef"] == source["coef"]
    assert policy["order"] == source["order"]
    # What it saves is told in the source's own terms.
    assert policy["serving"] == source["serving"] == "prefix-cache"
    assert found["expected"]["weights"]["unit"] == "money per million tokens"
    certificate = policy["certificate"]
    assert certificate_in(load_policy(found["policy"])) == found["certificate"]
    assert certificate["transfer"] == "target-calibrated"
    assert certificate["source_digest"] == source["digest"] == found["transfer"]["source_digest"]
    run = RunDirectory.load(TARGET)
    parts = run.parts(run.table().groups)
    assert certificate["n"] == int((parts != 2).sum())
    made = {*source["split"]["fit"], *source["split"]["calibration"]}
    assert set(policy["split"]["fit"]) == made
    assert policy["model"]["name"] == run.manifest["engine"]["model"]
    assert [look.number for look in looks_of(TARGET)] == [1]
    assert found["confidence"] == pytest.approx(0.95)
    assert (TARGET / "calibration.json").exists()
    # What it was made with cannot confirm it.
    code, out, _ = call("verify", found["policy"], TARGET, "--json")
    assert code == 0
    assert json.loads(out)["n"] == int((parts == 2).sum())


def test_fit_questions_that_assess_showed_certify_nothing(call: Call) -> None:
    assert call("assess", TARGET, "--quiet", *ALPHA)[0] == 0
    (TARGET / "assessment.json").unlink()  # the log remembers
    found = call.json("calibrate", *CERTIFY, TARGET, "--from", SOURCE)
    run = RunDirectory.load(TARGET)
    parts = run.parts(run.table().groups)
    assert found["certificate"]["n"] == int((parts == 1).sum())
    assert found["confidence"] == pytest.approx(0.95)
    (remark,) = [text for text in found["remarks"] if "were left out" in text]
    assert remark.startswith(f"{int((parts == 0).sum())} fit questions")
    again = call.refused("calibrate", *CERTIFY, TARGET, "--from", SOURCE, "--fresh")
    assert "looked at already" in again
