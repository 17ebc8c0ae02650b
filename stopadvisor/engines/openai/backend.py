"""What a served model is asked through: token ids go in, and token ids come back.

A client of ``/v1/completions`` is a `Backend` as it stands; `chat_backend` makes one of a chat.
Knows no thinking and no probes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from stopadvisor.engines.http.completion import Completion

__all__ = ["NO_STREAM", "Backend"]

NO_STREAM = (
    "early exit with overlap needs an endpoint that streams token ids, such as vLLM's "
    "/v1/completions; this one is resumed part by part (--serving resume)"
)


class Backend(Protocol):
    """Continues token ids; `Client.complete` says what the parameters are."""

    @property
    def urls(self) -> tuple[str, ...]:
        """Base URLs of the servers."""
        ...

    def assign_replica(self) -> int:
        """Give a question its server."""
        ...

    @property
    def complete(self) -> Callable[..., Awaitable[Completion]]:
        """Continues token ids; the `token_ids` of the answer are there."""
        ...

    @property
    def stream(self) -> Callable[..., Awaitable[Completion]]:
        """Does so and hands each token on as it comes; see `Client.stream`."""
        ...
