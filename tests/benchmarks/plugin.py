"""A policy inside vLLM: time and decoded tokens of stopped and of full thinking.

Run: python -m tests.benchmarks.plugin [--questions 150] [--rounds 3] [--only stops|full|never]
or, at a server that runs already with `policies/arithmetic.joblib` in it: [--server URL]

Starts vLLM on the bundled model with the plugin in it (tests/integration/setup-vllm.sh builds it),
one server for each of three policies: one that stops (`stops`), one that never asks (`full`), one
that probes and never stops (`never`).  Full thinking is the same server's own handler, to which a
header leads the same requests.  Both take turns over the same questions, 8 and 48 at once, whole
and streamed; medians of the rounds are printed, with ratios within a round.  The client shares the
machine with the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from stopadvisor.policy.frozen import Policy, load_policy, save_policy
from stopadvisor.policy.requests import make_requests
from stopadvisor.serving.eligibility import TASK_HEADER
from stopadvisor.serving.serve_settings import ServeSettings
from stopadvisor.workload.questions import read_workload
from tests.integration.server import NAME, ROOT, VllmServer, environment, server_with
from tests.policy_content import family_content, full_budget_content, policy_from

PAST_THE_POLICY = {TASK_HEADER: "none"}
"""Header of a request that no policy covers; it changes nothing else."""
AT_ONCE = (8, 48)
POLICIES = ("stops", "full", "never")


def policy_of(kind: str) -> Policy:
    """The bundled policy, or one like it that never asks, or asks and never stops."""
    bundled = load_policy(ROOT / "policies" / "arithmetic.joblib")
    if kind == "stops":
        return bundled
    names = ("model", "engine", "probe", "sampling", "chat_template_kwargs", "max_think")
    own = {name: bundled.content[name] for name in names}
    own["prompt_template"] = bundled.content["prompt_template"]
    if kind == "full":
        return policy_from(full_budget_content() | own)
    never = family_content("run-stability", 1e6) | {"budgets": list(bundled.budgets)}
    return policy_from(never | own)


@dataclass
class Pass:
    """Figures of one pass over the questions."""

    seconds: float
    processor: float
    """Seconds that the server's processes took of the processors: less noisy on a busy machine."""
    decoded: int
    stops: list[dict[str, int]] = field(default_factory=list)
    """Usage of stopped requests."""


async def _ask(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], route: str
) -> tuple[dict[str, Any], str]:
    way = {} if route == "policy" else PAST_THE_POLICY
    async with session.post(url, json=body, headers=way) as reply:
        header = reply.headers["X-StopAdvisor"]
        data = await reply.read()
    if not body["stream"]:
        return json.loads(data)["usage"], header
    last = data.removesuffix(b"\n\n").split(b"\n\n")[-2]
    return json.loads(last.removeprefix(b"data: "))["usage"], header


@dataclass(frozen=True)
class Running:
    """A server that somebody else started; its processes may be elsewhere."""

    base_url: str
    pid: None = None


