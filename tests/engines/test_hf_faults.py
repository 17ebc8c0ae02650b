"""Faults with a real model: memory that ends in mid-run, and a folder that changes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stopadvisor.answers.grading import GRADING, Grader
from stopadvisor.cli.main import main
from stopadvisor.collection.collect import collect
from stopadvisor.engines import OutOfMemory
from stopadvisor.engines.hf.engine import HfEngine
from stopadvisor.engines.hf.runner import Runner
from stopadvisor.ground.progress import NullProgress
from stopadvisor.probes.records import ProbeRecord
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.manifest import build_manifest
from stopadvisor.workload.questions import read_workload
from tests.engines.tiny import plan
from tests.scripted import write_sums

pytestmark = pytest.mark.slow

N = 12
PLAN = plan([0, 4, 9, 16], max_think=24, cap=6)

Step = Callable[[Tensor, dict[str, Any]], bool]


class Remarks(NullProgress):
    """Keeps what the loop says, and how many traces are written."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.written = 0

    def advance(self, traces: int, tokens: int) -> None:
        self.written += traces

    def remark(self, text: str) -> None:
        self.lines.append(text)


def open_run(engine: HfEngine, path: Path) -> RunDirectory:
    workload = read_workload(write_sums(path.with_suffix(".jsonl"), N))
    manifest = build_manifest(
        engine.identity(), PLAN, workload, fractions=(0.4, 0.4, 0.2), grading=GRADING
    )
    path.mkdir(exist_ok=True)
    return RunDirectory.resume(path, manifest) or RunDirectory.create(path, manifest)


def fill(engine: HfEngine, run: RunDirectory, remarks: Remarks, **options: Any) -> int:
    workload = read_workload(run.path.with_suffix(".jsonl"))
    with Grader() as grader:
        collect(
            engine, workload, PLAN, run,
            batch_size=4, grader=grader, template="{question}", progress=remarks, **options,
        )  # fmt: skip
    return int(run.manifest["batch_size"])


def check_equal(found: list[ProbeRecord], expected: list[ProbeRecord]) -> None:
    """The same traces and answers, from batches of another size."""
    assert [r.id for r in found] == [r.id for r in expected]
    for one, other in zip(found, expected, strict=True):
        assert (one.trace_tokens, one.finish) == (other.trace_tokens, other.finish)
        assert one.natural_answer == other.natural_answer
        for a, b in zip(one.checkpoints, other.checkpoints, strict=True):
            assert (a.budget, a.answer, a.probe_tokens) == (b.budget, b.answer, b.probe_tokens)
            assert a.mean_logprob == pytest.approx(b.mean_logprob, abs=5e-5)
            assert a.mean_entropy == pytest.approx(b.mean_entropy, abs=5e-5)


def one_new_token(ids: Tensor, options: dict[str, Any]) -> bool:
    return ids.shape[1] == 1


def many_branches(ids: Tensor, options: dict[str, Any]) -> bool:
    return ids.shape[1] > 1 and options.get("folded", True)


def a_prompt(ids: Tensor, options: dict[str, Any]) -> bool:
    return not options.get("folded", True)


@pytest.fixture
def run_out(monkeypatch: pytest.MonkeyPatch) -> Callable[[Step, Remarks, int], list[int]]:
    """Make the first such step fail once so many traces are written; which rows it had."""

    def install(step: Step, remarks: Remarks, after: int) -> list[int]:
        failed: list[int] = []
        forward = Runner.forward

        def fail_once(self: Runner, ids: Tensor, *args: Any, **options: Any) -> Tensor:
            if not failed and remarks.written >= after and step(ids, options):
                failed.append(len(ids))
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return forward(self, ids, *args, **options)

        monkeypatch.setattr(Runner, "forward", fail_once)
        return failed

    return install


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(a_prompt, id="reading prompts"),
        pytest.param(one_new_token, id="generating"),
        pytest.param(many_branches, id="probing"),
    ],
)
def test_memory_that_ends_in_mid_run_costs_nothing_collected(
    step: Step,
    random_engine: HfEngine,
    run_out: Callable[[Step, Remarks, int], list[int]],
    tmp_path: Path,
) -> None:
    whole = open_run(random_engine, tmp_path / "whole")
    assert fill(random_engine, whole, Remarks()) == 4

    run, remarks = open_run(random_engine, tmp_path / "run"), Remarks()
    failed = run_out(step, remarks, 4)
    assert fill(random_engine, run, remarks) == 2
    assert failed == [4]
    assert remarks.lines == ["out of memory with 4 questions at once; going on with 2"]
    assert run.manifest["batch_size"] == 2
    first = 4
    lines, intact = run.probes_path.read_bytes(), whole.probes_path.read_bytes()
    assert lines.splitlines()[:first] == intact.splitlines()[:first]
    check_equal(run.records(), whole.records())


def test_a_run_whose_batch_must_not_shrink_goes_on_where_memory_ended(
    random_engine: HfEngine, run_out: Callable[[Step, Remarks, int], list[int]], tmp_path: Path
) -> None:
    """With its own batch size kept, the continued file equals the uninterrupted one."""
    whole = open_run(random_engine, tmp_path / "whole")
    fill(random_engine, whole, Remarks())

    run, remarks = open_run(random_engine, tmp_path / "run"), Remarks()
    run_out(many_branches, remarks, 8)
    with pytest.raises(OutOfMemory, match="a batch of 4 does not fit into memory"):
        fill(random_engine, run, remarks, shrink=False)
    assert [r.id for r in run.records()] == [f"q{i}" for i in range(8)]
    run = open_run(random_engine, tmp_path / "run")
    fill(random_engine, run, remarks, shrink=False)
    assert run.probes_path.read_bytes() == whole.probes_path.read_bytes()


def test_a_model_folder_that_changed_is_another_run(
    random_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(random_model, tmp_path / "model")
    file = write_sums(tmp_path / "sums.jsonl", 60)
    settings = ["--model", str(folder), "--device", "cpu", "--no-preflight", "--quiet"]
    settings += ["--budgets", "0,8", "--max-think", "16", "--cap", "4", "--answer-cap", "4"]
    settings += ["--split", "40/60/0", "--prompt-template", "{question}"]

    def probe(*words: str) -> tuple[int, dict[str, Any]]:
        code = main(["probe", str(file), "--json", *settings, *words])
        printed: dict[str, Any] = json.loads(capsys.readouterr().out)
        return code, printed

    code, first = probe()
    assert (code, first["new"]) == (0, 60)
    collected = (Path(first["run"]) / "probes.jsonl").read_bytes()
    assert probe()[1]["new"] == 0  # the same folder continues the same run

    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-4] ^= 1  # the last bit of one weight
    weights.write_bytes(content)

    code, refused = probe("--out", first["run"])
    assert code == 2
    assert "engine.model_revision: " in refused["error"]["message"]
    assert "choose another --out" in refused["error"]["message"]
    code, second = probe()
    assert (code, second["new"]) == (0, 60)
    assert second["run"] != first["run"]
    assert (Path(first["run"]) / "probes.jsonl").read_bytes() == collected
