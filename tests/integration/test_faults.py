"""What goes wrong between here and a server: nothing is lost, nothing comes twice.

Each run is held against one that nothing disturbed.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.cli.main import main
from tests.integration.proxy import FAULTS, Fault, FaultProxy, every
from tests.integration.server import NAME, ROOT, VllmServer
from tests.material import write_easiest

pytestmark = [pytest.mark.integration, pytest.mark.vllm, pytest.mark.slow]

N_QUESTIONS = 40
BEFORE = 8
"""Questions that a run has kept when it is disturbed."""
CLOSE = 1e-4
"""Of log-probabilities: float32 moves by less with the company a request is computed in."""


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_easiest(tmp_path_factory.mktemp("workload") / "few.jsonl", N_QUESTIONS)


def _words(workload: Path, out: Path, base_url: str, *more: str) -> list[str]:
    return [
        *("probe", str(workload), "--out", str(out), "--model", NAME, "--engine", "openai"),
        *("--base-url", base_url, "--concurrency", "24", "--split", "70/30/0"),
        *("--budgets", "0,16,43,86", "--no-preflight", *more),
    ]


def _records(out: Path) -> dict[str, dict[str, Any]]:
    """What `probes.jsonl` holds, by id; each id once, each line whole."""
    text = (out / "probes.jsonl").read_text(encoding="utf-8")
    assert text.endswith("\n")
    lines = [json.loads(line) for line in text.splitlines()]
    found = {line["id"]: line for line in lines}
    assert len(found) == len(lines)
    return found


def _assert_same(out: Path, undisturbed: dict[str, dict[str, Any]]) -> None:
    found = _records(out)
    assert found.keys() == undisturbed.keys()
    assert len(found) == N_QUESTIONS
    for name, expected in undisturbed.items():
        line = found[name]
        assert {k: v for k, v in line.items() if k != "checkpoints"} == {
            k: v for k, v in expected.items() if k != "checkpoints"
        }
        for row, other in zip(line["checkpoints"], expected["checkpoints"], strict=True):
            figures = ("mean_logprob", "mean_entropy")
            for key in figures:
                assert row[key] == pytest.approx(other[key], abs=CLOSE)
            assert {**row, **dict.fromkeys(figures)} == {**other, **dict.fromkeys(figures)}


_UNDISTURBED: dict[str, dict[str, dict[str, Any]]] = {}


@pytest.fixture
def undisturbed(
    vllm: VllmServer, workload: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> dict[str, dict[str, Any]]:
    """The records of a run that nothing disturbed; made once."""
    if not _UNDISTURBED:
        assert main(_words(workload, tmp_path / "calm", vllm.base_url)) == 0
        capsys.readouterr()
        _UNDISTURBED["records"] = _records(tmp_path / "calm")
    return _UNDISTURBED["records"]


def _fault(number: int) -> Fault | None:
    """All kinds in turn; few that hang, as each costs the time-out."""
    if number in (25, 49):
        return "hang"
    return every(3, *(fault for fault in FAULTS if fault != "hang"))(number)


def test_broken_requests_are_asked_again(
    vllm: VllmServer,
    workload: Path,
    undisturbed: dict[str, dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with FaultProxy(vllm.port, _fault) as proxy:
        words = ("--request-timeout", "8")
        code = main(_words(workload, tmp_path / "run", proxy.base_url, *words))
        said = capsys.readouterr().err
    assert code == 0, said
    for fault in FAULTS:
        assert proxy.seen[fault] >= (2 if fault == "hang" else 8), proxy.seen
    _assert_same(tmp_path / "run", undisturbed)


def _probing(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "stopadvisor", *words], cwd=ROOT, stdout=file, stderr=file
        )


def _wait_for_lines(out: Path, n: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until the run holds so many questions."""
    probes, deadline = out / "probes.jsonl", time.monotonic() + 180
    while not probes.exists() or probes.read_bytes().count(b"\n") < n:
        assert process.poll() is None, "the run ended before it was disturbed"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_server_that_dies_and_comes_back_costs_time_alone(
    vllm: VllmServer, workload: Path, undisturbed: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = _probing(_words(workload, out, vllm.base_url), tmp_path / "log")
    _wait_for_lines(out, BEFORE, process)
    vllm.kill()
    assert process.poll() is None
    before = (out / "probes.jsonl").read_bytes()
    assert before.count(b"\n") < N_QUESTIONS
    vllm.start()
    assert process.wait(240) == 0, (tmp_path / "log").read_text()
    assert (out / "probes.jsonl").read_bytes().startswith(before)
    _assert_same(out, undisturbed)


@pytest.mark.long  # tests/collection kills a run, tests/cli/test_openai its server
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_a_run_that_is_ended_goes_on_where_it_was(
    vllm: VllmServer,
    workload: Path,
    undisturbed: dict[str, dict[str, Any]],
    tmp_path: Path,
    how: signal.Signals,
) -> None:
    out = tmp_path / "run"
    process = _probing(_words(workload, out, vllm.base_url), tmp_path / "log")
    _wait_for_lines(out, BEFORE, process)
    process.send_signal(how)
    code = process.wait(30)
    assert code == (130 if how == signal.SIGINT else -signal.SIGKILL)
    assert main(_words(workload, out, vllm.base_url)) == 0
    _assert_same(out, undisturbed)
