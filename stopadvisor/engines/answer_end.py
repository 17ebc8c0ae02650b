r"""The rules that end a forced answer, applied to token ids.

Each token of the vocabulary is classified once; text is decoded only when a brace may have closed a
``\boxed{}``.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from stopadvisor.engines.chat import Chat

__all__ = ["AnswerStops", "AnswerTokens", "Ask", "ForcedAnswer"]

_EOS, _NEWLINE, _CONTENT, _ENDS_LINE, _BRACE = 1, 2, 4, 8, 16

_BOXED = re.compile(r"\\boxed\s*\{")
_FIRST_LINE = re.compile(r"\s*\S[^\n]*")

_Row = TypeVar("_Row")
Ask = Callable[[Sequence[int], int], Awaitable[tuple[Sequence[int], list[_Row]]]]
"""Called with the answer so far and a token limit; returns new tokens and a row for each."""


@dataclass(frozen=True)
class ForcedAnswer:
    """One forced answer."""

    ids: tuple[int, ...]
    """Decoded tokens, including the one that ended the answer."""
    text: str
    """The answer without the token that ended it."""
    mean_logprob: float
    """Over the tokens before the ending one.  Without log-probabilities this and the entropy are
    0."""
    mean_entropy: float
    tail_mass: float | None
    """Mean probability outside the top k; None if no top k was requested."""
    closed_by_itself: bool | None = None
    """Whether the model closed its thinking right after the answer; None unless the cue is open."""
    entropy_slack: float = 0.0
    """Limit on the error of the entropy, in nats."""


@dataclass(frozen=True)
class AnswerStops:
    """The rules that end forced answers: EOS, a newline after content, or a closed box."""

    chat: Chat
    flags: NDArray[np.uint8] = field(repr=False)
    """Bit flags of each token id: EOS, newline, content, brace."""

    @classmethod
    def of(cls, chat: Chat, stop_ids: Sequence[int], vocabulary: int) -> AnswerStops:
        """Classify every token; `vocabulary` is the width of the logits."""
        known = min(vocabulary, len(chat.tokenizer))
        texts = chat.tokenizer.batch_decode(
            [[i] for i in range(known)],
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
        flags = np.zeros(vocabulary, dtype=np.uint8)
        for i, text in enumerate(texts):
            body = text.lstrip()
            flags[i] = (
                _NEWLINE * ("\n" in text)
                | _CONTENT * bool(body)
                | _ENDS_LINE * ("\n" in body)
                | _BRACE * ("}" in text)
            )
        inside = [i for i in stop_ids if i < vocabulary]
        flags[inside] = _EOS
        flags.flags.writeable = False
        return cls(chat, flags)

    def newline_ids(self) -> tuple[int, ...]:
        """Return newline tokens for a server that stops only at token ids.

        Leaves out the many tokens with more than two other characters, as the server searches the
        list after every token.  `AnswerTokens` ends answers at those.
        """
        ids = np.flatnonzero(self.flags & _NEWLINE).tolist()
        return tuple(i for i in ids if len(self.chat.decode([i]).strip()) <= 2)

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return len(self.flags)

    def boxed(self, ids: Sequence[int]) -> bool:
        r"""Whether the answer so far contains a closed ``\boxed{}``."""
        text = self.chat.decode(ids)
        for opening in _BOXED.finditer(text):
            depth = 1
            for character in text[opening.end() :]:
                depth += (character == "{") - (character == "}")
                if depth == 0:
                    return True
        return False

    def text(self, ids: Sequence[int], ended: bool) -> str:
        r"""Return the answer's text, without the token that `ended` it (False if the cap did).

        A newline ends the answer even inside a token, so ``"5.\n"`` gives ``"5."``.  The brace that
        closes a box belongs to the answer.
        """
        if not ended:
            return self.chat.decode(ids)
        if self.flags[ids[-1]] & _EOS:
            return self.chat.decode(ids[:-1])
        text = self.chat.decode(ids)
        line = _FIRST_LINE.match(text)
        return line.group() if line else text

    def visible_text(self, ids: Sequence[int]) -> str:
        """Return a visible answer without the token that ended it."""
        ended = bool(len(ids)) and bool(self.flags[ids[-1]] & _EOS)
        return self.chat.decode(ids[:-1] if ended else ids)


@dataclass
class AnswerTokens:
    """One forced answer, token by token.

    After an answer inside open thinking, decoding continues through white space until it is clear
    whether the model closes its thinking there.
    """

    stops: AnswerStops
    is_open: bool = False
    """The answer is inside the thinking, so the tokens after it are read too."""
    ids: list[int] = field(default_factory=list)
    """All decoded tokens."""
    over: bool = False
    """No more tokens are needed; the caller enforces the cap."""
    closed: bool = False
    """The model closed its thinking right after the answer."""
    _end: int | None = None
    """Number of tokens including the one that ended the answer."""
    _has_content: bool = False

    def take(self, token: int) -> bool:
        """Append one token; return `over`."""
        self.ids.append(token)
        if self._end is None:
            flags = int(self.stops.flags[token])
            if (
                flags & (_EOS | _ENDS_LINE)
                or (flags & _NEWLINE and self._has_content)
                or (flags & _BRACE and self.stops.boxed(self.ids))
            ):
                self._end = len(self.ids)
            self._has_content |= bool(flags & _CONTENT)
        self.over = self._closing_is_known() if self.is_open else self._end is not None
        return self.over

    async def decode(self, ask: Ask[_Row], cap: int) -> list[_Row]:
        """Call `ask` until the answer is over or has `cap` tokens; return the `counted` rows.

        A newline before the answer costs a second request; so do the tokens after an answer in open
        thinking.
        """
        rows, most = list[_Row](), cap
        while not self.over and len(self.ids) < cap:
            new, more = await ask(self.ids, min(most, cap - len(self.ids)))
            rows += more
            for token in new[: cap - len(self.ids)]:
                if self.take(token):
                    break
            if self._end is not None:  # in open thinking: does the closer follow?
                most = len(self.stops.chat.closer.ids)
        return rows[: self.counted]

    def _closing_is_known(self) -> bool:
        """Whether it is clear yet if the model closes its thinking after the answer."""
        closer, size = self.stops.chat.closer.ids, len(self.ids)
        if tuple(self.ids[-len(closer) :]) == closer:
            self.closed = True
            if self._end is None or size - len(closer) < self._end:
                self._end = None  # the closer itself ended the answer
            return True
        if self._end is None:
            return False
        if self.stops.flags[self.ids[self._end - 1]] & _EOS:
            return True
        # A closer may begin with the token that ended the answer, or follow white space.
        for start in range(max(0, self._end - len(closer)), size + 1):
            begun = tuple(self.ids[start:]) == closer[: size - start]
            between = self.ids[self._end : start]  # special tokens are not white space
            if begun and not self.stops.chat.decode(between, special=True).strip():
                return False
        return True

    @property
    def counted(self) -> int:
        """Number of tokens in the answer; a lone ending token counts."""
        return max(1, self._answer if self._end is None else self._end - 1)

    @property
    def _answer(self) -> int:
        """Number of tokens before a closer that ended the answer."""
        return len(self.ids) - (len(self.stops.chat.closer.ids) if self.closed else 0)

    def forced(self, logprob: float, entropy: float, tail_mass: float | None) -> ForcedAnswer:
        """Return the answer, given the means over its `counted` tokens."""
        stops, end = self.stops, self._end
        return ForcedAnswer(
            ids=tuple(self.ids),
            text=stops.text(self.ids[: self._answer if end is None else end], end is not None),
            mean_logprob=min(logprob, 0.0),
            mean_entropy=max(entropy, 0.0),
            tail_mass=None if tail_mass is None else min(max(tail_mass, 0.0), 1.0),
            closed_by_itself=self.closed if self.is_open else None,
        )
