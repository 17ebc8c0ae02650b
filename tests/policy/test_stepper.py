"""The stepper against a plain reference, and against the whole-table code, bit for bit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stopadvisor.answers import normal_form as answers
from stopadvisor.errors import PolicyError
from stopadvisor.policy.frozen import FAMILIES, Decision, Policy, Stepper, build_policy
from stopadvisor.probes.table import ProbeTable, on_grid
from stopadvisor.rules.boosting import BoostedModel, Tree
from stopadvisor.rules.families import SCALAR_FAMILIES
from stopadvisor.rules.features import feature_array
from stopadvisor.rules.scores import LinearModel, scalar_scores
from tests.policy_content import example_content, family_content

POLICIES = {family: Policy(build_policy(family_content(family))) for family in FAMILIES}
BUDGETS = example_content()["budgets"]
STEP: dict[str, Any] = {
    "answer": " 42.",
    "mean_logprob": -0.5,
    "mean_entropy": 0.4,
    "markers": 1,
    "think_tokens": 0,
}


@dataclass(frozen=True)
class Probe:
    """One checkpoint of a made-up question."""

    answer: str
    logprob: float
    entropy: float
    markers: float
    think: int


@st.composite
def questions(draw: st.DrawFn) -> list[Probe]:
    length = draw(st.integers(0, 200))
    marks = 0
    probes = []
    for budget in BUDGETS:
        marks += draw(st.integers(0, 2))
        probes.append(
            Probe(
                draw(st.sampled_from(["41", " 42.", "42", "", "no idea"])),
                draw(st.floats(-6, 0)),
                draw(st.floats(0, 4)),
                float(marks),
                min(budget, length),
            )
        )
    return probes


def observe(stepper: Stepper, probe: Probe) -> Decision:
    return stepper.observe(
        answer=probe.answer,
        mean_logprob=probe.logprob,
        mean_entropy=probe.entropy,
        markers=probe.markers,
        think_tokens=probe.think,
    )


# --- A plain reference, written from the definitions ----------------------------------------------


def reference_features(history: list[Probe], budgets: list[int]) -> dict[str, float]:
    """The eight features at the last checkpoint of a history, each by its definition."""
    said = [answers.normalize("numeric", probe.answer) for probe in history]
    j, now = len(history) - 1, history[-1]
    run = 1
    while run <= j and said[j - run] == said[j]:
        run += 1
    return {
        "budget_fraction": budgets[j] / budgets[-1] if budgets[-1] else 0.0,
        "checkpoint_index": j / (len(budgets) - 1) if len(budgets) > 1 else 0.0,
        "answer_logprob": now.logprob,
        "answer_entropy": now.entropy,
        "previous_match": 1.0 if j and said[j] == said[j - 1] else 0.0,
        "run_length": float(run),
        "vote_share": said.count(said[j]) / (j + 1),
        "marker_density": now.markers / now.think if now.think else 0.0,
    }


def reference_score(content: dict[str, Any], history: list[Probe]) -> float:
    family = content["family"]
    found = reference_features(history, content["budgets"])
    if family == "confidence":
        return history[-1].logprob
    if family == "entropy":
        return -history[-1].entropy
    if family == "run-stability":
        return found["run_length"]
    if family == "confidence-leap":
        if len(history) == 1:
            return 0.0
        before, now = (math.exp(probe.logprob) for probe in history[-2:])
        return max(0.0, now - before) * now
    values = [found[name] for name in content["features"]]
    z: float = content["intercept"]
    if family == "learned-boosted":
        for tree in content["trees"]:
            node = 0
            while tree["feature"][node] != -1:
                left = values[tree["feature"][node]] <= tree["threshold"][node]
                node = tree["left" if left else "right"][node]
            z = z + tree["value"][node]
        return z
    rows = zip(values, content["mean"], content["scale"], content["coef"], strict=True)
    for value, mean, scale, coef in rows:
        z = z + coef * ((value - mean) / scale)
    return z


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=60)
@given(probes=questions())
def test_equals_the_reference(family: str, probes: list[Probe]) -> None:
    policy = POLICIES[family]
    content = dict(policy.content)
    stepper = policy.start()
    for j, probe in enumerate(probes):
        assert stepper.next_budget == policy.budgets[j]
        decision = observe(stepper, probe)
        score = reference_score(content, probes[: j + 1])
        stop = score >= content["decision_threshold"]
        last = j == len(policy.budgets) - 1
        assert decision == (stop, score, j, last and not stop)
        if stop:
            break
    assert stepper.next_budget is None


# --- The whole-table twin -------------------------------------------------------------------------


def table(n_questions: int, seed: int) -> ProbeTable:
    rng = np.random.default_rng(seed)
    budgets = np.array(BUDGETS)
    shape = (n_questions, len(budgets))
    # Half of the traces outlast the grid, the others end within it.
    lengths = rng.integers(1, 250, n_questions)
    return ProbeTable(
        ids=tuple(map(str, range(n_questions))),
        keys=tuple(map(str, range(n_questions))),
        groups=tuple(map(str, range(n_questions))),
        tasks=("numeric",) * n_questions,
        samples=np.zeros(n_questions, dtype=np.int64),
        categories=(None,) * n_questions,
        positions=on_grid(budgets, n_questions),
        answer_codes=rng.integers(0, 3, shape),
        mean_logprob=-rng.exponential(0.6, shape),
        mean_entropy=rng.exponential(0.6, shape),
        markers=np.cumsum(rng.integers(0, 3, shape), axis=1).astype(np.float64),
        probe_tokens=np.full(shape, 4.0),
        trace_tokens=lengths,
        prompt_tokens=np.full(n_questions, 20),
        natural_tokens=None,
        truncated=np.zeros(n_questions, dtype=np.bool_),
        suffix_tokens=4,
        entropy_source="full",
        reference="last-checkpoint",
    )


def table_scores(content: dict[str, Any], probes: ProbeTable, schedule: list[int]) -> Any:
    family = content["family"]
    if family in SCALAR_FAMILIES:
        return scalar_scores(family, probes, schedule)
    features = feature_array(probes, schedule, content["features"])
    model: LinearModel | BoostedModel
    if family == "learned-boosted":
        trees = tuple(
            Tree(**{key: tuple(values) for key, values in tree.items()})
            for tree in content["trees"]
        )
        model = BoostedModel(tuple(content["features"]), content["intercept"], trees)
    else:
        columns = {key: tuple(content[key]) for key in ("features", "mean", "scale", "coef")}
        model = LinearModel(**columns, intercept=content["intercept"])
    return model.scores(features)


@pytest.mark.parametrize("schedule", [[0, 1, 2, 3, 4, 5], [0, 2, 5], [3]], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_replaying_a_table_gives_its_scores_bit_for_bit(family: str, schedule: list[int]) -> None:
    probes = table(150, seed=len(schedule))
    content = family_content(family, -1e-9 if family == "confidence" else 40.0)
    if family == "entropy":
        content = family_content(family, 1.0)
    content["budgets"] = [BUDGETS[k] for k in schedule]
    policy = Policy(build_policy(content))
    expected = table_scores(content, probes, schedule)
    for i in range(probes.n_questions):
        stepper = policy.start()
        for j, k in enumerate(schedule):
            decision = stepper.observe(
                normalized=str(probes.answer_codes[i, k]),
                mean_logprob=probes.mean_logprob[i, k],
                mean_entropy=probes.mean_entropy[i, k],
                markers=probes.markers[i, k],
                think_tokens=probes.think_tokens[i, k],
            )
            assert decision.score == expected[i, j]
            assert not decision.stop


# --- Protocol and inputs --------------------------------------------------------------------------


def test_after_a_stop_there_is_nothing_to_observe() -> None:
    stepper = POLICIES["confidence"].start()
    assert stepper.observe(**STEP | {"mean_logprob": -0.2}).stop is False
    decision = stepper.observe(**STEP | {"mean_logprob": -0.1})
    assert decision == Decision(stop=True, score=-0.1, checkpoint=1, natural_end=False)
    assert stepper.next_budget is None
    with pytest.raises(PolicyError, match="stopped at checkpoint 1"):
        stepper.observe(**STEP)


def test_after_the_last_checkpoint_the_decision_says_natural_end() -> None:
    stepper = POLICIES["confidence"].start()
    decisions = [stepper.observe(**STEP) for _ in BUDGETS]
    assert [decision.natural_end for decision in decisions] == [False] * 5 + [True]
    with pytest.raises(PolicyError, match="the last of 6 checkpoints"):
        stepper.observe(**STEP)


def test_steppers_share_nothing() -> None:
    policy = POLICIES["run-stability"]
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
    policy = POLICIES["learned"]
    stepper = policy.start()
    with pytest.raises(PolicyError) as caught:
        stepper.observe(**STEP | {name: value})
    assert name in str(caught.value)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    # The same checkpoint may be observed again, as if nothing had been said.
    assert stepper.observe(**STEP) == policy.start().observe(**STEP)


def test_thinking_never_shrinks() -> None:
    stepper = POLICIES["confidence"].start()
    stepper.observe(**STEP)
    stepper.observe(**STEP | {"think_tokens": 16})
    with pytest.raises(PolicyError, match="from 16 to its budget 32, got 8"):
        stepper.observe(**STEP | {"think_tokens": 8})


def test_numpy_numbers_are_numbers() -> None:
    plain, wrapped = (POLICIES["learned"].start() for _ in range(2))
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
        ("learned-text", {"answer", "markers"}),
        ("learned", {"answer", "markers", "mean_logprob", "mean_entropy"}),
    ],
)
def test_what_a_family_does_not_read_may_be_left_out(family: str, needed: set[str]) -> None:
    inputs = {k: v for k, v in STEP.items() if k in needed | {"think_tokens"}}
    decision = POLICIES[family].start().observe(**inputs)
    assert decision == POLICIES[family].start().observe(**STEP)
    for name in needed:
        with pytest.raises(PolicyError, match=f"needs {name}"):
            POLICIES[family].start().observe(**{k: v for k, v in inputs.items() if k != name})


def test_what_is_given_is_checked_even_where_it_is_not_read() -> None:
    with pytest.raises(PolicyError, match="mean_entropy"):
        POLICIES["confidence"].start().observe(**STEP | {"mean_entropy": math.nan})


def test_a_score_beyond_all_numbers_is_refused() -> None:
    content = example_content(scale=[1e-300] + [1.0] * 7, coef=[1e300] + [0.0] * 7)
    with pytest.raises(PolicyError, match="score at checkpoint 0 is not finite"):
        build_policy(content)


def test_tasks_are_the_policys_own_or_named_at_the_start() -> None:
    policy = POLICIES["learned"]
    assert policy.start("numeric").observe(**STEP) == policy.start().observe(**STEP)
    with pytest.raises(PolicyError, match="task must be 'numeric'"):
        policy.start("choice")
    mixed = Policy(build_policy(example_content(task="mixed")))
    with pytest.raises(PolicyError, match=r"start\(task=…\)"):
        mixed.start().observe(**STEP)
    with pytest.raises(PolicyError, match="one of math"):
        mixed.start("essay")
    assert mixed.start("numeric").observe(**STEP).score == policy.start().observe(**STEP).score
    known = mixed.start().observe(**STEP, normalized="42")
    assert known.score == policy.start().observe(**STEP).score
