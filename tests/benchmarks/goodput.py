"""Questions per second within latency limits, with a policy and without.

Run: python -m tests.benchmarks.goodput [--base-url URL --model NAME --policy FILE --workload FILE]
         [--slo ttft=1.5,e2e=3] [--minutes 10] [--block 100]

Without --base-url it starts vLLM on the bundled model with the bundled policy in it
(tests/integration/setup-vllm.sh builds it).  Blocks of questions arrive at random, whatever the
server does, in turn under the policy and past it (a header does that).  A block meets the limits
where 99 of 100 questions keep each; an arm goes up after a block that did, and down after one that
did not.  How late a block was tells more than whether it was: the 99th percentile as a share of its
limit is fitted as a curve of the rate.  Printed are the rates at which the curves reach the limit,
and their ratio with its 95 % interval; where that holds 1, nothing is saved.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import aiohttp
import numpy as np
import scipy

from stopadvisor.ground.arrays import FloatArray
from stopadvisor.policy.frozen import Policy, load_policy
from stopadvisor.policy.requests import make_requests
from stopadvisor.workload.questions import read_workload
from tests.benchmarks.plugin import PAST_THE_POLICY, policy_of, served
from tests.integration.server import NAME, ROOT

Arm = Literal["full", "policy"]
ARMS: tuple[Arm, ...] = ("full", "policy")
ROUTES: dict[Arm, str] = {"full": "passthrough", "policy": "policy"}

MISSED = 0.01
"""Share of a block's questions that may be slower than a limit."""
SKIPPED = 0.2
"""Share of a block's questions, its first, that find the server empty and are not judged."""
LIMITS_LONG = 3
"""Times the longest limit that a block lasts at least, so that a queue can grow past it."""
FIRST_IN_FLIGHT = 8
"""Questions that the first block has at once, if each takes as long as alone: blocks at low rates
are long and say little."""
FIRST_STEP = math.log(2)
FINEST_STEP = FIRST_STEP / 4
FAR = math.log(2)
"""Blocks this far from a limit, in its logarithm, or farther count alike; a later one is ended."""
GENTLE = 0.1
"""Weight, relative to a block at `FAR`, of the preference for curves about as wide as the finest
step."""


@dataclass(frozen=True)
class Block:
    """Questions that arrived at one rate."""

    turn: int
    """One block of each arm makes a turn."""
    arm: Arm
    rate: float
    """Arrivals a second."""
    lateness: float
    """Logarithm of the 99th percentile as a share of its limit, of the limit that was kept worst;
    within `FAR` of 0."""
    decoded: float = 0.0
    """Tokens of a question, mean."""

    @property
    def met(self) -> bool:
        """Whether the limits were kept."""
        return self.lateness <= 0


@dataclass(frozen=True)
class Answer:
    """One question; seconds are infinite where it failed."""

    ttft: float = math.inf
    tpot: float = math.inf
    e2e: float = math.inf
    decoded: int = 0
    route: str = ""


@dataclass(frozen=True)
class RateRatio:
    """Rates at which a block just meets the limits, and the interval of their ratio."""

    full: float
    policy: float
    ratio: float
    low: float
    high: float
    turns: int


def next_rate(start: float, met: Sequence[bool]) -> float:
    """Rate of an arm's next block: up after one that met the limits, down after one that did not.

    Steps begin with a factor of 2 and are halved, in logarithms, at each turning point, down to
    1.19; after four like outcomes in a row they double again: a machine may have become another
    (W. J. Dixon, A. M. Mood, JASA 43, 1948).
    """
    at, step, alike = math.log(start), FIRST_STEP, 0
    for i, now in enumerate(met):
        alike = alike + 1 if i and now == met[i - 1] else 1
        if i and alike == 1:
            step = max(step / 2, FINEST_STEP)
        elif alike >= 4:
            step = min(2 * step, FIRST_STEP)
        at += step if now else -step
    return math.exp(at)


