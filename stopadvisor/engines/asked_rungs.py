"""What is asked of a ladder's rungs, and what they say, wherever their models run.

Knows no server and no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from stopadvisor.probes.asking import Prompt
from stopadvisor.runs.ladder import Rung

__all__ = ["AskedReply", "AsksRungs", "LocalRungs", "RungAnswer"]


@dataclass(frozen=True)
class AskedReply:
    """One reply to ask for."""

    rung: Rung
    """Of which rung."""
    prompt: Prompt
    """The question, and which sample of the rung this is."""


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


class AsksRungs(Protocol):
    """Asks whole replies of rungs, many at once."""

    def replies(self, asked: Sequence[AskedReply]) -> Iterator[tuple[int, RungAnswer]]:
        """Ask for each and yield the replies as they come, with their numbers in `asked`.

        A reply that a rung refuses to give is `down`; a rung that cannot be reached is an
        `EngineError`.
        """
        ...


class LocalRungs(Protocol):
    """Rungs whose models run here."""

    async def ask(self, rung: Rung, prompt: Prompt, max_tokens: int | None) -> RungAnswer:
        """Ask one; those that are asked at once are decoded together."""
        ...
