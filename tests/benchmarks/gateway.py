"""Throughput, first tokens and stops through the gateway, relative to direct requests.

Run: python -m tests.benchmarks.gateway [--rounds 5] [--requests 192] [--only passed|stopped]
    [--base-url URL]

Starts vLLM on the bundled model (tests/integration/setup-vllm.sh builds it) and one gateway for
each policy, each a process of its own; what asks them is a third, so an idle machine is needed.
Direct and through the gateway take turns in every round, on the same questions; printed are medians
of the rounds' ratios, with their range.  Pass-through: requests that no policy covers.  Full
budget: a policy that never stops, whose requests go through as they came.  First tokens are pairs:
the same question direct and through, 8 at once.  Stopped against full: under a policy, and past it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from stopadvisor.engines import hf
from stopadvisor.policy.frozen import Policy, save_policy
from stopadvisor.policy.requests import Request, make_requests
from stopadvisor.workload.questions import read_workload
from tests.engines.online_policies import bound, rule
from tests.integration.server import NAME, ROOT, TINY_REASONER, VllmServer, environment, free_port
from tests.policy_content import full_budget_content

GOALS = {"pass-through": 0.90, "full budget": 0.95}
PASSED = ((True, 64), (False, 64), (True, 8))
"""Whether requests that are passed on are streamed, and how many at once."""
STOPPED = ((False, 8), (False, 48), (True, 8), (True, 48))
"""The same of requests under a policy."""
_Result = TypeVar("_Result")
BUDGETS = [0, 16, 43, 64, 129]


@contextmanager
def running_gateway(
    policy: Path, upstream: str, *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[str, int]]:
    """Start a gateway as a process of its own; give its base URL and the process's id."""
    port = free_port()
    words = [sys.executable, "-m", "stopadvisor", "serve", str(policy), "--upstream", upstream]
    words += ["--listen", f"127.0.0.1:{port}", *options]
    with (policy.parent / "gateway.log").open("w") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, env=environment)
        try:
            _wait(port, process)
            yield f"http://127.0.0.1:{port}/v1", process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(40)


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError("the gateway does not start")


@dataclass(frozen=True)
class How:
    """Number and kind of the requests to send."""

    requests: int
    at_once: int
    stream: bool
    covered: bool

    def __str__(self) -> str:
        return f"{'streamed' if self.stream else 'whole'}, {self.at_once} at once"


@dataclass(frozen=True)
class Timed:
    """One request."""

    first: float
    """Seconds to the first token."""
    whole: float
    tokens: int
    """Decoded, as the reply counts them."""


class Asking:
    """Asks servers the same questions."""

    def __init__(self, session: aiohttp.ClientSession, asked: Sequence[Request]) -> None:
        self._session, self._asked = session, asked

    async def one(self, url: str, number: int, how: How) -> Timed:
        request = self._asked[number % len(self._asked)]
        body: dict[str, Any] = {"model": NAME, "messages": list(request.prompt.messages)}
        body["temperature"] = 0
        if how.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if not how.covered:
            body["max_tokens"] = 500  # less than the policy may need
        began = time.perf_counter()
        first = 0.0
        async with self._session.post(url + "/chat/completions", json=body) as answer:
            answer.raise_for_status()
            tail = b""
            async for piece in answer.content.iter_any():
                first = first or time.perf_counter() - began
                tail = (tail + piece)[-4096:] if how.stream else tail + piece
        whole = time.perf_counter() - began
        if how.stream:
            tail = [line for line in tail.split(b"\n") if b'"usage"' in line][-1]
            tail = tail.removeprefix(b"data: ")
        return Timed(first, whole, json.loads(tail)["usage"]["completion_tokens"])

    async def many(self, url: str, how: How) -> tuple[float, int]:
        """Return the seconds that many requests take, and the tokens that they decode."""
        waiting = iter(range(how.requests))
        tokens = 0

        async def work() -> None:
            nonlocal tokens
            for number in waiting:
                tokens += (await self.one(url, number, how)).tokens

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(how.at_once)))
        return time.perf_counter() - began, tokens


