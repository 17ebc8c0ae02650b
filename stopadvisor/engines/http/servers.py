"""Servers of the same model: their addresses, which of them work, which is asked next, when again.

Knows no requests.
"""

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
"""Seconds for which a server that failed is asked last; doubled with each further failure."""
_LONGEST_REST = 60.0
OPENING_TIMEOUT = 5.0
"""Seconds at most, while a server is opened, for which it is asked again what it answers in a way
that cannot be read, and for which it is asked what it may leave out."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0
"""Seconds between two attempts at most, unless the server asks for more; doubled each time."""


@dataclass(eq=False)
class Server:
    """One base URL and how it is doing."""

    url: str
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
        server = min(self.well() or self._all, key=lambda server: server.questions)
        server.questions += 1
        return self._all.index(server)

    def pick(self, replica: int | None, *, alone: bool = False) -> Server:
        """Take the replica while it works, else one that does; with `alone`, the replica."""
        if alone and replica is not None:
            return self._all[replica]
        well = self.well() or self._all
        if replica is not None and self._all[replica] in well:
            server = self._all[replica]
        else:
            server = min(well, key=lambda server: server.questions)
        if server.failures and len(self._all) > 1:
            # One request finds out whether it works again; until then the others go elsewhere.
            server.resting_until = time.monotonic() + _LONGEST_REST
        return server

    def well(self) -> list[Server]:
        """Return those that have not failed just now."""
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


class TransientError(Exception):
    """A failure that another attempt may not meet."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class MalformedError(TransientError):
    """An answer that came and does not look like one."""


@dataclass
class Patience:
    """For how long one request is asked again, from its first failure."""

    seconds: float
    malformed_seconds: float
    """Where its answers cannot be read, from the first of them in a row: a server that gives them
    is there, and may never give others."""
    failures: int = 0
    _since: float = 0.0
    _malformed_since: float | None = None

    def allowed(self, error: TransientError) -> float:
        """Return for how many seconds a request that failed so is asked again."""
        return self.malformed_seconds if isinstance(error, MalformedError) else self.seconds

    def pause(self, error: TransientError) -> float | None:
        """Return the seconds until the next attempt, as many as the server asks for; None: give up.

        Random below a limit that doubles, so that requests that failed together come apart.
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
        # Never beyond the time-out: the last attempt is made when it is over.
        return min(max(error.retry_after, random.uniform(0.0, most)), left)

    async def sleep(self, seconds: float) -> None:
        """Pause before the next attempt."""
        await asyncio.sleep(seconds)
