"""On-stop `answer`, end to end: the visible answer is what is graded, costed and certified."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.answers.grading import Grader
from stopadvisor.answers.normal_form import extract_natural, normalize
from stopadvisor.assessment.choice import Settings
from stopadvisor.assessment.fit_assessment import assess
from stopadvisor.collection.grades import regrade
from stopadvisor.ground.errors import ProbeError
from stopadvisor.policy.frozen import load_policy
from stopadvisor.probes.asking import ProbePlan
from stopadvisor.probes.records import Checkpoint, graded_table
from stopadvisor.probes.trajectories import trajectory
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.sources import open_source
from stopadvisor.workload.questions import PARTS
from tests.material import CERTIFY, PLAN, Call, edit_records, make_run
from tests.populations import regraded

pytestmark = pytest.mark.slow

ANSWER = replace(PLAN, on_stop="answer")
FAST = ("--families", "entropy,confidence", "--price", "0/0/1")
VISIBLE = {"visible_answer", "visible_correct", "visible_tokens"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same questions, probed either way."""
    folder = tmp_path_factory.mktemp("on-stop")
    return {
        name: make_run(folder / name, 300, plan=plan)
        for name, plan in (("answer", ANSWER), ("probe", PLAN))
    }


def lines(run: Path) -> list[dict[str, Any]]:
    text = (run / "probes.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


# --- What is recorded -----------------------------------------------------------------------------


def test_visible_answers_stand_beside_the_forced_ones_while_the_trace_goes_on(
    runs: dict[str, Path],
) -> None:
    for row, plain in zip(lines(runs["answer"]), lines(runs["probe"]), strict=True):
        for c in row["checkpoints"]:
            assert set(c) & VISIBLE == (set() if c["ended"] else VISIBLE)
            for name in VISIBLE & set(c):
                del c[name]
        assert row == plain  # everything else is as it is without them


def test_visible_answers_are_numbered_as_forced_and_natural_ones(runs: dict[str, Path]) -> None:
    records = RunDirectory.load(runs["answer"]).records()
    table = graded_table(records, "natural", "answer")
    codes, natural = table.stop_codes, table.full_codes
    forms = [extract_natural(r.task, r.natural_answer or "") for r in records]
    compared = 0
    for i, record in enumerate(records):
        for j, c in enumerate(record.checkpoints):
            if c.ended:
                assert codes[i, j] == natural[i]
                continue
            read = extract_natural(record.task, c.visible_answer or "")
            form = "" if read is None else normalize(record.task, read)
            full = normalize(record.task, forms[i] or "")
            assert (codes[i, j] == natural[i]) == (form == full)
            assert not form or (codes[i, j] == table.answer_codes[i, j]) == (form == c.normalized)
            compared += bool(form)
    assert compared > 500


def test_a_run_without_them_is_what_it_was(runs: dict[str, Path]) -> None:
    plain, other = (RunDirectory.load(runs[name]) for name in ("probe", "answer"))
    assert "on_stop" not in plain.manifest["plan"]
    assert other.manifest["plan"]["on_stop"] == "answer"
    assert plain.manifest["id"] != other.manifest["id"]
    assert (plain.plan, other.plan) == (PLAN, ANSWER)
    assert plain.table().unseal().outcomes.visible_correct is None
    with pytest.raises(ProbeError, match=r"holds another run: plan.on_stop"):
        RunDirectory.resume(plain.path, other.manifest)
    with pytest.raises(ProbeError, match="on_stop must be one of probe, answer, got 'stop'"):
        ProbePlan(budgets=(), cue="", on_stop="stop")  # type: ignore[arg-type]


def test_the_table_is_right_where_the_visible_answer_is(runs: dict[str, Path]) -> None:
    table = RunDirectory.load(runs["answer"]).table().unseal()
    assert table.on_stop == "answer"
    assert table.visible_tokens is not None
    for i, row in enumerate(lines(runs["answer"])):
        for j, c in enumerate(row["checkpoints"]):
            own = row["natural_correct"] if c["ended"] else c["visible_correct"]
            tokens = row["natural_answer_tokens"] if c["ended"] else c["visible_tokens"]
            assert table.stop_correct[i, j] == table.correct_online[i, j] == own
            assert table.visible_tokens[i, j] == tokens
            assert table.correct[i, j] == c["correct"]
    assert (table.correct_online != table.with_on_stop("probe").correct_online).any()
    np.testing.assert_array_equal(trajectory(table)[:, :-1], table.correct_online)
    part = table.take(np.arange(7)[::-1])
    assert part.outcomes.visible_correct is not None
    np.testing.assert_array_equal(part.outcomes.visible_correct, table.stop_correct[:7][::-1])
    assert table.with_reference("last-checkpoint").on_stop == "probe"  # the paper's are forced
    with pytest.raises(ProbeError, match="probe with --on-stop answer"):
        RunDirectory.load(runs["probe"]).table().with_on_stop("answer")
    with pytest.raises(ProbeError, match="visible answers need the natural reference"):
        replace(table, reference="last-checkpoint")


def test_a_missing_visible_answer_is_named(runs: dict[str, Path]) -> None:
    records = RunDirectory.load(runs["answer"]).records()
    first = records[0]
    assert not first.checkpoints[0].ended
    rows: tuple[Checkpoint, ...] = (
        replace(
            first.checkpoints[0], visible_answer=None, visible_correct=None, visible_tokens=None
        ),
        *first.checkpoints[1:],
    )
    broken = [replace(first, checkpoints=rows), *records[1:]]
    with pytest.raises(
        ProbeError, match=f"question '{first.id}' has no visible answer at budget 0"
    ):
        graded_table(broken, on_stop="answer")
    assert graded_table(broken).on_stop == "probe"


def test_grading_again_grades_the_visible_answers(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", 40, plan=ANSWER)
    before = (path / "probes.jsonl").read_bytes()

    def wrong(row: dict[str, Any], part: str) -> None:
        for c in row["checkpoints"]:
            if "visible_correct" in c:
                c["visible_correct"] = not c["visible_correct"]

    edit_records(path, wrong)
    with Grader() as grader:
        assert regrade(RunDirectory.load(path), grader) == 40
    assert (path / "probes.jsonl").read_bytes() == before


# --- What is decided ------------------------------------------------------------------------------


def test_classifiers_learn_the_visible_answer(runs: dict[str, Path]) -> None:
    source = open_source(runs["answer"])
    table = source.table.unseal()
    opposite = regraded(table, correct=~table.correct)  # the label of the forced answer is unused
    settings = Settings(families=("learned",))
    choices = [
        assess(replace(source, table=own.sealed()), settings).choice for own in (table, opposite)
    ]
    assert choices[0].sequences[0].scorer == choices[1].sequences[0].scorer


def test_the_certificate_is_about_the_visible_answers(
    runs: dict[str, Path], tmp_path: Path, call: Call
) -> None:
    run = runs["answer"]
    assert "stop thinking is closed and" in call.screen("assess", run, *FAST, "--alpha", "0.2")
    again = call.refused("assess", run, "--on-stop", "answer")
    assert "is already probed: leave out --on-stop" in again
    assessment = json.loads((run / "assessment.json").read_bytes())
    assert assessment["workload"]["on_stop"] == "answer"
    point = assessment["matched_risk"][0]["scalar"]
    assert list(point)[-1] == "fit_answer_saving_pct"
    screen = call.screen("calibrate", *CERTIFY, run, "--alpha", "0.2", "--out", "p.joblib")
    assert "of its tokens saved (test questions)" in screen
    found = json.loads(Path("p.joblib.calibration.json").read_bytes())
    assert (found["certified"], found["on_stop"]) == (True, "answer")
    assert found["certificate"]["on_stop"] == "answer"
    assert found["certificate"]["answer_cap"] == ANSWER.answer_cap
    policy = load_policy(found["policy"])
    assert policy.content["on_stop"] == "answer"

    directory = RunDirectory.load(run)
    parts = directory.parts(directory.table().groups).tolist()
    tally = {name: np.zeros(4) for name in PARTS}  # questions, lost, visible tokens, full ones
    for record, part in zip(directory.records(), parts, strict=True):
        stepper, right, tokens = (
            policy.start(),
            record.natural_correct,
            record.natural_answer_tokens,
        )
        for c in record.checkpoints:
            if c.ended:
                break
            if c.budget not in policy.budgets:
                continue
            decision = stepper.observe(
                answer=c.answer,
                mean_logprob=c.mean_logprob,
                mean_entropy=c.mean_entropy,
                markers=c.markers,
                think_tokens=c.budget,
            )
            if decision.stop:
                assert c.visible_correct is not None
                assert c.visible_tokens is not None
                right, tokens = c.visible_correct, c.visible_tokens
                break
        is_lost = bool(record.natural_correct) and not right
        tally[PARTS[part]] += (1, is_lost, tokens, record.natural_answer_tokens)
    n, lost, written, full = tally["calibration"].tolist()
    assert (n, lost) == (found["certificate"]["n"], found["certificate"]["losses"])
    expected = found["expected"]
    assert expected["calibration_answer_saving_pct"] == pytest.approx(100 * (1 - written / full))
    n, lost, written, full = tally["test"].tolist()
    assert found["expected"]["test_risk"] == lost / n
    assert found["expected"]["test_answer_saving_pct"] == pytest.approx(100 * (1 - written / full))
    assert written != full

    checked = call.json("verify", found["policy"], run, "--test-only")
    assert (checked["losses"], checked["n"]) == (lost, n)
    assert checked["answer_saving_pct"] == pytest.approx(
        found["expected"]["test_answer_saving_pct"]
    )
    words = ("verify", found["policy"], runs["probe"], "--test-only")
    assert "probe with --on-stop answer" in call.refused(*words)


def test_a_policy_of_forced_answers_is_verified_on_either_run(
    runs: dict[str, Path], tmp_path: Path, call: Call
) -> None:
    out = "p.joblib"
    run = shutil.copytree(runs["probe"], tmp_path / "run")  # no certificate stands beside it
    found = call.json("calibrate", *CERTIFY, run, *FAST, "--alpha", "0.2", "--out", out)
    assert "on_stop" not in found
    assert "on_stop" not in found["certificate"]
    assert load_policy(out).content["on_stop"] == "probe"
    documents = []
    for name in ("probe", "answer"):
        document = call.json("verify", out, runs[name], "--test-only")
        assert "answer_saving_pct" not in document
        # Earlier policies that were held against a run are its own matter.
        documents.append({**document, "run": None, "check": None, "remarks": None})
    assert documents[0] == documents[1]
