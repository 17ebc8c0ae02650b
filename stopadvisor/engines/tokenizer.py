"""What is needed of a tokenizer and its chat template, and a transformers tokenizer that gives it.

The other that does is a server (`engines.openai.words`).  Imports neither torch nor transformers;
knows no thinking, no model and no probes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from stopadvisor.errors import ModelError

__all__ = ["SPECIMEN", "LocalTokenizer", "Rendered", "Tokenizer", "json_sha256"]

SPECIMEN = (
    "Wait, 3.14159 + 2,718 = f(x)^2;\n\n\tdef naïve(): return '\\\\boxed{½}'  # ok\r\n"
    "Überraschung – 東京は人口1400万人。 Привет, мир! 🙂 <think>don't</think> A) B) ≤ ∑"
)
"""Cut by every tokenizer in its own way; part of its hash."""


@dataclass(frozen=True)
class Rendered:
    """A conversation as the chat template writes it, up to where the model goes on."""

    ids: tuple[int, ...]
    turn: str
    """What the template writes to open the model's turn; all of it where that cannot be told."""


class Tokenizer(Protocol):
    """Text to token ids and back, and the chat template."""

    @property
    def name(self) -> str:
        """What to call it in messages."""
        ...

    @property
    def local(self) -> bool:
        """Whether it is at hand; else each call may ask a server, and block meanwhile."""
        ...

    @property
    def written(self) -> str | None:
        """What can be seen of the texts that the chat template writes; None without a template."""
        ...

    def encode(self, text: str, *, begin: bool = False) -> list[int]:
        """Return a text's ids, with what is put in front of every text where `begin` says so."""
        ...

    def decode(self, ids: Sequence[int], *, special: bool) -> str:
        """Return ids as text, with or without special tokens."""
        ...

    def has_token(self, text: str) -> bool:
        """Whether a text is one token of its own."""
        ...

    def render(
        self, messages: Sequence[Mapping[str, str]], kwargs: Mapping[str, Any], *, generation: bool
    ) -> str:
        """Return a conversation as the chat template writes it."""
        ...

    def prompt(self, messages: Sequence[Mapping[str, str]], kwargs: Mapping[str, Any]) -> Rendered:
        """Return a conversation that the model is to go on with."""
        ...

    def tokenizer_sha256(self) -> str:
        """Hash what cuts texts into tokens."""
        ...

    def template_sha256(self) -> str:
        """Hash the chat template."""
        ...


@dataclass(frozen=True)
class LocalTokenizer:
    """Those of a transformers tokenizer."""

    tokenizer: Any

    @property
    def name(self) -> str:
        """Where the tokenizer was loaded from."""
        return str(getattr(self.tokenizer, "name_or_path", "") or "the model")

    @property
    def local(self) -> bool:
        """It is at hand."""
        return True

    @property
    def written(self) -> str | None:
        """The template itself; nothing of several templates."""
        template = getattr(self.tokenizer, "chat_template", None)
        if not template:
            return None
        return template if isinstance(template, str) else ""

    @cached_property
    def _added(self) -> frozenset[str]:
        return frozenset(str(token) for token in self.tokenizer.get_added_vocab())

    def encode(self, text: str, *, begin: bool = False) -> list[int]:
        """Return a text's ids."""
        return [int(i) for i in self.tokenizer.encode(text, add_special_tokens=begin)]

    def decode(self, ids: Sequence[int], *, special: bool) -> str:
        """Return ids as text."""
        return str(
            self.tokenizer.decode(
                list(ids), skip_special_tokens=not special, clean_up_tokenization_spaces=False
            )
        )

    def has_token(self, text: str) -> bool:
        """Whether a text was added to the vocabulary."""
        return text in self._added

    def render(
        self, messages: Sequence[Mapping[str, str]], kwargs: Mapping[str, Any], *, generation: bool
    ) -> str:
        """Run the template.

        Raises
        ------
        ModelError
            It refuses.
        """
        try:
            text = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=generation,
                **kwargs,
            )
        except Exception as error:  # templates are programs and raise what they like
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ModelError(f"the chat template refuses the messages: {said}") from error
        return str(text)

    def prompt(self, messages: Sequence[Mapping[str, str]], kwargs: Mapping[str, Any]) -> Rendered:
        """Run the template, and cut its text into tokens."""
        text = self.render(messages, kwargs, generation=True)
        before = self.render(messages, kwargs, generation=False)
        turn = text[len(before) :] if text.startswith(before) else text
        return Rendered(tuple(self.encode(text)), turn)

    def tokenizer_sha256(self) -> str:
        """Hash the vocabulary with its ids, and how a fixed text is cut.

        Files are not compared: saving a tokenizer again rewrites them, and changes nothing.
        """
        return json_sha256([sorted(self.tokenizer.get_vocab().items()), self.encode(SPECIMEN)])

    def template_sha256(self) -> str:
        """Hash the template's text."""
        template = self.tokenizer.chat_template
        if isinstance(template, str):
            return hashlib.sha256(template.encode()).hexdigest()
        return json_sha256(template)


def json_sha256(value: Any) -> str:
    """Hash plain values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
