"""Thinking markers, rendered prompts and hashes."""

from __future__ import annotations

from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest

from stopadvisor.engines.chat import Chat, find_markers
from stopadvisor.ground.errors import ModelError
from stopadvisor.probes.asking import reserved_arguments
from tests.engines.tiny import TEMPLATE, byte_tokenizer

USER = [{"role": "user", "content": "Is <think> a word?"}]


def test_an_opener_is_appended_where_the_template_writes_none() -> None:
    chat = Chat.of(byte_tokenizer())
    ids = chat.prompt_ids(USER)
    assert chat.tokenizer.decode(ids) == "<user>Is <think> a word?<bot><think>"
    assert ids[-1] == chat.opener.ids[0]


def test_a_template_that_opens_the_thinking_is_used_as_it_stands() -> None:
    chat = Chat.of(byte_tokenizer(), template_kwargs={"opens": True})
    assert chat.tokenizer.decode(chat.prompt_ids(USER)).endswith("<bot><think>\n")


def test_every_parameter_of_the_rendering_is_reserved() -> None:
    parameters = signature(byte_tokenizer().apply_chat_template).parameters.values()
    named = {p.name: None for p in parameters if p.kind is not p.VAR_KEYWORD}
    assert reserved_arguments(named) == sorted(named)
    assert reserved_arguments({"enable_thinking": True, "reasoning_effort": "high"}) == []


def test_thinking_of_earlier_turns_is_not_this_turns() -> None:
    chat = Chat.of(byte_tokenizer())
    turns = [*USER, {"role": "assistant", "content": "<think>no</think>Yes."}, *USER]
    assert chat.tokenizer.decode(chat.prompt_ids(turns)).endswith("<bot><think>")


@pytest.mark.parametrize(
    ("tags", "opener"),
    [
        pytest.param(("[THINK]", "[/THINK]"), "[THINK]", id="Magistral"),
        pytest.param(
            ("<|channel|>", "<|message|>", "<|end|>", "<|start|>"),
            "<|channel|>analysis<|message|>",
            id="gpt-oss",
        ),
    ],
)
def test_known_markers_are_found(tags: tuple[str, ...], opener: str) -> None:
    tokenizer = byte_tokenizer(think=False)
    tokenizer.add_tokens(list(tags), special_tokens=True)
    found, closer = find_markers(tokenizer)
    assert found.text == opener
    assert tokenizer.decode(list(closer.ids)) == closer.text


def test_markers_that_only_the_template_writes_are_found() -> None:
    tokenizer = byte_tokenizer(think=False)  # its template switches thinking off with both
    opener, closer = find_markers(tokenizer)
    assert (len(opener.ids), len(closer.ids)) == (7, 8)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "thinking off": ({}, {"template_kwargs": {"off": True}}, "must be on, got .*'off': True"),
    **{
        f"argument {name}": ({}, {"template_kwargs": {name: "{{ 1 }}"}}, f"'{name}' is reserved")
        for name in ("chat_template", "messages", "eos_token")
    },
    "no markers": (
        {"think": False, "template": "{% for m in messages %}{{ m.content }}{% endfor %}"},
        {},
        "name them with --think-tags",
    ),
    "no template": ({"template": None}, {}, "has no chat template"),
    "no users": (
        {"template": "<think></think>{{ raise_exception('no users') }}"},
        {},
        "the chat template refuses the messages: no users",
    ),
}


@pytest.mark.parametrize(("tokenizer", "options", "says"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_asked_is_refused(
    tokenizer: dict[str, Any], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ModelError, match=says):
        Chat.of(byte_tokenizer(**tokenizer), **options)


@pytest.mark.parametrize(("ids", "back"), [([5], "x"), ([], "")])
def test_a_marker_that_the_tokenizer_cannot_write_is_refused(ids: list[int], back: str) -> None:
    deaf = SimpleNamespace(encode=lambda text, **_: ids, decode=lambda ids, **_: back)
    with pytest.raises(ModelError, match=f"'<a>' does not survive .* decode to '{back}'"):
        find_markers(deaf, ("<a>", "</a>"))


def test_a_suffix_is_closer_and_cue_in_ids() -> None:
    chat = Chat.of(byte_tokenizer())
    assert chat.suffix_ids("ab") == [*chat.closer.ids, *chat.tokenizer.encode("ab")]


def test_hashes_follow_what_the_tokenizer_does() -> None:
    chat, same = Chat.of(byte_tokenizer()), Chat.of(byte_tokenizer())
    assert chat.tokenizer_sha256() == same.tokenizer_sha256()
    assert chat.template_sha256() == same.template_sha256()
    same.tokenizer.add_tokens(["word"])
    assert chat.tokenizer_sha256() != same.tokenizer_sha256()
    other = Chat.of(byte_tokenizer(template=TEMPLATE + " "))
    assert chat.template_sha256() != other.template_sha256()
