"""Servers of the same model: their addresses, which of them work, and which is asked next.

Knows no requests.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import httpx2

from stopadvisor.errors import ModelError

__all__ = ["Server", "Servers"]

_REST = 1.0
"""Seconds for which a server that failed is asked last."""


@dataclass
class Server:
    """One base URL and how it is doing."""

    url: str
    in_flight: int = 0
    questions: int = 0
    """Questions that were given to it."""
    resting_until: float = 0.0

    def rest(self, seconds: float = 0.0) -> None:
        """Leave it alone for a while, longer where it asked for that."""
        self.resting_until = time.monotonic() + max(seconds, _REST)


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
        """Give a question its server, by number: the one that was given the fewest so far."""
        number = min(range(len(self._all)), key=lambda i: self._all[i].questions)
        self._all[number].questions += 1
        return number

    def pick(self, replica: int | None) -> Server:
        """Take the replica while it works, else the least busy server that does."""
        well = self._well() or self._all
        if replica is not None and self._all[replica] in well:
            return self._all[replica]
        return min(well, key=lambda server: server.in_flight)

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
            "--base-url must be such as http://host:8000/v1, without what stands behind a '?': "
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
