"""`verify`: verdicts and exit codes, its fields, refusals, looks, what it says in words."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.cli.main import main
from stopadvisor.ground.fields import plain
from stopadvisor.policy.frozen import load_policy, save_policy
from stopadvisor.report.words import share
from stopadvisor.rules.drift import DRIFT_FEATURES
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.stats.bounds import upper_limit
from stopadvisor.workload.questions import name_key
from tests.material import (
    CERTIFY,
    Call,
    archive_arrays,
    caller,
    edit_records,
    flip_calibration,
    forget_looks,
    looks_of,
    make_run,
    write_archive,
)
from tests.policy_content import full_budget_content, policy_from

POLICY, RUN, FRESH = Path("policy.joblib"), Path("runs/sums"), Path("runs/fresh")


@pytest.fixture(scope="module")
def material(probed_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated run, its policy, and a run of the questions that came after."""
    root = tmp_path_factory.mktemp("verify")
    shutil.copytree(probed_run, root / "runs" / "sums")
    words = ["--alpha", "0.15", "--families", "confidence", "--out", str(root / POLICY), "--quiet"]
    assert main(["calibrate", *CERTIFY, str(root / RUN), *words]) == 0
    make_run(root / "runs" / "fresh", 600)
    return root


@pytest.fixture
def call(
    tmp_path: Path,
    material: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Call:
    """Call `verify` in a folder with the material."""
    shutil.copytree(material, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()

    return caller(capsys, "verify")


def verified(call: Call, *words: str | Path, code: int = 0) -> dict[str, Any]:
    found, out, err = call(*words, "--json")
    assert found == code, out + err
    document: dict[str, Any] = json.loads(out)
    return document


def flat(text: str) -> str:
    """A screen on one line."""
    return " ".join(text.split())


def named(screen: str) -> str:
    """The command that a screen says to run next."""
    (command,) = re.findall(r"next +stopadvisor (.*)", screen)
    return str(command)


def lose_everything(row: dict[str, Any], part: str) -> None:
    """For `edit_records`: right with full thinking, wrong at every checkpoint."""
    row["natural_correct"] = True
    for checkpoint in row["checkpoints"]:
        checkpoint["correct"] = False


# --- Verdicts -------------------------------------------------------------------------------------


def test_a_policy_is_confirmed_on_fresh_questions(call: Call) -> None:
    found = verified(call, POLICY, FRESH)
    assert found["verdict"] == "confirmed"
    assert found["category_scope"] == "marginal"
    assert found["digest"] == load_policy(POLICY).digest
    assert found["transfer"] is None


def test_a_contradiction_is_exit_4(call: Call) -> None:
    edit_records(FRESH, lose_everything)
    found = verified(call, POLICY, FRESH, code=4)
    assert found["verdict"] == "contradicted"
    assert found["lower"] > found["alpha"]
    code, out, _ = call(POLICY, FRESH, "--quiet")
    assert code == 4
    assert out.startswith("Contradicted: ")
    assert named(out) == f"assess {FRESH} --alpha 0.15"


def test_too_few_questions_are_silent(call: Call) -> None:
    run = RunDirectory.load(RUN)
    table = run.table()
    keep = [r for r, part in zip(run.records(), run.parts(table), strict=True) if part == 2][:4]
    run.rewrite(keep)
    found = verified(call, POLICY, RUN)
    assert (found["verdict"], found["n"], found["detectable_risk"] is None) == ("silent", 4, False)
    certificate = load_policy(POLICY).content["certificate"]
    assert found["expected_risk"] == certificate["losses"] / certificate["n"]
    said = call(POLICY, RUN)[1]
    assert f"if {share(found['expected_risk'])} are lost, as in calibration" in flat(said)
    assert named(said) == f"probe WORKLOAD --like {POLICY}"


@pytest.mark.parametrize(
    ("edit", "questions", "code"), [(None, 600, 0), (lose_everything, 600, 4), (None, 310, 7)]
)
def test_a_gate_opens_for_a_confirmation_alone(
    call: Call, edit: Any, questions: int, code: int
) -> None:
    fresh = FRESH if questions == 600 else make_run(Path("runs/few"), questions)
    if edit is not None:
        edit_records(fresh, edit)
    found, _, err = call(POLICY, fresh, "--gate")
    assert found == code, err
    assert call(POLICY, fresh)[0] == (4 if code == 4 else 0)


def test_without_fresh_questions_it_is_refused(call: Call) -> None:
    run = RunDirectory.load(RUN)
    parts = run.parts(run.table())
    run.rewrite([r for r, part in zip(run.records(), parts, strict=True) if part != 2])
    code, out, err = call(POLICY, RUN)
    assert (code, out) == (2, "")
    how = "stopadvisor probe NEW.jsonl --like POLICY --model FOLDER"
    assert f"fresh ones are required: {how}" in err


# --- What is counted ------------------------------------------------------------------------------


def test_serving_and_price_are_those_asked_for(call: Call) -> None:
    usual = verified(call, POLICY, FRESH)
    assert (usual["serving"], usual["unit"]) == ("vllm", "seconds")
    priced = verified(call, POLICY, FRESH, "--price", "0/0/2", "--serving", "black-box")
    assert (priced["serving"], priced["unit"]) == ("black-box", "money per million tokens")
    assert priced["total_saving_pct"] != usual["total_saving_pct"]
    assert priced["losses"] == usual["losses"]
    code, _, err = call(POLICY, FRESH, "--price", "cheap")
    assert code == 2
    assert "three prices per million tokens" in err


def test_categories_and_drift_in_words(call: Call) -> None:
    def sort(row: dict[str, Any], part: str) -> None:
        row["category"] = "even" if row["prompt_tokens"] % 2 else "odd"
        for checkpoint in row["checkpoints"]:
            checkpoint["mean_entropy"] += 2.0

    edit_records(FRESH, sort)
    found = verified(call, POLICY, FRESH)
    assert sum(row["n"] for row in found["categories"]) == found["n"]
    moved = [row["feature"] for row in found["drift"] if row["adjusted_p"] < 0.05]
    assert moved == ["answer_entropy"]
    out = call(POLICY, FRESH)[1]
    assert "about all questions together, not about each category" in out
    assert "Features that moved since calibration" in out
    assert "answer_entropy" in out
    assert "This traffic is not what was calibrated: for it the promise rests on" in flat(out)
    assert "  next " not in out, "confirmed: the policy goes on"


def test_traffic_that_moved_is_assessed_anew_where_it_decides_nothing(call: Call) -> None:
    """The promise does not speak of it; the commands that are named lead to one that does."""

    def waver(row: dict[str, Any], part: str) -> None:
        for checkpoint in row["checkpoints"]:
            checkpoint["mean_entropy"] = 9.0

    edit_records(FRESH, waver)
    fresh = RunDirectory.load(FRESH)
    fresh.rewrite(fresh.records()[300:360])
    _, out, _ = call(POLICY, FRESH)
    assert out.startswith("Neither confirmed nor broken")
    assert "add labels" not in out
    assert "not what was calibrated: the promise does not cover it." in flat(out)
    assert named(out) == f"assess {FRESH} --alpha 0.15"
    assert main([*shlex.split(named(out)), "--no-report"]) == 0


# --- What it is bound to --------------------------------------------------------------------------


def rebound(**changes: Any) -> Path:
    content = plain(load_policy(POLICY).content)
    if "max_think" in changes:  # the certificate says it a second time
        content["certificate"]["max_think"] = changes["max_think"]
    save_policy(policy_from({**content, **changes}), "other.joblib")
    return Path("other.joblib")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"entropy_source": "top-k:20"}, "entropy source"),
        ({"max_think": 300}, "thinking cap"),
        ({"prompt_template": "Well: {question}"}, "prompt template"),
        ({"task": "choice"}, "answers task 'choice'"),
    ],
    ids=["entropy", "cap", "template", "task"],
)
def test_other_probes_are_refused_unless_as_a_transfer(
    call: Call, change: dict[str, Any], message: str
) -> None:
    path = rebound(**change)
    code, out, err = call(path, FRESH)
    assert (code, out) == (2, "")
    assert message in err
    assert "--transfer" in err
    assert not (FRESH / "looks.jsonl").exists()  # refused before anything was opened
    found = verified(call, path, FRESH, "--transfer")
    assert found["transfer"] == "zero-shot"
    assert any(message in remark for remark in found["remarks"])


