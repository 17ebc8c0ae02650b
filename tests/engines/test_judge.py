"""The bundled judge, at a server that says what the test wants."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stopadvisor.answers.function_grader import FunctionGrader
from stopadvisor.engines.openai.judge import judge
from stopadvisor.ground.errors import EngineError
from tests.engines.fake_server import FakeServer, fake_server

JUDGE = "stopadvisor.engines.openai.judge:judge"
KEY = "sk-of-the-judge"


def verdict(prompt: str) -> str:
    """Right where the candidate holds the reference answer; it thinks aloud, and may not know."""
    gold, answer = (prompt.split(f"{name} answer:\n")[1].split("\n")[0] for name in NAMES)
    if "?" in answer:
        return "Who knows."
    thinks = "<think>INCORRECT at first sight, or CORRECT</think>\n"
    return thinks + ("**Correct**" if gold in answer else "INCORRECT.")


NAMES = ("Reference", "Candidate")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    with fake_server(judges=verdict, key=KEY) as made:
        monkeypatch.setenv("STOPADVISOR_JUDGE_URL", made.url)
        monkeypatch.setenv("STOPADVISOR_JUDGE_MODEL", "large-judge")
        monkeypatch.setenv("STOPADVISOR_JUDGE_KEY", KEY)
        yield made


def test_it_says_what_the_model_says(server: FakeServer) -> None:
    assert judge("What is 3 + 4?", "7", "seven, that is 7") is True
    assert judge("What is 3 + 4?", "7", "8") is False
    assert judge("What is 3 + 4?", "7", "?") is None
    body = server.asked[0]
    assert (body["model"], body["temperature"]) == ("large-judge", 0.0)
    assert "What is 3 + 4?" in body["messages"][0]["content"]


def test_it_asks_again_while_the_server_is_busy(server: FakeServer) -> None:
    server.faults = ["500", "429", "close"]
    assert judge("Q", "7", "7") is True


def test_a_reply_without_a_message_is_no_verdict(server: FakeServer) -> None:
    server.always = "no-choices"
    with pytest.raises(EngineError, match="holds no message"):
        judge("Q", "7", "7")


def test_as_a_grader_it_carries_its_models_name(server: FakeServer) -> None:
    with FunctionGrader(JUDGE) as grader:
        assert grader.identity["grader"] == f"{JUDGE} (large-judge)"
        items = [("exact", "7", answer) for answer in ("7 apples", "8", "7?")]
        assert grader.grade_many(items, ["Q"] * 3) == [True, False, None]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("URL", "", "the judge needs STOPADVISOR_JUDGE_URL in the environment"),
        ("MODEL", "", "the judge needs STOPADVISOR_JUDGE_MODEL in the environment"),
        ("KEY", "sk-something-else", "does not accept the key in STOPADVISOR_JUDGE_KEY"),
    ],
)
def test_without_its_settings_nothing_is_graded(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(f"STOPADVISOR_JUDGE_{name}", value)
    with FunctionGrader(JUDGE) as grader, pytest.raises(EngineError, match=expected) as error:
        grader.grade_many([("exact", "7", "7")], ["Q"])
    assert KEY not in str(error.value)
    assert "sk-something-else" not in str(error.value)