async def in_turns(
    rounds: int, first: Callable[[], Awaitable[_Result]], second: Callable[[], Awaitable[_Result]]
) -> list[tuple[_Result, _Result]]:
    """Do both in every round, each one first in every other; once before, for nothing."""
    await first()
    await second()
    found = []
    for number in range(rounds):
        if number % 2:
            theirs = await second()
            found.append((await first(), theirs))
        else:
            ours = await first()
            found.append((ours, await second()))
    return found


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Median and range."""
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:{form}} [{low:{form}}, {high:{form}}]"


async def measure(
    urls: dict[str, str], asked: Sequence[Request], rounds: int, only: str | None
) -> bool:
    """Print the figures; whether the goals are met."""
    met = True
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        asking = Asking(session, asked)
        if only != "stopped":
            met = await _passed(asking, urls, len(asked), rounds)
        if only != "passed":
            await _stopped(asking, urls["stops"], len(asked), rounds)
    return met


async def _passed(asking: Asking, urls: dict[str, str], n: int, rounds: int) -> bool:
    """Compare passed-on with direct requests; return whether the goals are met."""
    met = True
    for name, key, covered in (("pass-through", "stops", False), ("full budget", "full", True)):
        for stream, at_once in PASSED:
            how = How(n, at_once, stream, covered)
            direct = partial(asking.many, urls["direct"], how)
            pairs = await in_turns(rounds, direct, partial(asking.many, urls[key], how))
            ratios = [there[0] / through[0] for there, through in pairs]
            line = f"{name}, {how}: {spread(ratios)} of direct throughput"
            if stream and at_once == 64:
                good = statistics.median(ratios) >= GOALS[name]
                line += f" (goal {GOALS[name]:.2f}: {'met' if good else 'MISSED'})"
                met = met and good
            print(line, flush=True)
    for name, covered in (("pass-through", False), ("policy", True)):
        added = await _added_first(asking, urls, How(n, 8, True, covered))
        print(f"added to the first token, {name}, 8 at once: {spread(added, '.1f')} ms")
    return met


async def _stopped(asking: Asking, url: str, n: int, rounds: int) -> None:
    """Compare requests under the policy with those passed on."""
    for stream, at_once in STOPPED:
        how = How(n, at_once, stream, covered=True)
        full = partial(asking.many, url, replace(how, covered=False))
        pairs = await in_turns(rounds, full, partial(asking.many, url, how))
        times = [stopped[0] / full[0] for full, stopped in pairs]
        tokens = [stopped[1] / full[1] for full, stopped in pairs]
        print(
            f"stopped / full, {how}: {spread(times)} of the time for "
            f"{statistics.median(tokens):.2f} of the decoded tokens",
            flush=True,
        )


async def _added_first(asking: Asking, urls: dict[str, str], how: How) -> list[float]:
    """Milliseconds by which the first token comes later, of pairs on the same question.

    The middle half of them: its median is that of all, its range the quartiles.
    """
    waiting = iter(range(how.requests))
    added: list[float] = []

    async def work() -> None:
        for number in waiting:
            order = ["direct", "stops"] if number % 2 else ["stops", "direct"]
            first = {key: (await asking.one(urls[key], number, how)).first for key in order}
            added.append(1000 * (first["stops"] - first["direct"]))

    await asyncio.gather(*(work() for _ in range(how.at_once)))
    quarter = len(added) // 4
    return sorted(added)[quarter:-quarter]


def policies(folder: Path) -> tuple[dict[str, Path], Policy]:
    """Write a policy that stops, and one of full thinking."""
    local = hf.load_engine(str(TINY_REASONER), device="cpu", dtype="float32")
    own = {"budgets": BUDGETS, "entropy_source": "none", "serving": "vllm"}
    stops = rule(local, "run-stability", 2.0, **own)
    full = bound(local, full_budget_content())
    found = {}
    for name, policy in (("stops", stops), ("full", full)):
        (folder / name).mkdir()
        found[name] = folder / name / "policy.json"
        save_policy(policy, found[name])
    return found, stops


@contextmanager
def vllm_server(folder: Path) -> Iterator[str]:
    """Start vLLM on the bundled model; give its address."""
    home = environment()
    if home is None:
        sys.exit("no vLLM environment: tests/integration/setup-vllm.sh builds it")
    folder.mkdir()
    server = VllmServer(home, folder, ("--reasoning-parser", "deepseek_r1"))
    server.start()
    try:
        yield server.base_url
    finally:
        server.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=192, help="in each half of a round")
    parser.add_argument("--only", choices=("passed", "stopped"))
    parser.add_argument("--base-url", help="of a vLLM that serves the bundled model already")
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        files, policy = policies(folder)
        questions = read_workload(ROOT / "samples" / "arithmetic.jsonl").questions
        asked = make_requests(questions[: options.requests], policy)
        urls = {"direct": options.base_url or stack.enter_context(vllm_server(folder / "vllm"))}
        for key, file in files.items():
            urls[key], _ = stack.enter_context(running_gateway(file, urls["direct"]))
        met = asyncio.run(measure(urls, asked, options.rounds, options.only))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
