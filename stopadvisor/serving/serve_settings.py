"""Settings of whatever serves under policies, and the policies that they name.

Plugin and gateway share them.  Knows files and the command line's values; no server.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.policy.frozen import MIXED_TASKS, Policy, load_policy
from stopadvisor.runs.ladder import Ladder

__all__ = [
    "ALARM_ACTIONS", "AlarmAction", "AuditSettings", "GatewaySettings", "ServeSettings", "Timeouts",
    "check_tasks", "for_task", "load_policies",
]  # fmt: skip

AlarmAction = Literal["log", "shadow", "exit"]
ALARM_ACTIONS: tuple[AlarmAction, ...] = ("log", "shadow", "exit")


@dataclass(frozen=True)
class AuditSettings:
    """How a server audits."""

    share: float
    """Of requests, in (0, 1]."""
    folder: Path
    """Where the log is written; one server's alone."""
    on_alarm: AlarmAction = "log"
    at_once: int = 2
    """Audits that think at a time; more are shed, and counted."""

    def to_json(self) -> str:
        """Write them for another process."""
        return json.dumps({**asdict(self), "folder": str(self.folder.absolute())})

    @classmethod
    def of_json(cls, text: str) -> AuditSettings:
        """Read what `to_json` wrote."""
        try:
            found = parse_json(text)
            return cls(**{**found, "folder": Path(found["folder"])})
        except (ValueError, TypeError, KeyError) as error:
            raise PolicyError(f"expected the settings of audits as JSON, got {text!r}") from error


@dataclass(frozen=True)
class ServeSettings:
    """Which policies, and how they are followed."""

    policy: Path
    """A policy's file, or a folder with one for each served model and task."""
    shadow: bool = False
    """Judge, never stop, and count what would have been stopped."""
    any_text: bool = False
    """Cover requests without the policy's prompt template around the question."""
    require_signature: tuple[Path, ...] = ()
    """Public keys, of which one must have signed each policy."""
    audit: AuditSettings | None = None


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


# --- Policies -------------------------------------------------------------------------------------


class _Served(Protocol):
    @property
    def policy(self) -> Policy: ...


ServedT = TypeVar("ServedT", bound=_Served)


def load_policies(settings: ServeSettings) -> list[tuple[Path, Policy]]:
    """Load the policies that are named, trusting nothing in them."""
    files, keys = [settings.policy], settings.require_signature or None
    if settings.policy.is_dir():
        files = sorted(f for f in settings.policy.iterdir() if f.suffix in (".joblib", ".json"))
        if not files:
            raise PolicyError(
                f"{settings.policy}: expected a policy (.joblib or .json) in it, got none"
            )
    return [(file, load_policy(file, require_signature=keys)) for file in files]


def check_tasks(policies: Sequence[tuple[Path, Policy]], model: str) -> None:
    """Refuse two policies for one model that would answer the same requests."""
    for (first, one), (second, other) in combinations(policies, 2):
        tasks = {one.terms.task, other.terms.task}
        if len(tasks) == 1 or MIXED_TASKS in tasks:
            raise PolicyError(
                f"{second}: expected one policy for each model and task, got a second one for "
                f"{model!r} next to {first.name}"
            )


def for_task(policies: Sequence[ServedT], task: str | None) -> ServedT | None:
    """Return the policy of one model for a request's task; a single one judges for itself."""
    if len(policies) == 1:
        return policies[0]
    return next((served for served in policies if served.policy.terms.task == task), None)
