"""Reasoning that goes on after a forced close is seen, counted, and said by depth."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.answers.grading import Grader
from stopadvisor.cli.main import main
from stopadvisor.collection.model_checks import run_preflight
from stopadvisor.engines.answer_end import AnswerStops
from stopadvisor.engines.hf import early_exit
from stopadvisor.engines.hf.engine import HfEngine
from stopadvisor.ground.results import from_document
from stopadvisor.policy.frozen import save_policy
from stopadvisor.policy.requests import Reply, make_requests, policy_plan
from stopadvisor.probes.asking import Check, OnStop, ProbePlan
from stopadvisor.report.screen import draw
from stopadvisor.report.sheets.run import run_sheet
from stopadvisor.serving.answer_summary import AnswerSummary
from stopadvisor.workload.questions import Question, read_workload
from tests.engines.fake_server import FakeServer, Story, end_id, fake_server, ids_of, words
from tests.engines.online_policies import rule
from tests.engines.test_openai_engine import PLAN
from tests.engines.test_openai_online import CLOSER, engine_at, policy_of

GOES_ON = "Wait, 3+4=7</think>Final answer: 7"
REASONING = len(ids_of("Wait, 3+4=7</think>"))


@dataclass
class Escaping(Story):
    """Goes on reasoning in the visible answer where it is cut before so many tokens."""

    until: int = 8
    on: str = GOES_ON

    def after(self, generated: Sequence[int]) -> list[int]:
        said, (closer,) = list(generated), words().closer.ids
        if closer not in said or said.index(closer) >= self.until:
            return super().after(generated)
        rest = said[said.index(closer) + 1 :]
        if rest[: len(ids_of(self.cue))] == ids_of(self.cue):
            return super().after(generated)
        return [*ids_of(self.on), end_id()][len(rest) :]


# --- The rule ---


@pytest.fixture(scope="module")
def stops() -> AnswerStops:
    return AnswerStops.of(words(), (end_id(),), len(words().tokenizer))


CASES = [
    ("Final answer: 7", 40, True, False),
    ("Final answer: 7", 40, False, False),
    ("So it is 7", 40, True, False),
    (GOES_ON, 40, True, "Wait, 3+4=7</think>"),
    ("a</think>b</think>7", 40, True, "a</think>b</think>"),
    ("</think>7", 40, True, "</think>"),
    ("<think>3+4=7</think>7", 40, True, "<think>3+4=7</think>"),
    ("<think>3+4=7 so 7", 40, True, True),
    ("", 40, False, False),
]


@pytest.mark.parametrize(("text", "cap", "answered", "expected"), CASES)
@pytest.mark.parametrize("ended", [True, False])
def test_what_counts_as_an_escape(
    text: str, cap: int, answered: bool, expected: bool | str, ended: bool, stops: AnswerStops
) -> None:
    ids = [*ids_of(text), *([end_id()] if ended else [])]
    tokens = len(ids) if expected is True else len(ids_of(expected)) if expected else 0
    assert stops.escaped_tokens(ids, cap, answered=answered) == tokens


@pytest.mark.parametrize(
    ("ended", "answered", "escaped"),
    [(False, False, True), (False, True, False), (True, False, False)],
)
def test_a_reply_that_is_cut_before_its_answer_is_an_escape(
    ended: bool, answered: bool, escaped: bool, stops: AnswerStops
) -> None:
    ids = [*ids_of("Wait, 3+4=7"), *([end_id()] if ended else [])]
    found = stops.escaped_tokens(ids, len(ids), answered=answered)
    assert found == (len(ids) if escaped else 0)
    assert stops.escaped_tokens(ids, len(ids) + 1, answered=answered) == 0


def test_a_closer_in_other_tokens_than_its_own_is_seen(stops: AnswerStops) -> None:
    letters = [i for letter in "</think>" for i in ids_of(letter)]
    assert words().closer.ids[0] not in letters
    ids = [*ids_of("3+4"), *letters, *ids_of("7")]
    assert 0 < stops.escaped_tokens(ids, 90, answered=True) < len(ids)


# --- Replies ---


def replies(server: FakeServer, budget: int, on_stop: OnStop, **changes: Any) -> Reply:
    with engine_at(server) as engine:
        # The second equal answer stops, so the first stands at 0.
        policy = policy_of(engine, budgets=[0, budget, 200])
        plan = replace(policy_plan(policy, at_server=True), **changes)
        requests = make_requests(["3+4"], policy)
        ((_, reply),) = engine.serve(requests, plan, policy, on_stop=on_stop)
    return reply


def test_a_reply_that_goes_on_reasoning_is_graded_as_it_stands_and_counted() -> None:
    with fake_server(story=Escaping()) as server:
        reply = replies(server, 4, "answer")
    assert (reply.budget, reply.text) == (4, words().decode(ids_of(GOES_ON)))
    assert reply.escaped_tokens == REASONING
    assert reply.visible_tokens == CLOSER + len(ids_of(GOES_ON)) + 1
    assert reply.decoded_tokens == 4 + CLOSER + reply.visible_tokens + reply.probe_tokens


def test_a_reply_that_runs_into_the_cap_is_counted_whole() -> None:
    with fake_server(story=Escaping(on="3+4" * 30)) as server:
        reply = replies(server, 4, "answer", answer_cap=9)
    assert reply.escaped_tokens == 9
    assert reply.answer == "43"  # the last number, for want of an answer


@pytest.mark.parametrize(("budget", "on_stop"), [(4, "probe"), (12, "answer")])
def test_an_answer_is_no_escape(budget: int, on_stop: OnStop) -> None:
    story = Escaping(forced=lambda tokens: " 5\n")
    with fake_server(story=story) as server:
        reply = replies(server, budget, on_stop)
    assert (reply.budget, reply.escaped_tokens) == (budget, 0)


def test_a_forced_answer_may_go_on_reasoning_too() -> None:
    story = Story(forced=lambda tokens: " 5 wait</think>5\n")
    with fake_server(story=story) as server:
        reply = replies(server, 4, "probe")
    assert reply.escaped_tokens == len(ids_of(" 5 wait</think>"))
    assert reply.visible_tokens == 0


def test_the_local_engine_sees_it_as_well(
    tiny_reasoner: HfEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = list(tiny_reasoner.chat.closer.ids)
    escape = [*tiny_reasoner.chat.encode("7 + 3"), *own, *tiny_reasoner.chat.encode("10")]

    def written(model: Any, kept: Any, traces: Sequence[Any], plan: Any) -> list[list[int]]:
        return [escape if i % 2 else escape[-1:] for i in range(len(traces))]

    monkeypatch.setattr(early_exit, "visible_answers", written)
    policy = rule(tiny_reasoner, "confidence", -1e9, budgets=[3])
    requests = make_requests(["7 + 3", "1 + 2"], policy, task="numeric")
    found = dict(
        tiny_reasoner.serve(requests, policy_plan(policy), policy, batch_size=2, on_stop="answer")
    )
    counted = [found[i].escaped_tokens for i in range(2)]
    assert counted == [0, len(escape) - len(tiny_reasoner.chat.encode("10"))]
    assert found[1].visible_tokens == len(escape) + len(own)


# --- What `run` says ---


def test_run_says_how_many_replies_escape_at_which_depth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.dumps({"question": f"{i}+4", "gold": "7"}) for i in range(6)]
    (tmp_path / "sums.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with fake_server(story=Escaping()) as server:
        with engine_at(server) as engine:
            save_policy(policy_of(engine, on_stop="answer").content, tmp_path / "p.joblib")
        command = ["run", str(tmp_path / "p.joblib"), str(tmp_path / "sums.jsonl"), "--quiet"]
        command += ["--engine", "openai", "--base-url", server.url, "--concurrency", "2"]
        command += ["--on-stop", "answer", "--out", str(tmp_path / "a.jsonl")]
        assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["escapes"] == {
        "replies": 6,
        "tokens": 6 * REASONING,
        "by_depth": [{"least": 0, "most": 63, "stopped": 6, "escaped": 6, "share": 1.0}],
    }
    assert document["accuracy"] == 1.0  # graded as they stand
    rows = [json.loads(row) for row in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert {row["escaped_tokens"] for row in rows} == {REASONING}
    # A file of an earlier version is read all the same.
    old = [json.dumps({k: v for k, v in r.items() if k != "escaped_tokens"}) for r in rows]
    (tmp_path / "a.jsonl").write_text("\n".join(old) + "\n")
    with fake_server(story=Escaping()) as server:
        command[command.index("--base-url") + 1] = server.url
        assert main([*command, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["new"], again["escapes"]["replies"]) == (0, 0)
    screen = StringIO()
    draw(run_sheet(from_document(AnswerSummary, document, "run --json")), screen)
    shown = " ".join(screen.getvalue().split())
    assert f"the model reasoned on after 6 stops, for {6 * REASONING} tokens" in shown
    assert "counted above: 6 of 6 stops at 0 to 63 tokens" in shown


# --- What preflight says ---


def preflighted(story: Story, tmp_path: Path, **changes: Any) -> Check:
    path = tmp_path / "sums.jsonl"
    lines = [json.dumps({"question": f"{i}+4", "gold": "7"}) for i in range(4)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    questions: Sequence[Question] = read_workload(path).questions
    plan = ProbePlan(**{**PLAN.to_dict(), "budgets": (0, 4, 8, 12, 200), **changes})
    with fake_server(story=story) as server, engine_at(server) as engine, Grader() as grader:
        report = run_preflight(engine, questions, plan, grader=grader)
    (check,) = [check for check in report.checks if check.name == "escape"]
    return check


THINKING_LONG = "3+4=7\nSo 7\n" * 12
"""Longer than preflight's middle probe."""


