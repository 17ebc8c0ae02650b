"""Golden decisions: example trajectories in a policy, with the decisions they must give.

They are made when a policy is built and replayed whenever it is loaded.  Another version of this
package, or a reader in another language, that would decide differently fails there, before it
serves anyone.  Knows the stepper and its inputs, and no files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from stopadvisor.answers.normal_form import TASKS, normalize
from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.printable import short_repr
from stopadvisor.policy.climber import Climber, ClimbRule
from stopadvisor.policy.stepper import Stepper, StopRule
from stopadvisor.policy.terms import MIXED_TASKS, GoldenExample
from stopadvisor.probes.trigger import MarkerTrigger

__all__ = ["make_golden", "replay_golden"]

_MOST_STEPS = 32
"""Longest golden trajectory; policies with more checkpoints show their first ones."""
_MOST_STEPS_TO_THE_END = 256
"""Longest one that shows how everybody is stopped at the last position."""
_MOST_GAPS = 64
"""Times `min_gap` that a marker lies after the one before, in examples at the threshold."""
_N_RANDOM = 6
_FINISHED = 0.8
"""Share of golden replies that ended by themselves."""
_MOST_REPLY = 65_536
"""Longest golden reply, in tokens."""
_N_EDGES = 3

_ANSWERS = (" 7", "7.", "\\boxed{12}", "", "B", "(b)", "0.50", "1/2", "yes")

# Rules that use exp or log: C libraries differ in the last bit.  Their golden scores may differ by
# this tolerance, and their examples keep a larger distance from the threshold.
_INEXACT = frozenset(
    ("confidence-leap", "log_position", "log_run", "log_votes", "answer_log_odds", "log_tokens")
)
_TOLERANCE = 1e-12
_DISTANCE = 1e-7

_RANGES = {"mean_logprob": (-30.0, 0.0), "mean_entropy": (0.0, 20.0), "markers": (0.0, 64.0)}

GoldenStep = dict[str, Any]
"""Inputs of one checkpoint, by the names that `Stepper.observe` gives them."""


def make_golden(rule: StopRule | ClimbRule) -> list[dict[str, Any]]:
    """Make examples for a rule: steady, changing and empty answers, next to the threshold too.

    Deterministic: the same rule gives the same examples.  Empty for a rule without checkpoints.
    """
    if not (rule.asked if isinstance(rule, ClimbRule) else rule.most_probes):
        return []
    tasks = TASKS if rule.task == MIXED_TASKS else (rule.task,)
    if isinstance(rule, ClimbRule):
        candidates = _climbs(rule)
    else:
        candidates = _trajectories(rule, _positions(rule, _MOST_STEPS))
    golden = [_entry(rule, tasks[k % len(tasks)], steps) for k, steps in enumerate(candidates)]
    edges: list[dict[str, Any]] = []
    for k, steps in enumerate(candidates):
        if len(edges) < 2 * _N_EDGES:
            edges += _edge(rule, tasks[k % len(tasks)], steps[: len(golden[k]["steps"])])
    if isinstance(rule, ClimbRule):
        return golden + edges
    if rule.stop_at is not None and not any(_at_the_end(rule, entry) for entry in golden):
        edges += _stopped_at_the_end(rule, tasks[0])
    return golden + edges


def replay_golden(rule: StopRule | ClimbRule, golden: Sequence[GoldenExample]) -> None:
    """Replay every example through the stepper.

    Raises
    ------
    PolicyError
        An answer normalises, scores or decides otherwise than the file says.
    """
    for number, entry in enumerate(golden):
        name = f"golden decision {number} of {len(golden)} does not replay"
        decide = _decider(rule, entry.task)
        steps = zip(entry.steps, entry.decisions, strict=True)
        for checkpoint, (step, expected) in enumerate(steps):
            found = normalize(entry.task, step.answer)
            if found != step.normalized:
                raise PolicyError(
                    f"{name}: answer {short_repr(step.answer)} normalises to "
                    f"{short_repr(found)} here, to {short_repr(step.normalized)} in the file"
                )
            try:
                stop, score = decide(vars(step))
            except PolicyError as error:
                raise PolicyError(f"{name}: {error}") from error
            if stop != expected.stop or not _same_score(rule, score, expected.score):
                raise PolicyError(
                    f"{name}: checkpoint {checkpoint} gives stop={stop}, score {score!r} here; "
                    f"stop={expected.stop}, score {expected.score!r} in the file"
                )


def _decider(
    rule: StopRule | ClimbRule, task: str
) -> Callable[[Mapping[str, Any]], tuple[bool, float]]:
    """What is decided on each step of one example, and its score."""
    if isinstance(rule, StopRule):
        stepper = Stepper(rule, task)
        return lambda step: stepper.observe(**step)[:2]
    climber = Climber(rule, task)

    def judge(step: Mapping[str, Any]) -> tuple[bool, float]:
        return climber.observe(
            finished=step["closed_by_itself"] is True,
            completion_tokens=step["think_tokens"],
            mean_logprob=step["mean_logprob"],
            normalized=step["normalized"],
        )[:2]

    return judge


def _same_score(rule: StopRule | ClimbRule, found: float, expected: float) -> bool:
    if _is_inexact(rule):
        return math.isclose(found, expected, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    return found == expected


def _is_inexact(rule: StopRule | ClimbRule) -> bool:
    """Whether the scores go through a function that C libraries round differently."""
    return rule.family in _INEXACT or not rule.features.isdisjoint(_INEXACT)


def _positions(rule: StopRule, most: int) -> tuple[int, ...]:
    """Positions that a trace can have: the trigger's own, or those of made-up markers."""
    if rule.positions is not None:
        return rule.positions[:most]
    trigger = rule.trigger
    assert isinstance(trigger, MarkerTrigger)
    found = [trigger.min_gap]
    while len(found) < min(trigger.max_probes, most):
        gap = trigger.min_gap * (1 + len(found) % 3)  # markers come unevenly
        found.append(found[-1] + (gap if trigger.every is None else min(gap, trigger.every)))
    if trigger.stop_at is None:
        return tuple(found)
    before = [position for position in found if position < trigger.stop_at]
    if (
        before
        and trigger.every is not None
        and len(before) < trigger.max_probes
        and trigger.stop_at - before[-1] > trigger.every
    ):
        return tuple(before)  # a probe would come first
    return (*before, trigger.stop_at)[-most:]


