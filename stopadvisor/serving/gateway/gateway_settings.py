"""Settings of a gateway, taken from the command line.  Knows no server."""

from __future__ import annotations

from dataclasses import dataclass, field

from stopadvisor.runs.ladder import Ladder
from stopadvisor.serving.policy_files import ServeSettings

__all__ = ["GatewaySettings", "Timeouts"]


@dataclass(frozen=True)
class Timeouts:
    """Seconds that an upstream may take."""

    connect: float = 2.0
    first: float = 120.0
    """Until a stream's first piece."""
    between: float = 60.0
    """Between two pieces of a stream, or of a request's body; also, for which a client may read
    none."""
    total: float = 600.0
    """Until the last byte, the queue left out; as long again for the request's body."""
    probe: float = 10.0
    """For a forced answer; after that the model thinks on."""


@dataclass(frozen=True, kw_only=True)
class GatewaySettings(ServeSettings):
    """Which policies, before which servers, and how much at once."""

    upstreams: tuple[str, ...]
    """Base URLs of equal servers, such as ``http://host:8000/v1``."""
    ladder: Ladder | None = None
    """Of policies that climb; the upstream is then its reference's server."""
    host: str = "127.0.0.1"
    port: int = 8080
    api_key_env: str | None = None
    """Environment variable with the upstreams' key; None forwards each client's own."""
    model: str | None = None
    """The served model's name where it is not the policy's; for one policy alone."""
    tokenizer: str | None = None
    concurrency: int = 512
    """Requests answered at once."""
    grace: float = 30.0
    """Seconds that open requests have to finish after SIGTERM."""
    retry_timeout: float = 300.0
    """Seconds to wait for an upstream at the start."""
    check_every: float = 10.0
    """Seconds between two checks that an upstream still serves the same model."""
    timeouts: Timeouts = field(default_factory=Timeouts)
