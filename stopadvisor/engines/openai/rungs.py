"""Whole replies of a ladder's rungs: one chat completion each, at the rung's own server.

Knows how a rung is asked and how its reply is read; nothing of policies, files or who is right.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from stopadvisor.engines.http.client import REQUEST_TIMEOUT, RETRY_TIMEOUT, Client, Unreachable
from stopadvisor.engines.http.key import Key
from stopadvisor.ground.errors import EngineError, ModelError
from stopadvisor.runs.ladder import Ladder, Rung

__all__ = ["RungAnswer", "RungServers", "reply_of", "request_of"]

_PATIENCE = 5.0
"""Seconds for which a rung that can be climbed past is asked again before it is."""
_REST = 30.0
"""Seconds for which a rung that was down is climbed past without being asked."""
_THINKING_ENDS = "</think>"


@dataclass(frozen=True)
class RungAnswer:
    """What one rung said, or that it said nothing."""

    text: str
    """What a user would see, thinking left out."""
    finished: bool
    """It ended by itself; False where it was cut, or there is none."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    """Thinking and answer."""
    mean_logprob: float | None = None
    """Over its tokens; None where the server was not asked, or does not say."""
    seconds: float = 0.0
    down: str | None = None
    """Why there is none, in one line."""

    def price(self, rung: Rung) -> float:
        """What it costs at the rung's prices."""
        first, cached, decoded = rung.price
        read = self.prompt_tokens - self.cached_tokens
        return read * first + self.cached_tokens * cached + self.completion_tokens * decoded


def request_of(
    rung: Rung,
    messages: Sequence[Mapping[str, Any]],
    *,
    max_tokens: int | None,
    logprobs: bool,
    seed: int | None = None,
) -> dict[str, Any]:
    """The body of a rung's request."""
    asked: dict[str, Any] = {
        "model": rung.model,
        "messages": [dict(message) for message in messages],
        "max_tokens": max_tokens,
        "temperature": rung.temperature,
        "reasoning_effort": rung.reasoning_effort,
        "chat_template_kwargs": None
        if rung.chat_template_kwargs is None
        else dict(rung.chat_template_kwargs),
        "logprobs": logprobs or None,
        "seed": seed,
    }
    return {name: value for name, value in asked.items() if value is not None}


def reply_of(data: Mapping[str, Any], seconds: float = 0.0) -> RungAnswer:
    """Read the answer of a server.

    Raises
    ------
    EngineError
        It is no chat completion.
    """
    try:
        (choice,) = data["choices"]
        text = choice["message"].get("content") or ""
        usage = data["usage"]
        details = usage.get("prompt_tokens_details") or {}
        prompt, decoded = usage["prompt_tokens"], usage["completion_tokens"]
        cached = min(details.get("cached_tokens") or 0, prompt)
        if not isinstance(text, str) or not all(
            type(count) is int and count >= 0 for count in (prompt, decoded, cached)
        ):
            raise TypeError("its text or its counts are none")
        tokens = [float(t["logprob"]) for t in (choice.get("logprobs") or {}).get("content") or ()]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(f"no chat completion ({type(error).__name__}: {error})") from error
    mean = min(sum(tokens) / len(tokens), 0.0) if tokens else None
    return RungAnswer(
        text.rpartition(_THINKING_ENDS)[2].strip(),
        choice.get("finish_reason") == "stop",
        prompt,
        cached,
        decoded,
        mean if mean is not None and mean == mean and mean > -1e6 else None,
        seconds,
    )


class RungServers:
    """The servers of a ladder's rungs, within one event loop.

    The reference is waited for as any server is; a rung before it that refuses or talks nonsense is
    climbed past, and one that is down or busy is after five seconds, and left alone for thirty.
    """

    def __init__(
        self,
        ladder: Ladder,
        *,
        concurrency: int,
        request_timeout: float = REQUEST_TIMEOUT,
        patience: float = RETRY_TIMEOUT,
    ) -> None:
        self._reference = ladder.reference
        self._clients: dict[str, Client] = {}
        self._free: dict[str, asyncio.Semaphore] = {}
        self._down: dict[str, tuple[float, str]] = {}
        for rung in ladder.rungs:
            if rung.base_url is None or rung.model is None:
                raise ModelError(f"rung {rung.name!r}: it takes model and base_url, got none")
            key = None
            if rung.api_key_env is not None:
                key = Key.of_environment(rung.api_key_env, required=True)
            waits = patience if rung is ladder.reference else min(patience, _PATIENCE)
            self._clients[rung.name] = Client(
                [rung.base_url],
                rung.model,
                key=key,
                request_timeout=request_timeout,
                retry_timeout=waits,
            )
            # Rungs of one server share its places.
            same = next((r for r in ladder.rungs if r.base_url == rung.base_url), rung)
            self._free[rung.name] = self._free.get(same.name) or asyncio.Semaphore(concurrency)

    @classmethod
    async def opened(cls, ladder: Ladder, **how: Any) -> Self:
        """Make them within the event loop in which they will be asked."""
        return cls(ladder, **how)

    async def aclose(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.aclose()

    async def ask(
        self,
        rung: Rung,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int | None = None,
        logprobs: bool = False,
        seed: int | None = None,
    ) -> RungAnswer:
        """Ask a rung; one before the reference that cannot answer gives a reply that is `down`.

        Raises
        ------
        EngineError
            The reference cannot answer.
        """
        can_climb = rung.name != self._reference.name
        until, why = self._down.get(rung.name, (0.0, ""))
        if can_climb and time.monotonic() < until:
            return RungAnswer("", finished=False, down=why)
        body = request_of(rung, messages, max_tokens=max_tokens, logprobs=logprobs, seed=seed)
        client = self._clients[rung.name]
        async with self._free[rung.name]:
            began = time.monotonic()
            try:
                data = await client.ask("POST", "/chat/completions", body)
                if client.key is not None:
                    data = client.key.hide_in_data(data)
                found = reply_of(data, time.monotonic() - began)
            except EngineError as error:
                if not can_climb:
                    raise
                if isinstance(error, Unreachable):  # a refusal is of this question alone
                    self._down[rung.name] = time.monotonic() + _REST, str(error)
                seconds = time.monotonic() - began
                return RungAnswer("", finished=False, seconds=seconds, down=str(error))
        return found