def test_who_reads_answers_alone_is_verified_without_log_probabilities(call: Call) -> None:
    def blind(row: dict[str, Any], part: str) -> None:
        for checkpoint in row["checkpoints"]:
            checkpoint |= {"entropy_source": "none", "mean_logprob": 0.0, "mean_entropy": 0.0}

    path = rebound(family="run-stability", threshold=2.0, decision_threshold=2.0, order=[])
    seen = verified(call, path, FRESH, code=4)  # it stops too early here
    edit_records(FRESH, blind)
    found = verified(call, path, FRESH, code=4)
    assert (found["n"], found["losses"]) == (seen["n"], seen["losses"])
    assert (found["transfer"], found["verdict"]) == (None, seen["verdict"])
    # Log-probability and entropy were measured otherwise: nothing is said of their drift.
    seen_of = [name for name in DRIFT_FEATURES if name not in ("answer_logprob", "answer_entropy")]
    assert [row["feature"] for row in found["drift"]] == seen_of
    code, _, err = call(POLICY, FRESH)
    assert code == 2
    assert "entropy source 'full', got 'none'" in err


def test_another_engine_is_remarked_on(call: Call) -> None:
    engine = load_policy(POLICY).content["engine"] | {"dtype": "bfloat16"}
    found = verified(call, rebound(engine=engine), FRESH)
    assert any(
        "run `stopadvisor verify` before you rely on it" in remark for remark in found["remarks"]
    )


