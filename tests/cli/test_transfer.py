"""`calibrate --from`: a policy of one workload certified on another, and the comparison."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.cli.main import main
from stopadvisor.policy.frozen import build_policy, load_policy, save_policy
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.ledger import read_ledger
from tests.material import CERTIFY, Call, caller, edit_records, make_run
from tests.policy_content import full_budget_content

FIELDS = [
    "schema", "protocol", "run", "alpha", "delta", "conditional", "confidence", "look",
    "certified", "policy", "digest", "promoted", "kind", "family", "schedule", "where", "threshold",
    "serving", "certificate",
    "refusal", "tested", "expected", "graded_by", "advised_family", "advised_schedule",
    "advised_where", "advised_fit_total_saving_pct", "changed", "profile", "remarks",
    "headline", "transfer",
]  # fmt: skip
COMPARISON = ["n_test", "n_met_before", "labels", "look", "rows"]
ROW = [
    "protocol", "family", "schedule", "threshold", "labels_used", "certified", "reason",
    "test_verdict", "test_total_saving_pct", "test_total_saving_ci95", "test_think_saving_pct",
    "test_risk", "test_risk_ci95", "test_accuracy", "test_full_accuracy",
]  # fmt: skip
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
    assert list(found) == FIELDS
    policy, source = load_policy(found["policy"]).content, load_policy(SOURCE).content
    assert policy["coef"] == source["coef"]
    assert policy["order"] == source["order"]
    certificate = policy["certificate"]
    assert certificate == found["certificate"]
    assert certificate["transfer"] == "target-calibrated"
    assert certificate["source_digest"] == source["digest"] == found["transfer"]["source_digest"]
    run = RunDirectory.load(TARGET)
    parts = run.parts(run.table())
    assert certificate["n"] == int((parts != 2).sum())
    made = {*source["split"]["fit"], *source["split"]["calibration"]}
    assert set(policy["split"]["fit"]) == made
    assert policy["model"]["name"] == run.manifest["engine"]["model"]
    assert [look.number for look in read_ledger(TARGET)] == [1]
    assert found["confidence"] == pytest.approx(0.95)
    assert (TARGET / "calibration.json").exists()
    # What it was made with cannot confirm it.
    code, out, _ = call("verify", found["policy"], TARGET, "--json")
    assert code == 0
    assert json.loads(out)["n"] == int((parts == 2).sum())


def test_the_same_request_is_the_same_look(call: Call) -> None:
    first = transferred(call, *ALPHA)
    assert transferred(call, *ALPHA)["certificate"] == first["certificate"]
    code, _, err = call("calibrate", *CERTIFY, TARGET, "--from", SOURCE, "--alpha", "0.2")
    assert code == 2
    assert "ended in a certificate" in err


def test_the_comparison_is_one_look_more_and_said(call: Call) -> None:
    found = transferred(call, *FAST, "--compare")
    comparison = found["transfer"]["comparison"]
    assert list(comparison) == COMPARISON
    assert [list(row) for row in comparison["rows"]] == [ROW] * 3
    assert [row["certified"] for row in comparison["rows"]][:2] == [False, True]
    assert comparison["rows"][1]["threshold"] == found["threshold"]
    looks = read_ledger(TARGET)
    assert [dict(look.request)["protocol"] for look in looks] == ["transfer", "deploy"]
    assert comparison["look"] == {"number": 2, "confidence": pytest.approx(0.9)}
    # Training for good is the look that the comparison took already.
    code, out, _ = call("calibrate", *CERTIFY, TARGET, *FAST, "--json")
    assert code == 0
    trained = json.loads(out)
    assert read_ledger(TARGET) == looks
    assert trained["look"]["number"] == 2
    assert trained["threshold"] == comparison["rows"][2]["threshold"]
    assert trained["expected"]["test_risk"] == comparison["rows"][2]["test_risk"]


def test_the_same_comparison_is_no_further_look(call: Call) -> None:
    first = transferred(call, *FAST, "--compare")
    assert transferred(call, *FAST, "--compare")["certificate"] == first["certificate"]
    assert len(read_ledger(TARGET)) == 2


def test_fit_questions_that_assess_showed_certify_nothing(call: Call) -> None:
    assert call("assess", TARGET, "--no-report", "--quiet", *ALPHA)[0] == 0
    (TARGET / "assessment.json").unlink()  # the ledger remembers
    found = transferred(call, *ALPHA)
    run = RunDirectory.load(TARGET)
    parts = run.parts(run.table())
    assert found["certificate"]["n"] == int((parts == 1).sum())
    assert found["confidence"] == pytest.approx(0.95)
    (remark,) = [text for text in found["remarks"] if "were left out" in text]
    assert remark.startswith(f"{int((parts == 0).sum())} fit questions")


def test_in_words(call: Call) -> None:
    code, out, _ = call("calibrate", *CERTIFY, TARGET, "--from", SOURCE, *FAST, "--compare")
    text = " ".join(out.split())
    assert code == 0
    assert text.startswith("Certified.")
    assert "fit questions had said" not in text
    for words in (
        "its threshold was certified here", "zero-shot (learned at", "not certified here: its",
        "target-calibrated (learned at", "): certified here", "look number 2", "Compared on",
    ):  # fmt: skip
        assert words in text


def test_nothing_certified_is_exit_3(call: Call) -> None:
    found = transferred(call, "--alpha", "0.001", code=3)
    assert (found["kind"], found["certificate"]) == ("full-budget", None)
    assert load_policy(found["policy"]).kind == "full-budget"


def test_fit_questions_of_the_source_are_refused_before_a_look(call: Call) -> None:
    code, out, err = call("calibrate", *CERTIFY, "old", "--from", SOURCE, *ALPHA)
    assert (code, out) == (2, "")
    assert "fitted or calibrated this policy" in err
    assert len(read_ledger(Path("old"))) == 1  # the plain calibration's


def test_test_labels_decide_nothing(call: Call) -> None:
    first = transferred(call, *ALPHA)

    def flip(row: dict[str, Any], part: str) -> None:
        if part == "test":
            row["natural_correct"] = not row["natural_correct"]

    edit_records(TARGET, flip)
    again = transferred(call, *ALPHA)
    assert again["certificate"] == first["certificate"]
    assert again["expected"] != first["expected"]


def test_fresh_takes_only_questions_without_a_look(call: Call) -> None:
    transferred(call, *ALPHA)
    code, _, err = call("calibrate", *CERTIFY, TARGET, "--from", SOURCE, *ALPHA, "--fresh")
    assert code == 2
    assert "looked at already" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--compare"], "--compare belongs to --from"),
        (["--from", "source.joblib", "--families", "entropy"], "--families means nothing"),
        (["--from", "nowhere.joblib"], "nowhere.joblib"),
        (["--from", "full.joblib"], "never stops"),
    ],
    ids=["compare", "families", "missing", "full-budget"],
)
def test_requests_that_make_no_sense(call: Call, words: list[str], message: str) -> None:
    save_policy(build_policy(full_budget_content()), "full.joblib")
    code, out, err = call("calibrate", *CERTIFY, TARGET, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert not (TARGET / "ledger.json").exists()


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
