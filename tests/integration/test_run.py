"""`run` at a real server: the lines of the local engine, gone on with where it was left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.cli.main import main
from stopadvisor.engines import hf
from stopadvisor.policy.frozen import save_policy
from tests.engines.online_policies import rule
from tests.integration.server import NAME, TINY_REASONER, VllmServer, free_port
from tests.material import write_easiest

pytestmark = [pytest.mark.integration, pytest.mark.vllm, pytest.mark.slow]

N_QUESTIONS = 16
TIMED = ("seconds", "full_seconds", "time_saving_pct")


class Bench:
    """A policy and a workload in a folder, and `run` over them."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        engine = hf.load_engine(str(TINY_REASONER), device="cpu", dtype="float32")
        policy = rule(
            engine, "run-stability", 2.0, budgets=[0, 16, 43, 64], entropy_source="top-k:20"
        )
        save_policy(policy, folder / "policy.joblib")
        write_easiest(folder / "few.jsonl", N_QUESTIONS)

    def run(self, out: str, *words: str) -> tuple[int, str, str]:
        files = (str(self.folder / "policy.joblib"), str(self.folder / "few.jsonl"))
        code = main(["run", *files, "--out", str(self.folder / out), *words])
        text = self._capsys.readouterr()
        return code, text.out, text.err

    def lines(self, out: str) -> dict[str, dict[str, Any]]:
        """By id, without what differs from run to run."""
        found = {}
        for text in (self.folder / out).read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            assert line["id"] not in found
            for name in ("seconds", "setting"):
                del line[name]
            if "full" in line:
                del line["full"]["seconds"]
            found[line["id"]] = line
        return found


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    return Bench(tmp_path, capsys)


def _at(server: VllmServer, *words: str) -> tuple[str, ...]:
    return ("--engine", "openai", "--base-url", server.base_url, "--concurrency", "24", *words)


def test_lines_are_those_of_the_local_engine(bench: Bench, vllm: VllmServer) -> None:
    local = ("--model", str(TINY_REASONER), "--device", "cpu", "--dtype", "float32")
    both = ("--compare-full", "--json", "--quiet")
    code, here, err = bench.run("here.jsonl", *local, *both)
    assert code == 0, here + err
    code, there, _ = bench.run("there.jsonl", *_at(vllm), *both)
    assert code == 0
    assert len(bench.lines("there.jsonl")) == N_QUESTIONS
    assert bench.lines("there.jsonl") == bench.lines("here.jsonl")
    ours, theirs = json.loads(there), json.loads(here)
    for name in ("questions", "stopped", "mean_tokens", "accuracy", "certified"):
        assert ours[name] == theirs[name]
    for name in theirs["full"].keys() - set(TIMED):
        assert ours["full"][name] == theirs["full"][name]
    assert ours["model"] == NAME
    assert 0 < ours["stopped"] < N_QUESTIONS


def test_a_run_goes_on_where_it_was_left(bench: Bench, vllm: VllmServer) -> None:
    code, _, err = bench.run("whole.jsonl", *_at(vllm))
    assert code == 0, err
    code, _, _ = bench.run("parts.jsonl", *_at(vllm, "--limit", "9"))
    assert code == 0
    before = (bench.folder / "parts.jsonl").read_text(encoding="utf-8")
    nobody = f"http://127.0.0.1:{free_port()}/v1"
    words = ("--engine", "openai", "--base-url", nobody, "--patience", "1")
    code, out, err = bench.run("parts.jsonl", *words)
    assert (code, out) == (1, "")  # it may come back
    assert "cannot reach the server" in err
    code, out, _ = bench.run("parts.jsonl", *_at(vllm, "--json", "--quiet"))
    assert code == 0
    assert json.loads(out)["new"] == N_QUESTIONS - 9
    assert (bench.folder / "parts.jsonl").read_text(encoding="utf-8").startswith(before)
    assert bench.lines("parts.jsonl") == bench.lines("whole.jsonl")
