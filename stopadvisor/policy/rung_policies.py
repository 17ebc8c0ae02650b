"""Policies of a ladder's rungs: a rung that is stopped early itself is known by their digest."""

from __future__ import annotations

from dataclasses import replace

from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.frozen import Policy, load_policy
from stopadvisor.policy.requests import policy_plan
from stopadvisor.runs.ladder import Ladder

__all__ = ["read_policies"]


def read_policies(ladder: Ladder) -> tuple[Ladder, dict[str, Policy]]:
    """Read the policies that rungs name; the ladder with their digests, and they by their rungs.

    Raises
    ------
    PolicyError
        One is refused, stops no trace, or has another digest than the ladder says.
    """
    policies: dict[str, Policy] = {}
    for rung in ladder.rungs:
        if rung.policy is None:
            continue
        where = f"rung {rung.name!r}: policy {rung.policy}"
        try:
            policy = load_policy(rung.policy)
            policy_plan(policy)
        except PolicyError as error:
            raise PolicyError(f"{where}: {error}") from error
        if policy.kind != "stop":
            raise PolicyError(f"{where}: expected one that stops, got one that never does")
        if rung.policy_digest not in (None, policy.digest):
            wanted = f"{rung.policy_digest:.8}"
            raise PolicyError(f"{where}: expected digest {wanted}, got {policy.digest[:8]}")
        policies[rung.name] = policy
    digests = {name: policy.digest for name, policy in policies.items()}
    rungs = (replace(r, policy_digest=digests.get(r.name, r.policy_digest)) for r in ladder.rungs)
    return Ladder(tuple(rungs)), policies
