"""`--grader`: from the command line to manifest, policy, certificate and the next run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.answers.normal_form import GRADER
from stopadvisor.collection.grades import regrade_run
from stopadvisor.ground.progress import Progress
from stopadvisor.policy.frozen import load_policy
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.workload.questions import PARTS
from tests.material import CERTIFY, Call
from tests.policy_content import certificate_in
from tests.scripted import ScriptedEngine, write_sums

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_draws")]

BUDGETS = ("--budgets", "0,16,64", "--max-think", "256", "--quiet")
GRADERS = """
def strict(question, gold, answer):
    return gold == answer.strip()

def lenient(question, gold, answer):
    if question.startswith("What is 2 + "):
        return None
    return gold == answer.strip() or gold.endswith("8")
"""


@pytest.fixture(name="call")
def with_graders(call: Call, scripted: ScriptedEngine) -> Call:
    """The command line in a folder with sums and graders, before a scripted model."""
    Path("graders.py").write_text(GRADERS)
    write_sums(Path("sums.jsonl"), 100)
    return call


def manifest() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("run/manifest.json").read_bytes())
    return found


def probed(call: Call, *words: str) -> Path:
    code, _, err = call("probe", "sums.jsonl", *BUDGETS, "--out", "run", *words)
    assert code == 0, err
    return Path("run")


def assess(call: Call, *words: str) -> list[str]:
    options = ("--families", "confidence", "--alpha", "0.15", "--json", "--quiet")
    code, out, err = call("assess", "run", *options, *words)
    assert code == 0, err
    remarks: list[str] = json.loads(out)["remarks"]
    return remarks


def calibrated(call: Call, name: str = "policy.joblib") -> Path:
    words = (*CERTIFY, "--families", "confidence", "--quiet", "--out", name)
    code, _, err = call("calibrate", "run", *words)
    assert code == 0, err
    return Path(name)


def test_a_grader_stands_in_manifest_policy_and_claim_and_verify_asks_for_it(call: Call) -> None:
    write_sums(Path("sums.jsonl"), 300)
    probed(call, "--grader", "graders:strict")
    grading = manifest()["grading"]
    assert grading["grader"] == "graders:strict"
    (remark,) = (r for r in assess(call) if "graders:strict" in r)
    assert f"(SHA-256 {grading['grader_sha256'][:12]})" in remark
    assert re.search(r"differs from comparison with gold on 0 of \d\d+ distinct answers", remark)
    policy = load_policy(calibrated(call))
    function = {"name": "graders:strict", "sha256": grading["grader_sha256"]}
    assert policy.content["certificate"]["grader"] == function
    assert policy.content["grader"] == "graders:strict"
    claim = certificate_in(policy)["claim"]
    assert claim.endswith(
        f"Answers were graded by graders:strict (SHA-256 {function['sha256'][:12]}), not by "
        "comparison with gold."
    )
    assert call("inspect", "policy.joblib")[0] == 0

    write_sums(Path("fresh.jsonl"), 200, start=1000)
    like = ("probe", "fresh.jsonl", "--like", "policy.joblib", "--quiet", "--out", "fresh")
    err = call.refused(*like)
    assert "graded by graders:strict (SHA-256" in err
    assert "name it with --grader" in err
    assert "--like sets --grader graders:strict, got graders:lenient" in call.refused(
        *like, "--grader", "graders:lenient"
    )
    assert call(*like, "--grader", "graders:strict")[0] == 0
    assert call("verify", "policy.joblib", "fresh", "--quiet")[0] == 0

    # The same name, another file: said, and no more.
    Path("graders.py").write_text(GRADERS + "# changed\n")
    regrade_run(Path("fresh"), Progress(), "graders:strict")
    code, out, err = call("verify", "policy.joblib", "fresh", "--json")
    assert code == 0
    (said,) = (r for r in json.loads(out)["remarks"] if "graded by graders:strict" in r)
    assert f"note: {said}\n" in err
    code, _, err = call(*(word for word in like if word != "--quiet"), "--grader", "graders:strict")
    assert "grades here, graders:strict" in err

    regrade_run(Path("fresh"), Progress(), "gold")
    assert "`stopadvisor assess RUN --regrade --grader graders:strict`" in call.refused(
        "verify", "policy.joblib", "fresh", "--quiet"
    )
    assert call("verify", "policy.joblib", "fresh", "--quiet", "--transfer")[0] == 0


def test_a_certificate_says_that_what_was_not_judged_cannot_be_lost(call: Call) -> None:
    write_sums(Path("sums.jsonl"), 300)
    Path("graders.py").write_text(GRADERS.replace("2 + ", "3"))
    run = RunDirectory.load(probed(call, "--grader", "graders:lenient"))
    words = ("calibrate", "run", *CERTIFY, "--families", "confidence", "--json", "--quiet")
    said = [r for r in call.json(*words)["remarks"] if "could not judge" in r]
    parts = run.parts(run.table().groups)
    mine = [r for r, part in zip(run.records(), parts, strict=True) if PARTS[part] == "calibration"]
    unjudged = sum(record.id.startswith("q3") for record in mine)
    assert said == [
        f"graders:lenient could not judge answers to {unjudged} of {len(mine)} questions: they "
        "count as wrong, and where full thinking is wrong no answer can be lost"
    ]
    write_sums(Path("fresh.jsonl"), 60, start=300)
    like = ("probe", "fresh.jsonl", "--like", "run/policy.joblib", "--out", "fresh")
    assert call(*like, "--grader", "graders:lenient", "--quiet")[0] == 0
    checked = call.json("verify", "run/policy.joblib", "fresh", "--quiet")
    assert any("could not judge answers to 60 of 60" in said for said in checked["remarks"])


def test_grades_are_the_functions_and_what_it_cannot_tell_is_counted(call: Call) -> None:
    probed(call, "--grader", "graders:lenient")
    records = RunDirectory.load(Path("run")).records()
    assert all(r.natural_correct for r in records if r.gold and r.gold.endswith("8"))
    (untold,) = (r for r in records if r.cannot_tell)
    assert untold.id == "q2"
    assert untold.cannot_tell == 1 + sum(bool(c.answer) for c in untold.checkpoints)
    assert not untold.natural_correct
    remarks = assess(call)
    (count,) = (r for r in remarks if "could not judge" in r)
    assert f"could not judge {untold.cannot_tell} recorded answers" in count
    (differs,) = (r for r in remarks if "differs from comparison" in r)
    found = re.search(r"on (\d+) of (\d+) distinct answers", differs)
    assert found is not None
    assert 0 < int(found[1]) < int(found[2])


def test_graders_do_not_mix(call: Call) -> None:
    run = probed(call, "--grader", "graders:strict")
    before = (run / "probes.jsonl").read_bytes()
    again = ("probe", "sums.jsonl", *BUDGETS, "--out", "run")
    assert call(*again)[0] == 0  # nothing is graded
    err = call.refused(*again, "--grader", "graders:lenient")
    assert "was graded with grader graders:strict" in err
    assert "use --regrade" in err
    assert "was graded with grader graders:strict, grader sha256 " in call.refused(
        "assess", "run", "--grader", "graders:lenient"
    )
    assert "name it with --grader" in call.refused("assess", "run", "--regrade")
    assert (run / "probes.jsonl").read_bytes() == before
    assess(call, "--regrade", "--grader", "graders:lenient")
    assert manifest()["grading"]["grader"] == "graders:lenient"
    regrade_run(run, Progress(), "gold")
    assert "grader_sha256" not in manifest()["grading"]
    assert (run / "probes.jsonl").read_bytes() == before  # strict says what gold says here


def test_what_cannot_be_had_ends_before_the_model_is_loaded(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "stopadvisor.engines.engine_settings.start_engine", lambda options: pytest.fail("loaded")
    )
    for name, said in (("absent:same", "No module named"), ("graders:no", "no attribute 'no'")):
        err = call.refused("probe", "sums.jsonl", *BUDGETS, "--grader", name)
        assert err.startswith(f"stopadvisor: --grader {name}: ")
        assert said in err
        assert len(err.splitlines()) == 1


def test_typed_labels_are_for_runs_that_gold_grades(call: Call) -> None:
    write_sums(Path("sums.jsonl"), 300, gold=False)
    probed(call, "--task", "numeric", "--grader", "graders:strict")
    assert any("graders:strict was never called" in remark for remark in assess(call))
    assert "typed labels are compared as gold" in call.refused(
        "label", "run", "--alpha", "0.15", "--export", "labels.csv"
    )
    # Nothing was graded by it, and so no certificate names it.
    policy = load_policy(calibrated(call))
    assert "grader" not in policy.content["certificate"]
    assert policy.content["grader"] == GRADER


def test_recorded_answers_are_graded_by_a_function(call: Call) -> None:
    asked = {"question": "What is 2 + 6?", "gold": "8"}
    said = [{"budget": b, "answer": a, "probe_tokens": 1} for b, a in ((0, "18"), (9, "9"))]
    line = {"id": "a", "trace_tokens": 20, "finish": "stop", "natural_answer": "9"}
    line |= {"natural_answer_tokens": 1, "checkpoints": said}
    other = line | {"id": "b", "question": "What is 3 + 6?", "gold": "9"}
    words = ("import", "probes", "probes.jsonl", "--out", "run", "--grader", "graders:lenient")

    def write(*lines: dict[str, Any]) -> None:
        Path("probes.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))

    write(line | asked, other)
    code, screen, err = call(*words)
    assert code == 0, err
    assert "graders:lenient could not judge 2 of 4 distinct answers" in err
    assert manifest()["grading"]["grader"] == "graders:lenient"
    assert "6 labels by graders:lenient, the others as recorded" in screen
    unsure, sure = RunDirectory.load(Path("run")).records()
    assert (unsure.cannot_tell, unsure.natural_correct) == (3, False)
    assert (sure.cannot_tell, sure.natural_correct) == (0, True)
    assert [c.correct for c in sure.checkpoints] == [False, True]
    for bad, expected in (
        (line | {"gold": "8"}, "probes.jsonl:1: field 'question': expected"),
        (other | {"natural_correct": True}, "because --grader says what is right, got recorded"),
    ):
        write(bad)
        assert expected in call.refused(*words[:3], "--out", "other", *words[5:])
        assert not Path("other").exists()
