"""What is asked of a ladder's rungs, and what they say, wherever their models run.

Knows no server and no model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from stopadvisor.probes.asking import Prompt
from stopadvisor.runs.ladder import Rung

__all__ = ["AskRungs", "LocalRungs", "RungAnswer"]


@dataclass(frozen=True)
class RungAnswer:
    """What one rung said, or that it said nothing."""

    text: str
    """What a user would see, thinking left out."""
    finished: bool
    """It ended by itself; False where it was cut, or there is none."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    """Thinking and answer."""
    mean_logprob: float | None = None
    """Over its tokens; None where the server was not asked, or does not say."""
    seconds: float = 0.0
    down: str | None = None
    """Why there is none, in one line."""
    reasoning: str = ""
    """Its thinking, as far as a server shows it."""

    def price(self, rung: Rung) -> float:
        """What it costs at the rung's prices."""
        first, cached, decoded = rung.price
        read = self.prompt_tokens - self.cached_tokens
        return read * first + self.cached_tokens * cached + self.completion_tokens * decoded


AskRungs = Callable[[Sequence[tuple[Rung, Prompt]]], Iterator[tuple[int, RungAnswer]]]
"""Asks for many replies at once, and yields each as it comes, with its number.

A reply that a rung refuses to give is `down`; a rung that cannot be reached is an `EngineError`.
"""


class LocalRungs(Protocol):
    """Rungs whose models run here."""

    async def ask(self, rung: Rung, prompt: Prompt, max_tokens: int | None) -> RungAnswer:
        """Ask one; those that are asked at once are decoded together."""
        ...
