"""Thinking markers, rendered prompts and hashes."""

from __future__ import annotations

from inspect import signature

import pytest

from stopadvisor.engines.chat import Chat, find_markers
from stopadvisor.ground.errors import ModelError
from stopadvisor.policy.template_arguments import reserved_arguments
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


def test_a_template_that_turns_thinking_off_is_refused() -> None:
    with pytest.raises(ModelError, match=r"thinking must be on, got .*'off': True"):
        Chat.of(byte_tokenizer(), template_kwargs={"off": True})


def test_every_parameter_of_the_rendering_is_reserved() -> None:
    parameters = signature(byte_tokenizer().apply_chat_template).parameters.values()
    named = {p.name: None for p in parameters if p.kind is not p.VAR_KEYWORD}
    assert reserved_arguments(named) == sorted(named)
    assert reserved_arguments({"enable_thinking": True, "reasoning_effort": "high"}) == []


@pytest.mark.parametrize("name", ["chat_template", "messages", "eos_token"])
def test_a_template_is_not_replaced_by_an_argument(name: str) -> None:
    with pytest.raises(ModelError, match=f"argument '{name}' is reserved"):
        Chat.of(byte_tokenizer(), template_kwargs={name: "{{ 1 }}"})


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


def test_a_model_without_markers_is_refused() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(ModelError, match="name them with --think-tags"):
        find_markers(byte_tokenizer(think=False, template=template))


def test_a_model_without_template_is_refused() -> None:
    with pytest.raises(ModelError, match="has no chat template"):
        Chat.of(byte_tokenizer(template=None))


def test_a_template_that_refuses_the_messages_is_quoted() -> None:
    with pytest.raises(ModelError, match="the chat template refuses the messages: no users"):
        Chat.of(byte_tokenizer(template="<think></think>{{ raise_exception('no users') }}"))


@pytest.mark.parametrize("one", ["think_open", "think_close"])
def test_one_marker_needs_the_other(one: str) -> None:
    with pytest.raises(ModelError, match=f"^{one} needs think_"):
        Chat.of(byte_tokenizer(), **{one: "<x>"})  # type: ignore[arg-type]


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
