"""Replicas of one model: which are healthy, which gets the next request, when to retry."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import httpx2

from stopadvisor.ground.errors import ModelError

__all__ = ["OPENING_TIMEOUT", "MalformedError", "Patience", "Server", "Servers", "TransientError"]

_REST = 1.0
"""Seconds for which other servers are preferred after a failure; doubles with each."""
_LONGEST_REST = 60.0
OPENING_TIMEOUT = 5.0
"""Seconds for which an optional request, or a malformed answer while opening, is retried."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0
"""Seconds between attempts, at first and at most; the pause doubles each time."""


@dataclass(eq=False)
class Server:
    """One base URL and its health."""

    url: str
    questions: int = 0
    """Questions assigned to it."""
    failures: int = 0
    """Consecutive failures; those of concurrent requests count once."""
    resting_until: float = 0.0
    _counted_until: float = 0.0

    def rest(self, seconds: float = 0.0) -> None:
        """Avoid this server for a while, longer if it asked for that or keeps failing."""
        now = time.monotonic()
        if now >= self._counted_until:
            self.failures += 1
        pause = min(_REST * 2.0 ** min(self.failures - 1, 10), _LONGEST_REST)
        self.resting_until = now + max(min(seconds, _LONGEST_REST), pause)
        self._counted_until = self.resting_until

    def worked(self) -> None:
        """Forget its failures after an answer."""
        self.failures, self.resting_until, self._counted_until = 0, 0.0, 0.0


class Servers:
    """One or more servers of the same model; raises `ModelError` for a malformed base URL."""

    def __init__(self, base_urls: Sequence[str]) -> None:
        if not base_urls:
            raise ModelError("at least one --base-url is required, got none")
        self._all = [Server(_checked(url)) for url in base_urls]

    @property
    def urls(self) -> tuple[str, ...]:
        """Base URLs."""
        return tuple(server.url for server in self._all)

    def assign_replica(self) -> int:
        """Assign a question to the healthy server with the fewest; return its number."""
        server = min(self.well() or self._all, key=lambda server: server.questions)
        server.questions += 1
        return self._all.index(server)

    def pick(self, replica: int | None, *, alone: bool = False) -> Server:
        """Return the replica if it is healthy or `alone`, else another server."""
        if alone and replica is not None:
            return self._all[replica]
        well = self.well() or self._all
        if replica is not None and self._all[replica] in well:
            server = self._all[replica]
        else:
            server = min(well, key=lambda server: server.questions)
        if server.failures and len(self._all) > 1:
            # This request tests whether the server works again; until then others go elsewhere.
            server.resting_until = time.monotonic() + _LONGEST_REST
        return server

    def well(self) -> list[Server]:
        """Return the servers that have not failed recently."""
        now = time.monotonic()
        return [server for server in self._all if server.resting_until <= now]


def _checked(url: str) -> str:
    """Check a base URL and strip its trailing slash.

    Refuses passwords and queries, because they would end up in logs.
    """
    if "@" in url:
        raise ModelError(
            "a URL must not hold a user name or password: give a key through the environment"
        )
    if "?" in url:
        raise ModelError(
            "a server's URL must look like http://host:8000/v1, without a query: "
            "give a key through the environment"
        )
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        httpx2.URL(url)  # else a bad host name would fail only at the first request
    except (ValueError, httpx2.InvalidURL):  # a non-numeric port, an unclosed bracket
        known = None
    if not known:
        raise ModelError(f"a server's URL must look like http://host:8000/v1, got {url!r}")
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


# --- Retries --------------------------------------------------------------------------------------


class TransientError(Exception):
    """A failure that a retry may fix."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class MalformedError(TransientError):
    """A malformed answer."""


@dataclass
class Patience:
    """How long one request is retried, from its first failure."""

    seconds: float
    malformed_seconds: float
    """For malformed answers, from the first in a row: the server is up, and may give no others."""
    failures: int = 0
    _since: float = 0.0
    _malformed_since: float | None = None

    def allowed(self, error: TransientError) -> float:
        """Return the seconds for which this kind of failure is retried."""
        return self.malformed_seconds if isinstance(error, MalformedError) else self.seconds

    def pause(self, error: TransientError) -> float | None:
        """Return the seconds until the next attempt; None to give up.

        Random below a doubling limit, to spread out requests that failed together, but at least
        what the server asks for.
        """
        now = time.monotonic()
        if not self.failures:
            self._since = now
        self.failures += 1
        left = self._since + self.seconds - now
        if not isinstance(error, MalformedError):
            self._malformed_since = None
        elif self._malformed_since is None:
            self._malformed_since = now
        if self._malformed_since is not None:
            left = min(left, self._malformed_since + self.malformed_seconds - now)
        if left <= 0:
            return None
        most = min(_FIRST_PAUSE * 2.0 ** min(self.failures - 1, 10), _LONGEST_PAUSE)
        # Never beyond the time-out: the last attempt is made at its end.
        return min(max(error.retry_after, random.uniform(0.0, most)), left)

    async def sleep(self, seconds: float) -> None:
        """Pause before the next attempt."""
        await asyncio.sleep(seconds)