def test_answers_must_be_normalised_alike(call: Call) -> None:
    run = RunDirectory.load(FRESH)
    run.annotate(grading={"normalizer": "1", "grader": "by hand"})
    found = verified(call, POLICY, FRESH)
    assert any("graded by by hand" in remark for remark in found["remarks"])
    run.annotate(grading={"normalizer": "0", "grader": "by hand"})
    code, _, err = call(POLICY, FRESH)
    assert code == 2
    assert "--regrade" in err


@pytest.mark.parametrize("where", ["nowhere", "workload.jsonl"])
def test_what_is_no_run_is_refused(call: Call, where: str) -> None:
    Path("workload.jsonl").write_text("{}\n")
    code, _, err = call(POLICY, where)
    assert code == 2
    assert where in err


def test_a_full_budget_policy_holds_nothing_to_verify(call: Call) -> None:
    save_policy(policy_from(full_budget_content()), "full.joblib")
    code, _, err = call("full.joblib", FRESH, "--transfer")
    assert code == 2
    assert "full-budget policy has no certificate" in err


# --- The ledger -----------------------------------------------------------------------------------


def test_opening_calibration_questions_is_a_look(call: Call) -> None:
    first = verified(call, POLICY, FRESH)
    looks = looks_of(FRESH)
    assert [dict(look.asked)["protocol"] for look in looks] == ["verify"]
    split = load_policy(POLICY).content["split"]
    assert not set(looks[0].questions) & {*split["fit"], *split["calibration"]}
    assert any("recorded as a look" in remark for remark in first["remarks"])
    again = verified(call, POLICY, FRESH)
    assert looks_of(FRESH) == looks
    assert not any("recorded as a look" in remark for remark in again["remarks"])


def test_test_only_leaves_them_closed(call: Call) -> None:
    found = verified(call, POLICY, FRESH, "--test-only")
    assert looks_of(FRESH) == []
    edit_records(FRESH, flip_calibration)
    assert verified(call, POLICY, FRESH, "--test-only") == found
    # Its own run's calibration questions are left out anyhow.
    before = looks_of(RUN)
    whole, part = verified(call, POLICY, RUN), verified(call, POLICY, RUN, "--test-only")
    assert (whole["part"], part["part"], part["n_left_out"]) == ("all", "test", 0)
    for name in ("n", "losses", "total_saving_ci95", "drift"):
        assert whole[name] == part[name]
    assert looks_of(RUN) == before


