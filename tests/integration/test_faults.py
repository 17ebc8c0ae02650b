"""A real server dies while it is asked: nothing is lost, nothing comes twice.

Each kind of broken request is tried at a server that tells a story (`tests/engines`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.cli.main import main
from tests.integration.server import NAME, ROOT, VllmServer
from tests.material import write_easiest

pytestmark = [pytest.mark.integration, pytest.mark.vllm, pytest.mark.slow]

N_QUESTIONS = 40
BEFORE = 8
"""Questions that a run has kept when it is disturbed."""
CLOSE = 1e-4
"""Of log-probabilities: float32 moves by less with the company a request is computed in."""
FIGURES = ("mean_logprob", "mean_entropy")


def records(out: Path) -> dict[str, dict[str, Any]]:
    """What `probes.jsonl` holds, by id; each id once, each line whole."""
    text = (out / "probes.jsonl").read_text(encoding="utf-8")
    assert text.endswith("\n")
    lines = [json.loads(line) for line in text.splitlines()]
    found = {line["id"]: line for line in lines}
    assert len(found) == len(lines) == N_QUESTIONS
    return found


def test_a_server_that_dies_and_comes_back_costs_time_alone(
    vllm: VllmServer, tmp_path: Path
) -> None:
    workload = write_easiest(tmp_path / "few.jsonl", N_QUESTIONS)
    words = [
        *("probe", str(workload), "--model", NAME, "--engine", "openai", "--no-preflight"),
        *("--base-url", vllm.base_url, "--concurrency", "24", "--split", "70/30/0"),
        *("--budgets", "0,16,43,86", "--out"),
    ]
    assert main([*words, str(tmp_path / "calm")]) == 0
    out, log = tmp_path / "run", tmp_path / "log"
    probes, deadline = out / "probes.jsonl", time.monotonic() + 180
    with log.open("wb") as file:
        command = [sys.executable, "-m", "stopadvisor", *words, str(out)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)
    while not probes.exists() or probes.read_bytes().count(b"\n") < BEFORE:
        assert process.poll() is None, "the run ended before it was disturbed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    vllm.kill()
    assert process.poll() is None
    before = probes.read_bytes()
    assert before.count(b"\n") < N_QUESTIONS
    vllm.start()
    assert process.wait(240) == 0, log.read_text()
    assert probes.read_bytes().startswith(before)
    found, undisturbed = records(out), records(tmp_path / "calm")
    assert found.keys() == undisturbed.keys()
    for name, line in found.items():
        expected = undisturbed[name]
        rows, others = line.pop("checkpoints"), expected.pop("checkpoints")
        assert line == expected
        for row, other in zip(rows, others, strict=True):
            for key in FIGURES:
                assert row[key] == pytest.approx(other[key], abs=CLOSE)
            assert {**row, **dict.fromkeys(FIGURES)} == {**other, **dict.fromkeys(FIGURES)}
