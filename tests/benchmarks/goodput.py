"""Questions a second that a server answers within limits of latency, under a policy and without.

Run: python -m tests.benchmarks.goodput [--base-url URL --model NAME --policy FILE --workload FILE]
         [--slo ttft=1.5,e2e=3] [--minutes 10] [--block 100]

Without --base-url it starts vLLM on the bundled model with the bundled policy in it
(tests/integration/setup-vllm.sh builds it).  Blocks of questions arrive at random, whatever the
server does, in turn under the policy and past it (a header does that).  A block meets the limits
where 99 of 100 questions keep each; an arm goes up after a block that did, and down after one that
did not.  Printed are the rates at which half of the blocks meet the limits, and their ratio with
its 95 % interval; where that holds 1, nothing is saved.
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
FIRST_STEP = math.log(2)
FINEST_STEP = FIRST_STEP / 4
GENTLE = 0.5
"""Weight of the preference for slopes about the finest step, in blocks."""


@dataclass(frozen=True)
class Block:
    """Questions that arrived at one rate."""

    turn: int
    """One block of each arm makes a turn."""
    arm: Arm
    rate: float
    """Arrivals a second."""
    met: bool
    """Whether the limits were kept."""
    decoded: float = 0.0
    """Tokens of a question, mean."""


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
    """Rates at which half of the blocks meet the limits, and the interval of their ratio."""

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

    The chance that a block meets the limits falls with the logarithm of its rate as a logistic
    curve, of one slope for both arms.  Of two variances the larger is taken: that of the
    likelihood's curvature, and that of leaving out one turn at a time (jackknife; B. Efron,
    R. J. Tibshirani, 1993, section 11.2), where what slows a whole turn slows both arms.
    """
    turns = [block.turn for block in blocks]
    whole = sorted({turn for turn in turns if turns.count(turn) == len(ARMS)})
    used = [block for block in blocks if block.turn in whole]
    for arm in ARMS:
        outcomes = [block.met for block in used if block.arm == arm]
        if min(sum(outcomes), len(outcomes) - sum(outcomes)) < 2:
            return None
    x = np.log([block.rate for block in used])
    stopped = np.array([block.arm == "policy" for block in used], dtype=np.float64)
    met = np.array([block.met for block in used], dtype=np.float64)
    of_turn = np.array([block.turn for block in used])
    kept = np.stack([np.ones_like(x), *(of_turn != turn for turn in whole)])
    full, shift, variance = _even_chance(x, stopped, met, kept)
    for arm, middle in (("full", full[0]), ("policy", full[0] + shift[0])):
        tried = [math.log(block.rate) for block in used if block.arm == arm]
        if not min(tried) <= middle <= max(tried):
            return None
    n, middle, left_out = len(whole), float(shift[0]), shift[1:]
    jackknife = (n - 1) / n * float(((left_out - left_out.mean()) ** 2).sum())
    reach = float(scipy.stats.t.ppf(0.975, n - 1)) * math.sqrt(max(jackknife, float(variance[0])))
    return RateRatio(
        full=math.exp(full[0]),
        policy=math.exp(full[0] + middle),
        ratio=math.exp(middle),
        low=math.exp(middle - reach),
        high=math.exp(middle + reach),
        turns=n,
    )


def _even_chance(
    x: FloatArray, stopped: FloatArray, met: FloatArray, kept: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Fit the curves to the blocks that are kept, in each row of `kept`, (n_fits, n_blocks).

    Returns, each of shape (n_fits,), the logarithm of full thinking's rate of an even chance, how
    far above it the policy's is, and the variance of that by the curvature of the likelihood.
    """
    centre = float(x.mean())
    columns = np.stack([np.ones_like(x), stopped, centre - x], axis=1)  # (n_blocks, 3)
    values = np.tile([0.0, 0.0, 1 / FINEST_STEP], (len(kept), 1))
    for _ in range(200):
        chance = scipy.special.expit(values @ columns.T)  # (n_fits, n_blocks)
        slope = (kept * (chance - met)) @ columns
        slope[:, 2] += FINEST_STEP * GENTLE - GENTLE / values[:, 2]
        curve = np.einsum("fn,ni,nj->fij", kept * chance * (1 - chance), columns, columns)
        curve[:, 2, 2] += GENTLE / values[:, 2] ** 2
        curve += 1e-9 * np.eye(3)
        step = np.linalg.solve(curve, slope[:, :, None])[:, :, 0]
        size = np.sqrt(np.maximum((step * slope).sum(axis=1), 0.0))
        if size.max() < 1e-7:
            break
        step /= 1 + size[:, None]  # damped: the slope's logarithm must stay finite
        step[:, 2] = np.minimum(step[:, 2], 0.9 * values[:, 2])
        values = values - step
    level, shift, slope_ = values.T
    along = np.stack([np.zeros_like(shift), 1 / slope_, -shift / slope_**2], axis=1)
    variance = np.einsum("fi,fij,fj->f", along, np.linalg.inv(curve), along)
    return centre + level / slope_, shift / slope_, variance


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
    start, blocks = 1 / float(np.mean(alone)), list[Block]()
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
    late, decoded, now = dict.fromkeys(slo, 0), list[int](), asyncio.get_running_loop().time
    began = now()

    async def send(number: int) -> None:
        answer = await ask(arm, chosen[number])
        decoded.append(answer.decoded)
        if number >= skipped:
            for name, limit in slo.items():
                late[name] += getattr(answer, name) > limit
            if max(late.values()) > most_late:
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
    return Block(turn, arm, rate, not hopeless.is_set(), float(np.mean(decoded or [0])))


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