def _at_the_end(rule: StopRule, entry: Mapping[str, Any]) -> bool:
    """Whether an example is stopped where everybody is, and not by its score."""
    last, decision = entry["steps"][-1], entry["decisions"][-1]
    unscored: bool = decision["score"] < rule.decision_threshold
    return unscored and bool(last["think_tokens"] == rule.stop_at)


def _stopped_at_the_end(rule: StopRule, task: str) -> list[dict[str, Any]]:
    """Look for an example that is stopped by its position alone; none where scores stop all."""
    if rule.most_probes > _MOST_STEPS_TO_THE_END:
        return []
    for steps in _trajectories(rule, _positions(rule, _MOST_STEPS_TO_THE_END)):
        entry = _entry(rule, task, steps)
        if _at_the_end(rule, entry):
            return [entry]
    return []


def _trajectories(rule: StopRule, budgets: Sequence[int]) -> list[list[GoldenStep]]:
    """Make inputs for these positions; those after a stop are cut off later."""
    # A grid's request may have thought less than its budget says.
    earlier = rule.trigger.kind == "grid" and rule.stop_at is None
    # Nothing but random(), whose numbers Python promises to keep.
    draw = Random(0).random

    def steps(
        answers: Sequence[str], logprob: float, entropy: float, share: float
    ) -> list[GoldenStep]:
        return [
            _step(
                answers[j % len(answers)],
                logprob,
                entropy,
                float(j),
                int(share * budget) if earlier else budget,
            )
            for j, budget in enumerate(budgets)
        ]

    found = [
        steps([" 7"], -0.01, 0.02, 1.0),  # sure and steady
        steps(_ANSWERS, -1.5, 2.0, 1.0),  # unsure and wavering
        steps([""], -0.3, 0.4, 1.0),  # no answer at all
        steps([" 7", "7."], 0.0, 0.0, 0.0),  # perfectly sure, nothing thought
        [  # growing surer
            _step("B", -3.0 / (j + 1), 3.0 / (j + 1), 0.0, budget)
            for j, budget in enumerate(budgets)
        ],
    ]
    found += [
        [
            _step(
                _ANSWERS[int(draw() ** 2 * len(_ANSWERS))],
                -round(4.0 * draw() ** 3, 3),
                round(3.0 * draw() ** 3, 3),
                float(int(6.0 * draw())),
                budget,
            )
            for budget in budgets
        ]
        for _ in range(_N_RANDOM)
    ]
    if rule.needs_closed:
        for k, trajectory in enumerate(found):
            for j, step in enumerate(trajectory):
                step["closed_by_itself"] = (j + k) % 2 == 1
    return found


