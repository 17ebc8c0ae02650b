"""Requests formatted as at calibration, the plan of a policy, and what replies cost."""

from __future__ import annotations

from typing import Any

import pytest

from stopadvisor.ground.constants import PROMPT_TEMPLATES
from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.requests import (
    Climbed,
    PromptLike,
    Reply,
    RungAnswer,
    make_requests,
    policy_plan,
    prompt_templates,
)
from stopadvisor.runs.ladder import Rung
from stopadvisor.workload.questions import Question
from tests.policy_content import (
    example_content,
    example_terms,
    family_content,
    ladder_content,
    policy_from,
)

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "3+4?"}]


def asked(prompt: PromptLike, content: dict[str, Any], task: str | None = None) -> tuple[str, str]:
    """The last message of a request, and its task."""
    (request,) = make_requests([prompt], policy_from(content), task=task)
    return request.prompt.messages[-1]["content"], request.task


def question(task: str, *, templated: bool = True) -> Question:
    return Question("q", "0" * 64, tuple(CHAT[1:]), None, task, templated=templated)


def test_only_texts_go_through_the_policys_template() -> None:
    content = example_content(prompt_template="Say {question} now.")
    assert asked("3+4?", content) == ("Say 3+4? now.", "numeric")
    assert asked(question("numeric"), content) == ("Say 3+4? now.", "numeric")
    assert asked(CHAT, content) == ("3+4?", "numeric")
    assert asked(question("numeric", templated=False), content) == ("3+4?", "numeric")
    usual = PROMPT_TEMPLATES["numeric"].replace("{question}", "3+4?")
    assert asked("3+4?", example_content(prompt_template=None)) == (usual, "numeric")


def test_a_ladder_without_a_template_asks_what_it_is_given() -> None:
    assert asked("3+4?", ladder_content()) == ("3+4?", "numeric")
    content = ladder_content(prompt_template="Say {question} now.")
    assert asked("3+4?", content) == ("Say 3+4? now.", "numeric")


def test_the_task_is_the_policys_or_named_where_it_has_several() -> None:
    one = example_content()
    assert asked("3+4?", one, "numeric")[1] == "numeric"
    with pytest.raises(PolicyError, match="needs task 'numeric', got 'exact'"):
        asked("3+4?", one, "exact")
    with pytest.raises(PolicyError, match="needs task 'numeric', got 'exact'"):
        asked(question("exact"), one)
    several = example_content(task="mixed", prompt_template={"exact": "Spell {question}"})
    assert asked("3+4?", several, "exact") == ("Spell 3+4?", "exact")
    for prompt in ("3+4?", CHAT):
        with pytest.raises(PolicyError, match="a task for each prompt, got 'mixed'"):
            asked(prompt, several)


def test_a_task_without_a_template_is_asked_in_messages_alone() -> None:
    several = example_content(task="mixed", prompt_template={"exact": "Spell {question}"})
    with pytest.raises(PolicyError, match=r"has prompt templates for exact, got .* task 'numeric'"):
        asked("3+4?", several, "numeric")
    assert asked(CHAT, several, "numeric") == ("3+4?", "numeric")


def test_the_templates_are_those_of_the_tasks_that_are_answered() -> None:
    def found(**changes: Any) -> dict[str, str]:
        return prompt_templates(example_terms(**changes))

    assert found(prompt_template="{question}?") == {"numeric": "{question}?"}
    assert found(prompt_template={"exact": "a", "numeric": "b"}) == {"numeric": "b"}
    assert found(prompt_template=None) == {}
    several = found(task="mixed", prompt_template="{question}?")
    assert several == dict.fromkeys(PROMPT_TEMPLATES, "{question}?")
    assert found(task="mixed", prompt_template={"exact": "a"}) == {"exact": "a"}


@pytest.mark.parametrize(
    ("family", "source", "here", "at_server"),
    [
        ("confidence", "full", "full", "full"),
        ("confidence", "top-k:5", "top-k:5", "top-k:5"),
        ("run-stability", "full", "full", "none"),
        ("run-stability", "none", "full", "none"),  # a model here computes it anyway
    ],
)
def test_a_server_is_asked_only_for_log_probabilities_that_are_read(
    family: str, source: str, here: str, at_server: str
) -> None:
    policy = policy_from(family_content(family) | {"entropy_source": source})
    assert policy_plan(policy).entropy == here
    assert policy_plan(policy, at_server=True).entropy == at_server


def test_a_plan_may_be_given_another_cap_of_visible_answers() -> None:
    assert policy_plan(policy_from(example_content()), answer_cap=9).answer_cap == 9


# --- What it costs --------------------------------------------------------------------------------


def test_a_reply_of_a_rung_costs_what_was_read_cached_and_decoded() -> None:
    rung = Rung("large", (10.0, 1.0, 40.0))
    answer = RungAnswer(finished=True, prompt_tokens=7, cached_tokens=3, completion_tokens=5).of(
        rung
    )
    assert (answer.name, answer.price) == ("large", 4 * 10.0 + 3 * 1.0 + 5 * 40.0)
    down = RungAnswer(finished=False, down="refused")
    assert down.price == down.seconds == down.of(rung).price == 0.0


def test_of_a_climb_one_reply_is_served_and_all_are_paid() -> None:
    few = RungAnswer(finished=True, text="7", completion_tokens=20, name="small", price=1.5)
    many = RungAnswer(finished=True, text="8", completion_tokens=300, name="large", price=20.0)
    first = Climbed("small", (few, many))
    last = Climbed("large", (few, many), gave_up=False, at=1)
    assert (first.served, first.discarded_tokens) == (few, 300)
    assert (last.served, last.discarded_tokens) == (many, 20)
    assert first.price == last.price == 21.5
    line = last.to_dict()
    assert (line["rung"], line["gave_up"]) == ("large", False)
    assert line["asked"][0] == {
        "finished": True,
        "prompt_tokens": 0,
        "cached_tokens": 0,
        "completion_tokens": 20,
        "down": None,
        "name": "small",
        "price": 1.5,
    }


def test_all_tokens_of_a_reply_count_as_decoded() -> None:
    reply = Reply("7", "7", 1, 16, 5, 100, 20, 3, 2, 0.5, "stopped", "Hm.")
    assert reply.decoded_tokens == 123
