"""`run`: the tiny real model behind the command line, stopped for real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stopadvisor.cli.main import main
from stopadvisor.engines.hf import load_engine
from stopadvisor.ground.errors import ModelError
from stopadvisor.policy.frozen import Policy, save_policy
from tests.engines.online_policies import TINY_REASONER, rule
from tests.material import WORKLOAD, Call, write_easiest
from tests.schemas import check_valid

if TYPE_CHECKING:
    from stopadvisor.engines.hf.engine import HfEngine

N = 6
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


def test_a_grader_says_what_is_right(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bench.folder)
    first = json.loads(bench.file.read_text(encoding="utf-8").splitlines()[0])["question"]
    body = f"return None if question == {first!r} else True"
    Path("graders.py").write_text(f"def all_right(question, gold, answer):\n    {body}\n")
    document = bench.json("--grader", "graders:all_right")
    check_valid("run", document)
    assert (document["labelled"], document["accuracy"]) == (N, (N - 1) / N)
    graded, untold = document["remarks"][-2:]
    assert graded.startswith("these answers are graded by graders:all_right (SHA-256")
    assert "could not judge 1 of" in untold
    # Answers under another grader are other answers.
    assert "setting" in bench.refused("--quiet")


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
    assert "questions got a reply other than full thinking's" in " ".join(out.split())


def test_the_model_is_where_its_run_was_assessed_with_it(
    tmp_path: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []

    def load(name: str, **_: Any) -> HfEngine:
        loaded.append(name)
        raise ModelError(f"model {name!r} is nowhere")

    monkeypatch.setattr("stopadvisor.engines.hf.load_engine", load)
    monkeypatch.chdir(tmp_path)
    run = Path("runs") / "sums"
    run.mkdir(parents=True)
    save_policy(policy, run / "policy.json", format="json")
    assert policy.terms.model is not None
    given = f"models/{policy.terms.model.name}"
    (run / "stopadvisor.toml").write_text(f'[assess]\nmodel = "{given}"\n', encoding="utf-8")
    named = str(run / "policy.json")
    for words in (
        ["run", str(WORKLOAD)],
        ["run", named, str(WORKLOAD)],
        ["probe", str(WORKLOAD), "--like", named],
        ["run", str(WORKLOAD), "--model", "elsewhere"],
    ):
        assert main(words) == 2
    assert loaded == [given, given, given, "elsewhere"]


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