def test_preflight_finds_escapes_by_depth(tmp_path: Path) -> None:
    story = Escaping(thinking=THINKING_LONG, until=50)
    check = preflighted(story, tmp_path, on_stop="answer", budgets=(0, 40, 60, 80, 200))
    assert check.status == "warn"
    assert check.detail == (
        "12 visible answers go on reasoning after a stop; by thinking tokens: 4/4 at 0, 4/4 at 32, "
        "4/4 at 40, 0/4 at 60, 0/4 at 80"
    )
    assert "graded as they stand and their tokens are counted" in check.advice


@pytest.mark.parametrize(
    ("forced", "status"),
    [
        (lambda tokens: " 5\n", "pass"),
        (lambda tokens: " 5</think>5\n", "warn"),
        (lambda tokens: " so" * 60, "warn"),
    ],
    ids=["answers", "closes again", "runs into the cap"],
)
def test_preflight_finds_forced_answers_that_escape(
    forced: Callable[[int], str], status: str, tmp_path: Path
) -> None:
    story = Story(thinking=THINKING_LONG, forced=forced)
    check = preflighted(story, tmp_path)
    assert check.status == status
    assert check.detail.startswith(f"{0 if status == 'pass' else 8} forced answers go on")


def test_a_model_that_answers_after_a_stop_passes(tmp_path: Path) -> None:
    check = preflighted(Story(thinking=THINKING_LONG), tmp_path, on_stop="answer")
    assert (check.status, check.advice) == ("pass", "")
