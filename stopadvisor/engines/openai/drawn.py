"""What a served model gave: traces, forced and visible answers, and the requests they took.

Plain values; knows no server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["ForcedAnswer", "Kind", "RequestUsage", "Trace", "VisibleAnswer"]

Kind = Literal["trace", "probe", "answer"]


@dataclass(frozen=True)
class RequestUsage:
    """One request that was answered, as the serving regime is measured from it."""

    kind: Kind
    budget: int
    """Thinking tokens in its prompt."""
    prompt_tokens: int
    cached_tokens: int | None
    """None where the server does not say."""


@dataclass(frozen=True)
class Trace:
    """One trace with its natural answer, as token ids."""

    thinking: tuple[int, ...]
    finish: Literal["stop", "length"]
    closed: bool
    """The model closed its thinking."""
    visible: tuple[int, ...]
    """The natural answer behind the closer, the ending token included; empty if not closed."""
    requests: tuple[RequestUsage, ...]


@dataclass(frozen=True)
class ForcedAnswer:
    """One forced answer."""

    ids: tuple[int, ...]
    """Decoded tokens, the ending one included."""
    text: str
    """The answer without what ended it."""
    mean_logprob: float
    """0 where the endpoint returns no log-probabilities; so is the entropy."""
    mean_entropy: float
    tail_mass: float | None
    """Mean probability outside the top k; None without log-probabilities."""
    requests: tuple[RequestUsage, ...]


@dataclass(frozen=True)
class VisibleAnswer:
    """One visible answer behind thinking that was closed for the model."""

    ids: tuple[int, ...]
    """Decoded tokens, the ending one included."""
    text: str
    requests: tuple[RequestUsage, ...]
