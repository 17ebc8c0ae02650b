"""Probing over HTTP beside the same requests from a bare asynchronous client.

Run: python -m tests.benchmarks.openai [--base-url URL --model NAME] [--questions 200]

Without a server of your own it starts vLLM on the bundled model (tests/integration/setup-vllm.sh
builds it).  All requests of one probing pass are recorded; then both ways take turns over the same
questions, every prefix in the server's cache, and the median of the rounds' ratios is printed.
What the engine adds is waiting for a trace before its probes, which shows at the end of a pass
when few questions are left, cutting answers token by token, and putting records together.  The
client shares the machine with the server, so an idle one is needed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import httpx2

from stopadvisor.collection.collect import make_prompts
from stopadvisor.constants import CUES
from stopadvisor.engines.openai import load_engine
from stopadvisor.engines.openai.engine import OpenAiEngine
from stopadvisor.probes.plan import ProbePlan, Prompt
from stopadvisor.workload.questions import read_workload
from tests.integration.server import NAME, ROOT, VllmServer, environment

CONCURRENCY = 16
ROUNDS = 3
GOAL = 1.3
BUDGETS = (0, 10, 15, 20, 30, 40, 50, 60, 80, 120)


@contextmanager
def served(url: str | None, model: str) -> Iterator[tuple[str, str]]:
    """The user's server, or one of ours."""
    if url is not None:
        yield url, model
        return
    replica = environment()
    if replica is None:
        sys.exit("no vLLM environment: tests/integration/setup-vllm.sh builds it")
    with tempfile.TemporaryDirectory() as folder:
        server = VllmServer(replica, Path(folder))
        server.start()
        try:
            yield server.base_url, NAME
        finally:
            server.stop()


def probing(engine: OpenAiEngine, prompts: list[Prompt], plan: ProbePlan) -> float:
    """Seconds of one pass of the engine."""
    began = time.perf_counter()
    engine.probe(prompts, plan)
    return time.perf_counter() - began


def recorded(engine: OpenAiEngine, prompts: list[Prompt], plan: ProbePlan) -> list[bytes]:
    """The requests of one pass, as they are sent."""
    sent: list[bytes] = []

    async def note(request: httpx2.Request) -> None:
        sent.append(request.content)

    http = engine.served_model.client._http
    http.event_hooks = {"request": [note]}
    probing(engine, prompts, plan)
    http.event_hooks = {"request": []}
    return sent


async def bare(url: str, bodies: list[bytes]) -> float:
    """Seconds of the same requests from sixteen workers that read the answers' JSON."""
    waiting = iter(bodies)
    headers = {"Content-Type": "application/json"}
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(timeout=600, limits=limits) as client:

        async def work() -> None:
            for body in waiting:
                answer = await client.post(f"{url}/completions", content=body, headers=headers)
                json.loads(answer.raise_for_status().content)["choices"][0]

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(CONCURRENCY)))
        return time.perf_counter() - began


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url")
    parser.add_argument("--model", default=NAME)
    parser.add_argument("--questions", type=int, default=200)
    options = parser.parse_args()
    questions = read_workload(ROOT / "samples" / "arithmetic.jsonl").questions
    prompts = make_prompts(questions[: options.questions], None)
    with served(options.base_url, options.model) as (url, model):
        engine = load_engine(model, [url], concurrency=CONCURRENCY)
        plan = ProbePlan(
            budgets=BUDGETS,
            cue=CUES["terse"],
            max_think=400,
            greedy=True,
            entropy=engine.capabilities.entropy,
        )
        bodies = recorded(engine, prompts, plan)
        ours, theirs, cpu = [], [], [time.process_time()]
        for _ in range(ROUNDS):
            ours.append(probing(engine, prompts, plan))
            cpu.append(time.process_time())
            theirs.append(asyncio.run(bare(url, bodies)))
            cpu.append(time.process_time())
        engine.close()
    spent = [later - earlier for earlier, later in pairwise(cpu)]
    print(f"{len(prompts)} questions, {len(bodies)} requests, concurrency {CONCURRENCY}")
    for name, seconds, own in (("engine", ours, spent[::2]), ("bare client", theirs, spent[1::2])):
        middle, each = statistics.median(seconds), statistics.median(own) / len(bodies)
        print(
            f"{name:11}  {middle:6.2f} s  {len(bodies) / middle:6.0f} requests/s  "
            f"{1e3 * each:.2f} ms of its own CPU per request"
        )
    # Within a round, as both then meet the same machine; what else runs on it changes over time.
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    by_round = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"ratio {statistics.median(ratios):.2f} (goal {GOAL}); by round {by_round}")


if __name__ == "__main__":
    main()
