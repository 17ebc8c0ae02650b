"""The tokenizer's side of probing: rendered prompts, thinking markers and suffixes.

Works on token ids throughout: text that is split and joined again may give other tokens.  Knows no
model, and imports no transformers: it is handed a tokenizer.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stopadvisor.engines.errors import first_line
from stopadvisor.ground.constants import KNOWN_MARKERS
from stopadvisor.ground.errors import ModelError
from stopadvisor.probes.asking import Check, Prompt, cue_text, is_open_cue, reserved_arguments

__all__ = ["Chat", "ChatEngine", "GrowingText", "Marker", "find_markers"]

_TAG = re.compile(r"<\|.*?\|>")
_SPECIMEN = (
    "Wait, 3.14159 + 2,718 = f(x)^2;\n\n\tdef naïve(): return '\\\\boxed{½}'  # ok\r\n"
    "Überraschung – 東京は人口1400万人。 Привет, мир! 🙂 <think>don't</think> A) B) ≤ ∑"
)
"""Split differently by every tokenizer; part of its hash."""
_CONTEXT = 8
"""Tokens that a part of a text is decoded after, or more where these do not suffice."""


@dataclass(frozen=True)
class Marker:
    """The opener or the closer of the thinking."""

    text: str
    ids: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return text and ids as plain values."""
        return {"text": self.text, "ids": list(self.ids)}


def find_markers(
    tokenizer: Any, think_open: str | None = None, think_close: str | None = None
) -> tuple[Marker, Marker]:
    """Find the opener and the closer of the model's thinking as sequences of token ids.

    Both are given as text, or neither.  Without them the known pairs are tried: a pair is taken
    when the tokenizer has its opener and closer as tokens of their own, or when the chat template
    writes both.  Raises `ModelError`: no pair fits, or a marker does not survive the tokenizer.
    """
    if think_open is not None and think_close is not None:
        return _marker(tokenizer, think_open), _marker(tokenizer, think_close)
    if think_open is not None or think_close is not None:
        given, other = ("open", "close") if think_close is None else ("close", "open")
        raise ModelError(
            f"think_{given} needs think_{other} as well: thinking has an opener and a closer"
        )
    added = {str(token) for token in tokenizer.get_added_vocab()}

    def is_token(text: str) -> bool:
        tags = _TAG.findall(text)  # such as ``<think>``; those of gpt-oss have words between
        return text in added or (bool(tags) and added.issuperset(tags))

    template = tokenizer.chat_template
    written = template if isinstance(template, str) else ""
    found = [pair for pair in KNOWN_MARKERS if all(map(is_token, pair))]
    found += [pair for pair in KNOWN_MARKERS if all(text in written for text in pair)]
    if found:
        opener, closer = found[0]
        return _marker(tokenizer, opener), _marker(tokenizer, closer)
    raise ModelError(
        f"{_name(tokenizer)} has no thinking markers that are known here; "
        "if it reasons before it answers, name them with --think-tags"
    )


def _name(tokenizer: Any) -> str:
    return str(tokenizer.name_or_path or "the model")


def _marker(tokenizer: Any, text: str) -> Marker:
    ids = tuple(_encode(tokenizer, text))
    back = _decode(tokenizer, ids, special=True)
    if not ids or back.strip() != text.strip():
        raise ModelError(
            f"thinking marker {text!r} does not survive the tokenizer: its tokens decode to "
            f"{back!r}"
        )
    return Marker(text, ids)


def _encode(tokenizer: Any, text: str) -> list[int]:
    return [int(i) for i in tokenizer.encode(text, add_special_tokens=False)]


def _decode(tokenizer: Any, ids: Sequence[int], *, special: bool) -> str:
    text = tokenizer.decode(
        list(ids), skip_special_tokens=not special, clean_up_tokenization_spaces=False
    )
    return str(text)


