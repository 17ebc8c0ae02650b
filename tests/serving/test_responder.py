"""The form of replies: bodies, chunks, counts and the header."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stopadvisor.serving.metrics import RequestRecord
from stopadvisor.serving.responder import DONE, ChatReply, TextStream, forced_content

COUNTS = RequestRecord(
    "1", "policy", prompt_tokens=30, reasoning_tokens=43, probes=2, probe_tokens=7,
    discarded_tokens=4, budget=43,
)  # fmt: skip
REPLY = ChatReply("tiny", id="chatcmpl-1", created=5)


def events(data: bytes) -> list[dict[str, Any]]:
    """What a client reads of a stream, without its end."""
    assert data.endswith(DONE)
    lines = data.removesuffix(DONE).decode("ascii").split("\n\n")
    assert lines.pop() == ""
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_usage_counts_everything_that_was_decoded() -> None:
    assert COUNTS.usage() == {
        "prompt_tokens": 30,
        "completion_tokens": 43 + 7 + 4,
        "total_tokens": 84,
        "completion_tokens_details": {"reasoning_tokens": 43},
        "stopadvisor": {"budget": 43, "probes": 2, "probe_tokens": 7, "discarded_tokens": 4},
    }
    cached = RequestRecord("1", reasoning_tokens=60, visible_tokens=12, cached_tokens=16)
    assert cached.usage()["prompt_tokens_details"] == {"cached_tokens": 16}
    assert cached.usage()["completion_tokens"] == 72


def test_a_stream() -> None:
    data = REPLY.first() + REPLY.reasoning("1+") + REPLY.reasoning("") + REPLY.content("2")
    chunks = events(data + REPLY.last("stop", COUNTS.usage()))
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"reasoning": "1+", "reasoning_content": "1+"},
        {"content": "2"},
        {},
    ]
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-1"}
    whole = REPLY.body("1+", "2", "stop", COUNTS.usage())
    for frame in (*chunks[:-1], whole):
        assert [choice["index"] for choice in frame["choices"]] == [0]
    assert [c["finish_reason"] for chunk in chunks for c in chunk["choices"]][-1] == "stop"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == COUNTS.usage()
    without = events(REPLY.last("length", None))
    assert [chunk["choices"][0]["finish_reason"] for chunk in without] == ["length"]


def test_a_forced_answer_reads_as_the_visible_one_would() -> None:
    assert forced_content("\n\nFinal answer:", " 42") == "Final answer: 42"
    assert forced_content("open:\n\nFinal answer:", " 42") == "Final answer: 42"
    assert forced_content("The answer is \\boxed{", "42}") == "The answer is \\boxed{42}"


def _bytes(ids: Sequence[int]) -> str:
    """A tokenizer of one byte a token: a letter takes up to four."""
    return bytes(ids).decode("utf-8", "replace")


@given(st.text(st.sampled_from("a \nüß€漢🙂")), st.lists(st.integers(1, 7)))
def test_pieces_of_text_add_up_to_the_whole(text: str, sizes: list[int]) -> None:
    ids, stream, parts = list(text.encode()), TextStream(_bytes), []
    for size in sizes:
        parts.append(stream.take(ids[:size]))
        del ids[:size]
        whole = text.startswith("".join(parts))
        assert whole or "\N{REPLACEMENT CHARACTER}" in text
    parts.append(stream.take(ids, last=True))
    assert "".join(parts) == text


def _words(ids: Sequence[int]) -> str:
    """A tokenizer that leaves out the space before the first word."""
    return " ".join("abcdef"[i] for i in ids)


def test_a_piece_is_decoded_after_the_one_before() -> None:
    stream = TextStream(_words)
    assert [stream.take([0]), stream.take([1, 2]), stream.take([3])] == ["a", " b c", " d"]


def test_an_incomplete_character_is_shown_at_the_end() -> None:
    stream = TextStream(_bytes)
    assert stream.take([0x61, 0xE2]) == ""
    assert stream.take([], last=True) == "a\N{REPLACEMENT CHARACTER}"
