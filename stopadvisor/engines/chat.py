"""The tokenizer's side of probing: rendered prompts, thinking markers and suffixes.

Works on token ids throughout: text joined at a cut changes its tokenisation there.  Asks a
`Tokenizer` for them, so that a tokenizer may be here or at a server; knows no model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stopadvisor.engines.tokenizer import LocalTokenizer, Rendered, Tokenizer
from stopadvisor.errors import ModelError

__all__ = ["KNOWN_MARKERS", "Chat", "Marker", "find_markers"]

KNOWN_MARKERS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
)
"""Opener and closer of the reasoning models we know; others are named by the user."""


_TAG = re.compile(r"<\|.*?\|>")


@dataclass(frozen=True)
class Marker:
    """The opener or the closer of the thinking."""

    text: str
    ids: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return text and ids as plain values."""
        return {"text": self.text, "ids": list(self.ids)}


def find_markers(
    words: Tokenizer, think_open: str | None = None, think_close: str | None = None
) -> tuple[Marker, Marker]:
    """Find the model's thinking markers as sequences of token ids.

    Parameters
    ----------
    words : Tokenizer
        With a chat template.
    think_open, think_close : str, optional
        The markers as text; both or neither.  Without them the known pairs are tried: a pair is
        taken when the tokenizer has its opener and closer as tokens of their own, or when the
        chat template writes both.

    Returns
    -------
    tuple of Marker
        Opener and closer.

    Raises
    ------
    ModelError
        No pair fits, only one marker is given, or one does not survive the tokenizer.
    """
    if (think_open is None) != (think_close is None):
        given, other = (
            ("think_open", "think_close") if think_close is None else ("think_close", "think_open")
        )
        raise ModelError(f"{given} needs {other} beside it: thinking has an opener and a closer")
    if think_open is not None and think_close is not None:
        return _marker(words, think_open), _marker(words, think_close)
    for opener, closer in KNOWN_MARKERS:
        if _is_token(words, opener) and _is_token(words, closer):
            return _marker(words, opener), _marker(words, closer)
    written = words.written or ""
    for opener, closer in KNOWN_MARKERS:
        if opener in written and closer in written:
            return _marker(words, opener), _marker(words, closer)
    raise ModelError(
        f"{words.name} has no thinking markers that are known here; "
        "if it reasons before it answers, name them with --think-open and --think-close"
    )


def _is_token(words: Tokenizer, text: str) -> bool:
    """Whether a marker, or each of the tags it consists of, is a token of its own.

    A marker such as ``<think>`` is one tag; those of gpt-oss have words between their tags.
    """
    tags = _TAG.findall(text)
    return words.has_token(text) or (bool(tags) and all(words.has_token(tag) for tag in tags))


def _marker(words: Tokenizer, text: str) -> Marker:
    ids = tuple(words.encode(text))
    back = words.decode(ids, special=True)
    if not ids or back.strip() != text.strip():
        raise ModelError(
            f"thinking marker {text!r} does not survive the tokenizer: its tokens decode to "
            f"{back!r}"
        )
    return Marker(text, ids)


@dataclass(frozen=True)
class Chat:
    """A tokenizer with its chat template and thinking markers."""

    words: Tokenizer
    opener: Marker
    closer: Marker
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Passed to the chat template, as in ``--chat-template-kwargs``."""

    @classmethod
    def of(
        cls,
        words: Any,
        *,
        think_open: str | None = None,
        think_close: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> Chat:
        """Find the markers and try the template on a first message.

        Parameters
        ----------
        words : transformers tokenizer, or Words

        Raises
        ------
        ModelError
            No chat template, no markers, or a template that fails or keeps thinking off.
        """
        if not hasattr(words, "has_token"):
            words = LocalTokenizer(words)
        if words.written is None:
            raise ModelError(
                f"{words.name} has no chat template: a reasoning "
                "model that is instructed through one is required"
            )
        opener, closer = find_markers(words, think_open, think_close)
        chat = cls(words, opener, closer, dict(template_kwargs or {}))
        chat.prompt_ids([{"role": "user", "content": "Hello"}])
        return chat

    @property
    def tokenizer(self) -> Any:
        """The transformers tokenizer, for an engine that runs the model here.

        Raises
        ------
        ModelError
            There is none.
        """
        if not isinstance(self.words, LocalTokenizer):
            raise ModelError(f"the tokenizer of {self.words.name} is not here")
        return self.words.tokenizer

    def render(self, messages: Sequence[Mapping[str, str]], *, generation: bool = True) -> str:
        """Return the conversation as the chat template writes it."""
        return self.words.render(messages, self.template_kwargs, generation=generation)

    def rendered(self, messages: Sequence[Mapping[str, str]]) -> Rendered:
        """Return the conversation as the chat template writes it, in ids."""
        return self.words.prompt(messages, self.template_kwargs)

    def prompt_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the prompt's token ids, thinking opened.

        A template that opens the thinking itself is used as it stands, with whatever it writes
        after the opener; otherwise the opener is appended.

        Raises
        ------
        ModelError
            The template fails, or closes the thinking before it began.
        """
        rendered = self.rendered(messages)
        # Thinking in earlier turns, or in the question, must not be taken for this turn's.
        _, opened, after = rendered.turn.rpartition(self.opener.text)
        if not opened:
            return [*rendered.ids, *self.opener.ids]
        if self.closer.text in after:
            raise ModelError(
                f"the chat template closes the thinking with {self.closer.text!r} before it "
                f"began; thinking must be on, got template arguments {dict(self.template_kwargs)!r}"
            )
        return list(rendered.ids)

    def suffix_ids(self, cue: str) -> list[int]:
        """Return the ids that close the thinking and ask for the answer."""
        return [*self.closer.ids, *self.encode(cue)]

    def encode(self, text: str) -> list[int]:
        """Return a text's ids, nothing added."""
        return self.words.encode(text)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return ids as text, special tokens left out unless they are asked for."""
        return self.words.decode(ids, special=special)

    def tokenizer_sha256(self) -> str:
        """Hash the tokenizer."""
        return self.words.tokenizer_sha256()

    def template_sha256(self) -> str:
        """Hash the chat template."""
        return self.words.template_sha256()
