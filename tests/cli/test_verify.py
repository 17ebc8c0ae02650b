"""`verify`: verdicts and exit codes, its fields, refusals, looks, what it says in words."""

from __future__ import annotations

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
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.stats.bounds import upper_limit
from tests.material import (
    CERTIFY,
    Call,
    archive_arrays,
    edit_records,
    flip_calibration,
    forget_looks,
    keep_records,
    looks_of,
    make_run,
    write_archive,
)
from tests.policy_content import policy_from

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_draws")]

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


@pytest.fixture(name="call")
def with_material(call: Call, material: Path) -> Call:
    shutil.copytree(material, ".", dirs_exist_ok=True)
    return call.of("verify")


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


def test_a_policy_is_confirmed_on_fresh_questions_at_the_price_of_a_look(call: Call) -> None:
    found = call.json(POLICY, FRESH)
    assert found["verdict"] == "confirmed"
    assert found["category_scope"] == "marginal"
    assert found["digest"] == load_policy(POLICY).digest
    assert found["transfer"] is None
    assert not any("has gold" in remark for remark in found["remarks"])
    looks = looks_of(FRESH)
    assert [dict(look.asked)["protocol"] for look in looks] == ["verify"]
    split = load_policy(POLICY).content["split"]
    assert not set(looks[0].questions) & {*split["fit"], *split["calibration"]}
    assert any("recorded as a look" in remark for remark in found["remarks"])
    # Open is open, and a gate opens, whatever the price.
    again = call.json(POLICY, FRESH, "--gate", "--price", "0/0/2", "--serving", "black-box")
    assert (again["serving"], again["unit"]) == ("black-box", "money per million tokens")
    assert looks_of(FRESH) == looks
    assert not any("recorded as a look" in remark for remark in again["remarks"])


def test_a_contradiction_is_exit_4(call: Call) -> None:
    edit_records(FRESH, lose_everything)
    found = call.json(POLICY, FRESH, code=4)
    assert found["verdict"] == "contradicted"
    assert found["lower"] > found["alpha"]
    code, out, _ = call(POLICY, FRESH, "--quiet", "--gate")
    assert code == 4
    assert out.startswith("Contradicted: ")
    assert named(out) == f"assess {FRESH} --alpha 0.15"


def test_too_few_questions_are_silent(call: Call) -> None:
    run = RunDirectory.load(RUN)
    table = run.table()
    keep = [r for r, part in zip(run.records(), run.parts(table.groups), strict=True) if part == 2][
        :4
    ]
    keep_records(run, keep)
    found = call.json(POLICY, RUN)
    assert (found["verdict"], found["n"], found["detectable_risk"] is None) == ("silent", 4, False)
    certificate = load_policy(POLICY).content["certificate"]
    assert found["expected_risk"] == certificate["losses"] / certificate["n"]
    said = call(POLICY, RUN)[1]
    assert f"if {share(found['expected_risk'])} are lost, as in calibration" in flat(said)
    assert named(said) == f"probe WORKLOAD --like {POLICY}"


def test_a_gate_does_not_open_for_silence(call: Call) -> None:
    few = make_run(Path("runs/few"), 310)
    code, _, err = call(POLICY, few, "--gate")
    assert code == 7, err
    assert call(POLICY, few)[0] == 0  # no gate, no failure


# --- What is counted ------------------------------------------------------------------------------


def test_traffic_that_moved_is_assessed_anew_where_it_decides_nothing(call: Call) -> None:
    """The promise does not speak of it; the commands that are named lead to one that does."""

    def waver(row: dict[str, Any], part: str) -> None:
        for checkpoint in row["checkpoints"]:
            checkpoint["mean_entropy"] = 9.0

    edit_records(FRESH, waver)
    fresh = RunDirectory.load(FRESH)
    keep_records(fresh, fresh.records()[300:360])
    _, out, _ = call(POLICY, FRESH)
    assert out.startswith("Neither confirmed nor broken")
    assert "add labels" not in out
    assert "not what was calibrated: the promise does not cover it." in flat(out)
    assert named(out) == f"assess {FRESH} --alpha 0.15"
    assert main([*shlex.split(named(out))]) == 0


# --- What it is bound to --------------------------------------------------------------------------


def rebound(**changes: Any) -> Path:
    content = plain(load_policy(POLICY).content)
    save_policy(policy_from({**content, **changes}), "other.joblib")
    return Path("other.joblib")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"entropy_source": "top-k:20"}, "entropy source"),
        ({"prompt_template": "Well: {question}"}, "prompt template"),
        ({"task": "choice"}, "answers task 'choice'"),
    ],
    ids=["entropy", "template", "task"],
)
def test_other_probes_are_refused_unless_as_a_transfer(
    call: Call, change: dict[str, Any], message: str
) -> None:
    path = rebound(**change)
    err = call.refused(path, FRESH)
    assert message in err
    assert "--transfer" in err
    assert not (FRESH / "looks.jsonl").exists()  # refused before anything was opened
    found = call.json(path, FRESH, "--transfer")
    assert found["transfer"] == "zero-shot"
    assert any(message in remark for remark in found["remarks"])


