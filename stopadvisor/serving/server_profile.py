"""Measure how many seconds requests and tokens cost at a server's chat endpoint.

The requests allow too few tokens for any policy to cover them: this measures the server itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from stopadvisor.engines.errors import first_error, require_packages
from stopadvisor.ground.errors import ModelError
from stopadvisor.ground.progress import Progress
from stopadvisor.rules.serving_profile import Measurement, ServingProfile, fit_costs

if TYPE_CHECKING:
    from stopadvisor.engines.http.client import Client

__all__ = ["measure_server", "profile_server"]

_ROUNDS = 3
"""Rounds over all batch sizes, so that other load on the machine slows all alike."""
_SHORT, _LONGEST = 32, 1024
"""Approximate lengths of prompts in tokens."""
_DECODE = 64
"""Limit on an answer's tokens in requests that decode."""
_TRIPS = 5
_WORDS = "The quick brown fox jumps over 13 lazy dogs: 24 + 57 = 81, is it not? (6, 8, 90)"
"""Prompts are these words in random order."""


def measure_server(
    base_url: str,
    model: str,
    batches: Sequence[int],
    progress: Progress,
    *,
    engine: str = "openai",
    api_key_env: str | None = None,
    request_timeout: float = 600.0,
) -> ServingProfile:
    """Measure the seconds of requests and tokens at a server; `engine` names it in the profile.

    Raises
    ------
    ModelError
        The server cannot be measured, or a package is missing.
    EngineError
        The server fails or refuses a request.
    CalibrationError
        The measurements do not separate the costs.
    """
    require_packages("openai", "httpx2", what="measuring a server")
    from stopadvisor.engines.http.client import Client, Key
    from stopadvisor.engines.openai.opening import DEFAULT_KEY

    key = Key.of_environment(api_key_env or DEFAULT_KEY, required=api_key_env is not None)

    async def measure() -> ServingProfile:
        # Without retries: a retried request would be timed as a slow one.
        async with Client(
            [base_url], model, key=key, request_timeout=request_timeout, retry_timeout=0.0
        ) as client:
            return await profile_server(client, batches, progress, engine=engine)

    return asyncio.run(measure())


async def profile_server(
    client: Client, batches: Sequence[int], progress: Progress, *, engine: str
) -> ServingProfile:
    """Measure the server of an open client; raises as `measure_server`."""
    from stopadvisor.engines.openai.endpoint import find_model

    context = (await find_model(client, 0)).context or 4 * _LONGEST
    work = _Work(client)
    measurements = await work.measure(batches, min(_LONGEST, context // 2), progress)
    if not any(m.cached for m in measurements):
        progress.remark(
            "the server does not report cached tokens: a token read again counts as a new one"
        )
    return fit_costs(
        measurements,
        model=client.model,
        engine=engine,
        device=client.urls[0],
        round_trip_seconds=await work.round_trip(),
        settings={
            "batches": list(batches),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    )


@dataclass
class _Work:
    """Sends short and long requests, new and cached, for one token and for many."""

    client: Client
    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    """Unseeded: the server may have cached the prompts of an earlier measurement."""
    _tokens_per_word: float = 1.0

    async def measure(
        self, batches: Sequence[int], longest: int, progress: Progress
    ) -> list[Measurement]:
        """Time each kind of request at each batch size."""
        words = 2 * _SHORT
        first = await self._ask(self._text(words), 1)  # the server warms up as well
        self._tokens_per_word = max(first.uncached + first.cached, 1) / words
        progress.begin("work", _ROUNDS * len(batches))
        measurements: list[Measurement] = []
        for batch in list(batches) * _ROUNDS:
            # Long prompts are sent twice.  Several per slot, so that few slots idle at the end.
            new = [self._prompt(longest) for _ in range(2 * batch)]
            short, many = ([self._prompt(_SHORT) for _ in range(4 * batch)] for _ in range(2))
            pieces = [(short, 1), (new, 1), (new, 1), (many, _DECODE)]
            timed = [await self._time(batch, texts, tokens) for texts, tokens in pieces]
            measurements += timed
            progress.advance(1, sum(m.uncached + m.cached + m.decoded for m in timed))
        return measurements

    async def round_trip(self) -> float:
        """Return the median seconds of a cached request for one token."""
        text = self._prompt(_SHORT)
        trips = [await self._ask(text, 1) for _ in range(_TRIPS + 1)]
        return float(np.median([trip.seconds for trip in trips[1:]]))

    def _prompt(self, tokens: int) -> str:
        return self._text(max(1, int(tokens / self._tokens_per_word)))

    def _text(self, words: int) -> str:
        return " ".join(self.rng.choice(_WORDS.split(), words))

    async def _ask(self, text: str, tokens: int) -> Measurement:
        from stopadvisor.engines.http.completion import read_usage

        body = {
            "model": self.client.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": tokens,
            "temperature": 0,
        }
        now = asyncio.get_running_loop().time
        began = now()
        reply = await self.client.ask("POST", "/chat/completions", body, replica=0)
        seconds = now() - began
        try:
            prompt, decoded, cached = read_usage(reply["usage"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ModelError(
                f"{self.client.urls[0]} does not count its tokens: no usage in a chat's reply"
            ) from error
        cached = cached or 0
        return Measurement(1, 1, prompt - cached, cached, decoded, seconds)

    async def _time(self, batch: int, texts: Sequence[str], tokens: int) -> Measurement:
        """Send requests, `batch` of them at once."""
        left, answers = iter(texts), list[Measurement]()

        async def work() -> None:
            for text in left:
                answers.append(await self._ask(text, tokens))

        now = asyncio.get_running_loop().time
        began = now()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(batch):
                    group.create_task(work())
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None
        summed = ("requests", "uncached", "cached", "decoded")
        return Measurement(
            batch=min(batch, len(texts)),
            **{name: sum(getattr(answer, name) for answer in answers) for name in summed},
            seconds=now() - began,
        )
