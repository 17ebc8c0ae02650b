"""The stepper against the whole-table code, bit for bit; its reference is `policy/README.md`."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stopadvisor.ground.errors import PolicyError, UndecidedError
from stopadvisor.policy.frozen import Policy, Stepper
from stopadvisor.policy.stepper import Decision
from stopadvisor.probes.table import EMPTY_ANSWER, NO_PROBE, ProbeTable, on_grid
from stopadvisor.probes.trigger import ListedTrigger, MarkerTrigger, Trigger, stride
from stopadvisor.rules.families import FAMILIES, LEARNED_FAMILIES
from stopadvisor.rules.features import (
    FEATURES,
    GRID_FEATURES,
    OPEN_FEATURES,
    POSITION_FEATURES,
    LinearModel,
    feature_array,
)
from stopadvisor.rules.scores import scalar_scores
from tests.policy_content import (
    anywhere_content,
    built,
    example_content,
    family_content,
    policy_from,
    text_content,
    trigger_content,
)
from tests.populations import make_table
from tests.replay import walked

AT_GRIDS = [family for family in FAMILIES if family != "fixed-budget"]
BUDGETS = example_content()["budgets"]
STEP: dict[str, Any] = {
    "answer": " 42.",
    "mean_logprob": -0.5,
    "mean_entropy": 0.4,
    "markers": 1,
    "think_tokens": 0,
}


@cache
def policy_of(family: str) -> Policy:
    return policy_from(family_content(family))


# --- The whole-table twin -------------------------------------------------------------------------


def table(n_questions: int, seed: int, *, ragged: bool = False) -> ProbeTable:
    rng = np.random.default_rng(seed)
    budgets = np.array(BUDGETS)
    shape = (n_questions, len(budgets))
    # Half of the traces outlast the grid, the others end within it.
    lengths = rng.integers(1, 250, n_questions)
    positions = on_grid(budgets, n_questions)
    if ragged:
        positions = np.cumsum(rng.integers(1, 50, shape), axis=1) - rng.integers(0, 2)
        made = rng.integers(0, len(budgets) + 1, n_questions)
        positions[np.arange(len(budgets)) >= made[:, None]] = NO_PROBE
    found = make_table(
        budgets,
        correct=np.zeros(shape, dtype=bool),
        codes=np.where(rng.random(shape) < 0.2, EMPTY_ANSWER, rng.integers(0, 3, shape)),
        logprob=np.where(rng.random(shape) < 0.1, 0.0, -rng.exponential(0.6, shape)),
        entropy=rng.exponential(0.6, shape),
        markers=np.cumsum(rng.integers(0, 3, shape), axis=1).astype(np.float64),
        probe_tokens=np.full(shape, 4.0),
        trace=lengths,
        prompt=np.full(n_questions, 20),
        natural_correct=np.ones(n_questions, dtype=bool) if ragged else None,
        natural_tokens=np.full(n_questions, 9.0) if ragged else None,
    )
    closed = rng.random(shape) < 0.4 if ragged else None
    return replace(found, positions=positions, closed_by_itself=closed)


def check_replay(content: dict[str, Any], probes: ProbeTable, most: int | None = None) -> None:
    """Each live probe's score is the table's to the last bit, up to `most` of each question."""
    if content["family"] in LEARNED_FAMILIES:
        features = feature_array(probes, content["features"])
        columns = {key: tuple(content[key]) for key in ("features", "mean", "scale", "coef")}
        expected = LinearModel(**columns, intercept=content["intercept"]).scores(features)
    else:
        expected = scalar_scores(content["family"], probes)
    rule = policy_from(content).rule
    for i in range(probes.n_questions):
        walk = walked(probes, rule, i, most)
        live = np.flatnonzero(probes.live[i])[:most]
        assert walk == [(score, False) for score in expected[i, live]]


NEVER = {"confidence": 1e-9, "deer": 1e-9, "entropy": 1.0}
"""Thresholds that no score reaches."""


@pytest.mark.parametrize("schedule", [[0, 1, 2, 3, 4, 5], [0, 2, 5], [3], [0]], ids=str)
@pytest.mark.parametrize("family", AT_GRIDS)
def test_replaying_a_table_gives_its_scores_bit_for_bit(family: str, schedule: list[int]) -> None:
    content = family_content(family, NEVER.get(family, 400.0))
    content["budgets"] = [BUDGETS[k] for k in schedule]
    check_replay(content, table(60, seed=len(schedule)).select(schedule))


ANYWHERE = tuple(
    name for name in (*FEATURES, *POSITION_FEATURES, *OPEN_FEATURES) if name not in GRID_FEATURES
)


def any_rule(family: str, trigger: Trigger, rng: np.random.Generator) -> dict[str, Any]:
    """A rule of a family that never stops by its score; a learned one reads any features."""
    content = family_content(family, None if family == "fixed-budget" else NEVER.get(family, 1e9))
    content |= trigger_content(trigger, family=family)
    if family in LEARNED_FAMILIES:
        features = list(rng.permutation(ANYWHERE)[: rng.integers(1, len(ANYWHERE) + 1)])
        content["features"] = features
        content["probe"]["open_cue"] = True
        for key in ("mean", "coef"):
            content[key] = rng.normal(size=len(features)).tolist()
        content["scale"] = rng.uniform(0.1, 3, len(features)).tolist()
    return content


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_replaying_questions_with_positions_of_their_own_gives_the_tables_scores(
    family: str, seed: int
) -> None:
    """Whatever the features."""
    probes = table(12, seed, ragged=True)
    content = any_rule(family, MarkerTrigger(((1,),), 1, 99), np.random.default_rng(seed))
    if family == "fixed-budget":
        content |= trigger_content(ListedTrigger((400,), 400), family=family)
        content |= dict.fromkeys(("threshold", "decision_threshold"), 400.0)
    check_replay(content, probes, most=1 if family == "fixed-budget" else None)


# --- Positions ------------------------------------------------------------------------------------


def at(stepper: Stepper, position: int) -> Decision:
    return stepper.observe(**STEP | {"think_tokens": position})


def test_a_stride_is_followed_to_its_end() -> None:
    content = family_content("agreement", 1e9) | trigger_content(stride(16, 40))
    stepper = policy_from(content).start()
    for position, score, natural_end in ((16, 0.0, False), (32, 16.0, True)):
        assert at(stepper, position)[1:] == (score, position // 16 - 1, natural_end)
    with pytest.raises(PolicyError, match="last of 2 checkpoints"):
        at(stepper, 40)


def test_every_trace_is_stopped_at_the_last_position_whatever_its_score() -> None:
    content = family_content("agreement", 1e9)
    for trigger in (stride(16, 99, None, 24), MarkerTrigger(((1,),), 8, 1, stop_at=24)):
        stepper = policy_from(content | trigger_content(trigger)).start()
        assert at(stepper, 16) == (False, 0.0, 0, False)
        assert at(stepper, 24) == (True, 8.0, 1, False)
        with pytest.raises(PolicyError, match="checkpoint"):
            at(stepper, 25)


def test_positions_at_markers_increase_and_nobody_knows_the_next() -> None:
    content = family_content("agreement", 1e9)
    open_end = policy_from(content | trigger_content(MarkerTrigger(((1,),), 8, 3)))
    stepper = open_end.start()
    assert [at(stepper, position).natural_end for position in (9, 30)] == [False, False]
    with pytest.raises(PolicyError, match="must come after 30, got 30"):
        at(stepper, 30)
    assert at(stepper, 31).natural_end, "three probes are all"
    stepper = open_end.start()
    assert [at(stepper, position).checkpoint for position in (0, 1)] == [0, 1]
    stepper = open_end.start()
    with pytest.raises(PolicyError, match="must come after 0"):
        at(stepper, 2**63 + 1)
    assert at(stepper, 2**63).checkpoint == 0
    closed = trigger_content(MarkerTrigger(((1,),), 8, 3, stop_at=60))
    stepper = policy_from(content | closed).start()
    with pytest.raises(PolicyError, match=r"at most stop_at \(60\), got 61"):
        at(stepper, 61)


def test_a_fixed_budget_needs_no_answer() -> None:
    stepper = policy_of("fixed-budget").start()
    assert stepper.observe(think_tokens=96) == (True, 96.0, 0, False)


# --- Protocol and inputs --------------------------------------------------------------------------


def test_after_a_stop_there_is_nothing_to_observe() -> None:
    stepper = policy_of("confidence").start()
    assert stepper.observe(**STEP | {"mean_logprob": -0.2}).stop is False
    decision = stepper.observe(**STEP | {"mean_logprob": -0.1})
    assert decision == Decision(stop=True, score=-0.1, checkpoint=1, natural_end=False)
    with pytest.raises(PolicyError, match="stopped at checkpoint 1"):
        stepper.observe(**STEP)


def test_after_the_last_checkpoint_the_decision_says_natural_end() -> None:
    stepper = policy_of("confidence").start()
    decisions = [stepper.observe(**STEP) for _ in BUDGETS]
    assert [decision.natural_end for decision in decisions] == [False] * 5 + [True]
    with pytest.raises(PolicyError, match="the last of 6 checkpoints"):
        stepper.observe(**STEP)


def test_steppers_share_nothing() -> None:
    policy = policy_of("run-stability")
    one, other = policy.start(), policy.start()
    for _ in range(2):
        assert one.observe(**STEP).stop is False
    assert other.observe(**STEP).score == 1.0
    assert one.observe(**STEP).stop is True


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("mean_logprob", math.nan, "finite"),
        ("mean_logprob", -math.inf, "finite"),
        ("mean_logprob", 0.93, "at most 0"),  # a probability given for its logarithm
        ("mean_logprob", "-1", "a number"),
        ("mean_logprob", True, "a number"),
        ("mean_logprob", None, "needs mean_logprob"),
        ("mean_entropy", math.nan, "finite"),
        ("mean_entropy", math.inf, "finite"),
        ("mean_entropy", -0.4, "at least 0"),
        ("mean_entropy", [], "a number"),
        ("mean_entropy", None, "needs mean_entropy"),
        ("markers", -1, ">= 0"),
        ("markers", math.nan, ">= 0"),
        ("markers", math.inf, ">= 0"),
        ("markers", 10**400, "a number"),
        ("markers", None, "needs markers"),
        ("think_tokens", 1, "from 0 to its budget 0, got 1"),
        ("think_tokens", -1, "from 0 to its budget"),
        ("think_tokens", 0.0, "an integer"),
        ("think_tokens", True, "an integer"),
        ("think_tokens", np.ones(3), "an integer"),
        ("answer", None, "needs answer"),
        ("answer", 42, "a string"),
        ("normalized", 42, "a string"),
    ],
)
def test_impossible_inputs_are_refused_and_not_noted(name: str, value: Any, expected: str) -> None:
    policy = policy_of("learned")
    stepper = policy.start()
    with pytest.raises(PolicyError) as caught:
        stepper.observe(**STEP | {name: value})
    assert name in str(caught.value)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    # The same checkpoint may be observed again, as if nothing had been said.
    assert stepper.observe(**STEP) == policy.start().observe(**STEP)


@pytest.mark.parametrize("family", ["learned", "entropy", "confidence"])
def test_what_is_decided_with_a_slack_is_decided_without(family: str) -> None:
    """At both ends of the slack and in between; otherwise nothing is decided."""
    policy = policy_from(family_content(family))
    rng, slack, decided = np.random.default_rng(7), 0.2, 0

    def judged(stepper: Stepper, logprob: float, entropy: float, slack: float = 0.0) -> Decision:
        return stepper.observe(
            think_tokens=0,
            answer="42",
            markers=0.0,
            mean_logprob=logprob,
            mean_entropy=entropy,
            entropy_slack=slack,
        )

    for _ in range(200):
        entropy, logprob = float(rng.uniform(slack, 4)), -float(rng.exponential(0.5))
        stepper = policy.start()
        try:
            stop = judged(stepper, logprob, entropy, slack).stop
        except UndecidedError:
            assert judged(stepper, logprob, entropy).checkpoint == 0
            continue
        decided += 1
        for off in (-slack, 0.0, slack):
            assert judged(policy.start(), logprob, entropy + off).stop == stop
    reads_entropy = policy.rule.entropy_slope > 0
    assert 100 < decided < 200 if reads_entropy else decided == 200


def test_what_the_end_of_the_slack_would_decide_otherwise_is_undecided() -> None:
    policy = policy_from(family_content("entropy", -0.25))
    step = STEP | {"mean_entropy": 0.5}
    with pytest.raises(UndecidedError, match="within its slack"):
        policy.start().observe(**step, entropy_slack=0.25)
    assert not policy.start().observe(**step, entropy_slack=0.249).stop
    assert policy.start().observe(**step | {"mean_entropy": 0.25}).stop


@pytest.mark.parametrize("number", [float, np.float64])
def test_means_may_pass_zero_by_what_rounding_leaves(number: Any) -> None:
    means = {"mean_logprob": number(1e-3), "mean_entropy": number(-1e-3), "markers": number(0)}
    assert policy_of("confidence").start().observe(**STEP | means).score == 1e-3


def test_few_tokens_count_as_they_are() -> None:
    """The same answer at 0, 1 and 2 tokens: a score divides by the root of them, or takes a log."""
    scaled = anywhere_content("marker", "agreement-scaled")
    scaled["trigger"]["min_gap"] = 1
    stepper = policy_from(scaled).start()
    assert [at(stepper, k).score for k in range(3)] == [0.0, 1.0, 2 / math.sqrt(2)]
    log = {"features": ["log_position"], "mean": [0.0], "scale": [1.0], "coef": [1.0]}
    stepper = policy_from(anywhere_content("marker") | log | {"intercept": 0.0}).start()
    assert [at(stepper, k).score for k in range(3)] == [0.0, 0.0, math.log(2)]


def test_thinking_never_shrinks() -> None:
    stepper = policy_of("confidence").start()
    stepper.observe(**STEP)
    stepper.observe(**STEP | {"think_tokens": 16})
    with pytest.raises(PolicyError, match="from 16 to its budget 32, got 8"):
        stepper.observe(**STEP | {"think_tokens": 8})


def test_numpy_numbers_are_numbers() -> None:
    plain, wrapped = (policy_of("learned").start() for _ in range(2))
    given_as_numpy: dict[str, Any] = {
        "answer": " 42.",
        "mean_logprob": np.float64(-0.5),
        "mean_entropy": np.float64(0.4),
        "markers": np.int64(1),
        "think_tokens": np.int64(0),
    }
    found = wrapped.observe(**given_as_numpy)
    assert found == plain.observe(**STEP)
    assert type(found.score) is float
    assert type(found.stop) is bool


@pytest.mark.parametrize(
    ("family", "needed"),
    [
        ("confidence", {"mean_logprob"}),
        ("confidence-leap", {"mean_logprob"}),
        ("entropy", {"mean_entropy"}),
        ("run-stability", {"answer"}),
        ("agreement", {"answer"}),
        ("agreement-scaled", {"answer"}),
        ("deer", {"mean_logprob"}),
        ("learned", {"answer", "markers", "mean_logprob", "mean_entropy"}),
    ],
)
def test_what_a_family_does_not_read_may_be_left_out(family: str, needed: set[str]) -> None:
    inputs = {k: v for k, v in STEP.items() if k in needed | {"think_tokens"}}
    decision = policy_of(family).start().observe(**inputs)
    assert decision == policy_of(family).start().observe(**STEP)
    for name in needed:
        with pytest.raises(PolicyError, match=f"needs {name}"):
            policy_of(family).start().observe(**{k: v for k, v in inputs.items() if k != name})


def test_a_learned_rule_of_texts_reads_no_log_probabilities() -> None:
    inputs = {k: v for k, v in STEP.items() if k in {"answer", "markers", "think_tokens"}}
    policy = policy_from(text_content())
    assert policy.start().observe(**inputs) == policy.start().observe(**STEP)


def test_the_slope_in_entropy_is_that_of_the_rule() -> None:
    content = family_content("learned")
    at = content["features"].index("answer_entropy")
    slope = abs(content["coef"][at] / content["scale"][at])
    found = [policy_of(f).rule.entropy_slope for f in ("confidence", "entropy", "learned")]
    assert found == [0.0, 1.0, slope]


def test_what_is_given_is_checked_even_where_it_is_not_read() -> None:
    with pytest.raises(PolicyError, match="mean_entropy"):
        policy_of("confidence").start().observe(**STEP | {"mean_entropy": math.nan})


def test_a_learned_score_begins_with_the_intercept() -> None:
    scores = [
        policy_from(example_content(intercept=begins)).start().observe(**STEP)
        for begins in (0.0, 0.5)
    ]
    assert scores[1].score - scores[0].score == pytest.approx(0.5)


def test_a_score_beyond_all_numbers_is_refused() -> None:
    content = example_content(scale=[1e-300] + [1.0] * 7, coef=[1e300] + [0.0] * 7)
    with pytest.raises(PolicyError, match="score at checkpoint 0 is not finite"):
        built(content)


def test_tasks_are_the_policys_own_or_named_at_the_start() -> None:
    policy = policy_of("learned")
    assert policy.start("numeric").observe(**STEP) == policy.start().observe(**STEP)
    with pytest.raises(PolicyError, match="task must be 'numeric'"):
        policy.start("choice")
    mixed = policy_from(example_content(task="mixed"))
    with pytest.raises(PolicyError, match=r"start\(task=…\)"):
        mixed.start().observe(**STEP)
    with pytest.raises(PolicyError, match="one of math"):
        mixed.start("essay")
    assert mixed.start("numeric").observe(**STEP).score == policy.start().observe(**STEP).score
    known = mixed.start().observe(**STEP, normalized="42")
    assert known.score == policy.start().observe(**STEP).score
