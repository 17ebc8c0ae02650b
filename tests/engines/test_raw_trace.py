"""Incremental decoding of a trace's prefixes, for every kind of tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE, WordPiece
from transformers import PreTrainedTokenizerFast

from stopadvisor.engines.answer_end import AnswerStops, ForcedAnswer
from stopadvisor.engines.chat import Chat, GrowingText, find_markers
from stopadvisor.engines.trace import AnswerReport, Trace, TraceEnd, raw_trace
from stopadvisor.probes.trigger import TracePositions
from tests.engines.tiny import byte_tokenizer, plan, prompt

BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))


def sentencepiece() -> Any:
    """Spaces belong to tokens, the first one is dropped, and rare characters are bytes."""
    words = ("▁wait", "▁Wait", "wait", "▁hold", "▁on", "er", "▁", ",", "\n", *BYTES)
    backend = Tokenizer(BPE(vocab={t: i for i, t in enumerate(("<eos>", *words))}, merges=[]))
    replaced = decoders.Replace("▁", " ")
    backend.decoder = decoders.Sequence(
        [replaced, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _wrapped(backend)


def wordpiece() -> Any:
    """Tokens are joined by spaces, some of which are removed again."""
    words = ("<eos>", "wait", "hold", "on", "##er", "##s", "i", "made", "an", "error", ".", "n't")
    backend = Tokenizer(WordPiece({t: i for i, t in enumerate(words)}, unk_token="<eos>"))
    backend.decoder = decoders.WordPiece(cleanup=True)
    return _wrapped(backend)


def _wrapped(backend: Any) -> Any:
    backend.add_special_tokens([AddedToken("<eos>", special=True, normalized=False)])
    backend.add_tokens([AddedToken(t, special=False) for t in ("<think>", "</think>")])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>", clean_up_tokenization_spaces=False
    )


def _bytes_of(tokenizer: Any, text: str) -> list[int]:
    """Encode a text byte by byte, if the tokenizer has byte tokens."""
    named = tokenizer.convert_tokens_to_ids([BYTES[byte] for byte in text.encode()])
    return [i for i in named if i is not None] or tokenizer.encode(text, add_special_tokens=False)


TOKENIZERS: dict[str, Callable[[], Any]] = {
    "byte level": cache(byte_tokenizer),
    "sentencepiece": cache(sentencepiece),
    "wordpiece": cache(wordpiece),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(data=st.data())
def test_prefixes_are_decoded_as_each_would_be_alone(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]()
    chat = Chat(tokenizer, *find_markers(tokenizer), hide=lambda text: text.replace("on", "***"))
    # Characters whole and in pieces, long runs of bytes, words, and tokens that leave no text.
    texts = ("é", "東", "🙂", "東京都は日本", "hold on", "  ")
    runs = [*(_bytes_of(tokenizer, text) for text in texts), 20 * [tokenizer.eos_token_id]]
    tokens = st.integers(0, len(tokenizer) - 1).map(lambda i: [i])
    parts = data.draw(st.lists(st.sampled_from(runs) | tokens, max_size=60))
    ids = [i for part in parts for i in part]
    ends = range(0, len(ids) + 1, data.draw(st.integers(1, 12)))
    growing = GrowingText(chat)
    for end in ends:
        assert growing.decode(ids[:end]) == chat.decode(ids[:end])


@dataclass
class Counting:
    """A tokenizer that counts the tokens it decodes."""

    tokenizer: Any
    decoded: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        self.decoded += len(ids)
        return str(self.tokenizer.decode(ids, **options))


def test_a_long_trace_is_decoded_about_once() -> None:
    tokenizer = byte_tokenizer()
    counting = Counting(tokenizer)
    stops = AnswerStops(Chat(counting, *find_markers(tokenizer)), np.zeros(300, np.uint8))
    text = "So 7 it is. Wait, no: 八です. " * 400  # many budgets are in the middle of a character
    ids = stops.chat.encode(text)[:8_192]
    budgets = tuple(range(64, 8_193, 64))
    answer = ForcedAnswer((), "7", mean_logprob=0.0, mean_entropy=0.0, tail_mass=None)
    counting.decoded = 0
    asked = plan(budgets, max_think=8_192)
    end = TraceEnd((), (), 8_192, 0, thinking=len(ids), cut=True, over=True)
    drawn = Trace((1, 2, 3), prompt("a"), asked, None, end, ids)
    trace = raw_trace(
        stops, drawn, TracePositions(budgets, None), dict.fromkeys(budgets, answer), {}
    )
    assert [p.markers for p in trace.probes] == [
        tokenizer.decode(ids[:at]).count("Wait") for at in budgets
    ]
    assert counting.decoded < 2 * len(ids)
    assert [p.budget for p in trace.probes if p.ended] == [8_192]  # at its very end


@pytest.mark.parametrize(
    ("cap", "answer_cap", "thinking", "cut", "taken"),
    [
        pytest.param(2, 9, 2, True, 4, id="cut"),
        pytest.param(3, 9, 3, True, 5, id="cut a token before its closer"),
        pytest.param(4, 9, 4, False, 8, id="closed at the cap"),
        pytest.param(9, 9, 4, False, 8, id="closed"),
        pytest.param(9, 1, 4, False, 7, id="the answer is cut"),
    ],
)
def test_thinking_ends_at_its_closer_or_its_cap(
    cap: int, answer_cap: int, thinking: int, cut: bool, taken: int
) -> None:
    drawn = [1, 1, 1, 1, 7, 8, 5, 3, 9]  # closer 7 8; 3 ends the answer
    trace = Trace((), prompt("a"), plan(), None, TraceEnd((7, 8), (3,), cap, answer_cap))
    trace.take(drawn)
    assert (trace.end.thinking, trace.end.cut, trace.end.closed) == (thinking, cut, not cut)
    assert (trace.ids, trace.surplus) == (drawn[:taken], len(drawn) - taken)
    assert trace.visible == ([] if cut else drawn[6:taken])


@dataclass
class Judging:
    """A session and its rule in one, which records the marker counts."""

    needs_markers = True
    markers: list[float] = field(default_factory=list)

    def judge(self, *, markers: float, **_: object) -> None:
        self.markers.append(markers)


def test_a_live_request_decodes_its_thinking_about_once() -> None:
    tokenizer = byte_tokenizer()
    counting = Counting(tokenizer)
    chat = Chat(counting, *find_markers(tokenizer))
    ids = chat.encode("So 7 it is. Wait, no: 八です. " * 400)[:8_192]
    ends = range(64, 8_193, 64)
    session: Any = Judging()
    report = AnswerReport(session, chat)
    counting.decoded = 0
    for end in ends:
        report.judge(session, ids[:end], ForcedAnswer((), "7", 0.0, 0.0, None))
    assert session.markers == [tokenizer.decode(ids[:end]).count("Wait") for end in ends]
    assert counting.decoded < 2 * len(ids)
