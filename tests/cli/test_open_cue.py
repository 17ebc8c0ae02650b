"""A cue in the open thinking, from `probe` to a policy that reads what followed the answers."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from stopadvisor.cli.main import main
from stopadvisor.cli.parts.probing import _cue
from stopadvisor.ground.errors import ProbeError
from stopadvisor.policy.frozen import load_policy
from stopadvisor.rules.features import feature_array
from stopadvisor.runs.directory import RunDirectory
from tests.material import CERTIFY, PLAN, Call, make_run
from tests.scripted import ScriptedEngine, write_sums

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("scripted")]

POLICY, RUN = Path("policy.joblib"), Path("run")
OPEN = "open:\n\nFinal answer:"


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("open-cue")
    make_run(root / "run", 300, plan=replace(PLAN, cue=OPEN))
    words = ["--alpha", "0.15", "--families", "learned", "--out", str(root / POLICY)]
    assert main(["calibrate", *CERTIFY, str(root / "run"), "--quiet", *words]) == 0
    return root


@pytest.fixture(name="call")
def with_material(call: Call, material: Path) -> Call:
    shutil.copytree(material, ".", dirs_exist_ok=True)
    return call


def test_a_learned_rule_reads_what_followed_the_answers(call: Call) -> None:
    content = load_policy(POLICY).content
    assert "closed_by_itself" in content["features"]
    weight = content["coef"][content["features"].index("closed_by_itself")]
    assert weight > 0  # the scripted model closes its thinking where it is right
    assert content["probe"]["open_cue"] is True
    assert content["probe"]["cue"]["text"] == "\n\nFinal answer:"
    code, out, _ = call("inspect", POLICY, "--json")
    assert code == 0
    assert json.loads(out)["probe"]["open_cue"] is True


def test_probe_writes_it_into_the_manifest_and_like_brings_it(call: Call) -> None:
    write_sums(Path("fresh.jsonl"), 400)
    probe = ("probe", "fresh.jsonl", "--split", "40/60/0", "--budgets", "0,8,16", "--seed", "7")
    assert call(*probe, "--cue", "open", "--out", "new")[0] == 0
    manifest = RunDirectory.load(Path("new")).manifest
    assert manifest["plan"]["cue"] == OPEN
    assert manifest["cue_ids"] == ScriptedEngine().suffix_ids(OPEN)
    assert (_cue("open:Answer:"), _cue("terse")) == ("open:Answer:", "\n\nFinal answer:")
    code, _, err = call("probe", "fresh.jsonl", "--like", POLICY, "--out", "like")
    assert code == 0, err
    assert RunDirectory.load(Path("like")).plan.cue == OPEN
    assert call("verify", POLICY, "like", "--quiet")[0] == 0


def test_a_closed_cue_is_another_one(call: Call) -> None:
    make_run(Path("closed"), 600)
    assert f"calibrated with answer cue {OPEN!r}, got '\\n\\nFinal answer:'" in call.refused(
        "verify", POLICY, "closed"
    )
    table = RunDirectory.load(Path("closed")).table()
    with pytest.raises(ProbeError, match="needs probes with an open cue, and these have none"):
        feature_array(table, ["closed_by_itself"])
