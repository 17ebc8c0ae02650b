"""Settings that plugin and gateway share, and the policies they name."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, get_args

from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.policy.frozen import MIXED_TASKS, Policy, load_policy
from stopadvisor.runs.ladder import Ladder

__all__ = [
    "ALARM_ACTIONS", "AlarmAction", "AuditSettings", "GatewaySettings", "ServeSettings", "Timeouts",
    "check_tasks", "for_task", "load_policies", "reload_on_hangup",
]  # fmt: skip

AlarmAction = Literal["log", "shadow", "exit"]
ALARM_ACTIONS: tuple[AlarmAction, ...] = get_args(AlarmAction)


@dataclass(frozen=True)
class AuditSettings:
    """How a server audits."""

    share: float
    """Share of requests to audit, in (0, 1]."""
    folder: Path
    """Folder of the log, one per server."""
    on_alarm: AlarmAction = "log"
    at_once: int = 2
    """Concurrent audits; more are shed, and counted."""

    def to_json(self) -> str:
        """Serialise the settings for another process."""
        return json.dumps({**asdict(self), "folder": str(self.folder.absolute())})

    @classmethod
    def of_json(cls, text: str) -> AuditSettings:
        """Parse the output of `to_json`."""
        try:
            fields = parse_json(text)
            return cls(**{**fields, "folder": Path(fields["folder"])})
        except (ValueError, TypeError, KeyError) as error:
            raise PolicyError(f"expected the settings of audits as JSON, got {text!r}") from error


@dataclass(frozen=True)
class ServeSettings:
    """Settings of plugin and gateway."""

    policy: Path
    """A policy file, or a folder with one policy for each served model and task."""
    shadow: bool = False
    """Probe and judge, but only count the stops."""
    any_text: bool = False
    """Do not require the policy's prompt template around the question."""
    require_signature: tuple[Path, ...] = ()
    """Public keys, one of which must have signed each policy."""
    audit: AuditSettings | None = None


@dataclass(frozen=True)
class Timeouts:
    """Time-outs in seconds."""

    connect: float = 2.0
    first: float = 120.0
    """For the first piece of a stream."""
    between: float = 60.0
    """Between two pieces of a stream or of a request's body, and for a client to read one."""
    total: float = 600.0
    """For a whole reply, not counting the queue, and for a whole request body."""
    probe: float = 10.0
    """For a forced answer; after that, thinking goes on without it."""

    @property
    def opening(self) -> float:
        """For each answer while an upstream is checked."""
        return min(self.first, self.total)


@dataclass(frozen=True, kw_only=True)
class GatewaySettings(ServeSettings):
    """Settings of the gateway."""

    upstreams: tuple[str, ...]
    """Base URLs of equal servers, such as ``http://host:8000/v1``."""
    ladder: Ladder | None = None
    """For policies that climb; the only upstream is then the reference's server."""
    host: str = "127.0.0.1"
    port: int = 8080
    api_key_env: str | None = None
    """Environment variable with the upstreams' key; None forwards each client's own."""
    model: str | None = None
    """Served model name, if it differs from the policy's; needs a single policy."""
    tokenizer: str | None = None
    concurrency: int = 512
    """Concurrent requests."""
    grace: float = 30.0
    """Seconds in which open requests must finish after SIGTERM."""
    retry_timeout: float = 300.0
    """Seconds to wait for an upstream at start."""
    check_every: float = 10.0
    """Seconds between looks at an upstream's list of models."""
    timeouts: Timeouts = field(default_factory=Timeouts)


# --- Policies -------------------------------------------------------------------------------------


class _Served(Protocol):
    @property
    def policy(self) -> Policy: ...


ServedT = TypeVar("ServedT", bound=_Served)


def load_policies(settings: ServeSettings) -> list[tuple[Path, Policy]]:
    """Load and check the policies that the settings name."""
    files, keys = [settings.policy], settings.require_signature or None
    if settings.policy.is_dir():
        files = sorted(f for f in settings.policy.iterdir() if f.suffix in (".joblib", ".json"))
        if not files:
            raise PolicyError(
                f"{settings.policy}: expected a policy (.joblib or .json) in it, got none"
            )
    return [(file, load_policy(file, require_signature=keys)) for file in files]


def check_tasks(policies: Sequence[tuple[Path, Policy]], model: str) -> None:
    """Refuse two policies for one model that would cover the same requests."""
    for (first, one), (second, other) in combinations(policies, 2):
        tasks = {one.terms.task, other.terms.task}
        if len(tasks) == 1 or MIXED_TASKS in tasks:
            raise PolicyError(
                f"{second}: expected one policy for each model and task, got a second one for "
                f"{model!r} next to {first.name}"
            )


def for_task(policies: Sequence[ServedT], task: str | None) -> ServedT | None:
    """Choose among a model's policies by a request's task; always choose a single one."""
    if len(policies) == 1:
        return policies[0]
    return next((served for served in policies if served.policy.terms.task == task), None)


def reload_on_hangup(reload: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Reload the policies on each SIGHUP that the running event loop receives."""
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[None]] = set()  # the loop keeps only weak references to tasks

    def start() -> None:
        task = loop.create_task(reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGHUP, start)
