"""The reply to a chat request under a policy: one body, or chunks of a stream.

Thinking goes out as ``reasoning`` and, for older clients, as ``reasoning_content``.  Of a stopped
trace the content is the cue followed by its forced answer: what the model's visible answer would
read like.  Whoever answers says which tokens may be shown; nothing here decides.
Knows the form of replies; no server, no model and no policy.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from stopadvisor.probes.asking import cue_text

__all__ = [
    "DONE",
    "HEADER",
    "KEEP_ALIVE",
    "KEEP_ALIVE_SECONDS",
    "ChatReply",
    "Finish",
    "Route",
    "TextStream",
    "forced_content",
    "header_value",
]

HEADER = "X-StopAdvisor"
"""Header of every reply: who answered it, why, and under which policy."""
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment that keeps the connection of a stream open while tokens are held."""
KEEP_ALIVE_SECONDS = 15.0
DONE = b"data: [DONE]\n\n"

Route = Literal["policy", "passthrough", "shadow"]
"""Under the policy; past it; or past it with its decisions counted."""
Finish = Literal["stop", "length"]


def header_value(route: Route, reason: str, digest: str | None, rung: str = "") -> str:
    """Return the value of `HEADER`; of a ladder it names the rung that answered."""
    short = "none" if digest is None else digest[:8]
    return f"{route}; reason={reason}; digest={short}" + (f"; rung={rung}" if rung else "")


def forced_content(cue: str, answer: str) -> str:
    """Return what a client reads of a forced answer: the cue it was asked with, and the answer."""
    return (cue_text(cue) + answer).strip()


@dataclass
class TextStream:
    """Text of tokens that come one after the other, as it would be decoded at once.

    A letter may take several tokens, and a tokenizer may write a token otherwise at the beginning
    of a text.  So a part is decoded after the one before it, and a letter that is not whole yet is
    held back.
    """

    decode: Callable[[Sequence[int]], str]
    """Special tokens left out."""
    _before: list[int] = field(default_factory=list)
    """The tokens of the last part given out."""
    _held: list[int] = field(default_factory=list)

    def take(self, ids: Sequence[int], *, last: bool = False) -> str:
        """Return the text that further tokens add; with `last`, also that of a broken letter."""
        self._held += ids
        whole = self.decode(self._before + self._held)
        shown = self.decode(self._before)
        text = whole[len(shown) :]
        if not text or (text.endswith("\N{REPLACEMENT CHARACTER}") and not last):
            return ""
        self._before, self._held = self._held, []
        return text


@dataclass(frozen=True)
class ChatReply:
    """The frame of one reply: the same name and time in all its chunks."""

    model: str
    """As the request calls it."""
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    """Seconds since 1970."""

    def body(
        self, *, reasoning: str, content: str | None, finish: Finish, usage: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the reply as one object; `content` is None where thinking was never closed."""
        message = {"role": "assistant", "content": content} | _reasoning(reasoning)
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
        frame = self._frame("chat.completion")
        return frame | {"choices": [choice], "usage": usage}

    def first(self) -> bytes:
        """Return the chunk that opens a stream."""
        return self._chunk({"role": "assistant", "content": ""})

    def reasoning(self, text: str) -> bytes:
        """Return a chunk of thinking; nothing where there is no text."""
        return self._chunk(_reasoning(text)) if text else b""

    def content(self, text: str) -> bytes:
        """Return a chunk of the answer; nothing where there is no text."""
        return self._chunk({"content": text}) if text else b""

    def last(self, finish: Finish, usage: Mapping[str, Any] | None) -> bytes:
        """Return the end of a stream: its reason, counts where they were asked for, and `DONE`."""
        end = self._chunk({}, finish)
        if usage is not None:
            frame = self._frame("chat.completion.chunk")
            end += _event(frame | {"choices": [], "usage": usage})
        return end + DONE

    def error(self, message: str) -> bytes:
        """Return the end of a stream that failed after its first byte."""
        return _event({"error": {"message": message, "type": "server_error"}}) + DONE

    def _chunk(self, delta: Mapping[str, Any], finish: Finish | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _event(self._frame("chat.completion.chunk") | {"choices": [choice]})

    def _frame(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def _reasoning(text: str) -> dict[str, str]:
    return {"reasoning": text, "reasoning_content": text}


def _event(data: Mapping[str, Any]) -> bytes:
    # Escaped to ASCII, so that no lone surrogate of a broken letter ends the stream.
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
