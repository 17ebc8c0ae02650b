"""Measuring what requests and tokens cost at a server.

Pieces of work whose cost differs in one thing each, so many requests at once; then, where limits of
latency are given, the replay.  Knows no command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from stopadvisor.errors import ModelError
from stopadvisor.progress import Progress
from stopadvisor.rules.cost_fit import Measurement, fit_costs
from stopadvisor.rules.serving_profile import ServingProfile
from stopadvisor.serving.goodput import ReplaySettings
from stopadvisor.serving.load import LoadServer, Timed, closed_loop
from stopadvisor.serving.measured import MeasuredFile
from stopadvisor.serving.replay import PAST_THE_POLICY, Replay
from stopadvisor.workload.questions import Question

__all__ = ["profile_server"]

_ROUNDS = 3
"""Of the pieces of work; by turns, so that other work on the machine slows all alike."""
_PIECES = 4
"""Of a round, for each batch."""
_SHORT, _LONGEST = 32, 1024
"""Tokens of prompts, about."""
_DECODE = 64
"""Most tokens of an answer in work that decodes."""
_TRIPS = 5


async def profile_server(
    server: LoadServer,
    questions: Sequence[Question],
    batches: Sequence[int],
    replay: ReplaySettings | None,
    kept: MeasuredFile,
    progress: Progress,
    **named: Any,
) -> ServingProfile:
    """Measure a server.

    Raises
    ------
    ModelError
        The server cannot be measured, or does not answer under the policy.
    EngineError
        It refuses a request.
    CalibrationError
        What was measured does not tell the costs apart.
    """
    context = await server.context() or 4 * _LONGEST
    work = _Work(server, questions)
    await work.measure(batches, min(_LONGEST, context // 2), kept, progress)
    fit = fit_costs(kept.measurements)
    if not any(m.cached for m in kept.measurements):
        progress.remark(
            "the server does not say what it takes from its cache: a token that is read again "
            "counts as one read for the first time"
        )
    goodput = None
    if replay is not None:
        goodput = await Replay(server, questions, replay, fit, kept, progress).measure()
    return ServingProfile.of_fit(
        fit,
        goodput=goodput,
        model=server.model,
        round_trip_seconds=kept.alone["round_trip"],
        settings={
            "questions": len(questions),
            "batches": list(batches),
            "requests_per_block": None if replay is None else replay.block,
            "arrivals": None if replay is None else replay.arrivals,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        },
        **named,
    )


# --- Pieces of work -------------------------------------------------------------------------------


@dataclass
class _Work:
    """Requests that are short or long, new or sent before, and answered in one token or in many."""

    server: LoadServer
    questions: Sequence[Question]
    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    """Without a seed: a server remembers the prompts of an earlier measurement."""
    _per_word: float = 1.0

    async def measure(
        self, batches: Sequence[int], longest: int, kept: MeasuredFile, progress: Progress
    ) -> None:
        """Time what is not kept yet."""
        plan = [(turn, batch) for turn in range(_ROUNDS) for batch in batches]
        done = len(kept.measurements) // _PIECES
        progress.begin("work", len(plan), done)
        words = 2 * _SHORT
        found = await self._ask(self._text(words), 1)
        self._per_word = max(found.prompt, 1) / words
        if not kept.alone:
            again = self._text(self._words(_SHORT))
            trips = [await self._ask(again, 1) for _ in range(_TRIPS + 1)]
            kept.add_alone({"round_trip": float(np.median([trip.ttft for trip in trips[1:]]))})
        for _, batch in plan[done:]:
            # New prompts of one length, each twice; four of a request, so that few wait at the end.
            new = [self._text(self._words(longest)) for _ in range(2 * batch)]
            short = [self._text(self._words(_SHORT)) for _ in range(4 * batch)]
            many = [self._text(self._words(_SHORT)) for _ in range(4 * batch)]
            pieces = [(short, 1), (new, 1), (new, 1), (many, _DECODE)]
            timed = [await self._time(batch, texts, tokens) for texts, tokens in pieces]
            kept.add_work(timed)
            progress.advance(1, sum(m.uncached + m.cached + m.decoded for m in timed))

    def _words(self, tokens: int) -> int:
        return max(1, int(tokens / self._per_word))

    def _text(self, words: int) -> str:
        """Return words of the questions in an order that nobody sent before."""
        known = [w for q in self.questions for m in q.messages for w in m["content"].split()]
        return " ".join(self.rng.choice(known, words))

    async def _ask(self, text: str, tokens: int) -> Timed:
        body = {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": tokens,
            "temperature": 0,
        }
        found = await self.server.ask(body, PAST_THE_POLICY)
        if not found.worked:
            raise ModelError(f"{self.server.url} does not answer a streamed chat request")
        return found

    async def _time(self, batch: int, texts: Sequence[str], tokens: int) -> Measurement:
        async with self.server.watched() as use:
            answers, seconds = await closed_loop(
                lambda number: self._ask(texts[number], tokens), len(texts), batch
            )
        cached = sum(answer.cached or 0 for answer in answers)
        return Measurement(
            batch=min(batch, len(texts)),
            requests=len(answers),
            uncached=sum(answer.prompt for answer in answers) - cached,
            cached=cached,
            decoded=sum(answer.decoded for answer in answers),
            seconds=seconds,
            kv_block_seconds=use.block_seconds,
        )
