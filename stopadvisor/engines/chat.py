"""Chat template, thinking markers and suffixes, as token ids.

Works on token ids, because splitting and joining text can change its tokens.  Takes a loaded
tokenizer and does not import transformers.
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
"""Each tokenizer splits this text differently; part of the tokenizer's hash."""
_CONTEXT = 8
"""Minimum number of earlier tokens that `GrowingText` decodes along with new ones."""


@dataclass(frozen=True)
class Marker:
    """The text that opens or closes thinking, and its token ids."""

    text: str
    ids: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return text and ids as plain values."""
        return {"text": self.text, "ids": list(self.ids)}


def find_markers(
    tokenizer: Any, think_tags: tuple[str, str] | None = None
) -> tuple[Marker, Marker]:
    """Find the token ids that open and close the model's thinking.

    By default, take the first known pair that the tokenizer has as single tokens or that the chat
    template writes.  Raise `ModelError` if no pair fits or a marker does not survive the tokenizer.
    """
    if think_tags is not None:
        return _marker(tokenizer, think_tags[0]), _marker(tokenizer, think_tags[1])
    added = {str(token) for token in tokenizer.get_added_vocab()}

    def is_token(text: str) -> bool:
        tags = _TAG.findall(text)  # single tokens; gpt-oss has words between them
        return text in added or (bool(tags) and added.issuperset(tags))

    template = tokenizer.chat_template
    written = template if isinstance(template, str) else ""
    pairs = [pair for pair in KNOWN_MARKERS if all(map(is_token, pair))]
    pairs += [pair for pair in KNOWN_MARKERS if all(text in written for text in pair)]
    if pairs:
        opener, closer = pairs[0]
        return _marker(tokenizer, opener), _marker(tokenizer, closer)
    raise ModelError(
        f"{_name(tokenizer)} has no known thinking markers; "
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
    """Arguments of the chat template (``--chat-template-kwargs``)."""
    hide: Callable[[str], str] = field(default=str, repr=False, compare=False)
    """Removes secrets from decoded text, such as an API key that a server repeats."""

    @classmethod
    def of(
        cls,
        tokenizer: Any,
        *,
        think_tags: tuple[str, str] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> Chat:
        """Find the markers and test the template on a first message.

        Raise `ModelError` if there is no chat template, no markers are found, the template fails or
        turns thinking off, or `template_kwargs` contains a reserved argument.
        """
        for name in reserved_arguments(template_kwargs or {}):
            raise ModelError(f"chat template argument {name!r} is reserved: rendering sets it")
        if not tokenizer.chat_template:
            raise ModelError(
                f"{_name(tokenizer)} has no chat template: a reasoning "
                "model that is instructed through one is required"
            )
        opener, closer = find_markers(tokenizer, think_tags)
        chat = cls(tokenizer, opener, closer, dict(template_kwargs or {}))
        chat.prompt_ids([{"role": "user", "content": "Hello"}])
        return chat

    def render(self, messages: Sequence[Mapping[str, str]], *, generation: bool = True) -> str:
        """Return the conversation rendered by the chat template."""
        try:
            text = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=generation,
                **self.template_kwargs,
            )
        except Exception as error:  # templates are programs and may raise anything
            raise ModelError(
                f"the chat template refuses the messages: {first_line(error)}"
            ) from error
        return str(text)

    def prompt_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the prompt's token ids, ending inside the thinking.

        If the template opens thinking itself, its text is used unchanged; otherwise the opener is
        appended.  Raise `ModelError` if the template fails or closes the thinking at once.
        """
        text = self.render(messages)
        if self.opener.text not in text:
            return [*self.encode(text), *self.opener.ids]
        # Ignore openers in earlier turns or in the question.
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
        """Return the ids that force an answer: the closer (unless the cue is open) and the cue."""
        closer = () if is_open_cue(cue) else self.closer.ids
        return [*closer, *self.encode(cue_text(cue))]

    def encode(self, text: str) -> list[int]:
        """Return a text's token ids, without special tokens added."""
        return _encode(self.tokenizer, text)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Decode ids, without special tokens unless `special`."""
        return self.hide(_decode(self.tokenizer, ids, special=special))

    def check_markers(self) -> Check:
        """Check that both markers keep their token ids when decoded and encoded again."""
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
        """Check that the chat template opens thinking for all questions or for none."""
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
            "production must render the same way: --chat-template-kwargs must suit all questions",
        )

    def identity(self, stop_ids: Sequence[int]) -> dict[str, Any]:
        """Return the part of `Engine.identity` that depends on tokenizer and template."""
        return {
            "tokenizer_sha256": self.tokenizer_sha256(),
            "template_sha256": self.template_sha256(),
            "think_open": self.opener.to_json(),
            "think_close": self.closer.to_json(),
            "stop_ids": list(stop_ids),
            "chat_template_kwargs": dict(self.template_kwargs),
        }

    def tokenizer_sha256(self) -> str:
        """Hash the vocabulary with its ids, and the token ids of a fixed text.

        The files are not hashed: saving a tokenizer again rewrites them without changing it.
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
    """Incremental decoder: decodes each id a few times in all, not once per call.

    A token may decode differently at the beginning of a text, inside a multi-token character, or
    after other tokens.  So new ids are decoded along with a few earlier ones.  If the result agrees
    with the earlier text, the new part is appended; otherwise all ids are decoded again.
    """

    chat: Chat
    _text: str = ""
    """Text of the first `_whole` ids."""
    _whole: int = 0
    _start: int = 0
    """First id that is decoded again along with new ones."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return `chat.decode(ids)`; `ids` must extend those of the previous call."""
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
        """Return the start of a short suffix of `ids` that decodes to the text's end."""
        n_tokens = _CONTEXT
        while n_tokens < len(ids):
            context = self._decode(ids[-n_tokens:])
            if context.strip() and text.endswith(context):
                return len(ids) - n_tokens
            n_tokens *= 2
        return 0


class ChatEngine:
    """Mixin: the methods of `probes.asking.Engine` that need only a `chat`."""

    chat: Chat

    def suffix_ids(self, cue: str) -> list[int]:
        """See `Chat.suffix_ids`."""
        return self.chat.suffix_ids(cue)

    def encode(self, text: str) -> list[int]:
        """See `Chat.encode`."""
        return self.chat.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """See `Chat.decode`."""
        return self.chat.decode(ids)

    def prompt_checks(self, prompts: Sequence[Prompt]) -> list[Check]:
        """Check the thinking markers and the chat template."""
        return [self.chat.check_markers(), self.chat.check_template(prompts)]


def _json_sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
