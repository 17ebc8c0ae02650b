"""Early exit on a local model, compared with recorded probes and with generation without probes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import Reply, make_requests, policy_plan
from stopadvisor.probes.asking import OnStop, ProbePlan, RawProbe, RawTrace
from stopadvisor.probes.trigger import ListedTrigger, MarkerTrigger, Trigger, at_trigger, stride
from stopadvisor.rules.families import display_threshold
from stopadvisor.workload.questions import Question
from tests.engines.online_policies import bound, rule
from tests.engines.tiny import traces_of
from tests.material import easiest
from tests.policy_content import (
    anywhere_content,
    family_content,
    full_budget_content,
    trigger_content,
)
from tests.probes.test_trigger import walked

if TYPE_CHECKING:
    from stopadvisor.engines.hf.engine import HfEngine

pytestmark = pytest.mark.usefixtures("set_aside_at_once")

BUDGETS = (0, 20, 40, 60, 80)
EARLY = BUDGETS[:3]
"""For run-stability, which stops nearly all traces later."""
N = 28
FEW = slice(9, 15)
"""Questions of which some, not all, think to the cap."""
CAP = 110
"""Thinking tokens: most of the traces of N questions reach it."""


@dataclass
class Replayed:
    """A policy replayed over the recorded probes of a trace."""

    position: int | None = None
    """Position of the stop, if any."""
    asked: list[RawProbe] = field(default_factory=list)
    """Probes up to the stop."""
    scores: list[float] = field(default_factory=list)


def replay(policy: Policy, trace: RawTrace, on_stop: OnStop = "probe") -> Replayed:
    stepper, found = policy.start("numeric"), Replayed()
    probes = {probe.budget: probe for probe in trace.probes}
    for position in walked(policy.trigger, trace.thinking_ids, []):
        if position == policy.trigger.stop_at and on_stop == "answer":
            found.position = position
            break
        probe = probes[position]
        found.asked.append(probe)
        decision = stepper.observe(
            answer=probe.text,
            mean_logprob=probe.mean_logprob,
            mean_entropy=probe.mean_entropy,
            markers=float(probe.markers),
            think_tokens=probe.think_tokens,
        )
        found.scores.append(decision.score)
        if decision.stop:
            found.position = position
            break
    return found


@pytest.fixture(scope="module")
def questions() -> tuple[Question, ...]:
    return easiest(N)


Recorded = dict[float | None, list[RawTrace]]
Probe = Callable[[Policy], list[RawTrace]]


@pytest.fixture(scope="module")
def recorded(tiny_reasoner: HfEngine, questions: Sequence[Question]) -> Recorded:
    """Traces with probes at all budgets, by temperature."""
    found: Recorded = {}
    for temperature in (None, 0.7):
        changes = {"sampling": _sampling(temperature), "max_think": CAP}
        policy = rule(tiny_reasoner, "confidence", 1e-3, budgets=list(BUDGETS), **changes)
        requests = make_requests(questions, policy)
        plan = policy_plan(policy)
        found[temperature] = traces_of(tiny_reasoner, [r.prompt for r in requests], plan)
    return found


@pytest.fixture(scope="module")
def probed(tiny_reasoner: HfEngine, questions: Sequence[Question]) -> Probe:
    """Traces of the first questions, with every probe that a policy's trigger can ask for."""
    found: dict[ProbePlan, list[RawTrace]] = {}

    def traces(policy: Policy) -> list[RawTrace]:
        # Both kinds of replies are compared with the same traces.
        plan = replace(at_trigger(policy_plan(policy), policy.trigger), on_stop="probe")
        if plan not in found:
            requests = make_requests(questions[FEW], policy)
            found[plan] = traces_of(tiny_reasoner, [request.prompt for request in requests], plan)
        return found[plan]

    return traces


def _sampling(temperature: float | None) -> dict[str, Any]:
    return {"greedy": False, "temperature": temperature, "seed": 5}


