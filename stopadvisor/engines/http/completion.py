"""Reading ``/v1/completions`` answers, whole or streamed, within limits of bytes and time.

A server may send endlessly, a byte now and then, or a compressed bomb: none of these can fill
memory or hold up a request beyond its time-out.  Malformed answers are errors.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx2

from stopadvisor.ground.json_text import parse_json

__all__ = [
    "Body",
    "BodyLimits",
    "Completion",
    "StreamReader",
    "StreamTimeouts",
    "Take",
    "UnacceptableError",
    "read_completion",
    "read_count",
    "read_events",
    "read_usage",
]

Take = Callable[[Sequence[int]], bool]
"""Called with new tokens; returns whether to continue."""

_BASE = 2**22
"""Bytes allowed for any answer."""
_PER_PROMPT_TOKEN = 16
"""Bytes per prompt token: some servers return the prompt's ids."""
_PER_TOKEN = 2**12
"""Bytes per token, which may be a whole event with counts and names."""
_PER_LOGPROB = 128
_MOST_TOKENS = 2**20
"""Limits allow for no more tokens than this."""
_FINISHES = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "length": "length",
}
"""Servers' finish reasons, and ours for each."""
_GIVEN_UP = ("abort", "error", "insufficient_system_resource")
"""Finish reasons of servers that are shutting down or overloaded; retried."""
_MOST = 2**31
"""Ids and counts are below this."""
_ROUNDING = 0.01
"""How far above 0 half precision may round a log-probability."""


class UnacceptableError(Exception):
    """An answer that a retry would not change."""


@dataclass(frozen=True)
class BodyLimits:
    """Limits on the bytes of an answer and of one of its lines."""

    total: int = _BASE
    line: int = _BASE

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> BodyLimits:
        """Return limits that every honest answer to a request stays within."""
        most = _MOST_TOKENS if "messages" in request else 0  # a chat need not set a limit
        tokens = min(int(request.get("max_tokens") or most), _MOST_TOKENS)
        line = _BASE + _PER_PROMPT_TOKEN * len(request.get("prompt") or ())
        per_token = _PER_TOKEN + _PER_LOGPROB * int(request.get("logprobs") or 0)
        return cls(line + tokens * per_token, line)


@dataclass(frozen=True)
class StreamTimeouts:
    """Limits on the gaps in a stream, in seconds."""

    first: float
    """Before the first chunk."""
    between: float
    """Between two chunks."""


@dataclass(frozen=True)
class Body:
    """A response body to be read.

    Reading raises `UnacceptableError` if it is compressed or exceeds the limits, and `TimeoutError`
    at the deadline or after too long a gap.
    """

    response: httpx2.Response
    limits: BodyLimits
    deadline: float
    """By the event loop's clock."""
    timeouts: StreamTimeouts | None = None

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body chunk by chunk."""
        encoding = self.response.headers.get("Content-Encoding", "identity").lower()
        if encoding != "identity":
            raise UnacceptableError(
                f"sends an answer with Content-Encoding {encoding!r:.30}, which was not asked for"
            )
        size = 0
        now = asyncio.get_running_loop().time
        async with aclosing(self.response.aiter_raw()) as chunks:
            while True:
                until = self.deadline
                if self.timeouts is not None:
                    silent = self.timeouts.between if size else self.timeouts.first
                    until = min(until, now() + silent)
                # Only around the read: a timeout must not span a `yield`.
                async with asyncio.timeout_at(until):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    return
                size += len(chunk)
                if size > self.limits.total:
                    raise UnacceptableError(
                        f"sends more than the {self.limits.total} bytes that its answer may have"
                    )
                yield chunk

    async def whole(self) -> bytes:
        """Return the whole body."""
        async with aclosing(self.chunks()) as chunks:
            return b"".join([chunk async for chunk in chunks])

    async def lines(self) -> AsyncGenerator[bytes]:
        """Yield complete lines without their newlines; drop an incomplete last line."""
        rest = b""
        async with aclosing(self.chunks()) as chunks:
            async for chunk in chunks:
                # Only at newlines: JSON may contain other line separators of Unicode.
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > self.limits.line:
                    raise UnacceptableError(
                        f"sends a line of more than the {self.limits.line} bytes it may have"
                    )
                for line in lines:
                    yield line

    async def begin(self, size: int) -> bytes:
        """Return at most `size` bytes, as far as they arrive, for an error message."""
        start = b""
        with suppress(httpx2.HTTPError, TimeoutError, UnacceptableError):
            async with aclosing(self.chunks()) as chunks:
                async for chunk in chunks:
                    start += chunk
                    if len(start) >= size:
                        break
        return start[:size]


# --- Answers --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Completion:
    """One answer of ``/v1/completions``."""

    token_ids: tuple[int, ...] | None
    """Decoded tokens, including the ending one if the server returns it; None if not returned."""
    logprobs: tuple[float, ...] | None
    """Log-probability (nats) of each decoded token; None if not returned."""
    top_logprobs: tuple[tuple[float, ...], ...] | None
    """Per token, log-probabilities of the likeliest tokens, highest first."""
    finish_reason: str
    """``stop`` or ``length``; for streams also ``closed`` (by us) and ``broken`` (ended early)."""
    prompt_tokens: int
    cached_tokens: int | None
    """Prompt tokens read from the server's cache; None if not reported."""