def _climbs(rule: ClimbRule) -> list[list[GoldenStep]]:
    """Make replies of every rung: equal and different answers, cut ones, short and long ones."""
    draw = Random(0).random
    caps = sorted({int(-threshold) for threshold in rule.thresholds if rule.family == "cap"})
    lengths = (1, 40, 400, 4000, *caps[:_MOST_STEPS])

    def replies(answers: Sequence[str], lengths: Sequence[int]) -> list[GoldenStep]:
        found = []
        for j in range(min(len(rule.asked), _MOST_STEPS)):
            logprob = -round(2.0 * draw() ** 3, 3)
            answer = answers[int(draw() ** 2 * len(answers))]
            step = _step(answer, logprob, 0.0, 0.0, lengths[j % len(lengths)])
            found.append(step | {"closed_by_itself": draw() < _FINISHED})
        return found

    found = [replies([" 7"], [40]), replies(["", " 7"], [400])]
    found += [replies(_ANSWERS, lengths[k % len(lengths) :]) for k in range(_N_RANDOM)]
    return found


def _step(answer: str, logprob: float, entropy: float, markers: float, think: int) -> GoldenStep:
    return {
        "answer": answer,
        "normalized": "",  # filled in once the task is known
        "mean_logprob": logprob,
        "mean_entropy": entropy,
        "markers": markers,
        "think_tokens": think,
    }


def _entry(rule: StopRule | ClimbRule, task: str, steps: Sequence[GoldenStep]) -> dict[str, Any]:
    """Step through a trajectory up to its stop, and record each decision."""
    decide = _decider(rule, task)
    walked: list[GoldenStep] = []
    decisions = []
    for step in steps:
        step = {**step, "normalized": normalize(task, step["answer"])}
        stop, score = decide(step)
        walked.append(step)
        decisions.append({"stop": stop, "score": score})
        if stop:
            break
    return {"task": task, "steps": walked, "decisions": decisions}


def _edge(rule: StopRule | ClimbRule, task: str, steps: list[GoldenStep]) -> list[dict[str, Any]]:
    """Vary the last step until the decision changes; give the nearest inputs on both sides."""
    for name, (low, high) in _ranges(rule, steps).items():

        def ends(value: float, name: str = name) -> dict[str, Any]:
            return _entry(rule, task, [*steps[:-1], {**steps[-1], name: value}])

        sides = {value: ends(value) for value in (low, high)}
        if _stops(sides[low]) == _stops(sides[high]):
            continue
        while True:
            middle = (low + high) // 2 if isinstance(low, int) else (low + high) / 2
            if middle in (low, high):
                break
            if _is_inexact(rule) and high - low < _DISTANCE:
                break
            sides[middle] = ends(middle)
            if _stops(sides[middle]) == _stops(sides[low]):
                low = middle
            else:
                high = middle
        if all(_clear(rule, sides[value]) for value in (low, high)):
            return [sides[low], sides[high]]
    return []


def _ranges(
    rule: StopRule | ClimbRule, steps: Sequence[GoldenStep]
) -> dict[str, tuple[float, float]]:
    """Least and largest value of each input that the last step may be given."""
    if isinstance(rule, ClimbRule):
        return {"mean_logprob": _RANGES["mean_logprob"], "think_tokens": (0, _MOST_REPLY)}
    found: dict[str, tuple[float, float]] = dict(_RANGES)
    trigger = rule.trigger
    if isinstance(trigger, MarkerTrigger) and steps[-1]["think_tokens"] != trigger.stop_at:
        last = steps[-2]["think_tokens"] if len(steps) > 1 else 0
        far = last + (trigger.every or _MOST_GAPS * trigger.min_gap)
        if trigger.stop_at is not None:
            far = min(far, trigger.stop_at - 1)
        found["think_tokens"] = (last + trigger.min_gap, far)
    return found


def _stops(entry: Mapping[str, Any]) -> bool:
    return bool(entry["decisions"][-1]["stop"])


def _clear(rule: StopRule | ClimbRule, entry: Mapping[str, Any]) -> bool:
    """Whether the last decision is safe from rounding of exp and log."""
    if not _is_inexact(rule):
        return True
    decisions = entry["decisions"]
    threshold = (
        rule.thresholds[len(decisions) - 1]
        if isinstance(rule, ClimbRule)
        else rule.decision_threshold
    )
    distance = abs(decisions[-1]["score"] - threshold)
    return bool(distance > 10 * _TOLERANCE)