def fit_ratio(blocks: Sequence[Block]) -> RateRatio | None:
    """Estimate both rates and their ratio, with an interval over turns.

    None while an arm has met or missed the limits in fewer than two blocks, and where its rate
    would lie beyond all that were tried.

    Lateness rises with the logarithm of the rate from -`FAR` to `FAR`, as a hyperbolic tangent of
    one width for both arms, fitted by least squares.  Of two variances the larger is taken: that of
    the fit's residuals, and that of leaving out one turn at a time (jackknife; B. Efron,
    R. J. Tibshirani, 1993, section 11.2), where what slows a whole turn slows both arms.
    """
    turns = [block.turn for block in blocks]
    whole = sorted({turn for turn in turns if turns.count(turn) == len(ARMS)})
    used = [block for block in blocks if block.turn in whole]
    for arm in ARMS:
        outcomes = [block.met for block in used if block.arm == arm]
        if min(sum(outcomes), len(outcomes) - sum(outcomes)) < 2:
            return None
    full, shift, log_width, variance = _crossing(used)
    for arm, middle in (("full", full), ("policy", full + shift)):
        tried = [math.log(block.rate) for block in used if block.arm == arm]
        if not min(tried) <= middle <= max(tried):
            return None
    n = len(whole)
    start = (full, shift, log_width)
    left_out = np.array(
        [_crossing([b for b in used if b.turn != turn], start)[1] for turn in whole]
    )
    jackknife = (n - 1) / n * float(((left_out - left_out.mean()) ** 2).sum())
    reach = float(scipy.stats.t.ppf(0.975, n - 1)) * math.sqrt(max(jackknife, variance))
    return RateRatio(
        full=math.exp(full),
        policy=math.exp(full + shift),
        ratio=math.exp(shift),
        low=math.exp(shift - reach),
        high=math.exp(shift + reach),
        turns=n,
    )


def _crossing(
    blocks: Sequence[Block], start: Sequence[float] = ()
) -> tuple[float, float, float, float]:
    """Logarithm of the rate at which full thinking reaches the limit, how far above it the policy
    does, the logarithm of the width, and the variance of the second."""
    x = np.log([block.rate for block in blocks])
    stopped = np.array([block.arm == "policy" for block in blocks], dtype=np.float64)
    lateness = np.array([block.lateness for block in blocks])

    def curve(values: FloatArray) -> tuple[FloatArray, FloatArray, float]:
        full, shift, log_width = values
        width = math.exp(log_width)
        beyond = (x - full - shift * stopped) / width
        return beyond, FAR * np.tanh(beyond), width

    def residuals(values: FloatArray) -> FloatArray:
        gentle = GENTLE * (values[2] - math.log(FINEST_STEP))
        return np.append(curve(values)[1] - lateness, gentle)

    def slopes(values: FloatArray) -> FloatArray:
        beyond, late, width = curve(values)
        slope = (late**2 / FAR - FAR) / width
        of_values = [slope, stopped * slope, beyond * width * slope]
        return np.vstack([np.column_stack(of_values), [0.0, 0.0, GENTLE]])

    if not start:
        at_full, at_policy = (float(x[stopped == arm].mean()) for arm in (0, 1))
        start = (at_full, at_policy - at_full, math.log(2 * FINEST_STEP))
    fit = scipy.optimize.least_squares(residuals, start, jac=slopes, method="lm")
    spread = 2 * fit.cost / max(1, len(blocks) - len(start))
    covariance = spread * np.linalg.pinv(fit.jac.T @ fit.jac)
    full, shift, log_width = map(float, fit.x)
    return full, shift, log_width, float(covariance[1, 1])


# --- Blocks of questions --------------------------------------------------------------------------

Ask = Callable[[Arm, int], Awaitable[Answer]]
"""Asks the question of a number in an arm."""


async def measure(
    ask: Ask, questions: int, slo: Mapping[str, float], minutes: float, block: int, seed: int = 0
) -> list[Block]:
    """Send blocks in turn until the time is up; the block that is under way then does not count."""
    alone: list[float] = []
    for number in range(min(3, questions)):
        for arm, route in ROUTES.items():
            answer = await ask(arm, number)
            if answer.route != route or not math.isfinite(answer.e2e):
                raise SystemExit(f"expected an answer of route {route!r}, got {answer}")
            alone.append(answer.e2e)
    start, blocks = FIRST_IN_FLIGHT / float(np.mean(alone)), list[Block]()
    try:
        async with asyncio.timeout(60 * minutes):
            while True:
                turn, second = divmod(len(blocks), 2)
                arm = ARMS[(turn + second) % 2]  # a drift slows both alike
                rate = next_rate(start, [b.met for b in blocks if b.arm == arm])
                blocks.append(await _block(ask, turn, arm, rate, questions, slo, block, seed))
                print(blocks[-1], file=sys.stderr, flush=True)
    except TimeoutError:
        return blocks


