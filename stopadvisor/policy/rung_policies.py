"""Check a ladder against policies: those that stop its rungs, and the one that climbs it."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.fields import plain
from stopadvisor.policy.frozen import Policy, load_policy
from stopadvisor.policy.requests import policy_plan
from stopadvisor.policy.terms import PolicyTerms
from stopadvisor.runs.ladder import Ladder, Rung, read_ladder

__all__ = ["check_rungs", "policy_of", "read_rungs"]


def read_rungs(path: Path) -> Ladder:
    """Read ``ladder.toml`` and its policies' digests; raises as `read_ladder` and `policy_of`."""
    found = [(rung, policy_of(rung)) for rung in read_ladder(path).rungs]
    return Ladder(tuple(replace(r, policy_digest=p.digest) if p else r for r, p in found))


def policy_of(rung: Rung) -> Policy | None:
    """Read the policy that a rung names, if any.

    PolicyError if it is refused, never stops, or has another digest than the ladder names.
    """
    if rung.policy is None:
        return None
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
    return policy


def check_rungs(terms: PolicyTerms, ladder: Ladder) -> None:
    """Refuse a ladder other than the policy's; servers and prices may differ.

    PolicyError names the rung and the field that differ.
    """
    if terms.ladder is None:
        raise PolicyError("the policy stops the thinking of one trace, and climbs no ladder")
    for rung, other in zip_longest(ladder.rungs, terms.ladder.rungs):
        here = {} if rung is None else plain(rung.terms)
        there = {} if other is None else plain(other)
        for name in sorted({*here, *there} - {"price"}):
            if here.get(name) != there.get(name):
                raise PolicyError(
                    f"the policy was calibrated with {name} {there.get(name)!r} of rung "
                    f"{there.get('name')!r}, got {here.get(name)!r}"
                )
