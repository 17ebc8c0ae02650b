"""Recorded questions sent to a server at random times, under its policy and past it, in turn.

The limits are those of the 99th percentile of the questions of a block.  Draws no conclusions but
through `goodput`, and writes no file but through `measured`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence

import numpy as np

from stopadvisor.errors import ModelError
from stopadvisor.policy.requests import make_requests
from stopadvisor.progress import Progress
from stopadvisor.rules.cost_fit import CostFit
from stopadvisor.rules.serving_profile import Arm, Goodput, Slo
from stopadvisor.serving.coverage import TASK_HEADER
from stopadvisor.serving.goodput import (
    ArmName,
    Block,
    RateRatio,
    ReplaySettings,
    fit_ratio,
    is_met,
    most_missed,
    next_rate,
    order,
)
from stopadvisor.serving.load import LoadServer, Timed, open_loop
from stopadvisor.serving.measured import MeasuredFile
from stopadvisor.workload.questions import Question

__all__ = ["PAST_THE_POLICY", "Replay"]

PAST_THE_POLICY = {TASK_HEADER: "none"}
"""Headers of a request that no policy covers; they change nothing else."""
_ALONE = 3
"""Questions that are asked one after the other before anything is measured."""
_SKIPPED = 0.2
"""Share of a block's requests, its first, that find the server empty and are not judged."""


class _BlockJudge:
    """Counts, as answers come, whether a block can still meet the limits."""

    def __init__(self, slo: Slo, judged_from: int, judged: int) -> None:
        self._limits = [limit or math.inf for limit in (slo.ttft, slo.tpot, slo.e2e)]
        self._from, self._most = judged_from, most_missed(judged)
        self._missed = [0, 0, 0]

    def hopeless(self, number: int, answer: Timed) -> bool:
        """Take one answer; whether too many were slower than a limit."""
        if number >= self._from:
            for i, value in enumerate((answer.ttft, answer.tpot, answer.e2e)):
                self._missed[i] += value > self._limits[i] or not answer.worked
        return max(self._missed) > self._most


