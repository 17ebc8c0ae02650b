"""The body of one response, read within limits of bytes and of time.

A server can send without end, one byte now and then, or a small archive of gigabytes; none of that
may fill the memory or hold a request up for longer than was allowed.  Knows bytes; nothing of JSON.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

import httpx2

__all__ = ["Body", "BodyLimits", "StreamTimeouts", "UnacceptableError"]

_BASE = 2**22
"""Bytes that any answer may have."""
_PER_PROMPT_TOKEN = 16
"""Some servers return the prompt's ids."""
_PER_TOKEN = 2**12
"""Each decoded token may come as an event of its own, with counts and names."""
_PER_LOGPROB = 128
_MOST_TOKENS = 2**20
"""Tokens of an answer, where the request names more."""


class UnacceptableError(Exception):
    """An answer that would be no other if it were asked for again."""


@dataclass(frozen=True)
class BodyLimits:
    """Most bytes of an answer, and of one line of it."""

    total: int = _BASE
    line: int = _BASE

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> BodyLimits:
        """Return what an honest answer to a request of completions may take."""
        most = _MOST_TOKENS if "messages" in request else 0  # a chat may name no limit
        tokens = min(int(request.get("max_tokens") or most), _MOST_TOKENS)
        line = _BASE + _PER_PROMPT_TOKEN * len(request.get("prompt") or ())
        each = _PER_TOKEN + _PER_LOGPROB * int(request.get("logprobs") or 0)
        return cls(line + tokens * each, line)


@dataclass(frozen=True)
class StreamTimeouts:
    """Seconds that a stream may be silent."""

    first: float
    """Before its first piece."""
    between: float
    """Between two pieces."""


@dataclass(frozen=True)
class Body:
    """A body that has not been read yet.

    Reading raises `UnacceptableError` where it is compressed, which was not asked for, or larger
    than its limits, and `TimeoutError` where it is not over at the deadline, or silent for too
    long.
    """

    response: httpx2.Response
    limits: BodyLimits
    deadline: float
    """By the event loop's clock."""
    timeouts: StreamTimeouts | None = None
    """None: nothing but the deadline."""

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield it piece by piece."""
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
                # Around each read alone: a time limit must not span a `yield`.
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
        """Return all of it."""
        async with aclosing(self.chunks()) as chunks:
            return b"".join([chunk async for chunk in chunks])

    async def lines(self) -> AsyncGenerator[bytes]:
        """Yield its lines without their ends; text after the last end is left out."""
        rest = b""
        async with aclosing(self.chunks()) as chunks:
            async for chunk in chunks:
                # Cut at newlines alone: JSON may hold whatever else Unicode calls a line's end.
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > self.limits.line:
                    raise UnacceptableError(
                        f"sends a line of more than the {self.limits.line} bytes it may have"
                    )
                for line in lines:
                    yield line

    async def begin(self, size: int) -> bytes:
        """Return its first bytes: as many as come, however it ends, for a message about it."""
        found = b""
        with suppress(httpx2.HTTPError, TimeoutError, UnacceptableError):
            async with aclosing(self.chunks()) as chunks:
                async for chunk in chunks:
                    found += chunk
                    if len(found) >= size:
                        break
        return found[:size]
