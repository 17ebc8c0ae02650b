"""Where forced answers end."""

from __future__ import annotations

import numpy as np
import pytest

from stopadvisor.engines.answer_end import AnswerStops
from stopadvisor.engines.chat import Chat
from tests.engines.tiny import byte_tokenizer

EOS = 3


@pytest.fixture(scope="module")
def stops() -> AnswerStops:
    tokenizer = byte_tokenizer()
    # Tokens with a newline inside or behind them, as large vocabularies have.
    tokenizer.add_tokens(["5.\n", "\n\n6", "}$"])
    return AnswerStops.of(Chat.of(tokenizer), (EOS,), len(tokenizer))


def run(stops: AnswerStops, pieces: list[str]) -> tuple[int, bool, str]:
    """Feed one answer token by token; tokens taken, whether it ended, and its text."""
    ids = [i for piece in pieces for i in stops.chat.tokenizer.encode(piece)]
    has_content = np.array([False])
    for n, token in enumerate(ids, start=1):
        ended, boxed, has_content = stops.ends(np.array([token]), has_content)
        if ended[0] or (boxed[0] and stops.boxed(ids[:n])):
            return n, True, stops.text(ids[:n], ended=True)
    return len(ids), False, stops.text(ids, ended=False)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        pytest.param([" 42", "<eos>", "x"], (4, True, " 42"), id="EOS"),
        pytest.param([" 4", "\n", "x"], (3, True, " 4"), id="newline after content"),
        pytest.param(["\n", " ", "\n", "7", "\n"], (5, True, "\n \n7"), id="newlines before it"),
        pytest.param(["5.\n", "x"], (1, True, "5."), id="newline behind content in one token"),
        pytest.param(["\n\n6", "1", "\n"], (3, True, "\n\n61"), id="newline before content in one"),
        pytest.param(["a", "\n\n6"], (2, True, "a"), id="newline token with content after content"),
        pytest.param([r"\boxed{7}", "."], (9, True, r"\boxed{7}"), id="box"),
        pytest.param(
            [r"$\boxed{\frac{1}{2", "}", "}$", "x"],
            (20, True, r"$\boxed{\frac{1}{2}}$"),
            id="nested box, closed inside a token",
        ),
        pytest.param(["{1}", " 2"], (5, False, "{1} 2"), id="braces without a box"),
        pytest.param(["<eos>"], (1, True, ""), id="nothing"),
    ],
)
def test_endings(stops: AnswerStops, pieces: list[str], expected: tuple[int, bool, str]) -> None:
    assert run(stops, pieces) == expected


def test_the_logits_may_be_wider_than_the_tokenizer(stops: AnswerStops) -> None:
    wide = AnswerStops.of(stops.chat, (EOS, 10**6), 400)
    ended, _, has_content = wide.ends(np.array([[399, EOS]]), np.array([[True, True]]))
    assert ended.tolist() == [[False, True]]
    assert has_content.all()
