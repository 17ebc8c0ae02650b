"""Finding a model's markers: encoded by its tokenizer, and counted in its traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from stopadvisor.collection.markers import (
    CANDIDATES,
    LEAST_RATE,
    MarkerFindings,
    MarkerWord,
    count_words,
    sentence_ids,
)
from stopadvisor.ground.errors import ProbeError
from stopadvisor.probes.asking import RawTrace
from stopadvisor.probes.trigger import marker_positions

TINY = Path(__file__).parents[2] / "samples" / "tiny-reasoner"
TEXT = (
    "So 7 is it.\n\nWait, no. But then 3+4=7? Hmm, I will wait, but not long.\n"
    "Hold on, again: But of course.\nHowever, the Butter is here. Wait: Waiting is long.\n"
    "Wait, so. Wait, no.\nWait, yes.\n\nWait.\n"
)
WORDS = r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class Fast:
    """A tokenizer from the `tokenizers` library."""

    backend: Any

    def encode(self, text: str) -> list[int]:
        return [int(i) for i in self.backend.encode(text, add_special_tokens=False).ids]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.backend.decode(list(ids)))


def byte_level() -> Fast:
    """Words with the space before them, as GPT and Qwen split."""
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return _trained(backend, pre_tokenizers.ByteLevel.alphabet())


def metaspace() -> Fast:
    """A block in place of each blank and one before the beginning, as SentencePiece splits."""
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Split(Regex(r"[^\w▁]"), behavior="isolated")]
    )
    backend.decoder = decoders.Metaspace()
    return _trained(backend, [*map(chr, range(32, 127)), "\n"])


def _trained(backend: Any, alphabet: list[str]) -> Fast:
    trainer = BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([TEXT, *(f"{word}, " for word in CANDIDATES)] * 20, trainer)
    return Fast(backend)


def bytes_alone() -> Fast:
    """A token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return Fast(backend)


KINDS: dict[str, Callable[[], Fast]] = {
    "byte level": byte_level,
    "metaspace": metaspace,
    "bytes alone": bytes_alone,
    "tiny reasoner": lambda: Fast(Tokenizer.from_file(str(TINY / "tokenizer.json"))),
}


def trace(splits: Fast, text: str) -> RawTrace:
    ids = tuple(splits.encode(text))
    return RawTrace(9, 3, len(ids), "stop", text, "7", 3, (), thinking_ids=ids)


def word(found: MarkerFindings, text: str) -> MarkerWord:
    return next(word for word in found.words if word.text == text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["Wait", "Hold on", "Hmm", "Let me double-check"])
def test_a_word_is_found_wherever_a_sentence_begins(kind: str, text: str) -> None:
    splits = KINDS[kind]()
    variants = sentence_ids(splits, text)
    assert all(splits.decode(ids).strip() == text for ids in variants)
    for before in ("\n", "\n\n", ".\n", ". ", "? ", "\n "):
        thinking = splits.encode(f"7{before}{text}, so")
        assert len(marker_positions(variants, thinking)) == 1, before


@pytest.mark.parametrize("kind", KINDS)
def test_sentences_are_counted_and_nothing_else(kind: str) -> None:
    splits = KINDS[kind]()
    found = count_words(splits, [trace(splits, TEXT)] * 3)
    counts = {w.text: w.sentences / 3 for w in found.words if w.sentences}
    # "Waiting" and "Butter" are other words; "will wait" is within a sentence, and so are half of
    # the occurrences of the tokens of "But", too many for a marker.
    assert counts == {"Wait": 6, "Hmm": 1, "Hold on": 1, "However": 1}


def test_counts_and_places_of_a_word() -> None:
    splits = byte_level()
    texts = ["So.\nWait, no. Hmm, 7.\n", "So 7 it is and so on.\n", "Hmm. Wait, so.\n"]
    traces = [trace(splits, text) for text in texts]
    found = count_words(splits, traces)
    total = sum(t.trace_tokens for t in traces)
    assert (found.n_traces, found.n_tokens) == (3, total)
    wait = word(found, "Wait")
    assert (wait.sentences, wait.used) == (2, True)
    assert wait.per_1000 == pytest.approx(1000 * 2 / total)
    assert wait.without == pytest.approx(1 / 3)
    at = [marker_positions(wait.ids, t.thinking_ids) for t in traces]
    places = [p / t.trace_tokens for t, found in zip(traces, at, strict=True) for p in found]
    assert wait.median_place == pytest.approx(sum(places) / 2)
    assert word(found, "Alternatively").median_place is None
    assert found.without == pytest.approx(1 / 3)
    assert set(found.ids) == {*wait.ids, *word(found, "Hmm").ids}
    assert found.words[0].sentences >= found.words[-1].sentences


def test_a_word_of_one_trace_or_a_rare_one_is_no_marker() -> None:
    splits = byte_level()
    plain = "So 7 it is and so on.\n" * 40
    alone = count_words(
        splits, [trace(splits, plain + "Wait, no.\nWait, no.\n"), trace(splits, plain)]
    )
    assert (word(alone, "Wait").sentences, word(alone, "Wait").used) == (2, False)
    assert alone.ids == ()
    assert alone.without == 1.0
    rare = [trace(splits, plain * 12 + "Wait, no.\n")] * 2
    found = count_words(splits, rare)
    assert 0 < word(found, "Wait").per_1000 < LEAST_RATE
    assert not found.used


def test_ids_that_occur_mostly_within_sentences_are_left_out() -> None:
    """After a line break the word begins a sentence; after a blank it is a name."""
    splits = byte_level()
    text = "So 7.\nWait, no.\n" + "call Wait or Wait or Wait now.\n" * 4
    found = word(count_words(splits, [trace(splits, text)] * 2), "Wait")
    assert found.ids == (tuple(splits.encode("Wait")),)
    assert found.used
    named = word(count_words(splits, [trace(splits, text)] * 2, ["Wait"]), "Wait")
    assert len(named.ids) == 2  # the user knows


def test_named_words_are_markers_however_rare() -> None:
    splits = byte_level()
    found = count_words(splits, [trace(splits, TEXT)], ["So", "Nowhere", "So"])
    assert [(w.text, w.used) for w in found.words] == [("So", True), ("Nowhere", True)]


def test_a_word_without_tokens_of_its_own_is_refused() -> None:
    class Joined(Fast):
        def encode(self, text: str) -> list[int]:
            return [0]

        def decode(self, ids: Sequence[int]) -> str:
            return "So. Wait, so" if ids else ""

    with pytest.raises(ProbeError, match="marker 'Wait' has no tokens of its own"):
        sentence_ids(Joined(None), "Wait")
    assert count_words(Joined(None), []).words == ()
