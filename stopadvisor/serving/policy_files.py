"""What to serve under: one policy, or a folder with one for each model and task.

Knows files and the settings that plugin and gateway share; no server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Protocol, TypeVar

from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.frozen import MIXED_TASKS, Policy, load_policy
from stopadvisor.serving.audits import AuditSettings

__all__ = ["ServeSettings", "check_tasks", "for_task", "load_policies"]

_ENDINGS = (".joblib", ".json")


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


class _Served(Protocol):
    @property
    def policy(self) -> Policy: ...


ServedT = TypeVar("ServedT", bound=_Served)


def load_policies(settings: ServeSettings) -> list[tuple[Path, Policy]]:
    """Load the policies that are named, trusting nothing in them."""
    files, keys = [settings.policy], settings.require_signature or None
    if settings.policy.is_dir():
        files = sorted(file for file in settings.policy.iterdir() if file.suffix in _ENDINGS)
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
