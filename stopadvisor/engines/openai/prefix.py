"""What a request continues: token ids that know which part of the conversation they are.

A server that completes ids takes them as they stand; one that knows a chat alone is told the parts.
Knows no server and no tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

__all__ = ["Prefix"]


@dataclass(frozen=True)
class Prefix(Sequence[int]):
    """A prompt, the thinking behind it, and what stands behind the thinking."""

    messages: tuple[Mapping[str, str], ...]
    """The conversation that was rendered."""
    prompt_ids: tuple[int, ...]
    """Thinking opened."""
    thinking: tuple[int, ...] = ()
    """Drawn behind the prompt; of a trace that goes on behind its closer all of it."""
    after: tuple[int, ...] = ()
    """Closer, cue and what was answered so far; nothing while it thinks."""
    _ids: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ids", (*self.prompt_ids, *self.thinking, *self.after))

    @classmethod
    def of(
        cls, prompt: Sequence[int], thinking: Sequence[int] = (), after: Sequence[int] = ()
    ) -> Prefix:
        """Put thinking and what follows behind a prompt; plain ids belong to no conversation."""
        if isinstance(prompt, Prefix):
            return cls(prompt.messages, prompt.prompt_ids, tuple(thinking), tuple(after))
        return cls((), tuple(prompt), tuple(thinking), tuple(after))

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[int]: ...
    def __getitem__(self, at: int | slice) -> int | Sequence[int]:
        return self._ids[at]
