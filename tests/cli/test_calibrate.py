"""`calibrate`: certificate, policy, looks, exit codes, refusals, and a rule from elsewhere."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import zlib
from contextlib import chdir
from pathlib import Path
from typing import Any

import click
import pytest

from stopadvisor import __version__
from stopadvisor.assessment.settings import SettingsOverrides
from stopadvisor.certification import export
from stopadvisor.cli.main import main
from stopadvisor.cli.parts.settings import overrides
from stopadvisor.policy.frozen import load_policy
from stopadvisor.policy.run_policies import calibration_of
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.look_log import digests_of, read_log
from stopadvisor.runs.sources import open_source
from tests.material import (
    CERTIFY,
    Call,
    edit_records,
    flip_calibration,
    forget_looks,
    keep_records,
    looks_of,
    make_run,
    write_archive,
)
from tests.pages import Page
from tests.policy_content import certificate_in

RUN = Path("runs/sums")
LIGHT = ["--families", "confidence"]
FAST = [*CERTIFY, *LIGHT]
"""One chain instead of two, in a fraction of the time."""
LOOSE = [*LIGHT, "--despite", "advice", "--despite", "large-alpha"]
FAILING = [*FAST, "--alpha", "0.03"]
"""Fails after `lose_many`, though not beforehand."""

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("sums", "few_draws")]


@pytest.fixture(name="call")
def calibrating(call: Call) -> Call:
    return call.of("calibrate")


@pytest.fixture(scope="module")
def certified_folder(probed_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `runs/sums`, calibrated there as `FAST` says."""
    folder = tmp_path_factory.mktemp("certified")
    shutil.copytree(probed_run, folder / RUN)
    with chdir(folder):
        assert main(["calibrate", str(RUN), *FAST, "--quiet"]) == 0
    return folder


@pytest.fixture
def certified(certified_folder: Path, sums: Path) -> dict[str, Any]:
    """The calibration of the run, which has its certificate already."""
    shutil.copytree(certified_folder / RUN, sums, dirs_exist_ok=True)
    found: dict[str, Any] = json.loads((sums / "calibration.json").read_bytes())
    return found


def lose_many(row: dict[str, Any], part: str) -> None:
    """For `edit_records`: stops at every second calibration question lose a right answer."""
    if part == "calibration" and zlib.crc32(row["id"].encode()) % 2:
        row["natural_correct"] = True
        for checkpoint in row["checkpoints"]:
            checkpoint["correct"] = False


# --- The document and the policy ------------------------------------------------------------------


def test_the_document_and_the_policy_say_the_same(call: Call) -> None:
    found = call.json(RUN, *CERTIFY)
    assert len(found["tested"]) == 2  # two chains by default
    assert found["certificate"]["chain_delta"] == pytest.approx(0.05)  # of the advised rule, all
    assert (found["certified"], found["kind"], found["refusal"]) == (True, "stop", None)
    assert found["confidence"] == pytest.approx(0.95)
    policy = load_policy(found["policy"])
    assert list(policy.budgets) == found["schedule"]
    assert policy.family == found["family"]
    assert certificate_in(policy) == found["certificate"]


def test_what_is_printed_is_what_is_written_beside_the_policy(call: Call) -> None:
    _, out, _ = call(RUN, "--json", *FAST)
    written = Path(json.loads(out)["policy"])
    assert written.name == f"policy-a15-{load_policy(written).digest[:8]}.joblib"
    assert (RUN / "calibration.json").read_text(encoding="utf-8") == out
    assert calibration_of(written).read_text(encoding="utf-8") == out
    assert (RUN / "policy.joblib").read_bytes() == written.read_bytes()
    Path("elsewhere").mkdir()
    call(RUN, "--out", "elsewhere/p.joblib", *FAST)
    found = sorted(p.name for p in Path("elsewhere").iterdir())
    assert found == ["p.joblib", "p.joblib.calibration.json"]
    assert (RUN / "calibration.json").read_text(encoding="utf-8") == out


def test_bare_takes_the_run_assessed_last_and_says_which(
    call: Call, quickly_assessed_run: Path
) -> None:
    assert "no assessed run" in call.refused()
    for path in (RUN, "runs/older"):
        shutil.copytree(quickly_assessed_run, path, dirs_exist_ok=True)
    os.utime("runs/older/assessment.json", (1, 1))
    assert "calibrating runs/sums" in call(*FAST)[2]


