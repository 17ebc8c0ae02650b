"""Policies bound to an engine, for tests that stop for real."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stopadvisor.policy.frozen import Policy, build_policy, policy_source
from stopadvisor.policy.stepper import Decision
from stopadvisor.probes.asking import Engine
from stopadvisor.probes.trigger import Trigger
from tests.policy_content import family_content

__all__ = ["TINY_REASONER", "WatchedRule", "bound", "rule"]

TINY_REASONER = Path(__file__).parents[2] / "samples" / "tiny-reasoner"


def bound(engine: Engine, content: dict[str, Any], /, **changes: Any) -> Policy:
    """A policy with this rule, bound to this engine."""
    identity = engine.identity()
    probe = {
        "closer": identity["think_close"],
        "cue": {"text": "\n\nFinal answer:", "ids": None},
        "cap": 16,
        "answer_cap": None,
        "stop_ids": identity["stop_ids"],
    }
    if (content["probe"] or {}).get("open_cue"):
        probe["open_cue"] = True
    sampling = {"greedy": False, "temperature": None, "seed": 5}
    own = {
        **policy_source(identity),
        "probe": probe,
        "sampling": sampling,
        "chat_template_kwargs": {},
        "max_think": 400,  # leaves room for a visible answer in the tiny reasoner's context
    }
    return Policy(build_policy(content | own | changes))


def rule(engine: Engine, family: str, threshold: float, /, **changes: Any) -> Policy:
    """A family's rule with this decision threshold."""
    return bound(engine, family_content(family, threshold), **changes)


@dataclass
class _Watch:
    """Says where one question was probed, and stops it at one probe."""

    stops_at: int | None
    positions: list[int]

    def observe(self, *, think_tokens: int, **answer: object) -> Decision:
        self.positions.append(think_tokens)
        index = len(self.positions) - 1
        return Decision(index == self.stops_at, 0.0, index, False)


@dataclass
class WatchedRule:
    """A rule for any trigger, of kinds that no policy file holds yet."""

    trigger: Trigger
    stops_at: int | None = None
    questions: list[list[int]] = field(default_factory=list)
    """Positions that were probed, by question in the order of their beginnings."""
    needs_markers: bool = False

    def start(self, task: str | None = None) -> _Watch:
        self.questions.append([])
        return _Watch(self.stops_at, self.questions[-1])
