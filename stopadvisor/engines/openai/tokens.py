"""What single tokens are to a server, found by having it say them: special ones, and ends.

A server leaves special tokens out of its text, and stops at those that end an answer.  Knows no
tokenizer's files and no thinking.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from stopadvisor.engines.chat import KNOWN_MARKERS
from stopadvisor.engines.http.client import Completion, Refused

__all__ = ["KNOWN_ENDS", "TAG", "Ends", "TriedTokens"]

KNOWN_ENDS = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "</s>"),
    *("<eos>", "<end_of_turn>", "<|return|>", "<|call|>", "<|end|>", "<｜end▁of▁sentence｜>"),
    *("<seed:eos>", "<|END_OF_TURN_TOKEN|>", "<|user|>", "<|observation|>", "[EOS]"),
)
"""Tokens at which models end; those that a vocabulary has are tried."""
TAG = re.compile(r"<[^<>\s]{1,60}>|\[/?[A-Z_]{2,30}\]")
"""What special tokens look like as text."""


@dataclass(frozen=True)
class Ends:
    """What ends an answer."""

    ids: tuple[int, ...]
    remark: str
    """How it was found."""


@dataclass(frozen=True)
class _Tried:
    """What a server did when it had to say one token."""

    special: bool
    """Left out of its text."""
    ends: bool
    """It stopped there by itself."""


class TriedTokens:
    """Tokens that look like special ones, each tried once.

    Parameters
    ----------
    encode : callable
        Text to ids.
    complete : callable
        `Client.complete`, waited for.
    """

    def __init__(
        self, encode: Callable[[str], list[int]], complete: Callable[..., Completion]
    ) -> None:
        self._encode = encode
        self._complete = complete
        self._found: dict[str, tuple[int, _Tried | None] | None] = {}
        self._obedient = True

    def find_ends(self, behind: str, eos: object) -> Ends | None:
        """Find what ends an answer: what stands behind one, then what is usual.

        To be called before anything else is asked.

        Parameters
        ----------
        behind : str
            What the chat template writes behind an answer.
        eos : str or None
            What the tokenizer calls its end, where that is known.

        Returns
        -------
        Ends or None
            None where nothing shows one.
        """
        # Without ids nothing else shows whether the server says what it is told to.
        plain = next(filter(None, map(self._try, ("7", "a", "the"))), None)
        self._obedient = plain is not None and plain[1] == _Tried(special=False, ends=False)
        tag = TAG.match(behind.lstrip())
        written = tag.group() if tag else ""
        names = dict.fromkeys((written, eos, *KNOWN_ENDS))
        found = {n: self._try(n) for n in names if isinstance(n, str) and n}
        ending = {name: at[0] for name, at in found.items() if at and at[1] and at[1].ends}
        how = "where the server was seen to stop"
        if not ending:
            at = found.get(written)
            if at is None:
                return None
            ending = {written: at[0]}
            how = "as the template writes it; not confirmed by the server"
        said = ", ".join(f"{name} ({i})" for name, i in ending.items())
        return Ends(tuple(sorted(ending.values())), f"answers end at {said}, {how}")

    def special(self, text: str) -> int | None:
        """The id of a special token of this text; None where it is none."""
        found = self._try(text)
        if found is None:
            return None
        token, tried = found
        if tried is None:  # nothing is known: a tag is special, unless it is one of thinking
            return None if any(text in pair for pair in KNOWN_MARKERS) else token
        return token if tried.special else None

    def _try(self, text: str) -> tuple[int, _Tried | None] | None:
        """The id of a text that is one token, and what comes of saying it; None for other texts."""
        if text not in self._found:
            ids = self._encode(text)
            self._found[text] = (ids[0], self._say(ids[0], text)) if len(ids) == 1 else None
        return self._found[text]

    def _say(self, token: int, text: str) -> _Tried | None:
        """Let the server say one token; None where it says what it likes."""
        if not self._obedient:
            return None
        try:
            answer = self._complete(
                "1 + 1 =", max_tokens=2, allowed_token_ids=[token], return_token_ids=True
            )
        except Refused:
            return None
        if set(answer.text.split()) - {text, 2 * text} or set(answer.token_ids or ()) - {token}:
            return None
        return _Tried(special=not answer.text, ends=answer.finish_reason == "stop")