def test_settings_come_from_the_assessment(call: Call) -> None:
    call(
        RUN, "--serving", "prefix-cache", "--alpha", "0.2", "--delta", "0.1",
        "--families", "entropy", "--price", "1/0.1/4",
        command="assess",
    )  # fmt: skip
    found = call.json(RUN, *CERTIFY, "--alpha", "0.3")
    assert (found["serving"], found["alpha"], found["delta"]) == ("prefix-cache", 0.3, 0.1)
    assert [row["family"] for row in found["tested"]] == ["entropy"]
    (look,) = looks_of(RUN)
    assert look.asked["weights"]["decoded"] == 4.0
    forget_looks(RUN)
    other = call.json(RUN, *CERTIFY, "--serving", "kv-fork")
    assert (other["serving"], other["alpha"]) == ("kv-fork", 0.15)


# --- Looks ----------------------------------------------------------------------------------------


def test_the_look_is_on_disk_before_an_outcome_is_computed(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        assert len(looks_of(RUN)) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr("stopadvisor.certification.certify.calibrate", stop)
    assert call(RUN, *FAST)[0] == 130
    assert not (RUN / "policy.joblib").exists()
    assert len(looks_of(RUN)) == 1


def test_the_same_request_is_the_same_look_and_the_same_policy(
    call: Call, certified: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load_policy(certified["policy"])
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "4000000000")  # time goes on
    again = call.json(RUN, *FAST)
    assert (certified["look"], certified["certificate"]) == (again["look"], again["certificate"])
    assert len(looks_of(RUN)) == 1
    assert load_policy(again["policy"]).digest == before.digest


def test_the_certificate_names_its_look_and_its_files(
    call: Call, certified: dict[str, Any]
) -> None:
    (look,) = looks_of(RUN)
    assert look.certified is True
    assert certified["look"]["head"] == certified["certificate"]["ledger_head"] == look.head
    manifest = json.loads((RUN / "manifest.json").read_bytes())
    log = (RUN / "looks.jsonl").read_bytes()
    assert manifest["looks"] == {"lines": 3, "sha256": hashlib.sha256(log).hexdigest()}
    # So do the files from which it was computed.
    source = open_source(RUN)
    assert certified["certificate"]["provenance"] == {
        "probes_sha256": source.fingerprint(),
        "labels_sha256": source.labels_fingerprint(),
    }
    content = load_policy(certified["policy"]).content
    assert content["certificate"]["provenance"] == certified["certificate"]["provenance"]
    assert content["workload_sha256"] == source.workload_sha256
    assert content["versions"]["stopadvisor"] == __version__
    out = call(certified["policy"], command="inspect")[1]
    shown = out.partition("Made from")[2].partition("File")[0]
    hashes = [source.workload_sha256, source.fingerprint(), source.labels_fingerprint()]
    for value in (*hashes, content["certificate"]["ledger_head"]):
        assert f"{value[:16]}..." in shown
    assert f"stopadvisor {__version__}" in shown


@pytest.mark.usefixtures("undrawn")
def test_a_failed_look_shows_that_it_failed_and_nothing_else(call: Call) -> None:
    """Whatever the labels were: a later request can depend on one bit of them."""
    shown = []
    edit_records(RUN, lose_many)
    for step in range(2):
        found = call.json(RUN, *FAILING, code=3)
        assert found["look"].pop("head")
        assert found["look"]["opened"] is False
        assert found.pop("policy").endswith(f"{found.pop('digest')[:8]}.joblib")  # of the time too
        shown.append(found)
        if step == 0:
            call(RUN, "--alpha", "0.03", "--families", "confidence", command="assess")
            assert call(RUN, command="report")[0] == 0
            page = Page((RUN / "report.html").read_text(encoding="utf-8")).text
            assert "opened by calibrate" not in page
            study = call("ablation", RUN, "--set", "resamples=100", command="study")[1]
            assert "fit questions alone" in " ".join(study.split())
        forget_looks(RUN)

        def lose_fewer(row: dict[str, Any], part: str) -> None:
            if part == "calibration":
                row["natural_correct"] = row["prompt_tokens"] % 3 > 0

        edit_records(RUN, lose_fewer)
    assert shown[0] == shown[1]
    assert shown[0]["refusal"]["labels_needed"] > 0  # as fit questions knew beforehand
    # Declared as the only look it says why.
    found = call.json(RUN, *FAILING, "--looks", "1", code=3)
    assert found["look"]["opened"] is True
    assert "costs more than full thinking" in found["refusal"]["reason"]


def test_what_cannot_succeed_opens_no_outcome_and_spends_no_look(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stopadvisor.certification.looks.hand_out", None)
    found = call.json(RUN, *FAST, "--alpha", "0.001", code=3)
    assert (found["look"], found["confidence"], found["kind"]) == (None, None, "full-budget")
    assert "not even with no loss" in found["refusal"]["reason"]
    assert looks_of(RUN) == []
    digest = load_policy(found["policy"]).digest
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    call.json(RUN, *FAST, "--alpha", "0.001", code=3)
    assert load_policy(found["policy"]).digest == digest


def test_cut_traces_and_a_torn_line_are_said(call: Call) -> None:
    def cut(row: dict[str, Any], part: str) -> None:
        if zlib.crc32(row["id"].encode()) % 5 == 0:
            row["finish"] = "length"

    edit_records(RUN, cut)
    with (RUN / "probes.jsonl").open("ab") as file:
        file.write(b'{"id": "half')
    assert "say --despite truncated" in call.refused(RUN, *FAST)
    assert looks_of(RUN) == []
    found = call.json(RUN, *FAST, "--despite", "truncated")
    assert found["certificate"]["truncated_share"] > 0.1
    assessed = call.json(RUN, *LIGHT, "--alpha", "0.15", command="assess")
    assert any("cut off by max-think" in remark for remark in assessed["remarks"])
    for document in (assessed, found):
        assert any("line 301 is half-written" in remark for remark in document["remarks"])


def test_a_run_that_was_interrupted_certifies_and_verifies_nothing(call: Call) -> None:
    """A server ends short traces first: at 10 %, those of 420 of 700 sums certified 13 %."""
    found = call.json(RUN, *FAST)
    path = shutil.copytree(RUN, Path("elsewhere/sums"))
    forget_looks(path)
    run = RunDirectory.load(path)
    run.rewrite(run.records()[:200])
    assert "100 of 300 traces are missing" in call.refused(path, *FAST)
    assert "100 of 300 traces are missing" in call.refused(found["policy"], path, command="verify")
    assert looks_of(path) == []


@pytest.mark.parametrize("tokens", [512, 513])
def test_full_replies_that_may_be_cut_are_remarked_on(call: Call, tokens: int) -> None:
    """With 17 % of them cut, 23 of 536 were lost where the policy loses 7.8 %."""

    def long(row: dict[str, Any], part: str) -> None:
        if zlib.crc32(row["id"].encode()) % 20 == 0:
            row |= {"natural_answer_tokens": tokens, "natural_correct": False}

    edit_records(RUN, long)
    found = call.json(RUN, *FAST)
    assessed = call.json(RUN, *LIGHT, "--alpha", "0.15", command="assess")
    for document in (found, assessed):
        said = [remark for remark in document["remarks"] if "--answer-cap" in remark]
        assert len(said) == (tokens > 512), document["remarks"]


def test_too_many_full_replies_that_may_be_cut_are_refused(call: Call) -> None:
    def long(row: dict[str, Any], part: str) -> None:
        if zlib.crc32(row["id"].encode()) % 5 == 0:
            row |= {"natural_answer_tokens": 513, "natural_correct": False}

    edit_records(RUN, long)
    assert "allows 10%: probe with a larger --answer-cap" in call.refused(RUN, *FAST)
    assert looks_of(RUN) == []
    call.json(RUN, *FAST, "--despite", "truncated")


def test_a_refused_split_spoils_no_other_of_the_same_probes(call: Call) -> None:
    file = write_archive(Path("raw.npz"))
    one, two = (open_source(file, folder=Path(f"runs/seed{k}"), seed=k).folder for k in (0, 1))
    call.json(one, *LIGHT, "--alpha", "0.15", "--quiet", command="assess")
    assert "a run next to this one that holds the same probes" in call.refused(two, *FAST)
    assert read_log(two).shown == frozenset()
    assert call(one, *FAST)[0] in (0, 3)


def test_lines_that_a_look_opened_are_missed(call: Call) -> None:
    edit_records(RUN, lose_many)
    call.json(RUN, *FAILING, code=3)
    edit_records(RUN, flip_calibration)
    for words in (FAILING, [*FAST, "--alpha", "0.1"]):
        assert "lines that look 1 of" in call.refused(RUN, *words)


@pytest.mark.usefixtures("certified")
def test_fresh_takes_only_questions_that_no_look_has_used(call: Call, probed_run: Path) -> None:
    assert "--fresh: all" in call.refused(RUN, "--fresh", *FAST)
    shutil.copy(probed_run.with_name("run-sums.jsonl"), "runs/sums-sums.jsonl")
    make_run(RUN, 600)  # the same run goes on
    found = call.json(RUN, "--fresh", *FAST)
    old, new = looks_of(RUN)
    assert not set(old.questions) & set(new.questions)
    assert found["look"]["number"] == 1
    assert found["confidence"] == pytest.approx(0.95)
    assert found["certificate"]["n"] == len(new.questions)
    # What was looked at chooses now, and the file names all of it for `verify` to refuse.
    split = load_policy(found["policy"]).content["split"]
    assert digests_of(split["calibration"]) == new.questions
    assert set(old.questions) < set(digests_of(split["fit"]))
    assert call.json(RUN, "--fresh", *FAST)["look"] == found["look"]  # the same again
    # A rule was chosen by them: never again do they certify.
    assert "served as fit questions" in call.refused(RUN, *FAST, "--alpha", "0.3")


def test_a_rule_that_cannot_be_tested_costs_no_look(call: Call) -> None:
    def forget_entropy(row: dict[str, Any], part: str) -> None:
        if part == "calibration":
            for checkpoint in row["checkpoints"]:
                checkpoint["mean_entropy"] = None

    edit_records(RUN, forget_entropy)
    said = call.refused(RUN, *CERTIFY, "--families", "entropy")
    assert "the entropy rule cannot be tested on these calibration questions" in said
    assert looks_of(RUN) == []


def test_a_run_that_no_policy_can_describe_costs_no_look(
    call: Call, certified: dict[str, Any]
) -> None:
    run = RunDirectory.load(make_run(Path("runs/target"), 600))
    keep_records(run, run.records()[300:])  # other questions than the policy's
    file = run.path / "manifest.json"
    manifest = json.loads(file.read_bytes())
    manifest["plan"]["max_think"] = 2**24 + 1
    file.write_text(json.dumps(manifest), encoding="utf-8")
    for words in (FAST, (*CERTIFY, "--from", certified["policy"])):
        said = call.refused(run.path, *words)
        assert "field 'max_think': expected an integer from 1 to 16777216" in said
        assert looks_of(run.path) == []


def test_questions_whose_ids_fill_a_policy_cost_no_look(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "MAX_BYTES", export._RULE_BYTES + 20_000)
    said = call.refused(RUN, *FAST)
    assert re.search("the ids of 300 questions take [0-9]{5} bytes, and a policy", said), said
    assert looks_of(RUN) == []


# --- Blindness ------------------------------------------------------------------------------------


def test_calibration_labels_move_no_part_of_the_rule(call: Call) -> None:
    found = call.json(RUN, "--families", "learned", *CERTIFY)
    before = load_policy(found["policy"]).content

    def soften(row: dict[str, Any], part: str) -> None:
        if part == "calibration":
            row["natural_correct"] = False  # nothing can be lost: the boldest rule certifies

    edit_records(RUN, soften)
    forget_looks(RUN)
    again = call.json(RUN, "--families", "learned", *CERTIFY)
    after = load_policy(again["policy"]).content
    same = ("family", "features", "mean", "scale", "coef", "intercept", "budgets", "profile")
    assert {name: before[name] for name in same} == {name: after[name] for name in same}
    assert after["decision_threshold"] < before["decision_threshold"]
    assert again["profile"] == found["profile"]


# --- Bad input ------------------------------------------------------------------------------------


def test_bad_targets_are_one_line(call: Call) -> None:
    Path("w.jsonl").write_text("{}", encoding="utf-8")
    assert "`stopadvisor probe` makes a run" in call.refused("w.jsonl")
    for damaged in ("{", '{"protocol": "deploy"}'):
        (RUN / "assessment.json").write_text(damaged, encoding="utf-8")
        assert "assess again" in call.refused(RUN, *CERTIFY)


def test_giving_up_means_nothing_on_a_trace(call: Call) -> None:
    line = call.refused(RUN, *CERTIFY, "--on-give-up", "reply")
    assert "--on-give-up reply: only a rule that climbs a ladder gives up" in line
    assert looks_of(RUN) == []


def test_a_full_disk_is_one_line_and_no_outcome(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in call.refused(RUN, *FAST)
    assert not (RUN / "policy.joblib").exists()


def test_a_policy_that_costs_more_on_test_questions_says_so(call: Call) -> None:
    def dear(row: dict[str, Any], part: str) -> None:
        if part == "test":
            for checkpoint in row["checkpoints"]:
                checkpoint["probe_tokens"] = 4000

    edit_records(RUN, dear)
    remarks = call.json(RUN, *FAST)["remarks"]
    assert any("costs more than full thinking under vllm" in text for text in remarks)


# --- The advice, alpha, and other policies --------------------------------------------------------


def unsolve(row: dict[str, Any], part: str) -> None:
    """For `edit_records`: three questions in four are never solved, the fourth late."""
    row["natural_correct"] = int(row["key"][:4], 16) % 4 == 0
    for checkpoint in row["checkpoints"]:
        checkpoint["correct"] = row["natural_correct"] and checkpoint["budget"] > 40


def test_where_the_advice_is_full_thinking_so_is_the_policy(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate could be had: the rule saves by giving up."""
    edit_records(RUN, unsolve)
    words = (*LIGHT, "--alpha", "0.24")
    advice = call.json(RUN, *words, command="assess")["recommendation"]
    assert advice["policy"] == "full-budget"
    with monkeypatch.context() as closed:
        closed.setattr("stopadvisor.certification.looks.hand_out", None)
        found = call.json(RUN, *words, code=3)
    assert (found["kind"], found["look"], found["certified"]) == ("full-budget", None, False)
    assert "the advice is full thinking" in found["refusal"]["reason"]
    assert "--despite advice" in found["refusal"]["reason"]
    assert load_policy(found["policy"]).kind == "full-budget"
    assert looks_of(RUN) == []
    despite = call.json(RUN, *words, "--despite", "advice", "--despite", "large-alpha")
    assert (despite["kind"], despite["certified"]) == ("stop", True)
    assert "--despite advice" in despite["changed"]


def test_another_rule_than_the_one_that_was_read_is_explained_in_a_sentence(call: Call) -> None:
    call.json(RUN, "--alpha", "0.15", "--families", "entropy", command="assess")
    assert "changed assess had advised" in call.screen(RUN, *FAST)
    found = json.loads((RUN / "calibration.json").read_bytes())
    assert found["family"] == "confidence"
    assert found["changed"] is not None
    assert "assess had advised entropy alone" in found["changed"]
    assert found["changed"] in found["remarks"]


def test_after_an_assessment_without_alpha_the_change_names_the_risk_it_was_at(call: Call) -> None:
    assessed = call.json(RUN, "--families", "entropy", command="assess")
    assert assessed["alpha"] is None
    found = call.json(RUN, *CERTIFY, "--families", "confidence")
    taken = assessed["matched_risk"][0]["alpha"]
    assert f"entropy alone at alpha = {taken:g}; at alpha = 0.15" in found["changed"]
    line = call.refused(RUN, "--families", "confidence")
    assert "say --alpha, the largest share of all questions that may lose a right answer" in line


def test_a_large_alpha_is_refused_and_goes_on_when_told(call: Call) -> None:
    line = call.refused(RUN, *LIGHT, "--alpha", "0.3")
    assert "more than 20%" in line
    assert "--loss drop" in line
    assert "--despite large-alpha" in line
    assert looks_of(RUN) == []
    found = call.json(RUN, *LIGHT, "--alpha", "0.3", "--despite", "large-alpha")
    assert found["certified"] is True
    assert any("of the full-thinking accuracy" in remark for remark in found["remarks"])


def test_a_failure_leaves_the_certified_policy_in_use(
    call: Call, certified: dict[str, Any]
) -> None:
    forget_looks(RUN)
    second = call.json(RUN, *FAST, "--alpha", "0.001", code=3)
    assert second["promoted"] is None
    assert certified["policy"] != second["policy"]
    assert load_policy(RUN / "policy.joblib").content == load_policy(certified["policy"]).content
    assert json.loads((RUN / "calibration.json").read_bytes()) == certified
    assert load_policy(second["policy"]).kind == "full-budget"
    assert json.loads(calibration_of(Path(second["policy"])).read_bytes()) == second


def test_a_rule_from_elsewhere_keeps_its_prices_and_leaves_out_what_was_shown(call: Call) -> None:
    prices = ("--price", "0.5/0.05/2", "--serving", "prefix-cache")
    call.json(RUN, *FAST, *prices, "--out", "source.joblib")
    run = RunDirectory.load(make_run(Path("runs/target"), 600))
    keep_records(run, run.records()[300:])  # those that came after
    assert call(run.path, *LIGHT, "--quiet", "--alpha", "0.15", command="assess")[0] == 0
    (run.path / "assessment.json").unlink()  # the log remembers
    found = call.json(run.path, *CERTIFY, "--from", "source.joblib")
    assert found["serving"] == "prefix-cache"
    assert found["expected"]["weights"]["unit"] == "money per million tokens"
    parts = run.parts(run.table().groups)
    assert found["certificate"]["n"] == int((parts == 1).sum())
    assert found["confidence"] == pytest.approx(0.95)
    (remark,) = [text for text in found["remarks"] if "were left out" in text]
    assert remark.startswith(f"{int((parts == 0).sum())} fit questions")
    words = (*CERTIFY, "--from", "source.joblib", "--fresh")
    assert "looked at already" in call.refused(run.path, *words)


# --- Other promises than lost answers, and several at once ----------------------------------------


def test_a_policy_may_promise_that_few_replies_differ(call: Call) -> None:
    words = (*LOOSE, "--alpha", "0.3", "--looks", "2")
    shutil.copytree(RUN, "elsewhere/sums")  # no neighbour: its looks do not count here
    lost = call.json("elsewhere/sums", *words, "--out", "lost.json")
    found = call.json(RUN, *words, "--loss", "differs", "--out", "differs.json")
    certificate = found["certificate"]
    assert "loss" not in lost["certificate"]  # files without the key mean lost
    assert certificate["loss"] == "differs"
    assert "at most 30 % of replies differ from what full" in certificate["claim"]
    assert certificate_in(load_policy("differs.json")) == certificate
    (first,), (second,) = (looks_of(Path(folder)) for folder in ("elsewhere/sums", RUN))
    assert (first.asked.get("loss"), second.asked["loss"]) == (None, "differs")
    refused = call.json("elsewhere/sums", *words, "--loss", "differs", code=2)
    assert "look 1 at these calibration questions" in refused["error"]["message"]
    assert first.asked["data"] != second.asked["data"]  # the answers are in this one


def test_several_promises_hold_of_one_rule_at_once(call: Call) -> None:
    limits = ("--loss", "lost", "--loss", "drop", "--alpha", "lost=0.3,drop=0.25")
    found = call.json(RUN, *LOOSE, *limits, "--out", "both.json")
    first, second = found["certificate"]["guarantees"]
    assert "loss" not in found["certificate"]
    assert (first["loss"], first["alpha"], second["loss"], second["alpha"]) == (
        *("lost", 0.3),
        *("drop", 0.25),
    )
    assert found["certificate"]["losses"] == first["lost"] == second["lost"]
    assert found["asked"] == "at most 30% lost; accuracy falls by at most 25%"
    (look,) = looks_of(open_source(RUN).folder)
    assert look.asked["also"] == [{"loss": "drop", "alpha": 0.25, "category": None}]
    assert call.json(RUN, *LOOSE, *limits, "--out", "both.json")["look"] == found["look"]


def test_what_was_assessed_for_is_what_is_certified(call: Call) -> None:
    limits = ("--alpha", "drop=0.25,lost=0.3", "--families", "confidence")
    code, out, err = call(RUN, *limits, command="assess")
    assert code == 0, err
    shown = " ".join(out.split())
    assert "can promise: accuracy falls by at most 25%; at most 30% lost; probability" in shown
    assert "rule drop accuracy saves" in shown
    assert f"stopadvisor calibrate {RUN} --alpha drop=0.25,lost=0.3" in shown
    assessed = json.loads((open_source(RUN).folder / "assessment.json").read_bytes())
    assert assessed["settings"]["loss"] == "drop"
    assert assessed["settings"]["also"] == [{"loss": "lost", "alpha": 0.3, "category": None}]
    taken_over = call.json(RUN, *LOOSE, "--alpha", "0.25", "--out", "taken.json")
    assert taken_over["asked"] == assessed["asked"]
    # Who names a loss names all of them.
    assert SettingsOverrides(alpha=0.3, loss="lost", also=()).settings(assessed).is_lost
    named = {"alpha": 0.3, "loss": ("lost",)}
    with click.Context(click.Command("assess")):
        assert overrides(named).also == ()
