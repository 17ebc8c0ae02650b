"""The sample judge (`samples/judge.py`) at a scripted server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stopadvisor.answers.grading import FunctionGrader
from stopadvisor.ground.errors import EngineError
from tests.engines.fake_server import FakeServer, fake_server
from tests.generate import ROOT

JUDGE = "judge:judge"
KEY = "sk-of-the-judge"


def verdict(prompt: str) -> str:
    """Correct if the candidate contains the reference answer; undecided at a question mark."""
    gold, answer = (prompt.split(f"{name} answer:\n")[1].split("\n")[0] for name in NAMES)
    if "?" in answer:
        return "Who knows."
    thinks = "<think>INCORRECT at first sight, or CORRECT</think>\n"
    return thinks + ("**Correct**" if gold in answer else "INCORRECT.")


NAMES = ("Reference", "Candidate")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    with fake_server(judges=verdict, key=KEY) as made:
        monkeypatch.chdir(ROOT / "samples")
        monkeypatch.setenv("STOPADVISOR_JUDGE_URL", made.url)
        monkeypatch.setenv("STOPADVISOR_JUDGE_MODEL", "large-judge")
        monkeypatch.setenv("STOPADVISOR_JUDGE_KEY", KEY)
        yield made


@pytest.mark.slow
def test_it_says_what_the_model_says_under_the_models_name(server: FakeServer) -> None:
    server.faults = ["500", "429", "close"]
    with FunctionGrader(JUDGE) as grader:
        assert grader.identity["grader"] == f"{JUDGE} (large-judge)"
        items = [("exact", "7", answer) for answer in ("7 apples", "8", "7?")]
        assert grader.grade_many(items, ["Q"] * 3) == [True, False, None]
    body = server.asked[-1]
    assert (body["model"], body["temperature"]) == ("large-judge", 0.0)
    assert "\n\nQuestion:\nQ\n" in body["messages"][0]["content"]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("URL", None, "holds no message"),
        ("URL", "", "the judge needs STOPADVISOR_JUDGE_URL in the environment"),
        ("MODEL", "", "the judge needs STOPADVISOR_JUDGE_MODEL in the environment"),
        ("KEY", "sk-something-else", "does not accept the key in STOPADVISOR_JUDGE_KEY"),
    ],
)
def test_without_its_settings_nothing_is_graded(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, name: str, value: str | None, expected: str
) -> None:
    if value is None:
        server.always = "no-choices"
    else:
        monkeypatch.setenv(f"STOPADVISOR_JUDGE_{name}", value)
    with FunctionGrader(JUDGE) as grader, pytest.raises(EngineError, match=expected) as error:
        grader.grade_many([("exact", "7", "7")], ["Q"])
    assert KEY not in str(error.value)
    assert "sk-something-else" not in str(error.value)
