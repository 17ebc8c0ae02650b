"""A streamed chat answer: its events, and its reasoning and text as token ids.

Knows the JSON that servers send and the tokenizer; nothing of sending.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stopadvisor.engines.chat import Chat
from stopadvisor.engines.http.completion import EventReader, read_text

__all__ = ["ChatReader", "ChatText", "Cutter"]

_UNIT = re.compile(r"\s*\S{1,32}")


@dataclass
class ChatReader(EventReader):
    """Puts the events of one streamed chat answer together."""

    take: Callable[[str, str], bool]
    """Is given pieces of reasoning and of the answer; answers whether it wants more."""
    hands_on: bool = False
    """Pieces go straight to the caller, so the answer cannot be read from its begin again."""
    reasoning: str = ""

    @property
    def begun(self) -> bool:
        """Whether something was handed on."""
        return self.hands_on and bool(self.reasoning or self.text)

    def add(self, choice: Mapping[str, Any]) -> bool:
        """Take one piece of reasoning, or of the answer."""
        delta = choice.get("delta") or {}
        reasoning = read_text(delta.get("reasoning_content") or delta.get("reasoning"))
        text = read_text(delta.get("content"))
        self.reasoning += reasoning
        self.text += text
        return not (reasoning or text) or self.take(reasoning, text)


class Cutter:
    """Cuts streamed text into tokens, word by word: however it arrives, the ids are the same."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        self._encode = encode
        self._rest = ""

    def feed(self, text: str) -> list[int]:
        """Return the ids of the words that are whole now."""
        self._rest += text
        ids: list[int] = []
        at = 0
        # A word may go on as long as nothing stands behind it.
        while (unit := _UNIT.match(self._rest, at)) and unit.end() < len(self._rest):
            ids += self._encode(unit[0])
            at = unit.end()
        self._rest = self._rest[at:]
        return ids

    def finish(self) -> list[int]:
        """Return the ids of what is left."""
        rest, self._rest = self._rest, ""
        return self._encode(rest) if rest else []


class ChatText:
    """A chat's reasoning and answer as the ids of one trace."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._cutter = Cutter(chat.encode)
        self._closed = False
        self.ids: list[int] = []
        """Kept for the end."""

    def cut(self, reasoning: str, text: str) -> list[int]:
        """Return the ids of the words that are whole now, the closer between the two."""
        ids = self._cutter.feed(reasoning) if reasoning and not self._closed else []
        if text:
            if not self._closed:
                self._closed = True
                ids += [*self._cutter.finish(), *self._chat.closer.ids]
            ids += self._cutter.feed(text)
        return ids

    def keep(self, reasoning: str, text: str) -> bool:
        """Cut, and keep the ids."""
        self.ids += self.cut(reasoning, text)
        return True

    def finish(self) -> list[int]:
        """Return the ids of what is left."""
        return self._cutter.finish()
