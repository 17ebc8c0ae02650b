"""Climbing under a policy: as the table says, reply by reply, and nothing that cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.fields import MOST_TOKENS, plain
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import policy_plan
from stopadvisor.policy.rung_policies import check_rungs
from stopadvisor.policy.stepper import log_odds
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.rules.climb import RUNG_FEATURES
from stopadvisor.runs.ladder import Ladder, Rung, ladder_of
from tests.policy_content import (
    SERVED_RUNGS,
    built,
    example_content,
    file_bytes,
    ladder_content,
    policy_from,
)
from tests.rules.test_climb import MIXED, drawn
from tests.runs.test_replies import reply, run_of

APART = Ladder(tuple(Rung(name, (1.0, 0.1, 1.0)) for name in "abcd"))
VOTE = Ladder((Rung("vote", (1.0, 0.0, 1.0), repeat=5),))
LEARNED = {
    "features": list(RUNG_FEATURES[:-1]),
    "mean": [3.0, 1.0, 0.8, 1.5],
    "scale": [0.7, 1.0, 0.3, 1.2],
    "coef": [-0.4, 1.1, 0.6, 0.2],
    "intercept": 0.1,
}


def policy_of(
    ladder: Ladder, family: str, asked: tuple[int, ...], level: Any, **given: Any
) -> Policy:
    levels = [float(level)] * len(asked)
    changes: dict[str, Any] = LEARNED if family == "rung-learned" else {}
    rungs = [plain(rung.terms) for rung in ladder.rungs]
    content = ladder_content(family, **changes, task="exact")
    content["ladder"] = {"rungs": rungs, "asked": list(asked), "path": [levels], **given}
    content |= {"decision_threshold": 1.0, "threshold": 1.0, "order": [2.0, 1.0]}
    return policy_from(content)


def lines_of(path: Path, ladder: Ladder) -> tuple[GradedTable, list[dict[str, Any]]]:
    if ladder is MIXED:
        return drawn(path)
    rng = np.random.default_rng(2)
    lines = []
    for number in range(120):
        rungs = [
            reply(
                rung.name,
                str(rng.integers(0, 3)),
                int(rng.integers(1, 60)),
                finished=bool(rng.random() < 0.9),
                mean_logprob=-float(rng.random()),
            )
            for rung in ladder.columns
        ]
        lines.append({"id": f"q{number}", "gold": "1", "rungs": rungs})
    return run_of(path, lines, ladder).part("fit"), lines


@pytest.mark.parametrize(
    ("ladder", "family", "asked", "level", "given"),
    [
        (APART, "rung-confidence", (0, 1, 2), -0.2, {"on_give_up": "escalate", "give_up": [-0.7]}),
        (APART, "rung-confidence", (0, 2), -0.2, {"on_give_up": "reply", "give_up": [-0.7]}),
        (APART, "rung-learned", (0, 1, 2), 0.6, {"on_give_up": "escalate", "give_up": [0.2]}),
        (MIXED, "rung", (0,), 0.0, {}),
        (MIXED, "cap", (0,), -30.0, {}),
        (MIXED, "rung-agreement", (0, 1, 2, 3), 2.0, {}),
        (MIXED, "rung-learned", (0, 1, 2, 3), 0.3, {}),
        (APART, "cap", (0, 2), -20.0, {}),
        (APART, "rung-agreement", (0, 2), 2.0, {}),  # `b` lies between them, and is not asked
        (APART, "rung-confidence", (1, 2), -0.4, {}),
        (VOTE, "rung-agreement", (0, 1, 2, 3), 2.0, {}),
    ],
)
def test_a_climber_serves_what_the_table_says(
    tmp_path: Path,
    ladder: Ladder,
    family: str,
    asked: tuple[int, ...],
    level: float,
    given: dict[str, Any],
) -> None:
    table, lines = lines_of(tmp_path, ladder)
    policy = policy_of(ladder, family, asked, level, **given)
    given_up, short = 0, 0
    assert policy.terms.ladder is not None
    climb = policy.terms.ladder.climb(family, _model(policy))
    view = climb.view(table)
    assert view.rungs is not None
    first, most, (served, hopeless) = 0, 0, climb.at(table, 1)
    for row, line in enumerate(lines):
        climber, answers, judged, gave_up = policy.climb(), [], None, False
        certain, columns = set[int](), []
        while (ask := climber.ask) is not None:
            assert climber.certain[0] == ask
            certain |= {each.column for each in climber.certain}
            most = max(most, len(climber.certain))
            columns.append(ask.column)
            names = [rung.name for rung in ladder.columns[: ask.column + 1]]
            assert ask.sample == names.count(ask.rung.name) - 1
            said = line["rungs"][ask.column]
            answers.append((said["answer"], said["finished"]))
            tokens = said["completion_tokens"]
            cut = ask.max_tokens is not None and tokens > ask.max_tokens
            judged = climber.observe(
                answer=said["answer"],
                finished=said["finished"] and not cut,
                completion_tokens=min(tokens, ask.max_tokens or tokens),
                mean_logprob=said.get("mean_logprob"),
            )
            gave_up |= judged.gives_up
            given_up += judged.gives_up
        assert judged is not None
        assert judged.serve
        of_reference = columns[-1] == len(ladder.columns) - 1
        short += of_reference and len(answers) <= len(asked)
        assert of_reference == bool(view.rungs.is_reference[row, 0])
        first += not of_reference
        assert certain == set(columns)
        assert columns[-1] == served[row]
        assert gave_up == hopeless[row]
        text, finished = answers[judged.reply]
        assert (text == "1" and finished) == bool(view.stop_correct[row, 0])
        price = sum(
            line["rungs"][k]["completion_tokens"] * ladder.columns[k].price[2] for k in columns
        )
        if ladder is APART and family != "cap":  # prompts have no tokens there
            assert view.rungs.spent.price[row, 0] == pytest.approx(price)
    # A lead of two takes two replies, which may be asked for at once.
    assert (most > 1) == (family == "rung-agreement")
    assert (given_up > 0) == bool(given)
    assert (short > 0) == (given.get("on_give_up") == "escalate")
    assert 0 < first < len(lines)  # some are served before the reference, and some are not


def _model(policy: Policy) -> Any:
    from stopadvisor.certification.verification import _linear

    return _linear(policy.terms)


def test_a_cap_is_what_is_asked_of_the_server() -> None:
    climber = policy_of(APART, "cap", (0, 2), -20.0).climb()
    ask = climber.ask
    assert ask is not None
    assert (ask.rung.name, ask.max_tokens, ask.is_reference) == ("a", 20, False)
    assert not climber.observe(finished=False, completion_tokens=20).serve
    ask = climber.ask
    assert ask is not None
    assert ask.rung.name == "c"
    assert not climber.observe(finished=True, completion_tokens=21, answer="1").serve
    ask = climber.ask
    assert ask is not None
    assert (ask.rung.name, ask.max_tokens, ask.is_reference) == ("d", None, True)
    assert climber.observe(finished=False, completion_tokens=3).serve
    assert climber.ask is None
    with pytest.raises(PolicyError, match="already served"):
        climber.observe(finished=True, completion_tokens=1)


@pytest.mark.parametrize(
    ("ladder", "family", "give_up"),
    [
        (APART, "cap", [-9.0]),
        (APART, "rung-confidence", [-1.0, -1.0]),
        (VOTE, "rung-learned", [0.0]),
    ],
)
def test_giving_up_that_cannot_be_is_refused(
    ladder: Ladder, family: str, give_up: list[float]
) -> None:
    asked = tuple(range(len(ladder.columns) - 1))
    with pytest.raises(PolicyError, match=r"field 'ladder\.give_up'"):
        policy_of(ladder, family, asked, -1.0, on_give_up="escalate", give_up=give_up)


def test_the_last_cheap_rung_gives_nothing_up() -> None:
    """The reference follows it anyway: nothing is skipped, and nothing marked."""
    given: dict[str, Any] = {"on_give_up": "escalate", "give_up": [-0.7]}
    climber = policy_of(APART, "rung-confidence", (0, 1), -0.2, **given).climb()
    shown = [("1", -0.5), ("2", -0.9), ("3", -0.9)]
    judged = [
        climber.observe(finished=True, completion_tokens=5, answer=answer, mean_logprob=logprob)
        for answer, logprob in shown
    ]
    assert [(each.serve, each.gives_up) for each in judged] == [(False, False)] * 2 + [
        (True, False)
    ]


def test_a_reply_that_was_cut_scores_nothing_and_climbs() -> None:
    climber = policy_of(APART, "rung-confidence", (0, 1), -0.2).climb()
    judged = climber.observe(finished=False, completion_tokens=0)
    assert (judged.serve, judged.score) == (False, 0.0)


def test_a_sure_reply_has_a_log_probability_of_0_and_the_reference_needs_none() -> None:
    sure, unsure = (policy_of(APART, "rung-confidence", (0,), -0.2).climb() for _ in range(2))
    assert sure.ask is not None
    assert sure.ask.needs_logprob
    assert sure.observe(finished=True, completion_tokens=5, answer="1", mean_logprob=0.0).serve
    assert not unsure.observe(finished=False, completion_tokens=5).serve
    assert unsure.ask is not None
    assert not unsure.ask.needs_logprob
    judged = unsure.observe(finished=True, completion_tokens=5, answer="1")
    assert (judged.serve, judged.score) == (True, 0.0)


def test_a_reply_at_the_level_is_not_given_up_and_one_at_the_threshold_is_served() -> None:
    given: dict[str, Any] = {"on_give_up": "escalate", "give_up": [-0.7]}
    climber = policy_of(APART, "rung-confidence", (0, 1), -0.2, **given).climb()
    at_level, at_threshold = (
        climber.observe(finished=True, completion_tokens=5, answer="1", mean_logprob=logprob)
        for logprob in (-0.7, -0.2)
    )
    assert (at_level.serve, at_level.gives_up) == (False, False)
    assert at_threshold.serve


@pytest.mark.parametrize(
    ("level", "cap"), [(-float(MOST_TOKENS), MOST_TOKENS), (-1.0, 1), (0.0, 1)]
)
def test_a_cap_is_of_one_token_at_least(level: float, cap: int) -> None:
    ask = policy_of(APART, "cap", (0,), level).climb().ask
    assert ask is not None
    assert (ask.max_tokens, ask.needs_logprob) == (cap, False)


def test_of_a_path_the_step_in_use_counts() -> None:
    path = [[-0.1], [-0.3], [-0.5]]
    levels = {"on_give_up": "reply", "give_up": [-0.6, -0.8, -1.0]}
    ladder = {"path": path, **levels}
    content = ladder_content("rung-confidence", ladder)
    assert (content["decision_threshold"], content["task"]) == (2.0, "numeric")
    policy = policy_from(content)
    for logprob, serve, gives_up in ((-0.2, True, False), (-0.7, False, False), (-0.9, True, True)):
        judged = policy.climb().observe(
            finished=True, completion_tokens=5, answer="1", mean_logprob=logprob
        )
        assert (judged.serve, judged.gives_up) == (serve, gives_up)


def test_a_learned_score_is_the_sum_of_its_terms() -> None:
    linear = {"features": ["answer_log_odds"], "mean": [0.5], "scale": [2.0], "coef": [3.0]}
    content = ladder_content("rung-learned", {"path": [[0.1]]}, **linear, intercept=0.0)
    climber = policy_from(content).climb()
    assert climber.ask is not None
    assert climber.ask.needs_logprob
    judged = climber.observe(finished=True, completion_tokens=5, answer="1", mean_logprob=-0.4)
    assert judged.score == pytest.approx(3.0 * (log_odds(-0.4) - 0.5) / 2.0)


def test_whatever_the_reply_of_a_rung_says_it_is_served_at_0() -> None:
    judged = (
        policy_of(APART, "rung", (0,), 0.0)
        .climb()
        .observe(finished=True, completion_tokens=5, answer="1")
    )
    assert (judged.serve, judged.score) == (True, 0.0)


def full_budget(ladder: Ladder, **changes: Any) -> Policy:
    rungs = [plain(rung.terms) for rung in ladder.rungs]
    nothing = ("family", "threshold", "decision_threshold", "trigger", "certificate", "expected")
    content = ladder_content("cap") | dict.fromkeys((*nothing, "calibration_features"))
    content |= {"kind": "full-budget", "order": []}
    content["ladder"] = {"rungs": rungs, "asked": [], "path": [], **changes}
    return policy_from(content)


@pytest.mark.parametrize("changes", [{"asked": [0]}, {"path": [[-1.0]]}, {"on_give_up": "reply"}])
def test_full_budget_has_no_rule(changes: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match="expected empty for kind 'full-budget'"):
        full_budget(VOTE, **changes)


def test_of_two_samples_that_differ_the_first_is_served() -> None:
    climber = full_budget(Ladder((Rung("pair", (1.0, 0.0, 1.0), repeat=2),))).climb()
    first, second = (
        climber.observe(finished=True, completion_tokens=5, answer=answer) for answer in "12"
    )
    assert (first.serve, second.serve, second.reply) == (False, True, 0)


def test_full_budget_asks_the_reference_alone() -> None:
    climber = full_budget(VOTE).climb()
    assert [ask.sample for ask in climber.certain] == [0, 1, 2, 3, 4], "at once, if one likes"
    found = []
    for answer in ("1", "2", "2", "1", "3"):
        assert climber.ask is not None
        found.append(climber.observe(finished=True, completion_tokens=5, answer=answer))
    assert [judged.serve for judged in found] == [False] * 4 + [True]
    assert found[-1].reply == 0  # ties go to the answer that came first


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"completion_tokens": -1}, "completion_tokens must be a count"),
        ({"completion_tokens": 1.0}, "completion_tokens must be a count"),
        ({"mean_logprob": None}, "mean_logprob must be finite"),
        ({"mean_logprob": 0.1}, "mean_logprob must be finite"),
        ({"mean_logprob": float("nan")}, "mean_logprob must be finite"),
        ({"mean_logprob": float("-inf")}, "mean_logprob must be finite"),
    ],
)
def test_a_reply_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    climber = policy_of(APART, "rung-confidence", (0,), -0.4).climb()
    given = {"finished": True, "completion_tokens": 1, "answer": "1", "mean_logprob": -0.1}
    with pytest.raises(PolicyError, match=message):
        climber.observe(**{**given, **changes})
    assert climber.observe(**given).serve  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("ladder.rungs", [], "two \\[\\[rung"),
        ("ladder.rungs.0.base_url", "http://evil", r"no address and no key"),
        ("ladder.rungs.0.api_key_env", "HOME", r"no address and no key"),
        ("ladder.rungs.0.policy", "p.json", r"no address and no key"),
        ("ladder.rungs.0.price", [1, 1], "three prices"),
        ("ladder.rungs.0.name", "large", "each name once"),
        ("ladder.rungs.0.chat_template_kwargs", {"chat_template": "x"}, "is reserved"),
        ("ladder.asked", [], "increasing numbers below"),
        ("ladder.asked", [1], "increasing numbers below"),
        ("ladder.asked", [0, 0], "increasing numbers below"),
        ("ladder.path", [], "a step of ladder.path"),
        ("ladder.path.0", [-1.0, -1.0], "a threshold for each of 1 replies"),
        ("ladder.path.0", [1.0], "minus the most tokens"),
        ("ladder.path.0", [-1e300], "minus the most tokens"),
        ("ladder.on_give_up", "reply", "levels with on_give_up"),
        ("ladder.give_up", [0.0, 0.0, 0.0], "levels with on_give_up"),
        ("decision_threshold", 4.0, "a step of ladder.path, 1 to 3"),
        ("decision_threshold", 1.5, "a step of ladder.path, 1 to 3"),
        ("order", [5.0, 2.0], "numbers of steps"),
        ("trigger.kind", "none", "expected a number for kind 'none'"),
        ("family", "confidence", "a ladder for trigger.kind 'ladder'"),
        ("family", "rung-learned", "at least one for family"),
        ("serving", "kv-fork", "'ladder' with a ladder"),
        ("ladder", None, "'ladder' with a ladder"),
        ("budgets", [4], "an empty list for a trigger"),
        ("certificate.losses", 6, "do not certify|do not give"),
        ("certificate.upper", 0.05, "do not give"),
        ("golden.0.steps.0.think_tokens", 10**6, "does not replay"),
        ("golden", [], "at least one trajectory"),
    ],
)
def test_a_ladder_that_cannot_be_is_refused(path: str, value: Any, message: str) -> None:
    content = json.loads(json.dumps(built(ladder_content("cap"))))
    *parents, key = path.split(".")
    node = content
    for parent in parents:
        node = node[int(parent) if isinstance(node, list) else parent]
    node[int(key) if isinstance(node, list) else key] = value
    with pytest.raises(PolicyError, match=message) as error:
        Policy.of(file_bytes(content))
    assert "\n" not in str(error.value)


def test_a_ladder_is_the_policys_in_every_field_but_its_prices() -> None:
    small, large = SERVED_RUNGS
    terms = policy_from(ladder_content(ladder={"rungs": SERVED_RUNGS})).terms
    check_rungs(terms, ladder_of({"rung": [small, large | {"price": [1.0, 1.0, 1.0]}]}, ""))
    plain = {name: value for name, value in large.items() if name != "reasoning_effort"}
    with pytest.raises(PolicyError, match=r"reasoning_effort 'high' of rung 'large', got None"):
        check_rungs(terms, ladder_of({"rung": [small, plain]}, ""))


def test_each_policy_is_followed_as_it_says() -> None:
    climbs = policy_from(ladder_content("cap"))
    with pytest.raises(PolicyError, match="climbs a ladder and stops no trace"):
        climbs.start()
    with pytest.raises(PolicyError, match="climbs a ladder of whole replies"):
        climbs.check_source({}, "none")
    with pytest.raises(PolicyError, match="climbs a ladder of whole replies and stops no trace"):
        policy_plan(climbs)
    stops = policy_from(example_content())
    assert stops.ladder == ()
    with pytest.raises(PolicyError, match="stops a trace and climbs no ladder"):
        stops.climb()
