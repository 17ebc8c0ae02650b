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
from tests.material import WORKLOAD, easiest, write_easiest
from tests.replay import recorded_index

N = 16
BUDGETS = (0, 16, 32, 64)
LINE = [
    "id", "key", "setting", "answer", "normalized", "stopped", "checkpoint", "budget", "finish",
    "think_tokens", "probe_tokens", "visible_tokens", "prompt_tokens",
    "seconds",
]  # fmt: skip
SUMMARY = [
    "schema", "policy", "digest", "kind", "family", "workload", "model", "out", "setting",
    "on_stop", "serving", "server_saving_pct", "certified", "alpha", "loss", "questions", "new",
    "seconds", "stopped", "stopped_share", "mean_tokens", "labelled", "accuracy", "full",
    "remarks", "headline",
]  # fmt: skip
FULL = [
    "questions", "decoded_tokens", "full_decoded_tokens", "think_tokens", "full_think_tokens",
    "differing", "differing_share", "differing_ci95", "labelled", "correct", "full_correct", "lost",
    "token_saving_pct", "think_saving_pct", "accuracy", "full_accuracy", "risk", "risk_ci95",
]  # fmt: skip

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def engine() -> HfEngine:
    return load_engine(str(TINY_REASONER), device="cpu")


@pytest.fixture(scope="module")
def policy(engine: HfEngine) -> Policy:
    """Stops a middling share of the questions."""
    return rule(engine, "run-stability", 2.0, budgets=list(BUDGETS))


class Bench:
    """A workload, a policy file and the engine behind the command line."""

    def __init__(
        self, folder: Path, engine: HfEngine, policy: Policy, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.folder, self.engine = folder, engine
        self.file = folder / "sums.jsonl"
        write_easiest(self.file, N)
        self.out = folder / "answers.jsonl"
        self.policy = self.save(policy)
        self._capsys = capsys

    def save(self, policy: Policy, name: str = "policy.json") -> Path:
        path = self.folder / name
        save_policy(policy, path, format="json")
        return path

    def call(self, *words: str, policy: Path | None = None) -> tuple[int, str, str]:
        arguments = ["run", str(policy or self.policy), str(self.file), "--out", str(self.out)]
        code = main([*arguments, "--concurrency", "8", *words])
        text = self._capsys.readouterr()
        return code, text.out, text.err

    def document(self, *words: str, policy: Path | None = None) -> dict[str, Any]:
        code, out, err = self.call("--json", "--quiet", *words, policy=policy)
        assert (code, err) == (0, "")
        found: dict[str, Any] = json.loads(out)
        return found

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
    return Bench(tmp_path, engine, policy, capsys)


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
    document = bench.document("--grader", "graders:all_right")
    assert (document["labelled"], document["accuracy"]) == (N, (N - 1) / N)
    graded, untold = document["remarks"][-2:]
    assert graded.startswith("these answers are graded by graders:all_right (SHA-256")
    assert "could not tell of 1 of" in untold
    # Answers under another grader are other answers.
    code, _, err = bench.call("--quiet")
    assert code == 2
    assert "setting" in err


def test_stops_are_those_of_the_recorded_probes(
    bench: Bench, policy: Policy, recorded: RunDirectory
) -> None:
    document = bench.document()
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
    assert list(document) == SUMMARY
    assert (document["questions"], document["labelled"], document["certified"]) == (N, N, True)


def test_compare_full_measures_what_stopping_saves(bench: Bench, recorded: RunDirectory) -> None:
    document = bench.document("--compare-full")
    full = document["full"]
    assert list(full)[: len(FULL)] == FULL
    assert list(full)[len(FULL) :] == [
        *("timed_questions", "seconds", "full_seconds", "time_saving_pct", "unmet")
    ]
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
    again = bench.document("--compare-full")
    assert (again["new"], again["full"]["timed_questions"]) == (0, 0)
    assert again["full"]["time_saving_pct"] is None
    assert again["full"]["token_saving_pct"] == full["token_saving_pct"]


def test_questions_need_no_gold(bench: Bench) -> None:
    rows = [json.loads(line) for line in bench.file.read_text(encoding="utf-8").splitlines()[:5]]
    bench.file.write_text(
        "".join(json.dumps({"id": r["id"], "question": r["question"]}) + "\n" for r in rows),
        encoding="utf-8",
    )
    document = bench.document()
    assert [list(line) for line in bench.lines] == [LINE] * 5
    assert (document["labelled"], document["accuracy"], document["full"]) == (0, None, None)
    code, out, err = bench.call()
    assert code == 0
    assert "Answered 5 questions" in out
    assert "answering: 5/5 done" in err
    where = ("--out", str(bench.out.with_name("anew.jsonl")), "--model", "my models/tiny")
    code, out, _ = bench.call("--compare-full", *where)
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


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("tokenizer_sha256", "calibrated with tokenizer hash"),
        ("template_sha256", "calibrated with chat template hash"),
        ("revision", "calibrated with model revision"),
    ],
)
def test_another_model_is_refused(
    field: str, words: str, bench: Bench, engine: HfEngine, policy: Policy
) -> None:
    model = policy.content["model"] | {field: "0" * 64}
    other = rule(engine, "confidence", -0.1, budgets=list(BUDGETS), model=model)
    code, out, err = bench.call(policy=bench.save(other, "other.json"))
    assert (code, out) == (2, "")
    assert words in err
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
