"""A real server that dies during a run: nothing is lost and nothing is duplicated.

`tests/engines` tests each kind of broken request at a scripted server.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from stopadvisor.cli.main import main
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import Request, policy_plan
from stopadvisor.serving.serve_settings import ServeSettings
from tests.integration.asking import Seen, ask, ask_all, client_at, differing
from tests.integration.conftest import POLICY
from tests.integration.server import NAME, VllmServer, server_with
from tests.material import write_easiest

if TYPE_CHECKING:
    from stopadvisor.engines.hf.engine import HfEngine

pytestmark = [pytest.mark.integration, pytest.mark.vllm, pytest.mark.slow, pytest.mark.long]
# vLLM starts anew in each of them.

N_QUESTIONS = 12
BEFORE = 3
"""Questions saved before the server is killed."""
CLOSE = 1e-4
"""Tolerance of log-probabilities, which in float32 depend slightly on the batch."""
FIGURES = ("mean_logprob", "mean_entropy")


def records(out: Path) -> dict[str, dict[str, Any]]:
    """Read `probes.jsonl` by id; check that lines are complete and ids unique."""
    text = (out / "probes.jsonl").read_text(encoding="utf-8")
    assert text.endswith("\n")
    lines = [json.loads(line) for line in text.splitlines()]
    found = {line["id"]: line for line in lines}
    assert len(found) == len(lines) == N_QUESTIONS
    return found


def test_a_server_that_dies_and_comes_back_costs_time_alone(
    vllm: VllmServer, tmp_path: Path
) -> None:
    workload = write_easiest(tmp_path / "easiest.jsonl", 40)
    words = [
        *("probe", str(workload), "--model", NAME, "--engine", "openai", "--no-preflight"),
        *("--base-url", vllm.base_url, "--concurrency", "4", "--split", "70/30/0"),
        *("--limit", str(N_QUESTIONS), "--budgets", "0,16,43,86", "--out"),
    ]
    assert main([*words, str(tmp_path / "calm")]) == 0
    out = tmp_path / "run"
    probes, deadline = out / "probes.jsonl", time.monotonic() + 180

    def kill_and_start() -> bytes:
        while not probes.exists() or probes.read_bytes().count(b"\n") < BEFORE:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        vllm.kill()
        saved = probes.read_bytes()
        vllm.start()
        return saved

    with ThreadPoolExecutor(1) as beside:
        disturbance = beside.submit(kill_and_start)
        assert main([*words, str(out)]) == 0
        before = disturbance.result()
    assert before.count(b"\n") < N_QUESTIONS, "the run ended before it was disturbed"
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


def test_a_killed_engine_makes_no_reply_wrong_and_a_restart_serves_again(
    vllm_home: Path, policy: Policy, requests: list[Request], local: HfEngine, tmp_path: Path
) -> None:
    replies = dict(local.serve(requests, policy_plan(policy), policy))
    replayed = [replies[number] for number in range(len(requests))]
    server = server_with(ServeSettings(POLICY), vllm_home, tmp_path)
    try:
        server.start()
        seen = asyncio.run(ask_while_its_engine_is_killed(server, requests))
        answered = [number for number, found in enumerate(seen) if found is not None]
        assert 10 <= len(answered) < len(seen)
        found = [one for one in seen if one is not None]
        assert differing(policy, found, [replayed[number] for number in answered]) == []
        assert server._process is not None
        assert server._process.has_ended(60.0), "as vLLM does without its engine"
        server.kill()
        server.start()
        again = ask_all(server.port, requests[:24], stream=True)
        assert differing(policy, again, replayed[:24]) == []
    finally:
        server.kill()


async def ask_while_its_engine_is_killed(
    server: VllmServer, requests: list[Request]
) -> list[Seen | None]:
    """Ask with and without streaming; None for an error or a stream without a finish reason."""
    from openai import OpenAIError

    async with client_at(server.port) as client:

        async def one(number: int, request: Request) -> Seen | None:
            try:
                found = await ask(client, request, stream=number % 2 == 1)
            except (OpenAIError, httpx2.HTTPError):
                return None
            return found if found.finish else None

        work = [asyncio.create_task(one(i, request)) for i, request in enumerate(requests)]
        while sum(task.done() for task in work) < 10:
            await asyncio.sleep(0.01)
        (engine,) = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        os.kill(int(engine), signal.SIGKILL)
        return list(await asyncio.gather(*work))
