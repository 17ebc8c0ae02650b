"""Preflight: a sound engine passes, and each fault is caught by the check made for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.answers.grading import Grader, Graders
from stopadvisor.collection.model_checks import PreflightReport, keep_checks, run_preflight
from stopadvisor.collection.pilot import SettledPlan
from stopadvisor.engines.chat import Chat
from stopadvisor.ground.errors import PreflightError
from stopadvisor.ground.progress import Progress
from stopadvisor.ground.results import to_json
from stopadvisor.probes.asking import ProbePlan, RawTrace
from stopadvisor.workload.questions import Question, read_workload
from tests.scripted import ScriptedEngine, write_sums

PLAN = ProbePlan(budgets=(0, 40, 90), cue="\n\nFinal answer:", max_think=256)


@pytest.fixture
def questions(tmp_path: Path) -> tuple[Question, ...]:
    return read_workload(write_sums(tmp_path / "sums.jsonl", 20)).questions


def check(
    engine: Any, questions: tuple[Question, ...], plan: ProbePlan = PLAN
) -> tuple[PreflightReport, dict[str, str]]:
    with Grader() as grader:
        report = preflight(engine, questions, grader, plan)
    return report, {c.name: c.status for c in report.checks}


def preflight(
    engine: Any, questions: tuple[Question, ...], grader: Grader, plan: ProbePlan = PLAN
) -> PreflightReport:
    graders = Graders(grader, grader)
    return run_preflight(engine, questions, SettledPlan(plan), graders, progress=Progress())


def test_a_sound_engine_passes_every_check(questions: tuple[Question, ...]) -> None:
    engine = ScriptedEngine()
    report, status = check(engine, questions)
    assert set(status.values()) == {"pass"}
    assert report.status == "pass"
    assert report.agreement == 1.0
    assert (report.examples, report.n_questions) == ((), 16)
    assert all(not c.advice for c in report.checks)
    assert {key for keys, _ in engine.calls for key in keys} == {q.key for q in questions[:16]}
    assert engine.calls[0][1].budgets == (0, 32, 256)


def test_without_gold_agreement_is_all_there_is(questions: tuple[Question, ...]) -> None:
    bare = tuple(replace(q, gold=None) for q in questions)
    report, status = check(ScriptedEngine(), bare)
    assert (report.accuracy, report.wrong, report.agreement) == (None, (), 1.0)
    assert "accuracy" not in status
    assert report.status == "pass"
    report, _ = check(ScriptedEngine(), (*bare[:8], *questions[8:]))
    assert report.accuracy is not None
    (said,) = (c.detail for c in report.checks if c.name == "accuracy")
    assert "of 8 answers" in said


@pytest.mark.parametrize(
    ("fault", "name", "status", "detail"),
    [
        ("never-closes", "markers", "fail", "0/16 close it within 256 tokens"),
        ("never-closes", "agreement", "fail", "no trace ends with a visible answer"),
        ("never-closes", "truncation", "warn", "16/16 traces are cut"),
        ("ends-unclosed", "markers", "warn", "end without closing it, and so without an answer"),
        ("no-thinking", "markers", "fail", "0/16 traces contain thinking"),
        ("brittle-cue", "cue", "fail", "0/16 forced answers parse, but not 'I am not"),
        ("disagrees", "agreement", "fail", "0% of forced answers"),
        ("rambles", "answer-cap", "warn", "48/48 forced answers reach the cap"),
    ],
)
def test_each_fault_is_caught(
    questions: tuple[Question, ...], fault: str, name: str, status: str, detail: str
) -> None:
    report, _ = check(ScriptedEngine(faults=frozenset({fault})), questions)
    found = next(c for c in report.checks if c.name == name)
    assert found.status == status
    assert detail in found.detail
    assert found.advice
    to_json(report)


def test_a_failure_says_what_to_do(questions: tuple[Question, ...], tmp_path: Path) -> None:
    report, _ = check(ScriptedEngine(faults=frozenset({"brittle-cue"})), questions)
    with pytest.raises(PreflightError, match=r"cue: 0/16 forced .*choose another --cue") as caught:
        keep_checks(report, tmp_path / "preflight.json", Progress())
    assert caught.value.exit_code == 5
    assert "\n" not in str(caught.value)
    assert json.loads((tmp_path / "preflight.json").read_bytes())["status"] == "fail"


class Changing(ScriptedEngine):
    """Gives another answer at the end of thinking to the first few questions."""

    text = " 0"
    wrong = 0

    def probe(self, prompts: Any, plan: ProbePlan) -> list[RawTrace]:
        traces = super().probe(prompts, plan)
        for i in range(self.wrong if plan.budgets else 0):
            last = replace(traces[i].probes[-1], text=self.text)
            traces[i] = replace(traces[i], probes=(*traces[i].probes[:-1], last))
        return traces


@pytest.mark.parametrize(
    ("wrong", "agreement", "status"),
    [(1, "pass", "pass"), (2, "warn", "warn"), (8, "warn", "warn"), (9, "fail", "fail")],
)
def test_agreement_has_two_limits(
    questions: tuple[Question, ...], wrong: int, agreement: str, status: str
) -> None:
    engine = Changing()
    engine.wrong = wrong
    report, found = check(engine, questions)
    assert found["agreement"] == agreement
    assert report.status == status
    assert report.agreement == 1 - wrong / 16
    assert len(report.examples) == min(3, wrong)
    assert report.examples[0].forced == "0"
    assert report.examples[0].id == questions[0].id


@pytest.mark.parametrize(("wrong", "status"), [(1, "pass"), (2, "warn"), (9, "fail")])
def test_cue_has_two_limits(questions: tuple[Question, ...], wrong: int, status: str) -> None:
    engine = Changing()
    engine.wrong, engine.text = wrong, " none"
    assert check(engine, questions)[1]["cue"] == status


class Agreeing(Grader):
    """Finds any two answers equivalent, and records the first items."""

    asked: Sequence[tuple[str, str, str | None]] = ()

    def grade_many(
        self, items: Sequence[tuple[str, str, str | None]], questions: Sequence[str] = ()
    ) -> list[bool]:
        self.asked = self.asked or items
        return [True] * len(items)


def test_equal_values_in_unequal_spelling_agree(questions: tuple[Question, ...]) -> None:
    class Spelled(ScriptedEngine):
        def probe(self, prompts: Any, plan: ProbePlan) -> list[RawTrace]:
            return [
                replace(
                    t,
                    natural_text="Final answer: $(x+1)^2$",
                    probes=tuple(replace(p, text=" $x^2+2x+1$") for p in t.probes),
                )
                for t in super().probe(prompts, plan)
            ]

    algebra = tuple(replace(q, task="math") for q in questions[:2])
    grader = Agreeing()
    assert preflight(Spelled(), algebra, grader).agreement == 1.0
    assert grader.asked == [("math", "$(x+1)^2$", "$x^2+2x+1$")] * 2


def test_a_cap_below_32_is_tried_as_it_is(questions: tuple[Question, ...]) -> None:
    engine = ScriptedEngine()
    report, _ = check(engine, questions, replace(PLAN, max_think=8))
    assert engine.calls[0][1].budgets == (0, 8)
    assert report.status == "fail"  # no trace closes within 8 tokens


# --- Markers and template, where the engine shows its chat ----------------------------------------


def chat(template: str | None = None, *, think: bool = True, **options: Any) -> Chat:
    """The chat of a byte tokenizer; imported here because it loads torch."""
    from tests.engines.tiny import TEMPLATE, byte_tokenizer

    tokenizer = byte_tokenizer(template=template or TEMPLATE, think=think)
    return Chat.of(tokenizer, **options)


def detail(report: PreflightReport, name: str) -> str:
    return next(c.detail for c in report.checks if c.name == name)


def test_markers_of_one_token_and_an_appended_opener(questions: tuple[Question, ...]) -> None:
    report, status = check(ScriptedEngine(chat=chat()), questions)
    assert (status["marker-ids"], status["template"]) == ("pass", "pass")
    assert detail(report, "marker-ids") == (
        "opener '<think>' is 1 token, closer '</think>' is 1 token, unchanged through text"
    )
    assert "leaves thinking unopened, '<think>' is appended" in detail(report, "template")


def test_a_marker_that_does_not_survive_a_round_trip_through_text(
    questions: tuple[Question, ...],
) -> None:
    whole, pieces = chat(), chat(think=False, think_tags=("<think>", "</think>"))
    engine = ScriptedEngine(chat=replace(whole, closer=pieces.closer))
    report, status = check(engine, questions)
    assert status["marker-ids"] == "warn"
    assert f"comes back as {list(whole.closer.ids)}" in detail(report, "marker-ids")


def test_a_template_that_opens_thinking_itself(questions: tuple[Question, ...]) -> None:
    engine = ScriptedEngine(chat=chat(template_kwargs={"opens": True}))
    report, status = check(engine, questions)
    assert status["template"] == "pass"
    assert detail(report, "template") == (
        "the chat template opens thinking itself; it ends in 'swer:\".<bot><think>\\n'"
    )


def test_a_template_that_opens_thinking_for_some(questions: tuple[Question, ...]) -> None:
    from tests.engines.tiny import TEMPLATE

    some = TEMPLATE.replace("opens is defined and opens", "'1 +' in messages[-1].content")
    report, status = check(ScriptedEngine(chat=chat(some)), questions)
    assert status["template"] == "warn"
    assert "opens thinking itself for 2/16 questions only" in detail(report, "template")


# --- Accuracy -------------------------------------------------------------------------------------


def test_accuracy_at_the_end_of_thinking_is_shown(questions: tuple[Question, ...]) -> None:
    report, status = check(ScriptedEngine(), questions)
    assert status["accuracy"] == "pass"
    assert report.accuracy == 1 - len(report.wrong) / 16 >= 0.5
    assert f"{report.accuracy:.0%} of 16 answers are right" in detail(report, "accuracy")
    cut, _ = check(ScriptedEngine(faults=frozenset({"never-closes"})), questions)
    assert cut.accuracy is not None  # by forced answers


def test_few_right_answers_are_a_warning_with_three_examples(
    questions: tuple[Question, ...],
) -> None:
    never = tuple(replace(question, gold="123456789") for question in questions)
    report, found = check(ScriptedEngine(), never)
    assert found["accuracy"] == "warn"
    assert (report.accuracy, report.status) == (0.0, "warn")
    assert len(report.wrong) == 3
    text = detail(report, "accuracy")
    assert text.startswith("0% of 16 answers are right at the end of thinking (")
    assert text.count("gold '123456789', answered '") == 3
    for example, question in zip(report.wrong, questions, strict=False):
        assert example.question == question.messages[-1]["content"]
    (advice,) = [c.advice for c in report.checks if c.name == "accuracy"]
    assert "check prompt, template, gold and grader" in advice