async def _block(
    ask: Ask, turn: int, arm: Arm, rate: float, questions: int, slo: Mapping[str, float],
    block: int, seed: int,
) -> Block:  # fmt: skip
    longest = max(limit for name, limit in slo.items() if name != "tpot")
    n = max(block, math.ceil(rate * LIMITS_LONG * longest))
    # The same questions and, in units of the rate, the same times for both arms of a turn.
    which, when = (np.random.default_rng([seed, turn, i]) for i in range(2))
    chosen = which.integers(questions, size=n).tolist()
    arrivals = (np.cumsum(when.exponential(size=n)) / rate).tolist()
    skipped = int(SKIPPED * n)
    most_late = math.floor(MISSED * (n - skipped))
    shares: dict[str, list[float]] = {name: [] for name in slo}
    decoded, now = list[int](), asyncio.get_running_loop().time
    began = now()

    def lateness() -> float:
        """Lateness of the questions so far; more of them can only raise it."""
        worst = max(sorted([0.0] * (n - skipped) + of)[-1 - most_late] for of in shares.values())
        return min(FAR, max(-FAR, math.log(max(worst, 1e-9))))

    async def send(number: int) -> None:
        answer = await ask(arm, chosen[number])
        decoded.append(answer.decoded)
        if number >= skipped:
            for name, limit in slo.items():
                shares[name].append(getattr(answer, name) / limit)
            if lateness() >= FAR:
                hopeless.set()

    async def send_all() -> None:
        async with asyncio.TaskGroup() as group:
            for number, at in enumerate(arrivals):
                await asyncio.sleep(began + at - now())
                group.create_task(send(number))

    hopeless = asyncio.Event()
    sending, given_up = asyncio.create_task(send_all()), asyncio.create_task(hopeless.wait())
    try:
        await asyncio.wait({sending, given_up}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
    finally:
        for task in (sending, given_up):
            task.cancel()
        await asyncio.gather(sending, given_up, return_exceptions=True)
    return Block(turn, arm, rate, lateness(), float(np.mean(decoded or [0])))


def asker(
    session: aiohttp.ClientSession, base_url: str, model: str, policy: Policy, workload: Path
) -> tuple[Ask, int]:
    """Return what asks a server, and the number of questions."""
    fields = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    requests = make_requests(read_workload(workload).questions, policy)
    now = asyncio.get_running_loop().time

    async def ask(arm: Arm, number: int) -> Answer:
        body = fields | {"messages": list(requests[number].prompt.messages)}
        headers = PAST_THE_POLICY if arm == "full" else {}
        began, first, usage = now(), None, dict[str, Any]()
        try:
            async with session.post(
                f"{base_url}/chat/completions", json=body, headers=headers
            ) as reply:
                reply.raise_for_status()
                async for line in reply.content:
                    if not line.startswith(b"data: {"):
                        continue
                    event = json.loads(line.removeprefix(b"data: "))
                    usage = event.get("usage") or usage
                    delta = (event["choices"] or [{}])[0].get("delta") or {}
                    if first is None and any(delta.get(k) for k in ("reasoning", "content")):
                        first = now()
                route = reply.headers.get("X-StopAdvisor", "").partition(";")[0]
        except (aiohttp.ClientError, TimeoutError):
            return Answer()
        ended, own = now(), usage.get("stopadvisor") or {}
        # What probes decode and what is thrown away is not shown.
        hidden = own.get("probe_tokens", 0) + own.get("discarded_tokens", 0)
        first = first or ended
        tpot = (ended - first) / max(1, usage["completion_tokens"] - hidden - 1)
        return Answer(first - began, tpot, ended - began, usage["completion_tokens"], route)

    return ask, len(requests)


def read_slo(text: str) -> dict[str, float]:
    """Read limits such as ``ttft=1.5,e2e=3``; one of the two shows when a queue grows."""
    slo = {name: float(value) for name, _, value in (p.partition("=") for p in text.split(","))}
    if not slo.keys() & {"ttft", "e2e"} or slo.keys() - {"ttft", "tpot", "e2e"}:
        raise ValueError(f"expected limits such as ttft=1.5,e2e=3, got {text!r}")
    return slo


def main() -> None:
    """Print both rates and their ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url")
    parser.add_argument("--model", default=NAME)
    parser.add_argument("--policy", type=Path)
    parser.add_argument("--workload", type=Path, default=ROOT / "samples" / "arithmetic.jsonl")
    parser.add_argument("--slo", type=read_slo, default="ttft=1.5,e2e=3")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--block", type=int, default=100)
    options = parser.parse_args()
    policy = policy_of("stops") if options.policy is None else load_policy(options.policy)
    with ExitStack() as stack:
        url = options.base_url or stack.enter_context(served(policy)).base_url

        async def work() -> list[Block]:
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector, read_bufsize=2**20) as session:
                ask, questions = asker(session, url, options.model, policy, options.workload)
                return await measure(ask, questions, options.slo, options.minutes, options.block)

        blocks = asyncio.run(work())
    print(fit_ratio(blocks) or f"{len(blocks)} blocks do not show where the limits are met")
    for arm in ARMS:
        decoded = [block.decoded for block in blocks if block.arm == arm and block.met]
        print(f"{arm}: {np.mean(decoded or [0]):.0f} tokens decoded for a question")


if __name__ == "__main__":
    main()
