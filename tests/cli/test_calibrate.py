"""`calibrate`: certificate, policy, looks, exit codes, refusals."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stopadvisor import __version__
from stopadvisor.cli.main import main
from stopadvisor.policy.frozen import load_policy
from stopadvisor.policy.run_policies import calibration_of
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.look_log import digests_of
from stopadvisor.runs.sources import open_source
from stopadvisor.workload.questions import PARTS
from tests.material import (
    PLAN,
    Call,
    edit_records,
    flip_calibration,
    forget_looks,
    looks_of,
    make_run,
    write_archive,
)
from tests.pages import Page
from tests.policy_content import certificate_in

FAST = ["--families", "entropy,confidence"]
"""One chain instead of two, in a fraction of the time."""
FAILING = [*FAST, "--alpha", "0.03"]
"""Fails after `lose_all`, though not beforehand."""
BOLD = [*FAST, "--alpha", "0.75"]
"""Certifies all the same."""
RUN = Path("runs/sums")


@pytest.fixture(name="call")
def calibrating(call: Call) -> Call:
    """As `call`; the command is this one where a test names no other."""

    def run(*words: str | Path, command: str | None = "calibrate") -> tuple[int, str, str]:
        """The command at a usual alpha where a test names none, and whatever the advice is."""
        if command == "calibrate":
            words = (*words, "--despite", "advice", "--despite", "large-alpha")
            if "--alpha" not in words:
                words = (*words, "--alpha", "0.15")
        return call(*words, command=command)

    return run


def calibrated(call: Call, *words: str, code: int = 0) -> dict[str, Any]:
    found, out, err = call(*words, "--json")
    assert found == code, out + err
    document: dict[str, Any] = json.loads(out)
    return document


def refused(call: Call, *words: str, command: str = "calibrate") -> str:
    """The one line of a refusal with exit code 2."""
    code, out, err = call(*words, command=command)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    lines = [line for line in err.splitlines() if line.startswith(("stopadvisor: ", "Error: "))]
    assert len(lines) == 1, err
    return lines[0]


def lose_many(row: dict[str, Any], part: str) -> None:
    """For `edit_records`: stops at every second calibration question lose a right answer."""
    if part == "calibration" and zlib.crc32(row["id"].encode()) % 2:
        row["natural_correct"] = True
        for checkpoint in row["checkpoints"]:
            checkpoint["correct"] = False


# --- The document and the policy ------------------------------------------------------------------


def test_the_document_and_the_policy_say_the_same(call: Call) -> None:
    found = calibrated(call, str(RUN))
    assert len(found["tested"]) == 2  # two chains by default
    assert found["certificate"]["chain_delta"] == pytest.approx(0.05)  # of the advised rule, all
    assert (found["certified"], found["kind"], found["refusal"]) == (True, "stop", None)
    assert found["confidence"] == pytest.approx(0.95)
    policy = load_policy(found["policy"])
    assert list(policy.budgets) == found["schedule"]
    assert policy.family == found["family"]
    assert certificate_in(policy) == found["certificate"]


def test_what_is_printed_is_what_is_written_beside_the_policy(call: Call) -> None:
    _, out, _ = call(str(RUN), "--json", *FAST)
    written = Path(json.loads(out)["policy"])
    assert (RUN / "calibration.json").read_text(encoding="utf-8") == out
    assert calibration_of(written).read_text(encoding="utf-8") == out
    assert (RUN / "policy.joblib").read_bytes() == written.read_bytes()
    Path("elsewhere").mkdir()
    call(str(RUN), "--out", "elsewhere/p.joblib", *FAST)
    found = sorted(p.name for p in Path("elsewhere").iterdir())
    assert found == ["p.joblib", "p.joblib.calibration.json"]
    assert (RUN / "calibration.json").read_text(encoding="utf-8") == out


def test_nothing_certified_is_exit_3_and_a_full_budget_policy(call: Call) -> None:
    found = calibrated(call, str(RUN), "--alpha", "0.001", *FAST, code=3)
    assert (found["certified"], found["kind"]) == (False, "full-budget")
    assert found["refusal"]["reason"]
    for name in ("family", "schedule", "where", "threshold", "certificate", "expected"):
        assert found[name] is None
    policy = load_policy(found["policy"])
    assert policy.kind == "full-budget"


def test_no_test_part_means_figures_from_calibration(call: Call, tmp_path: Path) -> None:
    make_run(tmp_path / "two", 300, fractions=(0.4, 0.6, 0.0))
    found = calibrated(call, "two", *FAST)
    expected, certificate = found["expected"], found["certificate"]
    assert not [name for name in expected if name.startswith("test_")]
    assert expected["calibration_n"] == certificate["n"]
    assert expected["calibration_risk"] == certificate["losses"] / certificate["n"]
    low, high = expected["calibration_total_saving_band95"]
    assert low < expected["calibration_total_saving_pct"] < high
    said = " ".join(call("two", *FAST)[1].split())
    assert f"({certificate['n']} calibration questions" in said


def test_json_format_holds_the_same_policy(call: Call) -> None:
    one = calibrated(call, str(RUN), *FAST)
    other = calibrated(call, str(RUN), "--out", "policy.json", *FAST)
    assert json.loads(Path("policy.json").read_text())["digest"] == other["digest"]
    first, second = (dict(load_policy(found["policy"]).content) for found in (one, other))
    assert first == second


def test_an_archive_gives_a_policy_bound_to_no_model(call: Call) -> None:
    write_archive(Path("raw.npz"))
    found = calibrated(call, "raw.npz", *FAST)
    content = load_policy(found["policy"]).content
    assert content["model"] is None
    assert found["certificate"]["reference"] == "last-checkpoint"
    assert any("bound to no model" in remark for remark in found["remarks"])


def test_bare_takes_the_run_assessed_last_and_says_which(call: Call) -> None:
    assert "no assessed run" in refused(call)
    call(str(RUN), *FAST, "--no-report", command="assess")
    shutil.copytree(RUN, "runs/older")
    os.utime("runs/older/assessment.json", (1, 1))
    code, _, err = call(*FAST)
    assert code == 0
    assert "calibrating runs/sums" in err


def test_settings_come_from_the_assessment(call: Call) -> None:
    call(
        str(RUN), "--serving", "prefix-cache", "--alpha", "0.2", "--delta", "0.1",
        "--families", "entropy", "--price", "1/0.1/4", "--no-report",
        command="assess",
    )  # fmt: skip
    found = calibrated(call, str(RUN), "--alpha", "0.3")
    assert (found["serving"], found["alpha"], found["delta"]) == ("prefix-cache", 0.3, 0.1)
    assert [row["family"] for row in found["tested"]] == ["entropy"]
    (look,) = looks_of(RUN)
    assert look.asked["weights"]["decoded"] == 4.0
    forget_looks(RUN)
    other = calibrated(call, str(RUN), "--serving", "kv-fork", "--alpha", "0.15")
    assert (other["serving"], other["alpha"]) == ("kv-fork", 0.15)


def _parts(path: Path) -> list[str]:
    run = RunDirectory.load(path)
    return [PARTS[p] for p in run.parts(run.table()).tolist()]


# --- Looks ----------------------------------------------------------------------------------------


def test_the_look_is_on_disk_before_an_outcome_is_computed(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        assert len(looks_of(RUN)) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr("stopadvisor.certification.certify.calibrate", stop)
    assert call(str(RUN), *FAST)[0] == 130
    assert not (RUN / "policy.joblib").exists()
    assert len(looks_of(RUN)) == 1


def test_the_same_request_is_the_same_look_and_the_same_policy(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = calibrated(call, str(RUN), *FAST)
    before = load_policy(first["policy"])
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "4000000000")  # time goes on
    again = calibrated(call, str(RUN), *FAST)
    assert (first["look"], first["certificate"]) == (again["look"], again["certificate"])
    assert len(looks_of(RUN)) == 1
    assert load_policy(again["policy"]).digest == before.digest


def test_the_digest_of_the_look_stands_in_calibration_and_policy(call: Call) -> None:
    found = calibrated(call, str(RUN), *FAST)
    (look,) = looks_of(RUN)
    assert look.certified is True
    assert found["look"]["head"] == found["certificate"]["ledger_head"] == look.head
    manifest = json.loads((RUN / "manifest.json").read_bytes())
    log = (RUN / "looks.jsonl").read_bytes()
    assert manifest["looks"] == {"lines": 3, "sha256": hashlib.sha256(log).hexdigest()}


def test_the_certificate_names_what_it_was_computed_from(call: Call) -> None:
    found = calibrated(call, str(RUN), *FAST)
    source = open_source(RUN)
    assert found["certificate"]["provenance"] == {
        "probes_sha256": source.fingerprint(),
        "labels_sha256": source.labels_fingerprint(),
    }
    content = load_policy(found["policy"]).content
    assert content["certificate"]["provenance"] == found["certificate"]["provenance"]
    assert content["workload_sha256"] == source.workload_sha256
    assert content["versions"]["stopadvisor"] == __version__
    out = call(found["policy"], command="inspect")[1]
    shown = out.partition("Made from")[2].partition("File")[0]
    hashes = [source.workload_sha256, source.fingerprint(), source.labels_fingerprint()]
    for value in (*hashes, content["certificate"]["ledger_head"]):
        assert f"{value[:16]}..." in shown
    assert f"stopadvisor {__version__}" in shown


def test_no_other_request_follows_a_certificate(call: Call) -> None:
    first = calibrated(call, str(RUN), *FAST)
    before = (RUN / "policy.joblib").read_bytes()
    line = refused(call, str(RUN), "--alpha", "0.2", *FAST)
    assert "look 1 at these calibration questions" in line
    assert "ended in a certificate" in line
    assert "--fresh" in line
    assert (RUN / "policy.joblib").read_bytes() == before
    assert [look.certified for look in looks_of(RUN)] == [True]
    assert calibrated(call, str(RUN), *FAST)["look"] == first["look"]


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_failed_look_shows_that_it_failed_and_nothing_else(call: Call) -> None:
    """Whatever the labels were: a later request can depend on one bit of them."""
    shown = []
    edit_records(RUN, lose_many)
    for step in range(2):
        found = calibrated(call, str(RUN), *FAILING, code=3)
        assert found["look"].pop("head")
        assert found["look"]["opened"] is False
        assert found.pop("policy").endswith(f"{found.pop('digest')[:8]}.joblib")  # of the time too
        shown.append(found)
        if step == 0:
            call(str(RUN), "--no-report", "--alpha", "0.03", *FAST, command="assess")
            assert call(str(RUN), command="report")[0] == 0
            page = Page((RUN / "report.html").read_text(encoding="utf-8")).text
            assert "opened by calibrate" not in page
            study = call("ablation", str(RUN), command="study")[1]
            assert "fit questions alone" in " ".join(study.split())
        forget_looks(RUN)

        def lose_fewer(row: dict[str, Any], part: str) -> None:
            if part == "calibration":
                row["natural_correct"] = row["prompt_tokens"] % 3 > 0

        edit_records(RUN, lose_fewer)
    assert shown[0] == shown[1]
    assert shown[0]["refusal"]["labels_needed"] > 0  # as fit questions knew beforehand
    # Declared as the only look it says why.
    found = calibrated(call, str(RUN), *FAILING, "--looks", "1", code=3)
    assert found["look"]["opened"] is True
    assert "costs more than full thinking" in found["refusal"]["reason"]


def test_what_cannot_succeed_opens_no_outcome_and_spends_no_look(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stopadvisor.certification.looks.hand_out", None)
    monkeypatch.setattr("stopadvisor.certification.looks.hand_out", None)
    found = calibrated(call, str(RUN), "--alpha", "0.001", *FAST, code=3)
    assert (found["look"], found["confidence"], found["kind"]) == (None, None, "full-budget")
    assert "not even with no loss" in found["refusal"]["reason"]
    assert looks_of(RUN) == []
    digest = load_policy(found["policy"]).digest
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    calibrated(call, str(RUN), "--alpha", "0.001", *FAST, code=3)
    assert load_policy(found["policy"]).digest == digest
    monkeypatch.undo()
    os.chdir(RUN.resolve().parents[1])


def test_where_no_rule_saves_anything_no_look_is_spent(call: Call) -> None:
    def dear(row: dict[str, Any], part: str) -> None:
        for checkpoint in row["checkpoints"]:
            checkpoint["probe_tokens"] = 4000

    edit_records(RUN, dear)
    found = calibrated(call, str(RUN), *FAST, code=3)
    assert (found["look"], found["tested"]) == (None, [])
    assert "no rule saves anything on fit questions" in found["refusal"]["reason"]
    assert looks_of(RUN) == []
    text = " ".join(call(str(RUN), *FAST)[1].split())
    assert "none was taken: no calibration question was opened" in text


def _without_losers(run: Path) -> None:
    lines = (run / "probes.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if zlib.crc32(json.loads(line)["id"].encode()) % 4]
    (run / "probes.jsonl").write_text("".join(kept), encoding="utf-8")


@pytest.mark.parametrize(
    "change",
    [lambda run: edit_records(run, flip_calibration), _without_losers],
    ids=["flipped", "removed"],
)
def test_lines_that_a_look_opened_are_missed(call: Call, change: Callable[[Path], None]) -> None:
    edit_records(RUN, lose_many)
    calibrated(call, str(RUN), *FAILING, code=3)
    before = (RUN / "probes.jsonl").read_bytes()
    change(RUN)
    for words in (FAILING, BOLD):
        line = refused(call, str(RUN), *words)
        assert re.search(r"probes.jsonl: \d+ of \d+ lines that look 1 of .* are gone or", line)
    (RUN / "probes.jsonl").write_bytes(before)
    assert calibrated(call, str(RUN), *BOLD)["look"]["number"] == 2


def test_labels_that_are_graded_again_are_another_look(call: Call, probed_run: Path) -> None:
    edit_records(RUN, lose_many)
    calibrated(call, str(RUN), *FAILING, code=3)
    again = ("--regrade", "--alpha", "0.15", "--no-report", "--quiet")
    assert call(str(RUN), *again, command="assess")[0] == 0
    found = calibrated(call, str(RUN), *FAILING, code=call(str(RUN), *FAILING)[0])
    assert found["look"]["number"] == len(looks_of(RUN)) == 2


def test_another_version_of_ours_takes_the_same_look(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = calibrated(call, str(RUN), *FAST)
    for name in ("stopadvisor.certification.looks", "stopadvisor.certification.export"):
        monkeypatch.setattr(f"{name}.__version__", "9.9.9", raising=False)
    again = calibrated(call, str(RUN), *FAST)
    assert (again["look"], again["confidence"]) == (first["look"], pytest.approx(0.95))
    assert load_policy(again["policy"]).content["versions"]["stopadvisor"] == "9.9.9"


def test_planned_looks_share_delta(call: Call) -> None:
    edit_records(RUN, lose_many)
    words = [*FAST, "--alpha", "0.05"]
    first = calibrated(call, str(RUN), "--looks", "2", *words, code=3)
    assert first["confidence"] == pytest.approx(0.95)
    second = calibrated(call, str(RUN), *BOLD)  # the plan holds unasked
    assert second["confidence"] == pytest.approx(0.95)
    assert second["certificate"]["chain_delta"] == pytest.approx(0.025)
    assert "used up" in refused(call, str(RUN), "--alpha", "0.1", *FAST)


@pytest.mark.slow
def test_fresh_takes_only_questions_that_no_look_has_used(call: Call, probed_run: Path) -> None:
    calibrated(call, str(RUN), *FAST)
    assert "--fresh: all" in refused(call, str(RUN), "--fresh", *FAST)
    shutil.copy(probed_run.with_name("run-sums.jsonl"), "runs/sums-sums.jsonl")
    make_run(RUN, 600)  # the same run goes on
    found = calibrated(call, str(RUN), "--fresh", *FAST)
    old, new = looks_of(RUN)
    assert not set(old.questions) & set(new.questions)
    assert found["look"]["number"] == 1
    assert found["confidence"] == pytest.approx(0.95)
    assert found["certificate"]["n"] == len(new.questions)
    # What was looked at chooses now, and the file names all of it for `verify` to refuse.
    split = load_policy(found["policy"]).content["split"]
    assert digests_of(split["calibration"]) == new.questions
    assert set(old.questions) < set(digests_of(split["fit"]))
    assert calibrated(call, str(RUN), "--fresh", *FAST)["look"] == found["look"]  # the same again
    # A rule was chosen by them: never again do they certify.
    assert "served as fit questions" in refused(call, str(RUN), "--alpha", "0.3", *FAST)


def test_cut_traces_are_refused_before_a_look_is_spent(call: Call, tmp_path: Path) -> None:
    make_run(tmp_path / "cut", 300, plan=replace(PLAN, max_think=100))
    assert "--despite", "truncated" in refused(call, "cut", *FAST)
    assert looks_of(Path("cut")) == []
    found = calibrated(call, "cut", "--despite", "truncated", *FAST)
    assert found["certificate"]["truncated_share"] > 0.1


def leave_out(*budgets: int) -> Callable[[dict[str, Any], str], None]:
    """For `edit_records`: long calibration questions were not probed at these budgets."""

    def edit(row: dict[str, Any], part: str) -> None:
        if part == "calibration" and row["trace_tokens"] > max(budgets):
            row["checkpoints"] = [c for c in row["checkpoints"] if c["budget"] not in budgets]

    return edit


def test_nothing_is_advised_that_calibration_questions_were_not_probed_for(call: Call) -> None:
    edit_records(RUN, leave_out(16, 48))
    code, out, err = call(str(RUN), "--alpha", "0.15", "--json", command="assess")
    assert code == 0, err
    assert not {16, 48} & set(json.loads(out)["recommendation"]["schedule"])
    assert not {16, 48} & set(calibrated(call, str(RUN))["schedule"])
    assert len(looks_of(RUN)) == 1


def test_a_rule_that_cannot_be_tested_costs_no_look(call: Call) -> None:
    def forget_entropy(row: dict[str, Any], part: str) -> None:
        if part == "calibration":
            for checkpoint in row["checkpoints"]:
                checkpoint["mean_entropy"] = None

    edit_records(RUN, forget_entropy)
    said = refused(call, str(RUN), "--families", "entropy", "--alpha", "0.15")
    assert "the entropy rule cannot be tested on these calibration questions" in said
    assert looks_of(RUN) == []


def test_a_copy_without_its_log_does_not_start_at_the_first_look(call: Call) -> None:
    shutil.copytree(RUN, "runs/before")
    edit_records(RUN, lose_many)
    edit_records(Path("runs/before"), lose_many)
    calibrated(call, str(RUN), *FAILING, code=3)
    shutil.copytree(RUN, "runs/after")
    Path("runs/after/looks.jsonl").unlink()
    assert "is missing" in refused(call, "runs/after", *BOLD)
    shutil.rmtree("runs/after")
    found = calibrated(call, "runs/before", *BOLD)
    assert (found["look"]["number"], found["confidence"]) == (2, pytest.approx(0.9))
    assert "in before, which holds the same probes" in refused(call, str(RUN), *FAST)


# --- Blindness ------------------------------------------------------------------------------------


def test_calibration_labels_move_no_part_of_the_rule(call: Call) -> None:
    found = calibrated(call, str(RUN), "--families", "learned")
    before = load_policy(found["policy"]).content

    def soften(row: dict[str, Any], part: str) -> None:
        if part == "calibration":
            row["natural_correct"] = False  # nothing can be lost: the boldest rule certifies

    edit_records(RUN, soften)
    forget_looks(RUN)
    again = calibrated(call, str(RUN), "--families", "learned")
    after = load_policy(again["policy"]).content
    same = ("family", "features", "mean", "scale", "coef", "intercept", "budgets", "profile")
    assert {name: before[name] for name in same} == {name: after[name] for name in same}
    assert after["decision_threshold"] < before["decision_threshold"]
    assert again["profile"] == found["profile"]


# --- For people -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 0, "Certified."),
        (["--alpha", "0.001"], 3, "Not certified. Keep full thinking."),
        (["--looks", "3", "--alpha", "0.3"], 0, "calibration questions lost (exact test"),
    ],
    ids=["certified", "not certified", "planned"],
)
def test_the_summary_fits_eighty_columns(
    call: Call, words: list[str], code: int, said: str
) -> None:
    found, out, err = call(str(RUN), "--serving", "kv-fork", *words, *FAST)
    assert found == code, err
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80, out
    assert said in " ".join(out.split())
    assert "stopadvisor inspect runs/sums/policy.joblib" in out


@pytest.mark.slow
def test_the_summary_names_claim_evidence_and_what_the_limit_is_not(call: Call) -> None:
    text = " ".join(call(str(RUN), "--verbose")[1].split())
    document = json.loads((RUN / "calibration.json").read_text(encoding="utf-8"))
    certificate = document["certificate"]
    assert certificate["claim"].replace(" %", "%") in text
    assert f"{certificate['losses']} of {certificate['n']} calibration questions lost" in text
    assert "at this threshold alone" in text
    assert "pointwise, not the promise" in text
    assert "of those that full thinking gets right" in text
    assert f"({document['expected']['test_n']} test questions" in text
    assert "pointwise" not in call(str(RUN))[1]


def test_quiet_says_nothing_but_the_result(call: Call) -> None:
    assert call(str(RUN), "--quiet", *FAST)[2] == ""


# --- Bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--alpha", "0"], "alpha must be in (0, 1), got 0.0"),
        (["--alpha", "0.99"], "alpha must be below the full-thinking accuracy"),
        (["--delta", "0"], "delta must be in (0, 1), got 0.0"),
        (["--families", "magic"], "families must be among"),
        (["--out", "nowhere/p.joblib"], "there is no such folder"),
        (["--out", "runs"], "it is a folder"),
        (["--looks", "0"], "0 is not in the range"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_requests_are_one_line_and_no_look(call: Call, words: list[str], said: str) -> None:
    options = words if "--families" in words else [*words, *FAST]
    assert said in refused(call, str(RUN), *options)
    assert looks_of(RUN) == []


def test_bad_targets_are_one_line(call: Call) -> None:
    Path("w.jsonl").write_text("{}", encoding="utf-8")
    assert "`stopadvisor probe` makes a run" in refused(call, "w.jsonl")
    assert "no such file" in refused(call, "nothing")
    (RUN / "assessment.json").write_text("{", encoding="utf-8")
    assert "assess again" in refused(call, str(RUN))
    (RUN / "assessment.json").write_text('{"protocol": "deploy"}', encoding="utf-8")
    assert "assess again" in refused(call, str(RUN))
    (RUN / "assessment.json").unlink()
    (RUN / "looks.jsonl").write_text("{\n", encoding="utf-8")
    assert "looks.jsonl: line 1 is damaged" in refused(call, str(RUN))


def test_a_full_disk_is_one_line_and_no_outcome(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in refused(call, str(RUN), *FAST)
    assert not (RUN / "policy.joblib").exists()


def test_a_wrong_value_is_refused_before_a_run_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate", "--alpha", "2"]) == 2
    assert capsys.readouterr().err == "stopadvisor: alpha must be in (0, 1), got 2.0\n"


def test_a_policy_that_costs_more_on_test_questions_says_so(call: Call) -> None:
    def dear(row: dict[str, Any], part: str) -> None:
        if part == "test":
            for checkpoint in row["checkpoints"]:
                checkpoint["probe_tokens"] = 4000

    edit_records(RUN, dear)
    remarks = calibrated(call, str(RUN), *FAST)["remarks"]
    assert any("costs more than full thinking under vllm" in text for text in remarks)
