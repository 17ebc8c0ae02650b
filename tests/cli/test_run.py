"""`run`: the tiny real model behind the command line, stopped for real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.answers.grading import Grader
from stopadvisor.cli.main import main
from stopadvisor.collection.labels import grade_traces
from stopadvisor.engines import OutOfMemory
from stopadvisor.engines.hf import load_engine
from stopadvisor.engines.hf.engine import HfEngine
from stopadvisor.ground.errors import ModelError
from stopadvisor.policy.frozen import Policy, save_policy
from stopadvisor.policy.requests import make_requests, policy_plan
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.manifest import build_manifest
from stopadvisor.workload.questions import read_workload
from tests.engines.online_policies import TINY_REASONER, rule
from tests.material import WORKLOAD, Call, easiest, write_easiest
from tests.replay import recorded_index

N = 16
BUDGETS = (0, 16, 32, 64)

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def engine() -> HfEngine:
    return load_engine(str(TINY_REASONER), device="cpu")


@pytest.fixture(scope="module")
def policy(engine: HfEngine) -> Policy:
    """Stops a middling share of the questions."""
    return rule(engine, "run-stability", 2.0, budgets=list(BUDGETS))


class Bench(Call):
    """`run` of a policy over a workload, with the engine behind it."""

    def __init__(self, folder: Path, policy: Policy, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(capsys, "run")
        self.folder, self.out = folder, folder / "answers.jsonl"
        self.file = write_easiest(folder / "sums.jsonl", N)
        self.policy = folder / "policy.json"
        save_policy(policy, self.policy, format="json")

    def __call__(self, *words: object, command: str | None = None) -> tuple[int, str, str]:
        always = (self.policy, self.file, "--out", self.out, "--concurrency", "8")
        return super().__call__(*always, *words, command=command)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def bench(
    tmp_path: Path,
    engine: HfEngine,
    policy: Policy,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Bench:
    monkeypatch.setattr("stopadvisor.engines.engine_settings.start_engine", lambda options: engine)
    return Bench(tmp_path, policy, capsys)


@pytest.fixture(scope="module")
def recorded(
    engine: HfEngine, policy: Policy, tmp_path_factory: pytest.TempPathFactory
) -> RunDirectory:
    """A run that holds the probes of the same questions."""
    workload = read_workload(WORKLOAD)
    questions = easiest(N)
    plan = policy_plan(policy)
    traces = engine.probe([r.prompt for r in make_requests(questions, policy)], plan)
    with Grader() as grader:
        records = grade_traces(questions, traces, grader, entropy="full")
    manifest = build_manifest(
        engine.identity(), plan, workload, fractions=(0.4, 0.4, 0.2), grading={}
    )
    run = RunDirectory.create(tmp_path_factory.mktemp("recorded"), manifest)
    run.append(records)
    return run


def test_a_grader_says_what_is_right(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bench.folder)
    first = json.loads(bench.file.read_text(encoding="utf-8").splitlines()[0])["question"]
    body = f"return None if question == {first!r} else True"
    Path("graders.py").write_text(f"def all_right(question, gold, answer):\n    {body}\n")
    document = bench.json("--grader", "graders:all_right")
    assert (document["labelled"], document["accuracy"]) == (N, (N - 1) / N)
    graded, untold = document["remarks"][-2:]
    assert graded.startswith("these answers are graded by graders:all_right (SHA-256")
    assert "could not tell of 1 of" in untold
    # Answers under another grader are other answers.
    assert "setting" in bench.refused("--quiet")


def test_stops_are_those_of_the_recorded_probes(
    bench: Bench, policy: Policy, recorded: RunDirectory
) -> None:
    document = bench.json()
    records = {record.id: record for record in recorded.records()}
    assert 2 < document["stopped"] < N - 2
    for line in bench.lines:
        record = records[line["id"]]
        stop = recorded_index(policy, record)
        assert line["checkpoint"] == stop
        if stop is None:
            assert line["answer"] == record.natural_answer
            assert line["correct"] == record.natural_correct
        else:
            at = record.checkpoints[stop]
            assert (line["answer"], line["normalized"]) == (at.answer, at.normalized)
            assert line["correct"] == at.correct
    assert (document["questions"], document["labelled"], document["certified"]) == (N, N, True)


def test_compare_full_measures_what_stopping_saves(bench: Bench, recorded: RunDirectory) -> None:
    document = bench.json("--compare-full")
    full = document["full"]
    records = {record.id: record for record in recorded.records()}
    for line in bench.lines:
        record = records[line["id"]]
        assert line["full"]["answer"] == record.natural_answer
        assert line["full"]["think_tokens"] == record.trace_tokens
        assert line["full"]["visible_tokens"] == record.natural_answer_tokens
        assert line["full"]["correct"] == record.natural_correct
    decoded = sum(
        line["think_tokens"] + line["probe_tokens"] + line["visible_tokens"] for line in bench.lines
    )
    whole = sum(r.trace_tokens + r.natural_answer_tokens for r in records.values())
    assert full["token_saving_pct"] == pytest.approx(100 * (1 - decoded / whole))
    lost = [line for line in bench.lines if line["full"]["correct"] and not line["correct"]]
    assert (full["lost"], full["risk"]) == (len(lost), len(lost) / N)
    differing = [line for line in bench.lines if line["normalized"] != line["full"]["normalized"]]
    assert (full["differing"], full["differing_share"]) == (len(differing), len(differing) / N)
    assert full["lost"] <= full["differing"] > 0
    assert full["timed_questions"] == full["unmet"]["questions"] == N
    again = bench.json("--compare-full")
    assert (again["new"], again["full"]["timed_questions"]) == (0, 0)
    assert again["full"]["time_saving_pct"] is None
    assert again["full"]["token_saving_pct"] == full["token_saving_pct"]


def test_questions_need_no_gold(bench: Bench) -> None:
    rows = [json.loads(line) for line in bench.file.read_text(encoding="utf-8").splitlines()[:5]]
    bench.file.write_text(
        "".join(json.dumps({"id": r["id"], "question": r["question"]}) + "\n" for r in rows),
        encoding="utf-8",
    )
    document = bench.json()
    assert not any("correct" in line for line in bench.lines)
    assert (document["labelled"], document["accuracy"], document["full"]) == (0, None, None)
    code, out, err = bench()
    assert code == 0
    assert "Answered 5 questions" in out
    assert "answering: 5/5 done" in err
    where = ("--out", str(bench.out.with_name("anew.jsonl")), "--model", "my models/tiny")
    code, out, _ = bench("--compare-full", *where)
    assert code == 0
    assert f"stopadvisor serve {bench.policy} --shadow -- 'my models/tiny'" in out
    assert "of replies that differ from full thinking" in " ".join(out.split())
    assert "questions got another reply than full thinking's" in " ".join(out.split())


def test_memory_that_runs_out_halves_the_batch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve, sizes = HfEngine.serve, []

    def tight(*args: Any, **kwargs: Any) -> Any:
        sizes.append(kwargs["batch_size"])
        if kwargs["batch_size"] > 4:
            yield next(serve(*args, **kwargs))
            raise OutOfMemory("no more")
        yield from serve(*args, **kwargs)

    monkeypatch.setattr(HfEngine, "serve", tight)
    monkeypatch.setattr(HfEngine, "auto_batch_size", lambda self, plan: 8)
    code = main(
        ["run", str(bench.policy), str(bench.file), "--out", str(bench.out), "--limit", "6"]
    )
    assert (code, sizes) == (0, [8, 4])
    assert len({line["id"] for line in bench.lines}) == len(bench.lines) == 6


def test_another_model_is_refused(bench: Bench, engine: HfEngine, policy: Policy) -> None:
    model = policy.content["model"] | {"tokenizer_sha256": "0" * 64}
    other = rule(engine, "confidence", -0.1, budgets=list(BUDGETS), model=model)
    save_policy(other, bench.policy, format="json")
    assert "calibrated with tokenizer hash" in bench.refused()
    assert not bench.out.exists()


def test_where_the_model_is_is_asked_only_where_it_was_not_found(
    tmp_path: Path,
    policy: Policy,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nowhere(name: str, **_: Any) -> HfEngine:
        raise ModelError(f"model {name!r} is nowhere")

    monkeypatch.setattr("stopadvisor.engines.hf.load_engine", nowhere)
    save_policy(policy, tmp_path / "policy.json", format="json")
    words = ["run", str(tmp_path / "policy.json"), str(WORKLOAD)]
    server = ["--engine", "openai", "--base-url", "nowhere"]
    for more, asked in (([], True), (server, False)):
        assert main([*words, *more]) == 2
        assert ("--model says where it is" in capsys.readouterr().err) == asked