def processor_seconds(pid: int) -> float:
    """Return the CPU time of a process and its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    children = Path(f"/proc/{pid}/task").glob("*/children")
    own = ticks / os.sysconf("SC_CLK_TCK")
    return own + sum(
        processor_seconds(int(c)) for file in children for c in file.read_text().split()
    )


async def _pass(
    server: VllmServer | Running, bodies: Sequence[dict[str, Any]], at_once: int, route: str
) -> Pass:
    left, found = iter(bodies), Pass(0.0, 0.0, 0)
    url = f"{server.base_url}/chat/completions"
    used = processor_seconds(server.pid) if server.pid else 0.0

    async def work(session: aiohttp.ClientSession) -> None:
        for body in left:
            usage, header = await _ask(session, url, body, route)
            assert header.startswith(route), header
            found.decoded += usage["completion_tokens"]
            if usage.get("stopadvisor", {}).get("budget") is not None:
                found.stops.append(usage["stopadvisor"])

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        began = time.perf_counter()
        await asyncio.gather(*(work(session) for _ in range(at_once)))
        found.seconds = time.perf_counter() - began
    found.processor = processor_seconds(server.pid) - used if server.pid else 0.0
    return found


def bodies_of(policy: Policy, questions: int, *, stream: bool) -> list[dict[str, Any]]:
    """Requests; the policy covers them, or a header leads them past it."""
    workload = read_workload(ROOT / "samples" / "arithmetic.jsonl")
    fields: dict[str, Any] = {"model": NAME, "temperature": 0, "stream": stream}
    if stream:
        fields["stream_options"] = {"include_usage": True}
    asked = make_requests(workload.questions[:questions], policy)
    return [fields | {"messages": list(request.prompt.messages)} for request in asked]


@contextmanager
def served(policy: Policy) -> Iterator[VllmServer]:
    """Start vLLM with a policy."""
    home = environment()
    assert home is not None, "tests/integration/setup-vllm.sh builds the environment"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_policy(policy, folder / "policy.joblib")
        with server_with(ServeSettings(folder / "policy.joblib"), home, folder) as server:
            yield server


def measure(kind: str, questions: int, rounds: int, running: Running | None = None) -> None:
    """Print the rows of one policy."""
    policy = policy_of(kind)
    with served(policy) if running is None else nullcontext(running) as server:
        for at_once in AT_ONCE:
            for stream in (False, True):
                bodies = bodies_of(policy, questions, stream=stream)
                passes: dict[str, list[Pass]] = {"passthrough": [], "policy": []}
                for turn in range(rounds + 1):
                    for route in passes:
                        found = asyncio.run(_pass(server, bodies, at_once, route))
                        if turn:  # the first fills caches
                            passes[route].append(found)
                _print(kind, at_once, stream, questions, passes["passthrough"], passes["policy"])


def _print(
    kind: str, at_once: int, stream: bool, questions: int, full: list[Pass], own: list[Pass]
) -> None:
    times = [a.seconds / b.seconds for a, b in zip(own, full, strict=True)]
    tokens = statistics.median(p.decoded for p in own) / statistics.median(p.decoded for p in full)
    rates = [statistics.median(questions / p.seconds for p in passes) for passes in (full, own)]
    time_ratio = statistics.median(times)
    used = [statistics.median(p.processor / questions for p in passes) for passes in (full, own)]
    print(
        f"{kind}, {at_once} at once, {'streamed' if stream else 'whole'}: "
        f"{rates[0]:.0f} -> {rates[1]:.0f} questions a second, time {time_ratio:.2f} "
        f"({', '.join(f'{ratio:.2f}' for ratio in times)}), tokens {tokens:.2f}, "
        f"difference {time_ratio - tokens:+.2f}",
        flush=True,
    )
    if used[0]:
        print(
            f"  processor time {used[1] / used[0]:.2f} ({1e3 * used[0]:.0f} -> {1e3 * used[1]:.0f} "
            "ms a question)",
            flush=True,
        )
    stops = [usage for found in own for usage in found.stops]
    if stops:
        waste = [usage["discarded_tokens"] for usage in stops]
        answers = [usage["probe_tokens"] / usage["probes"] for usage in stops]
        print(
            f"  discarded a stop: {statistics.mean(waste):.1f} (most {max(waste)}), the probe's "
            f"answer {statistics.mean(answers):.1f}; {len(stops) / len(own):.0f} stops a pass",
            flush=True,
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--questions", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=POLICIES)
    parser.add_argument("--server", metavar="URL", help="one that runs, such as http://gpu:8000/v1")
    options = parser.parse_args()
    if options.server is not None:
        measure("stops", options.questions, options.rounds, Running(options.server))
        return
    for kind in POLICIES if options.only is None else (options.only,):
        measure(kind, options.questions, options.rounds)


if __name__ == "__main__":
    main()