def read_completion(data: Mapping[str, Any]) -> Completion:
    """Read a whole answer.

    A malformed or aborted answer raises `KeyError`, `TypeError`, `ValueError`, `IndexError` or
    `AttributeError`, and the client retries; an unknown finish reason raises `UnacceptableError`.
    """
    choice = data["choices"][0]
    given = choice.get("logprobs") or {}
    prompt, _, cached = read_usage(data.get("usage") or {})
    finish = _read_finish(choice["finish_reason"])
    if finish is None:
        raise ValueError("finish_reason must be 'stop' or 'length', got none")
    ids, logprobs, top = _read_ids(choice), given.get("token_logprobs"), given.get("top_logprobs")
    read_finite = partial(_read_logprob, finite=True)
    return Completion(
        token_ids=None if ids is None else tuple(ids),
        logprobs=None if logprobs is None else tuple(map(read_finite, logprobs)),
        top_logprobs=(
            None
            if top is None
            else tuple(tuple(sorted(map(_read_logprob, t.values()), reverse=True)) for t in top)
        ),
        finish_reason=finish,
        prompt_tokens=prompt,
        cached_tokens=cached,
    )


def read_usage(usage: Mapping[str, Any]) -> tuple[int, int, int | None]:
    """Return the numbers of prompt tokens, decoded tokens and cached prompt tokens."""
    details = usage.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens", usage.get("prompt_cache_hit_tokens"))
    return (
        read_count(usage.get("prompt_tokens"), "prompt_tokens"),
        read_count(usage.get("completion_tokens"), "completion_tokens"),
        None if cached is None else read_count(cached, "cached_tokens"),
    )


def read_count(value: Any, name: str) -> int:
    """Check and return a token count; 0 for None."""
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value < _MOST:
        raise ValueError(f"{name} must be a count, got {value!r:.40}")
    return value


def _read_finish(reason: str | None) -> str | None:
    """Return ``stop`` or ``length``; None for an unfinished answer."""
    if not reason:
        return None
    if reason in _GIVEN_UP:
        raise ValueError(f"finish_reason must be 'stop' or 'length', got {reason!r}")
    if reason not in _FINISHES:
        raise UnacceptableError(f"ended an answer with finish_reason {reason!r:.60}")
    return _FINISHES[reason]


def _read_ids(choice: Mapping[str, Any]) -> list[int] | None:
    """Return the token ids of a choice; None if it has none."""
    values = choice.get("token_ids")
    if values is None:
        return None
    for value in values:
        if type(value) is not int or not 0 <= value < _MOST:
            raise ValueError(f"token_ids must be ids of tokens, got {value!r:.40}")
    return list(values)


def _read_logprob(value: Any, *, finite: bool = False) -> float:
    """Check and return a log-probability; that of a decoded token must be `finite`."""
    # `not <=` instead of `>`, as NaN compares as false.
    if (
        type(value) not in (int, float)
        or not value <= _ROUNDING
        or (finite and not math.isfinite(value))
    ):
        kind = "finite number" if finite else "number"
        raise ValueError(f"a log-probability must be a {kind} <= 0, got {value!r:.40}")
    return min(float(max(value, -math.inf)), 0.0)


# --- Streams --------------------------------------------------------------------------------------


async def read_events(
    lines: AsyncIterator[bytes], read: Callable[[bytes], Any] = parse_json
) -> AsyncGenerator[Any]:
    """Yield the JSON of each server-sent event up to ``[DONE]``."""
    async for line in lines:
        if not line.startswith(b"data:"):
            continue  # comments that keep the connection open
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return
        yield read(data)


@dataclass
class StreamReader:
    """Assembles a streamed completion and passes on its tokens."""

    take: Take
    ids: list[int] = field(default_factory=list)
    _named: bool = True
    """All text so far came with token ids."""
    _finish: str | None = None
    _usage: Mapping[str, Any] = field(default_factory=dict)

    def read(self, event: Mapping[str, Any]) -> bool:
        """Process one event; return whether to continue.  Raises as `read_completion`."""
        if "error" in event:
            raise ValueError(f"the stream ends in an error: {event['error']!s:.200}")
        self._usage = event.get("usage") or self._usage
        choices: Sequence[Mapping[str, Any]] = event["choices"]
        if not choices:
            return True  # such as an event that counts tokens
        choice = choices[0]
        self._finish = _read_finish(choice.get("finish_reason")) or self._finish
        new = _read_ids(choice)
        self._named = self._named and (new is not None or not choice.get("text"))
        self.ids += new or ()
        if not new or self.take(new):
            return True
        self._finish = self._finish or "closed"
        return False

    def result(self, *, broken: bool = False) -> Completion:
        """Return the completion; raise `EOFError` without a finish reason, unless `broken`."""
        if self._finish is None and not broken:
            raise EOFError("the stream ends without a finish_reason")
        prompt, _, cached = read_usage(self._usage)
        return Completion(
            token_ids=tuple(self.ids) if self._named else None,
            logprobs=None,
            top_logprobs=None,
            finish_reason=self._finish or "broken",
            prompt_tokens=prompt,
            cached_tokens=cached,
        )
