"""Find, as token ids, the words with which a model changes its mind.

Models use different words, and tokenizers split them differently, so candidates are encoded as the
beginning of a sentence and counted in a few traces of fit questions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from stopadvisor.ground.errors import ProbeError
from stopadvisor.probes.asking import RawTrace
from stopadvisor.probes.trigger import marker_positions

__all__ = [
    "CANDIDATES", "LEAST_RATE", "MarkerFindings", "MarkerWord", "Splits", "count_words",
    "sentence_ids",
]  # fmt: skip

CANDIDATES = (
    *("Wait", "Hmm", "Alternatively", "But", "Hold on", "Actually", "However"),
    *("Let me check", "Let me double-check", "Let me verify", "Let me re-examine", "Let me see"),
    *("On second thought", "Another way", "Oh"),
)
"""Words with which English reasoning models begin a sentence when they doubt or check."""

LEAST_RATE = 0.25
"""A marker begins at least this many sentences per 1,000 thinking tokens."""
LEAST_TRACES = 2
"""A marker begins sentences in at least this many traces: a word in one trace is no habit."""
CLEAR = 0.8
"""Share of the occurrences of a token sequence that must begin a sentence."""

_BEFORE = ("\n", "\n\n", "\n ", ".\n", ".\n\n", ". ", "? ")
"""What may precede a sentence; some tokenizers merge it with the first word."""
_WINDOW = 8
"""Tokens of context before and after a word, to see whether a sentence begins there."""
_BEGINS = re.compile(r"(?:^|[.!?…。！？][\"'”’)\]*_]*\s+|[。！？]|\n\s*)[\"'“‘(\[*_]*$")


class Splits(Protocol):
    """The part of an engine that finding markers takes."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens."""

    def decode(self, ids: Sequence[int]) -> str:
        """Token ids as text."""


@dataclass(frozen=True)
class MarkerWord:
    """A candidate, and its use in the traces."""

    text: str
    """The word."""
    ids: tuple[tuple[int, ...], ...]
    """Token ids with which it begins a sentence."""
    sentences: int
    """Number of sentences that begin with it, in all traces."""
    per_1000: float
    """Sentences per 1,000 thinking tokens."""
    median_place: float | None
    """Median share of the trace before it; None if there is no such sentence."""
    without: float
    """Share of the traces in which it begins no sentence."""
    used: bool
    """Whether it is one of the run's markers."""


@dataclass(frozen=True)
class MarkerFindings:
    """How often each candidate occurs in a few traces."""

    words: tuple[MarkerWord, ...]
    """All candidates, the most frequent first."""
    n_traces: int
    """Number of traces."""
    n_tokens: int
    """Thinking tokens of all traces."""
    without: float
    """Share of the traces that hold none of the run's markers."""

    @property
    def used(self) -> tuple[MarkerWord, ...]:
        """The run's markers."""
        return tuple(word for word in self.words if word.used)

    @property
    def ids(self) -> tuple[tuple[int, ...], ...]:
        """Token ids of the run's markers, each sequence once, in order."""
        return tuple(sorted({ids for word in self.used for ids in word.ids}))


def sentence_ids(splits: Splits, word: str) -> tuple[tuple[int, ...], ...]:
    """Token sequences with which a word begins a sentence.

    The word is encoded after the end of a sentence and after line breaks, because most tokenizers
    encode it differently after a space and at the beginning of a line.  Encodings in which it
    shares a token with a neighbouring letter or mark are left out.

    Raises
    ------
    ProbeError
        The word has no tokens of its own.
    """
    variants = set()
    for before in _BEFORE:
        text = f"So{before}{word}, so"
        ids = splits.encode(text)
        ends = [len(splits.decode(ids[:count])) for count in range(len(ids) + 1)]
        if splits.decode(ids) != text:
            continue
        begin = len("So" + before)
        end = begin + len(word)
        first = max(i for i in range(len(ids)) if ends[i] <= begin)
        last = min(i for i in range(len(ids)) if ends[i + 1] >= end)
        around = text[ends[first] : begin] + text[end : ends[last + 1]]
        if not around.strip():
            variants.add(tuple(ids[first : last + 1]))
    if not variants:
        raise ProbeError(
            f"marker {word!r} has no tokens of its own at the beginning of a sentence; choose "
            "another word for --markers"
        )
    return tuple(sorted(variants))


def count_words(
    splits: Splits, traces: Sequence[RawTrace], named: Sequence[str] | None = None
) -> MarkerFindings:
    """Count candidates, or the `named` words, in traces, and choose the markers of a run."""
    n_tokens = sum(trace.trace_tokens for trace in traces)
    words = []
    for text in CANDIDATES if named is None else dict.fromkeys(named):
        try:
            variants = sentence_ids(splits, text)
        except ProbeError:
            if named is not None:
                raise
            continue  # the tokenizer cannot write this word, so the model never says it
        if named is None:
            variants = tuple(ids for ids in variants if _is_clear(splits, traces, ids, text))
        words.append(_word(splits, traces, text, variants, n_tokens, named is not None))
    words.sort(key=lambda word: -word.sentences)
    chosen = [ids for word in words if word.used for ids in word.ids]
    holding = sum(bool(marker_positions(chosen, trace.thinking_ids)) for trace in traces)
    return MarkerFindings(
        tuple(words), len(traces), n_tokens, 1.0 - holding / len(traces) if traces else 1.0
    )


def _word(
    splits: Splits,
    traces: Sequence[RawTrace],
    text: str,
    variants: tuple[tuple[int, ...], ...],
    n_tokens: int,
    named: bool,
) -> MarkerWord:
    at = [_sentences(splits, trace.thinking_ids, variants, text) for trace in traces]
    places = [
        p / trace.trace_tokens for trace, begins in zip(traces, at, strict=True) for p in begins
    ]
    holding = sum(map(bool, at))
    rate = 1000 * len(places) / max(n_tokens, 1)
    return MarkerWord(
        text=text,
        ids=variants,
        sentences=len(places),
        per_1000=rate,
        median_place=float(np.median(places)) if places else None,
        without=1.0 - holding / len(traces) if traces else 1.0,
        used=bool(variants) and (named or (rate >= LEAST_RATE and holding >= LEAST_TRACES)),
    )


def _is_clear(splits: Splits, traces: Sequence[RawTrace], ids: tuple[int, ...], text: str) -> bool:
    """Whether most occurrences of these ids begin a sentence; true if there are none."""
    seen = sum(len(marker_positions((ids,), trace.thinking_ids)) for trace in traces)
    begun = sum(len(_sentences(splits, trace.thinking_ids, (ids,), text)) for trace in traces)
    return begun >= CLEAR * seen


def _sentences(
    splits: Splits, thinking: Sequence[int], variants: Sequence[tuple[int, ...]], word: str
) -> list[int]:
    """Positions at which a sentence begins with the whole word."""
    longest = max(map(len, variants), default=0)
    begins = []
    for at in marker_positions(variants, thinking):
        text = splits.decode(thinking[max(0, at - _WINDOW) : at + longest + _WINDOW])
        before = splits.decode(thinking[max(0, at - _WINDOW) : at])
        rest = text[len(before) :]
        space = rest[: len(rest) - len(rest.lstrip())]
        whole = re.match(re.escape(word) + r"(?!\w)", rest[len(space) :])
        if whole and _BEGINS.search(before + space):
            begins.append(at)
    return begins
