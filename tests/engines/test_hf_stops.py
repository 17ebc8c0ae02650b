"""Where forced answers end."""

from __future__ import annotations

import pytest

from stopadvisor.engines.answer_end import AnswerStops, AnswerTokens
from stopadvisor.engines.chat import Chat
from tests.engines.tiny import byte_tokenizer

EOS = 3


@pytest.fixture(scope="module")
def stops() -> AnswerStops:
    tokenizer = byte_tokenizer()
    # Tokens with a newline inside or at their end, as in large vocabularies.
    tokenizer.add_tokens(["5.\n", "\n\n6", "}$"])
    return AnswerStops.of(Chat.of(tokenizer), (EOS,), len(tokenizer))


def run(stops: AnswerStops, pieces: list[str]) -> tuple[int, bool, str]:
    """Feed one answer token by token; tokens taken, whether it ended, and its text."""
    answer = taken(stops, pieces)
    return len(answer.ids), answer.over, answer.forced(0.0, 0.0, None).text


def taken(stops: AnswerStops, pieces: list[str], *, is_open: bool = False) -> AnswerTokens:
    answer = AnswerTokens(stops, is_open=is_open)
    for token in (i for piece in pieces for i in stops.chat.tokenizer.encode(piece)):
        if answer.take(token):
            break
    return answer


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        pytest.param([" 42", "<eos>", "x"], (4, True, " 42"), id="EOS"),
        pytest.param([" 4", "\n", "x"], (3, True, " 4"), id="newline after content"),
        pytest.param(["\n", " ", "\n", "7", "\n"], (5, True, "\n \n7"), id="newlines before it"),
        pytest.param(["5.\n", "x"], (1, True, "5."), id="newline after content in one token"),
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
    answer = AnswerTokens(wide)
    assert [answer.take(399), answer.take(EOS)] == [False, True]


@pytest.mark.parametrize(
    ("pieces", "taken_tokens", "text", "counted", "closed"),
    [
        pytest.param([" 42", "</think>", "x"], 4, " 42", 3, True, id="at once"),
        pytest.param([" 42", "\n", "</think>"], 5, " 42", 3, True, id="after a newline"),
        pytest.param([" 42", "\n", "\n", " ", "</think>"], 7, " 42", 3, True, id="white space"),
        pytest.param(["5.\n", "</think>"], 2, "5.", 1, True, id="newline in the answer's token"),
        pytest.param([r"\boxed{7}", "\n", "</think>"], 11, r"\boxed{7}", 8, True, id="box"),
        pytest.param(["</think>"], 1, "", 1, True, id="no answer"),
        pytest.param([" 42", "\n", "W"], 5, " 42", 3, False, id="it goes on"),
        pytest.param([" 42", "\n", "<think>"], 5, " 42", 3, False, id="no white space"),
        pytest.param([" 42", "<eos>", "</think>"], 4, " 42", 3, False, id="EOS"),
        pytest.param([" 42"], 3, " 42", 3, False, id="cut by the cap"),
    ],
)
def test_what_follows_an_answer_in_open_thinking(
    pieces: list[str], taken_tokens: int, text: str, counted: int, closed: bool, stops: AnswerStops
) -> None:
    answer = taken(stops, pieces, is_open=True)
    forced = answer.forced(-1.0, 1.0, None)
    assert (len(forced.ids), forced.text, answer.counted) == (taken_tokens, text, counted)
    assert forced.closed_by_itself is closed
    assert taken(stops, pieces).forced(-1.0, 1.0, None).closed_by_itself is None


@pytest.mark.parametrize(
    ("closer", "pieces", "closed"),
    [
        ("[/T]", [" 42", "\n", "[/T]", "x"], True),
        ("[/T]", [" 42", "[/T]", "x"], True),
        ("[/T]", [" 42", "\n", "[/", "X", "x"], False),
        ("\n[/T]", [" 42", "\n[/T]", "x"], True),
        ("\n[/T]", [" 42", "\n", "\n[/T]", "x"], True),
        ("\n[/T]", [" 42", "\n", "[/X", "x"], False),
    ],
)
def test_a_closer_of_several_tokens_follows_or_does_not(
    closer: str, pieces: list[str], closed: bool
) -> None:
    tokenizer = byte_tokenizer(think=False)
    chat = Chat.of(tokenizer, think_tags=("[T]", closer))
    answer = taken(AnswerStops.of(chat, (EOS,), len(tokenizer)), pieces, is_open=True)
    forced = answer.forced(-1.0, 1.0, None)
    assert answer.over
    assert (forced.text, forced.closed_by_itself) == (" 42", closed)
    assert len(forced.ids) < len("".join(pieces))  # no token after the one that decides
