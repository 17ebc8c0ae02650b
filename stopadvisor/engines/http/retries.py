"""When to send a request again, and when to give up.

Clocks and pauses for `tenacity`; knows no request and no server.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from tenacity import RetryCallState
from tenacity.wait import wait_random_exponential

__all__ = ["LONGEST_PAUSE", "OPENING_TIMEOUT", "MalformedError", "TransientError", "Waiting"]

OPENING_TIMEOUT = 5.0
"""Seconds at most, while a server is opened, for which it is asked again what it answers in a way
that cannot be read, and for which it is asked what it may leave out."""
LONGEST_PAUSE = 10.0
"""Seconds between two attempts at most, unless the server asks for more."""


class TransientError(Exception):
    """A failure that another attempt may not meet."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class MalformedError(TransientError):
    """An answer that came and does not look like one."""


@dataclass
class Waiting:
    """When to ask again, and when to give up: clocks from a request's first failure.

    Answers that cannot be read have a clock of their own, from the first of them in a row: a server
    that gives them is there, and may never give others.
    """

    seconds: float
    malformed_seconds: float
    _since: float | None = None
    _malformed_since: float | None = None
    _pause: wait_random_exponential = field(
        default_factory=lambda: wait_random_exponential(multiplier=0.5, max=LONGEST_PAUSE)
    )

    def _left(self, error: BaseException | None) -> float:
        now = time.monotonic()
        if self._since is None:
            self._since = now
        left = self._since + self.seconds - now
        if not isinstance(error, MalformedError):
            self._malformed_since = None
            return left
        if self._malformed_since is None:
            self._malformed_since = now
        return min(left, self._malformed_since + self.malformed_seconds - now)

    def stop(self, state: RetryCallState) -> bool:
        """Whether to give up."""
        return self._left(_error(state)) <= 0

    def wait(self, state: RetryCallState) -> float:
        """Seconds until the next attempt: more each time, and as many as the server asks for."""
        error = _error(state)
        asked = error.retry_after if isinstance(error, TransientError) else 0.0
        # Never beyond the time-out: the last attempt is made when it is over.
        return max(0.0, min(max(asked, self._pause(state)), self._left(error)))

    async def sleep(self, seconds: float) -> None:
        """Pause before the next attempt."""
        await asyncio.sleep(seconds)


def _error(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None
