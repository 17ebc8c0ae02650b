"""A fixed budget as settings of engines that can end the thinking themselves.

Such an engine closes the thinking after so many tokens and goes on with the visible answer.  That
is what a fixed budget with `on_stop` ``answer`` was calibrated for, and nothing else: a forced
answer is no engine's setting, and a rule that reads answers needs whoever reads them.  Knows no
engine's version and sends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stopadvisor.policy.terms import PolicyTerms

__all__ = ["EngineSetting", "engine_settings"]


@dataclass(frozen=True)
class EngineSetting:
    """What to tell one engine."""

    engine: str
    """``vLLM``, ``SGLang`` or ``llama.cpp``."""
    server: tuple[str, ...] = ()
    """Words of the command line that starts it."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """Fields of each request."""


def engine_settings(terms: PolicyTerms) -> tuple[EngineSetting, ...]:
    """Give a policy's fixed budget as engine settings.

    Notes
    -----
    The engine has to close the thinking with the policy's own ``probe.closer``; another text, such
    as a message before it, was not calibrated.  Each needs to know the model's thinking markers:
    vLLM by its reasoning parser or ``--reasoning-config``, SGLang by its reasoning parser,
    llama.cpp by the chat template.

    References
    ----------
    vLLM, "Reasoning Outputs", thinking budget; SGLang, "Thinking Budget", strict thinking;
    llama.cpp, ``tools/server/README.md``.
    """
    if terms.family != "fixed-budget" or terms.on_stop != "answer" or terms.trigger is None:
        return ()
    tokens = terms.trigger.stop_at
    return (
        EngineSetting("vLLM", ("--reasoning-parser", "NAME"), {"thinking_token_budget": tokens}),
        EngineSetting(
            "SGLang",
            ("--reasoning-parser", "NAME", "--enable-strict-thinking"),
            {"custom_params": {"thinking_budget": tokens}},
        ),
        EngineSetting("llama.cpp", ("--reasoning-budget", str(tokens))),
    )