def test_answers_must_be_normalised_alike(call: Call) -> None:
    run = RunDirectory.load(FRESH)
    run.annotate(grading={"normalizer": "1", "grader": "by hand"})
    found = call.json(POLICY, FRESH)
    assert any("graded by by hand" in remark for remark in found["remarks"])
    run.annotate(grading={"normalizer": "0", "grader": "by hand"})
    assert "--regrade" in call.refused(POLICY, FRESH)


# --- The ledger -----------------------------------------------------------------------------------


def test_test_only_leaves_them_closed(call: Call) -> None:
    found = call.json(POLICY, FRESH, "--test-only")
    assert looks_of(FRESH) == []
    edit_records(FRESH, flip_calibration)
    assert call.json(POLICY, FRESH, "--test-only") == found
    # Its own run's calibration questions are left out anyhow.
    before = looks_of(RUN)
    whole, part = call.json(POLICY, RUN), call.json(POLICY, RUN, "--test-only")
    assert (whole["part"], part["part"], part["n_left_out"]) == ("all", "test", 0)
    for name in ("n", "losses", "total_saving_ci95", "drift"):
        assert whole[name] == part[name]
    assert looks_of(RUN) == before


def test_a_run_put_back_as_a_whole_does_not_hold_the_policy_s_look(call: Call) -> None:
    assert not any("does not hold the look" in text for text in call.json(POLICY, RUN)["remarks"])
    forget_looks(RUN)  # the log and the run's own note
    (remark,) = [t for t in call.json(POLICY, RUN)["remarks"] if "does not hold the look" in t]
    assert load_policy(POLICY).content["certificate"]["ledger_head"][:8] in remark


def another(number: int) -> Path:
    """The policy under another digest."""
    versions = load_policy(POLICY).content["versions"] | {"numpy": str(number)}
    return rebound(versions=versions)


def test_policies_on_the_same_questions_are_counted(call: Call) -> None:
    first = call.json(POLICY, FRESH, "--test-only")
    assert first["check"] == {"number": 1, "planned": None, "spent": 0.05}
    assert not any("check number" in text for text in first["remarks"])
    assert call.json(POLICY, FRESH, "--test-only") == first  # the same again
    for number in (2, 3):
        found = call.json(another(number), FRESH, "--test-only")
        assert (found["check"]["number"], found["delta"]) == (number, 0.05)
        assert found["check"]["spent"] == pytest.approx(0.05 * number)
        (remark,) = [text for text in found["remarks"] if "check number" in text]
        assert f"up to {0.05 * number:g} on either side" in remark
    assert call.json(POLICY, FRESH, "--test-only") == first
    assert "declared with the first one" in call.refused(
        another(4), FRESH, "--test-only", "--looks", "4"
    )


def test_planned_policies_share_delta(call: Call) -> None:
    first = call.json(POLICY, FRESH, "--test-only", "--looks", "2")
    assert (first["delta"], first["check"]["planned"]) == (0.025, 2)
    limit = upper_limit(first["losses"], first["n"], 0.025)
    assert first["upper"] == pytest.approx(limit)
    second = call.json(another(2), FRESH, "--test-only")  # the plan holds unasked
    assert (second["delta"], second["check"]["number"]) == (0.025, 2)
    assert second["check"]["spent"] == pytest.approx(0.05)
    assert not any("check number" in text for text in second["remarks"])
    assert "all 2 planned checks" in call.refused(another(3), FRESH, "--test-only")


# --- Archives -------------------------------------------------------------------------------------


def test_archives(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    write_archive(Path("a.npz"))
    write_archive(Path("b.npz"), **archive_arrays(seed=1))
    with_test = ["assess", "a.npz", "--split", "40/40/20", "--families", "confidence"]
    assert main(with_test) == 0
    words = ["calibrate", *CERTIFY, "a.npz", "--alpha", "0.3", "--families", "confidence"]
    assert main([*words, "--out", "p.joblib"]) == 0
    capsys.readouterr()
    same = call.json("p.joblib", "a.npz")
    split = load_policy("p.joblib").content["split"]
    assert same["n"] == len(split["test"]) > 0
    other = call.json("p.joblib", "b.npz")
    assert (other["n"], other["n_met_before"]) == (200, 0)
    assert any("archives do not name their questions" in remark for remark in other["remarks"])
    assert np.isfinite(other["total_saving_pct"])
    # The look at b.npz is on record, because a certificate from there would come after it.
    (folder,) = Path("runs").glob("b-archive-*")
    assert [look.opened for look in looks_of(folder)] == [True]
