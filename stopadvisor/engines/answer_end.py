r"""Where a forced answer ends, decided on token ids.

What each token of the vocabulary holds is looked up once, so that a batch of branches is judged by
array look-ups; text is decoded only when a brace may have closed a ``\boxed{}``.  Knows the
tokenizer's texts, nothing of models.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stopadvisor.engines.chat import Chat

__all__ = ["AnswerStops", "ForcedAnswer"]

_EOS, _NEWLINE, _CONTENT, _ENDS_LINE, _BRACE = 1, 2, 4, 8, 16

_BOXED = re.compile(r"\\boxed\s*\{")
_FIRST_LINE = re.compile(r"\s*\S[^\n]*")


@dataclass(frozen=True)
class ForcedAnswer:
    """One forced answer."""

    ids: tuple[int, ...]
    """Decoded tokens, the ending one included."""
    text: str
    """The answer without what ended it."""
    mean_logprob: float
    """Of the tokens before the ending one; 0 without log-probabilities, and so is the entropy."""
    mean_entropy: float
    tail_mass: float | None
    """Mean probability outside the top k; None where no top k was asked for."""


@dataclass(frozen=True)
class AnswerStops:
    """The ending rule of forced answers: EOS, a newline after content, or a closed box."""

    chat: Chat
    flags: NDArray[np.uint8] = field(repr=False)
    """What each token holds, by id."""

    @classmethod
    def of(cls, chat: Chat, stop_ids: Sequence[int], vocabulary: int) -> AnswerStops:
        """Look up every token; `vocabulary` is the width of the logits."""
        known = min(vocabulary, len(chat.tokenizer))
        texts = chat.tokenizer.batch_decode(
            [[i] for i in range(known)],
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
        flags = np.zeros(vocabulary, dtype=np.uint8)
        for i, text in enumerate(texts):
            flags[i] = _flags(text)
        inside = [i for i in stop_ids if i < vocabulary]
        flags[inside] = _EOS
        flags.flags.writeable = False
        return cls(chat, flags)

    @property
    def vocabulary(self) -> int:
        """Ids that there are."""
        return len(self.flags)

    def ends(
        self, tokens: NDArray[np.int64], has_content: NDArray[np.bool_]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        """Judge one new token per branch; `has_content`: there was more than white space before it.

        Returns which branches ended, by EOS or by a newline after content; where a brace closed, so
        that `boxed` is to be asked; and `has_content` with the new tokens included.
        """
        flags = self.flags[tokens]
        newline = ((flags & _NEWLINE) > 0) & has_content
        ended = ((flags & (_EOS | _ENDS_LINE)) > 0) | newline
        return ended, (flags & _BRACE) > 0, has_content | ((flags & _CONTENT) > 0)

    def take(
        self, new: Sequence[int], ids: list[int], has_content: bool, cap: int
    ) -> tuple[bool, bool]:
        """Put new tokens behind one forced answer, until it is over; `ids` grows to `cap` at most.

        Returns whether its last token ended it, and `has_content` with the new tokens included.
        """
        ended = False
        for token in new:
            ids.append(token)
            ends, braced, content = self.ends(np.array([token]), np.array([has_content]))
            has_content = bool(content[0])
            ended = bool(ends[0]) or (bool(braced[0]) and self.boxed(ids))
            if ended or len(ids) >= cap:
                break
        return ended, has_content

    def boxed(self, ids: Sequence[int]) -> bool:
        r"""Whether the answer so far holds a ``\boxed{}`` that is closed."""
        text = self.chat.decode(ids)
        for opening in _BOXED.finditer(text):
            depth = 1
            for character in text[opening.end() :]:
                depth += (character == "{") - (character == "}")
                if depth == 0:
                    return True
        return False

    def text(self, ids: Sequence[int], ended: bool) -> str:
        r"""Return the answer without its last token, where that one `ended` it and the cap did not.

        A newline ends the answer wherever it stands in its token, so that ``"5.\n"`` gives
        ``"5."``; the brace that closes a box belongs to the answer and stays.
        """
        if not ended:
            return self.chat.decode(ids)
        if self.flags[ids[-1]] & _EOS:
            return self.chat.decode(ids[:-1])
        text = self.chat.decode(ids)
        line = _FIRST_LINE.match(text)
        return line.group() if line else text

    def escaped_tokens(self, ids: Sequence[int], cap: int, *, answered: bool) -> int:
        """Count the tokens of a reply, after a forced close, in which reasoning went on.

        A model that is cut in mid-thought may not notice: it goes on thinking in its answer and
        closes its thinking once more, or runs into the cap without having answered.

        Parameters
        ----------
        ids
            The reply behind the closer, or behind the cue.
        cap
            Most tokens it may have.
        answered
            Whether an answer can be read from it.

        Returns
        -------
        int
            Tokens up to the last closer that the model wrote itself; all of them where it opened
            thinking and did not close it, or did not answer up to the cap; else 0.  Reasoning that
            carries no mark and ends in an answer cannot be told from a long answer.

        References
        ----------
        github.com/jundot/omlx, pull request 1812: what counts as an escape, and how often two
        models escape at which depth.
        """
        closer, found = list(self.chat.closer.ids), list(ids)
        ends = [
            at + len(closer)
            for at in range(len(found) - len(closer) + 1)
            if found[at : at + len(closer)] == closer
        ]
        if ends:
            return ends[-1]
        text = self.chat.decode(found, special=True)
        # Written letter by letter, a marker has other tokens than its own.
        before, closed, _ = text.rpartition(self.chat.closer.text.strip())
        if closed:
            return min(len(self.chat.encode(before + closed)), len(found))
        if text.lstrip().startswith(self.chat.opener.text.strip()):
            return len(found)
        cut = len(found) >= cap and not self.flags[found[-1]] & _EOS
        return len(found) if cut and not answered else 0

    def visible_text(self, ids: Sequence[int]) -> str:
        """Return a visible answer without the token that ended it."""
        ended = bool(len(ids)) and bool(self.flags[ids[-1]] & _EOS)
        return self.chat.decode(ids[:-1] if ended else ids)


def _flags(text: str) -> int:
    """What a token's text holds."""
    body = text.lstrip()
    return (
        _NEWLINE * ("\n" in text)
        | _CONTENT * bool(body)
        | _ENDS_LINE * ("\n" in body)
        | _BRACE * ("}" in text)
    )