class Replay:
    """Blocks of questions in turn, under the policy and past it."""

    def __init__(
        self,
        server: LoadServer,
        questions: Sequence[Question],
        settings: ReplaySettings,
        fit: CostFit,
        kept: MeasuredFile,
        progress: Progress,
    ) -> None:
        self._server, self._settings, self._fit, self._kept = server, settings, fit, kept
        self._progress = progress
        asked = make_requests(questions, settings.policy)
        self._bodies = [{"messages": list(request.prompt.messages)} for request in asked]
        tasks = [{TASK_HEADER: request.task} for request in asked]
        self._headers: dict[ArmName, list[dict[str, str]]] = {
            "policy": tasks,
            "full": [PAST_THE_POLICY] * len(asked),
        }

    async def measure(self) -> Goodput:
        """Send blocks until the time is up."""
        start = await self._check()
        seconds = 60 * self._settings.minutes
        now = asyncio.get_running_loop().time
        began = shown = now()
        self._progress.begin("replay, seconds", int(seconds))
        try:
            async with asyncio.timeout(seconds):
                for turn, arm in self._left():
                    met = [block.met for block in self._kept.blocks if block.arm == arm]
                    block = await self._block(turn, arm, next_rate(start, met))
                    self._kept.add_block(block)
                    found = fit_ratio(self._kept.blocks)
                    if found is not None:
                        self._progress.note(f"{found.low:.2f} to {found.high:.2f} times the rate")
                    spent = int(now() - began) - int(shown - began)
                    self._progress.advance(spent, int(block.decoded * block.asked))
                    shown = now()
        except TimeoutError:
            pass  # the block that was under way is not counted
        found = fit_ratio(self._kept.blocks)
        if found is None:
            raise ModelError(
                f"{len(self._kept.blocks)} blocks of {self._settings.block} questions do not show "
                "where the limits are met: raise --minutes (what was measured is kept), or look at "
                "the limits of --slo"
            )
        return self._goodput(found)

    def _left(self) -> Iterator[tuple[int, ArmName]]:
        """Turns and arms from where the kept blocks end."""
        done = len(self._kept.blocks)
        while True:
            turn = done // 2
            yield turn, order(turn)[done % 2]
            done += 1

    async def _check(self) -> float:
        """Ask a few questions alone, both ways; half the rate that a busy server would manage."""
        seconds = list[float]()
        routes: dict[ArmName, str] = {"full": "passthrough", "policy": "policy"}
        for number in range(min(_ALONE, len(self._bodies))):
            for arm, route in routes.items():
                found = await self._ask(arm, number)
                if not found.worked:
                    raise ModelError(f"{self._server.url} does not answer a question of the replay")
                if found.route != route:
                    raise ModelError(
                        f"{self._server.url}: expected a reply of route {route!r}, got "
                        f"{found.header or 'no header X-StopAdvisor: no policy serves there'!r}"
                    )
                digest = self._settings.policy.digest[:8]
                if arm == "policy" and f"digest={digest}" not in found.header:
                    raise ModelError(
                        f"{self._server.url} serves under another policy than {digest}: "
                        f"{found.header}"
                    )
                if arm == "full":
                    seconds.append(self._seconds_of(found))
        if "rate" not in self._kept.alone:
            self._kept.add_alone({**self._kept.alone, "rate": 0.5 / float(np.mean(seconds))})
        return self._kept.alone["rate"]

    def _seconds_of(self, answer: Timed) -> float:
        """What a question takes of a server that is busy, by the fit."""
        fit = self._fit
        decoded = answer.decoded * fit.decoded[-1].seconds
        return fit.request + answer.prompt * fit.prefilled + decoded

    async def _ask(self, arm: ArmName, question: int) -> Timed:
        return await self._server.ask(self._bodies[question], self._headers[arm][question])

    async def _block(self, turn: int, arm: ArmName, rate: float) -> Block:
        n = self._settings.requests(rate)
        # The same questions and, in units of the rate, the same times for both arms of a turn.
        which, when = (np.random.default_rng([self._settings.seed, turn, i]) for i in range(2))
        chosen = which.integers(len(self._bodies), size=n).tolist()
        gaps = when.exponential(size=n) if self._settings.arrivals == "poisson" else np.ones(n)
        skipped = int(_SKIPPED * n)
        judge = _BlockJudge(self._settings.slo, skipped, n - skipped)
        async with self._server.watched() as use:
            answers = await open_loop(
                lambda number: self._ask(arm, chosen[number]),
                (np.cumsum(gaps) / rate).tolist(),
                judge.hopeless,
            )
        ended = [answer for answer in answers if answer is not None and answer.worked]
        judged = [answer for answer in answers[skipped:] if answer is not None]
        times = [np.array([getattr(a, name) for a in judged]) for name in ("ttft", "tpot", "e2e")]
        met = len(judged) == n - skipped and is_met(self._settings.slo, *times)
        kv = use.block_seconds
        return Block(
            turn,
            arm,
            rate,
            met,
            len(judged),
            decoded=float(np.mean([a.decoded for a in ended])) if ended else 0.0,
            seconds=float(np.mean([a.e2e for a in ended])) if ended else 0.0,
            kv_block_seconds=kv / n if kv is not None and met else None,
        )

    def _goodput(self, found: RateRatio) -> Goodput:
        arms = {}
        for name, rate in (("full", found.full), ("policy", found.policy)):
            blocks = [block for block in self._kept.blocks if block.arm == name]
            met = [block for block in blocks if block.met]
            # Blocks that missed were given up halfway.
            near = [b for b in met if b.rate >= rate / 1.5] or met
            kv = [b.kv_block_seconds for b in near if b.kv_block_seconds is not None]
            arms[name] = Arm(
                rate=rate,
                blocks=len(blocks),
                met=len(met),
                decoded=float(np.mean([b.decoded for b in near])),
                # Little's law.
                in_flight=rate * float(np.mean([b.seconds for b in near])),
                kv_block_seconds=float(np.mean(kv)) if kv else None,
            )
        return Goodput(
            self._settings.slo,
            self._settings.policy.digest,
            full=arms["full"],
            stopped=arms["policy"],
            ratio=found.ratio,
            ratio_ci95=(found.low, found.high),
            turns=found.turns,
        )