def middling(engine: HfEngine, family: str, traces: Sequence[RawTrace], **changes: Any) -> Policy:
    """A rule that stops a middling share of the traces, with no score close to its threshold."""
    changes = {"max_think": CAP} | changes
    if family == "run-stability":
        return rule(engine, family, 2.0, budgets=list(EARLY), **changes)
    changes = {"budgets": list(BUDGETS)} | changes
    never = rule(engine, family, 1e-3 if family == "confidence" else 1e6, **changes)
    scores = [replay(never, trace).scores for trace in traces]
    best = sorted(max(own, default=-np.inf) for own in scores)
    low, high = best[len(best) // 4], best[3 * len(best) // 4]
    ranked = sorted({score for own in scores for score in own if low <= score <= high})
    below, above = max(pairwise(ranked), key=lambda pair: pair[1] - pair[0])
    return rule(engine, family, (below + above) / 2, **changes)


def answers(
    engine: HfEngine, questions: Sequence[Question], policy: Policy, batch_size: int
) -> list[Reply]:
    """Serve the questions under the policy's plan; replies in their order."""
    requests, plan = make_requests(questions, policy), policy_plan(policy)
    found = dict(engine.serve(requests, plan, policy, batch_size=batch_size))
    return [found[i] for i in range(len(questions))]


def check(
    policy: Policy, traces: Sequence[RawTrace], replies: Sequence[Reply], on_stop: OnStop = "probe"
) -> list[int | None]:
    """Compare replies with recorded probes; return where they stop."""
    stops = []
    for reply, trace in zip(replies, traces, strict=True):
        replayed = replay(policy, trace, on_stop)
        position, asked = replayed.position, replayed.asked
        stops.append(position)
        assert (reply.budget, reply.n_probes) == (position, len(asked))
        assert reply.probe_tokens == sum(probe.probe_tokens for probe in asked)
        assert reply.prompt_tokens == trace.prompt_tokens
        if position is None:
            assert (reply.text, reply.finish) == (trace.natural_text, trace.finish)
            assert (reply.thinking, reply.stopped_at) == (trace.thinking, None)
            assert reply.think_tokens == trace.trace_tokens
            assert reply.visible_tokens == trace.natural_tokens
            continue
        unasked = on_stop == "answer" and position == policy.trigger.stop_at
        assert (reply.finish, reply.stopped_at) == ("stopped", len(asked) - (not unasked))
        assert trace.thinking.startswith(reply.thinking)
        assert bool(reply.visible_tokens) == (on_stop == "answer")
        if on_stop == "probe":
            assert reply.text == asked[-1].text
    return stops


# --- Stops are those of the recorded probes -------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "temperature"), [("confidence", 0.7), ("run-stability", None), ("learned", 0.7)]
)
def test_stops_and_answers_are_those_of_recorded_probes(
    family: str,
    temperature: float | None,
    tiny_reasoner: HfEngine,
    questions: Sequence[Question],
    recorded: Recorded,
) -> None:
    traces = recorded[temperature]
    policy = middling(tiny_reasoner, family, traces, sampling=_sampling(temperature))
    replies = answers(tiny_reasoner, questions, policy, batch_size=N)
    stops = check(policy, traces, replies)
    assert 4 < sum(stop is not None for stop in stops) < N - 4
    assert len(set(stops)) > 2
    for reply in replies:
        # One more token is needed to see that the trace has not ended at the stop.
        assert reply.budget is None or reply.think_tokens == reply.budget + 1
        assert reply.seconds > 0


# --- Traces are those of generation left alone ----------------------------------------------------


@pytest.mark.slow
def test_probing_leaves_the_trace_as_it_was(
    random_engine: HfEngine, windowed_engine: HfEngine
) -> None:
    """With many probes and no stop, the trace is token for token the one without probes.

    A policy of full thinking asks for no probe.
    """
    texts = ["x" * n for n in (1, 30, 7, 60)]
    for engine in (random_engine, windowed_engine):
        never = rule(engine, "confidence", 1e-3, budgets=[0, 1, 2, 7, 20, 33], max_think=40)
        plain = bound(engine, full_budget_content(), max_think=40)
        at = replace(policy_plan(plain), answer_cap=6)
        requests = make_requests(texts, never, task="numeric")
        alone = traces_of(engine, [request.prompt for request in requests], at)
        for policy in (never, plain):
            plan = replace(policy_plan(policy), answer_cap=6)
            found = dict(engine.serve(requests, plan, policy, batch_size=4))
            for i, trace in enumerate(alone):
                assert found[i].thinking == trace.thinking
                assert (found[i].text, found[i].finish) == (trace.natural_text, trace.finish)
                assert found[i].stopped_at is None
                assert found[i].n_probes == sum(b < trace.trace_tokens for b in policy.budgets)
                assert (found[i].probe_tokens > 0) == (found[i].n_probes > 0)


# --- Policies that probe elsewhere than on a grid ---


def frequent_markers(engine: HfEngine, traces: Sequence[RawTrace]) -> tuple[tuple[int, ...], ...]:
    """A pair of tokens that many traces hold, and one of their rare tokens."""
    encode = engine.chat.tokenizer.encode
    ids = [i for trace in traces for i in encode(trace.thinking, add_special_tokens=False)]
    counts = Counter(ids)
    return Counter(pairwise(ids)).most_common(3)[2][0], (min(ids, key=counts.__getitem__),)


@pytest.mark.parametrize(
    ("where", "on_stop"),
    [
        *((where, "probe") for where in ("stride-stop", "marker", "none")),
        *((where, "answer") for where in ("marker-stop", "none")),
    ],
)
def test_policies_stop_where_recorded_probes_say_wherever_they_probe(
    where: str,
    on_stop: OnStop,
    tiny_reasoner: HfEngine,
    questions: Sequence[Question],
    recorded: Recorded,
    probed: Probe,
) -> None:
    """Probes and stops are the same for every trigger, reply and family."""
    markers = frequent_markers(tiny_reasoner, recorded[None])
    half = sorted(trace.trace_tokens for trace in recorded[None][FEW])[2]
    triggers: dict[str, Trigger] = {
        "stride-stop": stride(24, half, 6, half),
        "marker": MarkerTrigger(markers, 5, 4),
        "marker-stop": MarkerTrigger(markers, 5, 4, 9, half),
        "none": ListedTrigger((half,), half),
    }
    trigger = triggers[where]
    family = "fixed-budget" if where == "none" else "learned" if "stop" in where else "agreement"
    content = anywhere_content("marker", family) if where != "none" else family_content(family)
    learned = 7.0 if where == "marker-stop" else 30.0  # the latter is never reached
    linear = {"fixed-budget": float(half), "learned": learned, "agreement": 20.0}[family]
    content |= trigger_content(trigger, family=family)
    content |= {"decision_threshold": linear, "threshold": display_threshold(family, linear)}
    policy = bound(tiny_reasoner, content, on_stop=on_stop, max_think=CAP)
    traces = probed(policy)
    found = answers(tiny_reasoner, questions[FEW], policy, batch_size=6)
    stops = check(policy, traces, found, on_stop)
    assert trigger.stop_at is None or half in stops, stops
    assert len(set(stops)) > 1, stops
