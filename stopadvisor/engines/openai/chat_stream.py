"""A streamed chat answer, put together from its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stopadvisor.engines.http.completion import EventReader, read_text

__all__ = ["ChatReader"]


@dataclass
class ChatReader(EventReader):
    """Puts the events of one streamed chat answer together."""

    take: Callable[[str, str], bool]
    """Is given pieces of reasoning and of the answer; answers whether it wants more."""
    reasoning: str = ""

    @property
    def begun(self) -> bool:
        """False: nothing is handed on before the end, so that an attempt may be repeated."""
        return False

    def add(self, choice: Mapping[str, Any]) -> bool:
        """Take one piece of reasoning, or of the answer."""
        delta = choice.get("delta") or {}
        reasoning = read_text(delta.get("reasoning_content") or delta.get("reasoning"))
        text = read_text(delta.get("content"))
        self.reasoning += reasoning
        self.text += text
        return not (reasoning or text) or self.take(reasoning, text)
