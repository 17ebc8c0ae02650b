"""`calibrate --from`: a policy of one workload certified on another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.cli.main import main
from stopadvisor.policy.frozen import load_policy, save_policy
from stopadvisor.runs.directory import RunDirectory
from tests.material import CERTIFY, Call, caller, looks_of, make_run
from tests.policy_content import certificate_in, full_budget_content, policy_from

SOURCE, TARGET = Path("source.joblib"), Path("runs/target")
ALPHA = ["--alpha", "0.15"]
FAST = [*ALPHA, "--families", "confidence"]


@pytest.fixture(scope="module")
def material(probed_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy, and a run of questions that came after those that made it."""
    root = tmp_path_factory.mktemp("transfer")
    shutil.copytree(probed_run, root / "old")
    words = [*ALPHA, "--families", "learned", "--out", str(root / SOURCE), "--quiet"]
    assert main(["calibrate", *CERTIFY, str(root / "old"), *words]) == 0
    make_run(root / "runs" / "target", 600)
    target = RunDirectory.load(root / TARGET)
    target.rewrite(target.records()[300:])
    return root


@pytest.fixture
def call(
    tmp_path: Path,
    material: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Call:
    """Call a command in a folder with the material."""
    shutil.copytree(material, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()

    return caller(capsys)


def transferred(call: Call, *words: str, code: int = 0) -> dict[str, Any]:
    found, out, err = call("calibrate", *CERTIFY, TARGET, "--from", SOURCE, *words, "--json")
    assert found == code, out + err
    document: dict[str, Any] = json.loads(out)
    return document


@pytest.mark.slow
def test_the_rule_is_the_sources_and_all_but_the_test_questions_certify_it(call: Call) -> None:
    found = transferred(call, *ALPHA)
    policy, source = load_policy(found["policy"]).content, load_policy(SOURCE).content
    assert policy["coef"] == source["coef"]
    assert policy["order"] == source["order"]
    certificate = policy["certificate"]
    assert certificate_in(load_policy(found["policy"])) == found["certificate"]
    assert certificate["transfer"] == "target-calibrated"
    assert certificate["source_digest"] == source["digest"] == found["transfer"]["source_digest"]
    run = RunDirectory.load(TARGET)
    parts = run.parts(run.table())
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
    assert call("assess", TARGET, "--no-report", "--quiet", *ALPHA)[0] == 0
    (TARGET / "assessment.json").unlink()  # the log remembers
    found = transferred(call, *ALPHA)
    run = RunDirectory.load(TARGET)
    parts = run.parts(run.table())
    assert found["certificate"]["n"] == int((parts == 1).sum())
    assert found["confidence"] == pytest.approx(0.95)
    (remark,) = [text for text in found["remarks"] if "were left out" in text]
    assert remark.startswith(f"{int((parts == 0).sum())} fit questions")


def test_in_words(call: Call) -> None:
    code, out, _ = call("calibrate", *CERTIFY, TARGET, "--from", SOURCE, *ALPHA)
    text = " ".join(out.split())
    assert code == 0
    assert text.startswith("Certified.")
    assert "fit questions had said" not in text
    assert "its threshold was certified here" in text


def test_fit_questions_of_the_source_are_refused_before_a_look(call: Call) -> None:
    code, out, err = call("calibrate", *CERTIFY, "old", "--from", SOURCE, *ALPHA)
    assert (code, out) == (2, "")
    assert "fitted or calibrated this policy" in err
    assert len(looks_of(Path("old"))) == 1  # the plain calibration's


def test_fresh_takes_only_questions_without_a_look(call: Call) -> None:
    transferred(call, *ALPHA)
    code, _, err = call("calibrate", *CERTIFY, TARGET, "--from", SOURCE, *ALPHA, "--fresh")
    assert code == 2
    assert "looked at already" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from", "source.joblib", "--families", "entropy"], "--families means nothing"),
        (["--from", "nowhere.joblib"], "nowhere.joblib"),
        (["--from", "full.joblib"], "never stops"),
    ],
    ids=["families", "missing", "full-budget"],
)
def test_requests_that_make_no_sense(call: Call, words: list[str], message: str) -> None:
    save_policy(policy_from(full_budget_content()), "full.joblib")
    code, out, err = call("calibrate", *CERTIFY, TARGET, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert not (TARGET / "looks.jsonl").exists()


def test_inspect_names_the_source(call: Call) -> None:
    found = transferred(call, *ALPHA)
    code, out, _ = call("inspect", found["policy"])
    assert code == 0
    digest = load_policy(SOURCE).digest
    assert f"target-calibrated: the rule of policy {digest[:8]}" in " ".join(out.split())


@pytest.mark.slow
def test_savings_are_told_in_the_policys_own_terms(call: Call) -> None:
    words = (
        "calibrate",
        *CERTIFY,
        "runs/target",
        "--price",
        "0.5/0.05/2",
        "--serving",
        "prefix-cache",
    )
    assert call(*words, *FAST, "--out", "priced.joblib", "--quiet")[0] == 0
    make_run(Path("later"), 900)
    run = RunDirectory.load(Path("later"))
    run.rewrite(run.records()[600:])
    code, out, err = call(
        "calibrate", *CERTIFY, "later", "--from", "priced.joblib", *ALPHA, "--json"
    )
    assert code == 0, err
    expected = json.loads(out)["expected"]
    assert expected["weights"]["unit"] == "money per million tokens"
    code, screen, _ = call("inspect", "later/policy.joblib")
    assert code == 0
    assert "% of the price on vLLM's prefix cache" in " ".join(screen.split())
