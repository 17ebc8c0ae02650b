"""Servers of the same model: their addresses, which of them work, which is asked next, when again.

Clocks and pauses are for `tenacity`.  Knows no requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

import httpx2
from tenacity import RetryCallState
from tenacity.wait import wait_random_exponential

from stopadvisor.ground.errors import ModelError

__all__ = ["OPENING_TIMEOUT", "MalformedError", "Server", "Servers", "TransientError", "Waiting"]

_REST = 1.0
"""Seconds for which a server that failed is asked last; doubled with each further failure."""
_LONGEST_REST = 60.0


@dataclass(eq=False)
class Server:
    """One base URL and how it is doing."""

    url: str
    in_flight: int = 0
    questions: int = 0
    """Questions that were given to it."""
    failures: int = 0
    """In a row, up to now; those of requests that were under way together count once."""
    resting_until: float = 0.0
    _counted_until: float = 0.0

    def rest(self, seconds: float = 0.0) -> None:
        """Leave it alone for a while, longer where it asked for that or keeps failing."""
        now = time.monotonic()
        if now >= self._counted_until:
            self.failures += 1
        pause = min(_REST * 2.0 ** min(self.failures - 1, 10), _LONGEST_REST)
        self.resting_until = now + max(min(seconds, _LONGEST_REST), pause)
        self._counted_until = self.resting_until

    def worked(self) -> None:
        """Take note that it answered."""
        self.failures, self.resting_until, self._counted_until = 0, 0.0, 0.0


class Servers:
    """Servers that serve the same model; at least one, each with a well-formed base URL."""

    def __init__(self, base_urls: Sequence[str]) -> None:
        if not base_urls:
            raise ModelError("at least one --base-url is required, got none")
        self._all = [Server(_checked(url)) for url in base_urls]

    @property
    def urls(self) -> tuple[str, ...]:
        """Base URLs."""
        return tuple(server.url for server in self._all)

    def assign_replica(self) -> int:
        """Give a question its server, by number: the one that was given the fewest so far.

        Those that do not work are passed over, while any does.
        """
        well = self._well() or self._all
        number = min(
            (i for i, server in enumerate(self._all) if server in well),
            key=lambda i: self._all[i].questions,
        )
        self._all[number].questions += 1
        return number

    def pick(self, replica: int | None, *, alone: bool = False) -> Server:
        """Take the replica while it works, else the least busy server that does.

        With `alone` no other is taken in its place.
        """
        if alone and replica is not None:
            return self._all[replica]
        well = self._well() or self._all
        if replica is not None and self._all[replica] in well:
            server = self._all[replica]
        else:
            server = min(well, key=lambda server: server.in_flight)
        if server.failures and len(self._all) > 1:
            # One request finds out whether it works again; until then the others go elsewhere.
            server.resting_until = time.monotonic() + _LONGEST_REST
        return server

    def any_well(self) -> bool:
        """Whether one has not failed just now."""
        return bool(self._well())

    def _well(self) -> list[Server]:
        now = time.monotonic()
        return [server for server in self._all if server.resting_until <= now]


def _checked(url: str) -> str:
    """Return a base URL without a slash at its end.

    Refuses what is no HTTP URL, and a password or a query, which would end up in logs.
    """
    if "@" in url:
        raise ModelError(
            "--base-url must not hold a user name or password: give a key through the environment"
        )
    if "?" in url:
        raise ModelError(
            "--base-url must be such as http://host:8000/v1, without what follows a '?': "
            "give a key through the environment"
        )
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        httpx2.URL(url)  # else its own error for a host's name would come with the first request
    except (ValueError, httpx2.InvalidURL):  # a port that is no number, half a bracket
        known = None
    if not known:
        raise ModelError(f"--base-url must be such as http://host:8000/v1, got {url!r}")
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


# --- When to ask again ----------------------------------------------------------------------------


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
