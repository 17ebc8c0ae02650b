"""`probe --like POLICY`: the probes that `verify` and `calibrate --from` ask for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stopadvisor.certification.check_policy import check_probed
from stopadvisor.cli.main import main
from stopadvisor.cli.parts.probing import _cue
from stopadvisor.engines.engine_settings import EngineSettings
from stopadvisor.engines.openai import open_servers
from stopadvisor.ground.errors import ModelError, ProbeError
from stopadvisor.policy.frozen import load_policy, save_policy
from stopadvisor.policy.requests import policy_plan
from stopadvisor.probes.asking import ProbePlan
from stopadvisor.probes.trigger import MarkerTrigger, Trigger, at_trigger, probed_positions, stride
from stopadvisor.rules.features import feature_array
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.sources import open_source
from tests.engines.fake_server import FakeServer, fake_server
from tests.engines.test_openai_online import policy_of
from tests.material import CERTIFY, PLAN, Call, make_run, write_archive
from tests.policy_content import full_budget_content, policy_from, trigger_content
from tests.scripted import WAIT, ScriptedEngine, write_sums

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_draws")]

POLICY, FRESH = Path("policy.joblib"), Path("fresh.jsonl")
OPEN_CUE = "open:\n\nFinal answer:"


def calibrated(root: Path, family: str, plan: ProbePlan) -> Path:
    """A policy of 300 sums that were probed under a plan."""
    make_run(root / "run", 300, plan=plan)
    words = ["--alpha", "0.15", "--families", family, "--out", str(root / POLICY)]
    assert main(["calibrate", *CERTIFY, str(root / "run"), "--quiet", *words]) == 0
    return root / POLICY


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = replace(PLAN, cue="\n\nAnswer:", cap=20, max_think=200)
    return calibrated(tmp_path_factory.mktemp("like"), "confidence", plan)


@pytest.fixture(name="call")
def with_policy(call: Call, policy: Path, scripted: ScriptedEngine) -> Call:
    """The command line in a folder with a policy and fresh questions."""
    shutil.copy(policy, POLICY)
    write_sums(FRESH, 500)
    return call


def test_a_run_like_a_policy_can_be_verified_and_calibrated(call: Call) -> None:
    content = load_policy(POLICY).content
    code, _, err = call("probe", FRESH, "--like", POLICY, "--out", "new", "--seed", "7")
    assert code == 0, err
    assert err.splitlines()[-1] == "next: stopadvisor verify policy.joblib new"
    run = RunDirectory.load(Path("new"))
    assert list(run.plan.budgets) == content["budgets"]
    assert (run.plan.cue, run.plan.cap, run.plan.max_think) == ("\n\nAnswer:", 20, 200)
    assert run.plan.seed == 7
    assert call("verify", POLICY, "new", "--quiet")[0] == 0


def test_the_cap_of_visible_answers_is_the_policys(call: Call) -> None:
    """Though none of them was certified, the answers after full thinking were written under it."""
    make_run(Path("capped"), 300, plan=replace(PLAN, answer_cap=96))
    call("calibrate", "capped", *CERTIFY, "--families", "confidence", "--out", "capped.joblib")
    policy = load_policy("capped.joblib")
    assert (policy.on_stop, policy.content["probe"]["answer_cap"]) == ("probe", 96)
    assert policy_plan(policy).answer_cap == 96  # what `run` asks under
    like = ("probe", FRESH, "--like", "capped.joblib", "--out", "runs/new")
    assert "--like sets --answer-cap 96, got 512" in call.refused(*like, "--answer-cap", "512")
    assert not Path("runs/new").exists()
    assert call(*like)[0] == 0
    assert RunDirectory.load(Path("runs/new")).plan.answer_cap == 96
    code, _, err = call("verify", "capped.joblib", "runs/new", "--quiet")
    assert code == 0, err


@pytest.mark.parametrize(
    "trigger",
    [
        stride(25, 200, first=10, stop_at=70),
        MarkerTrigger(((WAIT,),), min_gap=5, max_probes=3, max_markers=4, stop_at=90),
        MarkerTrigger(((WAIT,),), min_gap=5, max_probes=6),
    ],
    ids=["stride", "marker", "marker or stride"],
)
def test_a_policys_trigger_says_where_to_probe(call: Call, trigger: Trigger) -> None:
    made = ("schema", "golden", "digest")
    content = {k: v for k, v in load_policy(POLICY).content.items() if k not in made}
    save_policy(policy_from({**content, **trigger_content(trigger)}), POLICY)
    policy = load_policy(POLICY)
    words = ("probe", FRESH, "--like", POLICY, "--out", "new", "--limit", "60", "--no-preflight")
    code, _, err = call(*words)
    assert code == 0, err
    run = RunDirectory.load(Path("new"))
    assert run.plan == at_trigger(run.plan, trigger)
    for record in run.records():
        probed = [c.budget for c in record.checkpoints]
        assert tuple(probed) == probed_positions(
            run.plan, record.trace_tokens, record.marker_positions
        )
    assert len({len(r.checkpoints) for r in run.records()}) > 1
    if trigger.kind == "marker":
        assert run.manifest["markers"] == [{"text": "Wait", "ids": [[WAIT]]}]
    check_probed(policy, str(POLICY), open_source(run.path))
    assert "Probed 60 questions, 0 of them now." in call(*words)[1]


def test_what_the_policy_fixes_cannot_be_asked_for_otherwise(call: Call) -> None:
    Path("another_grader.py").write_text("def f(question, gold, answer):\n    return True\n")
    like = ("probe", FRESH, "--like", POLICY)
    for option, value, said in (
        ("--cap", "3", "--like sets --cap 20, got 3"),
        ("--grader", "another_grader:f", "--like sets --grader gold, got another_grader:f"),
        ("--markers", "Wait", "--like and --markers cannot be combined"),
        ("--schedule", "stride", "--like sets --schedule grid, got stride"),
    ):
        assert said in call.refused(*like, option, value)
    code, _, err = call(*like, "--cap", "20", "--limit", "60", "--out", "same")
    assert code == 0, err


@pytest.mark.parametrize(
    "words",
    [("verify", POLICY, "other"), ("calibrate", *CERTIFY, "other", "--from", POLICY)],
    ids=["verify", "calibrate --from"],
)
def test_other_budgets_are_refused_with_the_command_that_probes_the_right_ones(
    call: Call, tmp_path: Path, words: tuple[str | Path, ...]
) -> None:
    plan = replace(PLAN, budgets=(5, 100), cue="\n\nAnswer:", cap=20, max_think=200)
    make_run(tmp_path / "other", 120, plan=plan)
    err = call.refused(*words)
    workload = tmp_path / "other-sums.jsonl"
    assert f"`stopadvisor probe {workload} --like policy.joblib`" in err
    assert "was not probed at" in err
    assert not Path("other/looks.jsonl").exists()


def test_a_policy_that_never_stops_or_names_no_model_says_nothing_of_probing(call: Call) -> None:
    save_policy(policy_from(full_budget_content()), Path("full.joblib"), format="joblib")
    assert "needs no probes" in call.refused("probe", FRESH, "--like", "full.joblib")
    write_archive(Path("raw.npz"))
    words = ("--alpha", "0.3", "--families", "confidence", "--out", "archive.joblib")
    call("calibrate", *CERTIFY, "raw.npz", *words)
    assert call.json("inspect", "archive.joblib")["kind"] == "stop"
    assert "bound to no model" in call.refused("probe", FRESH, "--like", "archive.joblib")


def test_where_the_model_is_is_asked_where_the_policy_named_it(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(options: EngineSettings) -> ScriptedEngine:
        raise ModelError(f"model {options.model!r} is nowhere")

    monkeypatch.setattr("stopadvisor.engines.engine_settings.start_engine", nowhere)
    for more, asked in (((), True), (("--model", "elsewhere"), False)):
        code, _, err = call("probe", FRESH, "--like", POLICY, *more)
        assert (code, "--model says where it is" in err) == (2, asked), err


# --- A cue in the open thinking -------------------------------------------------------------------


@pytest.fixture(scope="module")
def open_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return calibrated(tmp_path_factory.mktemp("open"), "learned", replace(PLAN, cue=OPEN_CUE))


def test_a_learned_rule_reads_what_followed_the_answers(call: Call, open_policy: Path) -> None:
    content = load_policy(open_policy).content
    assert "closed_by_itself" in content["features"]
    weight = content["coef"][content["features"].index("closed_by_itself")]
    assert weight > 0  # the scripted model closes its thinking where it is right
    assert content["probe"]["open_cue"] is True
    assert content["probe"]["cue"]["text"] == "\n\nFinal answer:"
    assert call.json("inspect", open_policy)["probe"]["open_cue"] is True


def test_probe_writes_the_cue_into_the_manifest_and_like_brings_it(
    call: Call, open_policy: Path
) -> None:
    probe = ("probe", FRESH, "--budgets", "0,8,16", "--seed", "7", "--cue", "open", "--out", "new")
    assert call(*probe, "--limit", "60")[0] == 0
    manifest = RunDirectory.load(Path("new")).manifest
    assert manifest["plan"]["cue"] == OPEN_CUE
    assert manifest["cue_ids"] == ScriptedEngine().suffix_ids(OPEN_CUE)
    assert (_cue("open:Answer:"), _cue("terse")) == ("open:Answer:", "\n\nFinal answer:")
    code, _, err = call("probe", FRESH, "--like", open_policy, "--out", "like")
    assert code == 0, err
    assert RunDirectory.load(Path("like")).plan.cue == OPEN_CUE
    assert call("verify", open_policy, "like", "--quiet")[0] == 0


def test_a_closed_cue_is_another_one(call: Call, open_policy: Path) -> None:
    make_run(Path("closed"), 60)
    assert f"calibrated with answer cue {OPEN_CUE!r}, got '\\n\\nFinal answer:'" in call.refused(
        "verify", open_policy, "closed"
    )
    table = RunDirectory.load(Path("closed")).table()
    with pytest.raises(ProbeError, match="needs probes with an open cue, and these have none"):
        feature_array(table, ["closed_by_itself"])


# --- At a server ----------------------------------------------------------------------------------


@pytest.fixture
def textual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeServer, Path]]:
    """An endpoint without log-probabilities, and a policy that was calibrated there."""
    monkeypatch.chdir(tmp_path)
    write_sums(FRESH, 100)
    with fake_server(top_limit=0) as server:
        engine = open_servers("tiny-reasoner", [server.url], concurrency=4)
        policy = policy_of(engine, entropy_source="none", budgets=[0, 4, 12])
        engine.close()
        save_policy(policy, POLICY)
        yield server, POLICY


def test_a_policy_without_log_probabilities_is_probed_like_at_its_server(
    textual: tuple[FakeServer, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    server, path = textual
    call = Call(capsys)
    at = ("--engine", "openai", "--base-url", server.url, "--concurrency", "4", "--limit", "20")
    code, _, err = call("probe", FRESH, "--like", path, *at, "--out", "new")
    assert code == 0, err
    assert RunDirectory.load(Path("new")).plan.entropy == "none"
    code, out, err = call("verify", path, "new", "--json")
    assert code in (0, 4), out + err  # the story is no workload's; that it is judged is the point
    assert json.loads(out)["transfer"] is None


def test_a_policy_without_log_probabilities_is_probed_like_locally(call: Call) -> None:
    content = load_policy(POLICY).content
    changes = {"family": "run-stability", "threshold": 2.0, "decision_threshold": 2.0, "order": []}
    blind = policy_from({**content, **changes, "entropy_source": "none"})
    save_policy(blind, Path("blind.joblib"))
    like = ("probe", FRESH, "--limit", "60", "--like", "blind.joblib")
    code, _, err = call(*like, "--out", "auto")
    assert code == 0, err
    assert RunDirectory.load(Path("auto")).plan.entropy == "full"
    code, _, err = call(*like, "--entropy", "top-k:5", "--out", "asked")
    assert code == 0, err
    assert RunDirectory.load(Path("asked")).plan.entropy == "top-k:5"
    assert "--like sets --entropy full, got top-k:5" in call.refused(
        "probe", FRESH, "--like", POLICY, "--entropy", "top-k:5"
    )
