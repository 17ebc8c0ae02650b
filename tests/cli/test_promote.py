"""`promote` and `diff`: which policy is in use, the way back, and what changed in words."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stopadvisor.policy.frozen import load_policy, save_policy
from stopadvisor.policy.run_policies import calibration_of, own_name
from tests.material import CERTIFY, Call, forget_looks
from tests.policy_content import policy_from
from tests.schemas import check_valid

RUN = Path("runs/sums")
FAST = ["--families", "confidence"]


@pytest.fixture(scope="module")
def two_policies(probed_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two certified policies, the one of alpha = 0.3 in use."""
    from stopadvisor.cli.main import main

    root = tmp_path_factory.mktemp("promote")
    shutil.copytree(probed_run, root / RUN)
    words = ["calibrate", str(root / RUN), *FAST, *CERTIFY, "--quiet"]
    assert main(words) == 0
    forget_looks(root / RUN)
    assert main([*words, "--alpha", "0.3", "--looks", "2"]) == 0
    return root


@pytest.fixture(name="call")
def with_material(call: Call, two_policies: Path) -> Call:
    shutil.copytree(two_policies, ".", dirs_exist_ok=True)
    return call


def policy_of(alpha: str) -> Path:
    (found,) = RUN.glob(f"policy-a{alpha}-????????.joblib")
    return found


def test_names_carry_alpha() -> None:
    assert own_name(0.05, "1a2b3c4d" * 8) == "policy-a05-1a2b3c4d"
    assert own_name(0.1, "1a2b3c4d" * 8) == "policy-a10-1a2b3c4d"
    assert own_name(0.025, "1a2b3c4d" * 8) == "policy-a025-1a2b3c4d"
    assert own_name(0.001, "1a2b3c4d" * 8) == "policy-a001-1a2b3c4d"


@pytest.mark.slow
def test_promote_is_the_way_there_and_back(call: Call) -> None:
    bold, careful = policy_of("30"), policy_of("15")
    assert (RUN / "policy.joblib").read_bytes() == bold.read_bytes()
    found = call.json("promote", careful)
    check_valid("promote", found)
    assert (found["alpha"], found["kind"]) == (0.15, "stop")
    assert found["current"] == "runs/sums/policy.joblib"
    assert found["previous_policy"] == str(bold)
    assert (RUN / "policy.joblib").read_bytes() == careful.read_bytes()
    assert (RUN / "calibration.json").read_bytes() == calibration_of(careful).read_bytes()
    code, out, _ = call("promote", found["previous_policy"])
    assert code == 0
    assert f"way back   stopadvisor promote {careful}" in out
    assert (RUN / "policy.joblib").read_bytes() == bold.read_bytes()
    assert json.loads((RUN / "calibration.json").read_bytes())["alpha"] == 0.3


def test_the_run_is_calibrated_on_after_a_promotion(call: Call) -> None:
    call.json("promote", policy_of("15"))
    found = call.json("calibrate", RUN, *FAST, *CERTIFY, "--alpha", "0.3")
    assert (found["alpha"], found["look"]["number"]) == (0.3, 1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("policy.joblib", "is already the policy in use; name one of policy-a15-"),
        ("nothing.joblib", "no such policy file"),
        ("foreign.joblib", ".json is missing, and without it"),
        ("torn.joblib", ".json is not readable ("),
    ],
)
def test_what_cannot_be_promoted_is_one_line_and_changes_nothing(
    call: Call, name: str, said: str
) -> None:
    for copy in ("foreign.joblib", "torn.joblib"):
        shutil.copy(policy_of("15"), RUN / copy)
    calibration_of(RUN / "torn.joblib").write_text("[" * 100_000)  # nested without end
    (RUN / ".lock").unlink()
    before = {file: file.read_bytes() for file in RUN.iterdir()}
    err = call.refused("promote", RUN / name)
    assert said in err
    assert {file: file.read_bytes() for file in RUN.iterdir()} == before


# --- diff -----------------------------------------------------------------------------------------


def test_diff_of_a_copy_finds_nothing(call: Call) -> None:
    found = call.json("inspect", RUN / "policy.joblib", policy_of("30"))
    assert (found["same"], found["changes"]) == (True, [])
    assert "The same policy." in call("inspect", RUN / "policy.joblib", policy_of("30"))[1]


def test_diff_names_model_prompts_and_caps(call: Call) -> None:
    content = load_policy(policy_of("15")).content
    content["model"]["revision"] = "another"
    content["probe"]["cue"]["text"] = "Hence:"
    content["max_think"] += 1
    content["certificate"]["max_think"] += 1
    content["sampling"]["seed"] = 5
    save_policy(policy_from(content), "other.joblib")
    found = call.json("inspect", policy_of("15"), "other.joblib")
    check_valid("diff", found)
    changes = {row["what"]: row["after"] for row in found["changes"]}
    assert changes["language model"] == "revision 'another'"
    assert "Hence:" in changes["prompts"]
    assert changes["sampling"] == "seed 5"
    assert changes["caps"].startswith("thinking 257,")
    assert found["same_stops"] is True


def test_diff_with_a_policy_that_never_stops(call: Call) -> None:
    full = Path("full.joblib")
    call("calibrate", RUN, *FAST, *CERTIFY, "--alpha", "0.0001", "--out", full)
    found = call.json("inspect", policy_of("15"), full)
    changes = {row["what"]: row["after"] for row in found["changes"]}
    assert changes["rule"] == "full thinking: it never stops"
    assert changes["promise"] == "none"
    assert changes["probes"] == "nowhere"


# --- Nothing named: the newest --------------------------------------------------------------------


def test_inspect_shows_the_policy_written_last(call: Call) -> None:
    shutil.copytree(RUN, "runs/later")
    careful = Path("runs/later") / policy_of("15").name
    call("promote", careful)
    code, out, err = call("inspect", "--json")
    assert code == 0
    assert "inspecting runs/later/policy.joblib, the policy written last" in err
    assert json.loads(out)["digest"] == load_policy(careful).digest


def test_verify_takes_the_newest_policy_and_the_newest_run(call: Call) -> None:
    code, out, err = call("verify", "--json", "--test-only")
    assert code == 0, err
    found = json.loads(out)
    assert (found["policy"], found["run"]) == ("runs/sums/policy.joblib", str(RUN))
    assert "checking runs/sums/policy.joblib on runs/sums" in err
    one = json.loads(call("verify", policy_of("15"), "--json", "--test-only")[1])
    assert (one["policy"], one["run"]) == (str(policy_of("15")), str(RUN))
    other = json.loads(call("verify", RUN, "--json", "--test-only")[1])
    assert (other["policy"], other["run"]) == ("runs/sums/policy.joblib", str(RUN))
    assert "expected [POLICY] [RUN|RAW.NPZ], got 3 files" in call("verify", "a", "b", "c")[2]


def test_run_follows_the_policy_written_last(call: Call) -> None:
    code, _, err = call("run", "nothing.jsonl")
    assert code == 2
    assert "following runs/sums/policy.joblib, the policy written last" in err
    assert "nothing.jsonl" in err
    assert "expected [POLICY] WORKLOAD, got 3 files" in call("run", "a", "b", "c")[2]


@pytest.mark.parametrize("words", [("inspect",), ("run", "w.jsonl"), ("verify",)])
def test_where_there_is_no_policy_it_is_said(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert "no policy under runs/: run `stopadvisor calibrate` first" in call.refused(*words)
