"""The form of replies: bodies, chunks, counts and the header."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from stopadvisor.engines.answer_end import ForcedAnswer
from stopadvisor.engines.live import LiveAnswer
from stopadvisor.engines.trace import Trace, TraceEnd
from stopadvisor.ground.errors import EngineError
from stopadvisor.policy.session import Stop
from stopadvisor.serving.audits import AuditedReply
from stopadvisor.serving.eligibility import CoveredRequest
from stopadvisor.serving.metrics import Metrics, RequestRecord
from stopadvisor.serving.responder import (
    DONE,
    KEEP_ALIVE,
    ChatReply,
    Responder,
    Sender,
    SlowReader,
    TextStream,
    forced_content,
)
from tests.serving.virtual_server import run_virtually

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


# --- A live request -------------------------------------------------------------------------------

THOUGHTS, CLOSER, VISIBLE, END = b"1\xe2\x82\xac", 1, b"So 2\xc3\xbc", 0
"""One token per byte, and two that show nothing."""
Step = tuple[float, str, bytes]
"""Seconds after the one before, a method of the observer, and its tokens."""


@dataclass
class Live:
    """Stands in for a live request; shows these steps, then fails or ends as it was thought."""

    steps: Sequence[Step]
    thoughts: bytes = THOUGHTS
    visible: bytes = VISIBLE
    error: Exception | None = None
    hangs: bool = False
    outcome: dict[str, Any] = field(default_factory=dict)
    """Fields of the answer: of a stop."""
    is_cancelled: bool = False
    sent: list[tuple[float, bytes, bool]] = field(default_factory=list)
    """When, which piece of the body, and whether it is the last one."""
    record: RequestRecord = field(default_factory=lambda: RequestRecord("1", route="policy"))

    def __post_init__(self) -> None:
        ends = TraceEnd((CLOSER,), (END,), 100, 100, len(self.thoughts), closed=bool(self.visible))
        ids = [*self.thoughts, *((CLOSER, *self.visible) if self.visible else ())]
        plan = cast(Any, SimpleNamespace(cue="\n\nFinal answer:"))
        self.trace = Trace([7, 7], cast(Any, None), plan, None, ends, ids)

    async def answer(self) -> LiveAnswer:
        try:
            for seconds, kind, ids in self.steps:
                await asyncio.sleep(seconds)
                getattr(self.responder, kind)(ids)
            await asyncio.sleep(1e6 if self.hangs else 0.0)
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
        if self.error is not None:
            raise self.error
        return LiveAnswer(self.trace, first_logprob=-0.5, **self.outcome)

    def run(self, *, stream: bool = True, sleeps_at: int = -1) -> Exception | None:
        """Answer it in simulated time for a client that falls asleep at one piece of the body."""
        chat = SimpleNamespace(decode=_shown, closer=SimpleNamespace(ids=(CLOSER,)))
        stops = SimpleNamespace(chat=chat, visible_text=_shown)
        backend = cast(Any, SimpleNamespace(stops=stops, stop_ids=(END,)))
        request = cast(Any, SimpleNamespace(task="numeric"))
        covered = CoveredRequest(request, None, stream=stream, include_usage=True)

        async def send(message: MutableMapping[str, Any]) -> None:
            if "body" in message:
                if len(self.sent) == sleeps_at:
                    await asyncio.sleep(1e6)
                now = asyncio.get_running_loop().time()
                self.sent.append((now, message["body"], not message["more_body"]))

        async def go() -> Exception | None:
            sender, metrics = Sender(send, self.record), Metrics(CollectorRegistry())
            self.responder = Responder(covered, backend, REPLY, sender, metrics, between=60.0)
            try:
                self.answered = await self.responder.run(cast(Any, self))
            except (SlowReader, EngineError) as error:
                return error
            return None

        return run_virtually(go())

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, piece, _ in self.sent)

    @property
    def deltas(self) -> list[tuple[str, str]]:
        chunks = events(self.body.replace(KEEP_ALIVE, b""))
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        return [pair for delta in deltas for pair in delta.items() if pair[1]]


def _shown(ids: Sequence[int]) -> str:
    return _bytes([token for token in ids if token > CLOSER])


def test_a_quiet_stream_is_kept_alive_every_15_seconds() -> None:
    live = Live([(40.0, "reasoning", THOUGHTS), (31.0, "content", VISIBLE)])
    assert live.run() is None
    assert [now for now, piece, _ in live.sent if piece == KEEP_ALIVE] == [15, 30, 55, 70]
    assert live.deltas == [
        ("role", "assistant"), ("reasoning", "1€"), ("reasoning_content", "1€"),
        ("content", "So 2ü"),
    ]  # fmt: skip
    assert live.record.status == 200
    assert [is_last for *_, is_last in live.sent] == [False] * (len(live.sent) - 1) + [True]


@pytest.mark.parametrize(
    ("thoughts", "visible", "reasoning", "content"),
    [
        (THOUGHTS[:-1], VISIBLE, ["1", "�"], ["So 2ü"]),
        (THOUGHTS, VISIBLE[:-1], ["1", "€"], ["So 2", "�"]),
        (THOUGHTS[:-1], b"", ["1", "�"], []),
    ],
)
def test_characters_that_were_never_completed_are_shown_where_they_stand(
    thoughts: bytes, visible: bytes, reasoning: list[str], content: list[str]
) -> None:
    steps = [(0.0, "reasoning", thoughts[:1]), (1.0, "reasoning", thoughts[1:])]
    pieces = [visible] if len(content) == 1 else [visible[:4], visible[4:]] if visible else []
    live = Live([*steps, *((1.0, "content", piece) for piece in pieces)], thoughts, visible)
    assert live.run() is None
    shown = [(name, text) for name, text in live.deltas if name in ("reasoning", "content")]
    assert shown == [
        *(("reasoning", text) for text in reasoning),
        *(("content", t) for t in content),
    ]
    whole = Live([], thoughts, visible)
    assert whole.run(stream=False) is None
    message = json.loads(whole.body)["choices"][0]["message"]
    assert message["reasoning"] == "".join(reasoning)
    assert message["content"] == ("".join(content) if visible else None)


@pytest.mark.parametrize(
    ("visible", "finish"),
    [
        (VISIBLE + bytes([END]), "stop"),
        (bytes([END]), "stop"),
        (VISIBLE, "length"),
        (b"", "length"),
    ],
)
def test_a_reply_that_did_not_end_by_itself_says_so(visible: bytes, finish: str) -> None:
    live = Live([], visible=visible)
    assert live.run(stream=False) is None
    reply = json.loads(live.body)
    assert reply["choices"][0]["finish_reason"] == finish
    counted = len(THOUGHTS) + (len(visible) + 1 if visible else 0)
    assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (2, counted)
    assert (live.record.status, live.record.think_tokens) == (200, len(THOUGHTS))
    assert (live.record.discarded_tokens, live.record.budget) == (0, None)
    assert live.record.visible_tokens == counted - len(THOUGHTS)


FORCED = ForcedAnswer((7,), " 5", 0.0, 0.0, None)
PROBED, WROTE = Stop(1, 0, "probe"), Stop(1, 0, "answer")


@pytest.mark.parametrize(
    ("outcome", "content", "answer", "visible"),
    [
        ({"stop": PROBED, "forced": FORCED}, "Final answer: 5", "5", 0),
        ({"stop": WROTE, "written": tuple(b"It is 9\0")}, "It is 9", "9", 9),
        ({"shadow": PROBED}, "So 2ü", "2", 7),
    ],
)
def test_a_stop_is_counted_and_audited(
    outcome: dict[str, Any], content: str, answer: str, visible: int
) -> None:
    """All that was decoded after it counts as thinking, but is not shown."""
    live, stops = Live([], outcome=outcome), "stop" in outcome
    assert live.run(stream=False) is None
    message = json.loads(live.body)["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("1" if stops else "1€", content)
    record, drawn = live.record, len(live.trace.ids)
    assert (record.budget, record.visible_tokens) == (1, visible)
    assert record.discarded_tokens == (drawn - 1 if stops else 0)
    assert record.think_tokens == (drawn if stops else len(THOUGHTS))
    for reads, logprob in ((True, -0.5), (False, None)):
        policy = cast(Any, SimpleNamespace(reads_logprobs=reads))
        assert live.responder.audited(live.answered, policy) == AuditedReply(
            "1", 1 if stops else None, answer, "numeric", drawn + stops * visible, 2, logprob
        )


def test_nobody_waits_for_a_client_that_stops_reading() -> None:
    live = Live([(1.0, "reasoning", b"1"), (1.0, "reasoning", b"2")], hangs=True)
    assert isinstance(live.run(sleeps_at=1), SlowReader)
    assert live.is_cancelled
    assert len(live.sent) == 1
    assert live.record.think_tokens == len(live.trace.ids), "decoded tokens count"


@pytest.mark.parametrize(
    ("steps", "parts"), [([], 0), ([(1.0, "reasoning", b"1"), (1.0, "content", b"2")], 3)]
)
def test_a_stream_that_fails_says_so_unless_another_server_can_answer(
    steps: list[Step], parts: int
) -> None:
    live = Live(steps, error=EngineError("canary"))
    assert live.run() is live.error
    assert len(live.sent) == parts
    assert live.record.error == ("EngineError" if parts else "")
    if parts:
        assert live.sent[-1][2]
        assert events(live.body)[-1]["error"]["message"] == "the engine failed"


def test_the_first_byte_is_that_of_the_reply() -> None:
    async def send(message: MutableMapping[str, Any]) -> None:
        pass

    async def go() -> None:
        record = RequestRecord("1")
        sender = Sender(send, record)
        await sender({"type": "http.response.start", "status": 200, "headers": []})
        for nothing in (b"", KEEP_ALIVE):
            await sender({"type": "http.response.body", "body": nothing})
        assert (sender.begun, record.status, record.ttft_seconds) == (True, 200, None)
        await sender({"type": "http.response.body", "body": b"data: 1\n\n"})
        first = record.ttft_seconds
        assert first is not None
        await sender({"type": "http.response.body", "body": b"data: 2\n\n"})
        assert record.ttft_seconds == first

    asyncio.run(go())