@dataclass(frozen=True)
class Chat:
    """A tokenizer with its chat template and thinking markers."""

    tokenizer: Any
    """A transformers tokenizer."""
    opener: Marker
    closer: Marker
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Passed to the chat template, as in ``--chat-template-kwargs``."""
    hide: Callable[[str], str] = field(default=str, repr=False, compare=False)
    """Takes out of decoded text what must not be shown, such as a key that a server repeats."""

    @classmethod
    def of(
        cls,
        tokenizer: Any,
        *,
        think_open: str | None = None,
        think_close: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> Chat:
        """Find the markers and try the template on a first message.

        Raises `ModelError`: no chat template, no markers, a template that fails or keeps thinking
        off, or arguments that would replace it.
        """
        for name in reserved_arguments(template_kwargs or {}):
            raise ModelError(f"chat template argument {name!r} is reserved: rendering sets it")
        if not tokenizer.chat_template:
            raise ModelError(
                f"{_name(tokenizer)} has no chat template: a reasoning "
                "model that is instructed through one is required"
            )
        opener, closer = find_markers(tokenizer, think_open, think_close)
        chat = cls(tokenizer, opener, closer, dict(template_kwargs or {}))
        chat.prompt_ids([{"role": "user", "content": "Hello"}])
        return chat

    def render(self, messages: Sequence[Mapping[str, str]], *, generation: bool = True) -> str:
        """Return the conversation as the chat template writes it."""
        try:
            text = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=generation,
                **self.template_kwargs,
            )
        except Exception as error:  # templates are programs and raise what they like
            raise ModelError(
                f"the chat template refuses the messages: {first_line(error)}"
            ) from error
        return str(text)

    def prompt_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the prompt's token ids, thinking opened.

        A template that opens the thinking itself is used as it stands, with whatever it writes
        after the opener; otherwise the opener is appended.  One that fails, or closes the thinking
        before it began, raises `ModelError`.
        """
        text = self.render(messages)
        if self.opener.text not in text:
            return [*self.encode(text), *self.opener.ids]
        # Thinking in earlier turns, or in the question, must not be taken for this turn's.
        turn = text.removeprefix(self.render(messages, generation=False))
        _, opened, after = turn.rpartition(self.opener.text)
        if not opened:
            return [*self.encode(text), *self.opener.ids]
        if self.closer.text in after:
            raise ModelError(
                f"the chat template closes the thinking with {self.closer.text!r} before it "
                f"began; thinking must be on, got template arguments {dict(self.template_kwargs)!r}"
            )
        return self.encode(text)

    def suffix_ids(self, cue: str) -> list[int]:
        """Return the ids that ask for the answer: the closer, unless the cue is open, then it."""
        closer = () if is_open_cue(cue) else self.closer.ids
        return [*closer, *self.encode(cue_text(cue))]

    def encode(self, text: str) -> list[int]:
        """Return a text's ids, nothing added."""
        return _encode(self.tokenizer, text)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return ids as text, special tokens left out unless they are asked for."""
        return self.hide(_decode(self.tokenizer, ids, special=special))

    def check_markers(self) -> Check:
        """The markers, one token or several, come back from their text as the same ids."""
        seen, changed = [], []
        for name, marker in (("opener", self.opener), ("closer", self.closer)):
            ids = list(marker.ids)
            again = self.encode(self.decode(ids, special=True))
            seen.append(f"{name} {marker.text!r} is {len(ids)} token{'s' * (len(ids) > 1)}")
            if again != ids:
                changed.append(f"{name} {ids} comes back as {again}")
        if not changed:
            return Check("marker-ids", "pass", ", ".join(seen) + ", unchanged through text")
        advice = "probe and serve on token ids, never on joined text"
        return Check("marker-ids", "warn", f"{', '.join(seen)}; {', '.join(changed)}", advice)

    def check_template(self, prompts: Sequence[Prompt]) -> Check:
        """The chat template opens the thinking for all questions, or for none."""
        opens = sum(
            self.encode(self.render(p.messages)) == self.prompt_ids(p.messages) for p in prompts
        )
        tail = self.render(prompts[0].messages)[-20:]
        if opens in (0, len(prompts)):
            how = (
                "the chat template opens thinking itself"
                if opens
                else f"the chat template leaves thinking unopened, {self.opener.text!r} is appended"
            )
            return Check("template", "pass", f"{how}; it ends in {tail!r}")
        return Check(
            "template",
            "warn",
            f"the chat template opens thinking itself for {opens}/{len(prompts)} questions only",
            "production must render alike: see that --chat-template-kwargs suit all questions",
        )

    def identity(self, stop_ids: Sequence[int]) -> dict[str, Any]:
        """Return the part of `Engine.identity` that tokenizer, template and ends decide."""
        return {
            "tokenizer_sha256": self.tokenizer_sha256(),
            "template_sha256": self.template_sha256(),
            "think_open": self.opener.to_json(),
            "think_close": self.closer.to_json(),
            "stop_ids": list(stop_ids),
            "chat_template_kwargs": dict(self.template_kwargs),
        }

    def tokenizer_sha256(self) -> str:
        """Hash the vocabulary with its ids, and how a fixed text is split.

        Files are not compared: saving a tokenizer again rewrites them, and changes nothing.
        """
        return _json_sha256([sorted(self.tokenizer.get_vocab().items()), self.encode(_SPECIMEN)])

    def template_sha256(self) -> str:
        """Hash the chat template's text."""
        template = self.tokenizer.chat_template
        if isinstance(template, str):
            return hashlib.sha256(template.encode()).hexdigest()
        return _json_sha256(template)


@dataclass
class GrowingText:
    """The text of ids that grow, each of which is decoded a few times in all.

    A tokenizer may write a token differently at the beginning of a text, in the middle of a
    character, or after its neighbours.  So new ids are decoded with the ones before them, and are
    joined to the text before them where both agree on those; elsewhere all ids are decoded.
    """

    chat: Chat
    _text: str = ""
    """Of the first `_whole` ids."""
    _whole: int = 0
    _start: int = 0
    """Where the ids begin that new ones are decoded with."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return `chat.decode(ids)`; they begin with the ids of the call before."""
        context = self._decode(ids[self._start : self._whole])
        longer = self._decode(ids[self._start :])
        agree = longer.startswith(context)
        text = self._text + longer[len(context) :] if agree else self._decode(ids)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            self._text, self._whole, self._start = text, len(ids), self._context(ids, text)
        return self.chat.hide(text)

    def _decode(self, ids: Sequence[int]) -> str:
        return _decode(self.chat.tokenizer, ids, special=False)

    def _context(self, ids: Sequence[int], text: str) -> int:
        """Return where the fewest last tokens begin that decode to the end of the text."""
        n_tokens = _CONTEXT
        while n_tokens < len(ids):
            context = self._decode(ids[-n_tokens:])
            if context.strip() and text.endswith(context):
                return len(ids) - n_tokens
            n_tokens *= 2
        return 0


class ChatEngine:
    """What every engine leaves to the tokenizer of its `chat`; see `probes.asking.Engine`."""

    chat: Chat

    def suffix_ids(self, cue: str) -> list[int]:
        """Return the ids that ask for the answer."""
        return self.chat.suffix_ids(cue)

    def encode(self, text: str) -> list[int]:
        """Return a text's ids."""
        return self.chat.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return ids as text."""
        return self.chat.decode(ids)

    def prompt_checks(self, prompts: Sequence[Prompt]) -> list[Check]:
        """Check thinking markers and chat template, as preflight does for every engine."""
        return [self.chat.check_markers(), self.chat.check_template(prompts)]


def _json_sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