def test_a_run_put_back_as_a_whole_does_not_hold_the_policy_s_look(call: Call) -> None:
    assert not any(
        "does not hold the look" in text for text in verified(call, POLICY, RUN)["remarks"]
    )
    forget_looks(RUN)  # the log and the run's own note
    (remark,) = [t for t in verified(call, POLICY, RUN)["remarks"] if "does not hold the look" in t]
    assert load_policy(POLICY).content["certificate"]["ledger_head"][:8] in remark


def another(number: int) -> Path:
    """The policy under another digest."""
    versions = load_policy(POLICY).content["versions"] | {"numpy": str(number)}
    return rebound(versions=versions)


@pytest.mark.slow
def test_policies_on_the_same_questions_are_counted(call: Call) -> None:
    first = verified(call, POLICY, FRESH, "--test-only")
    assert first["check"] == {"number": 1, "planned": None, "spent": 0.05}
    assert verified(call, POLICY, FRESH, "--test-only") == first  # the same again
    for number in (2, 3):
        found = verified(call, another(number), FRESH, "--test-only")
        assert (found["check"]["number"], found["delta"]) == (number, 0.05)
        assert found["check"]["spent"] == pytest.approx(0.05 * number)
        (remark,) = [text for text in found["remarks"] if "policy number" in text]
        assert f"up to {0.05 * number:g} on either side" in remark
    assert verified(call, POLICY, FRESH, "--test-only") == first
    code, _, err = call(another(4), FRESH, "--test-only", "--looks", "4")
    assert code == 2
    assert "declared with the first one" in err


def test_planned_policies_share_delta(call: Call) -> None:
    first = verified(call, POLICY, FRESH, "--test-only", "--looks", "2")
    assert (first["delta"], first["check"]["planned"]) == (0.025, 2)
    limit = upper_limit(first["losses"], first["n"], 0.025)
    assert first["upper"] == pytest.approx(limit)
    second = verified(call, another(2), FRESH, "--test-only")  # the plan holds unasked
    assert (second["delta"], second["check"]["number"]) == (0.025, 2)
    assert second["check"]["spent"] == pytest.approx(0.05)
    code, out, err = call(another(3), FRESH, "--test-only")
    assert (code, out) == (2, "")
    assert "all 2 planned policies were checked" in err


# --- Archives -------------------------------------------------------------------------------------


def test_archives(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    write_archive(Path("a.npz"))
    write_archive(Path("b.npz"), **archive_arrays(seed=1))
    with_test = ["assess", "a.npz", "--split", "40/40/20", "--families", "confidence"]
    assert main(with_test) == 0
    words = ["calibrate", *CERTIFY, "a.npz", "--alpha", "0.3", "--families", "confidence"]
    assert main([*words, "--out", "p.joblib"]) == 0
    capsys.readouterr()
    same = verified(call, "p.joblib", "a.npz")
    split = load_policy("p.joblib").content["split"]
    assert same["n"] == len(split["test"]) > 0
    other = verified(call, "p.joblib", "b.npz")
    assert (other["n"], other["n_met_before"]) == (200, 0)
    assert any("archives do not name their questions" in remark for remark in other["remarks"])
    assert np.isfinite(other["total_saving_pct"])
    # The look at b.npz is on record, because a certificate from there would come after it.
    (folder,) = Path("runs").glob("b-archive-*")
    assert [look.opened for look in looks_of(folder)] == [True]


def test_archives_with_ids_know_the_questions_of_other_archives(
    call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    names = np.array([f"q{i}" for i in range(300)])
    write_archive(Path("a.npz"), ids=names[:200])
    write_archive(Path("b.npz"), **archive_arrays(seed=1), ids=names[100:])
    words = ["calibrate", *CERTIFY, "a.npz", "--alpha", "0.3", "--families", "confidence"]
    assert main([*words, "--out", "p.joblib"]) == 0
    capsys.readouterr()
    used = load_policy("p.joblib").content["split"]
    spent = {*used["fit"], *used["calibration"]} & {name_key(name) for name in names[100:]}
    found = verified(call, "p.joblib", "b.npz")
    assert (found["n"], found["n_met_before"]) == (200 - len(spent), len(spent))
    assert spent
    assert not any("archives do not name" in remark for remark in found["remarks"])
