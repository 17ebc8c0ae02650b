"""Policies bound to an engine, for tests of early exit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stopadvisor.ground.constants import CUES
from stopadvisor.policy.frozen import Policy, policy_source
from stopadvisor.probes.asking import Engine
from tests.policy_content import family_content, policy_from

__all__ = ["TINY_REASONER", "bound", "rule"]

TINY_REASONER = Path(__file__).parents[2] / "samples" / "tiny-reasoner"


def bound(engine: Engine, content: dict[str, Any], /, **changes: Any) -> Policy:
    """A policy with this rule, bound to this engine."""
    identity = engine.identity()
    probe = {
        "closer": identity["think_close"],
        "cue": {"text": CUES["terse"], "ids": None},
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
    return policy_from(content | own | changes)


def rule(engine: Engine, family: str, threshold: float, /, **changes: Any) -> Policy:
    """A family's rule with this decision threshold."""
    return bound(engine, family_content(family, threshold), **changes)
