"""Golden decisions: example trajectories in a policy, with the decisions they must give.

They are made when a policy is built and replayed whenever it is loaded.  Another version of this
package, or a reader in another language, that would decide differently fails there, before it
serves anyone.  Knows the stepper and its inputs, and no files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from stopadvisor.answers.normal_form import TASKS, normalize
from stopadvisor.errors import PolicyError
from stopadvisor.policy.schema import MIXED_TASKS
from stopadvisor.policy.stepper import Stepper, StopRule
from stopadvisor.policy.values import short_repr

__all__ = ["make_golden", "replay_golden"]

_MOST_STEPS = 32
"""Longest golden trajectory; policies with more checkpoints show their first ones."""
_N_RANDOM = 6
_N_EDGES = 3

_ANSWERS = (" 7", "7.", "\\boxed{12}", "", "B", "(b)", "0.50", "1/2", "yes")

# Families that use exp: C libraries differ in its last bit.  Their golden scores may differ by this
# tolerance, and their examples keep a larger distance from the threshold.
_EXP_FAMILIES = ("confidence-leap",)
_EXP_TOLERANCE = 1e-12
_EXP_DISTANCE = 1e-7

_RANGES = {"mean_logprob": (-30.0, 0.0), "mean_entropy": (0.0, 20.0), "markers": (0.0, 64.0)}

GoldenStep = dict[str, Any]
"""Inputs of one checkpoint, by the names that `Stepper.observe` gives them."""


def make_golden(rule: StopRule) -> list[dict[str, Any]]:
    """Make examples for a rule: steady, changing and empty answers, next to the threshold too.

    Deterministic: the same rule gives the same examples.  Empty for a rule without checkpoints.
    """
    if not rule.budgets:
        return []
    tasks = TASKS if rule.task == MIXED_TASKS else (rule.task,)
    candidates = _trajectories(rule)
    golden = [_entry(rule, tasks[k % len(tasks)], steps) for k, steps in enumerate(candidates)]
    edges: list[dict[str, Any]] = []
    for k, steps in enumerate(candidates):
        if len(edges) < 2 * _N_EDGES:
            edges += _edge(rule, tasks[k % len(tasks)], steps[: len(golden[k]["steps"])])
    return golden + edges


def replay_golden(rule: StopRule, golden: Sequence[Mapping[str, Any]]) -> None:
    """Replay every example through the stepper.

    Raises
    ------
    PolicyError
        An answer normalises, scores or decides otherwise than the file says.
    """
    for number, entry in enumerate(golden):
        name = f"golden decision {number} of {len(golden)} does not replay"
        stepper = Stepper(rule, entry["task"])
        for step, expected in zip(entry["steps"], entry["decisions"], strict=True):
            found = normalize(entry["task"], step["answer"])
            if found != step["normalized"]:
                raise PolicyError(
                    f"{name}: answer {short_repr(step['answer'])} normalises to "
                    f"{short_repr(found)} here, to {short_repr(step['normalized'])} in the file"
                )
            try:
                decision = stepper.observe(**step)
            except PolicyError as error:
                raise PolicyError(f"{name}: {error}") from error
            if decision.stop != expected["stop"] or not _same_score(
                rule, decision.score, expected["score"]
            ):
                raise PolicyError(
                    f"{name}: checkpoint {decision.checkpoint} gives stop={decision.stop}, score "
                    f"{decision.score!r} here; stop={expected['stop']}, score "
                    f"{expected['score']!r} in the file"
                )


def _same_score(rule: StopRule, found: float, expected: float) -> bool:
    if rule.family in _EXP_FAMILIES:
        return math.isclose(found, expected, rel_tol=_EXP_TOLERANCE, abs_tol=_EXP_TOLERANCE)
    return found == expected


def _trajectories(rule: StopRule) -> list[list[GoldenStep]]:
    """Make inputs for every checkpoint; those after a stop are cut off later."""
    budgets = rule.budgets[:_MOST_STEPS]
    # Nothing but random(), whose numbers Python promises to keep.
    draw = Random(0).random

    def steps(
        answers: Sequence[str], logprob: float, entropy: float, share: float
    ) -> list[GoldenStep]:
        return [
            _step(answers[j % len(answers)], logprob, entropy, float(j), int(share * budget))
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


def _entry(rule: StopRule, task: str, steps: Sequence[GoldenStep]) -> dict[str, Any]:
    """Step through a trajectory up to its stop, and record each decision."""
    stepper = Stepper(rule, task)
    walked: list[GoldenStep] = []
    decisions = []
    for step in steps:
        step = {**step, "normalized": normalize(task, step["answer"])}
        decision = stepper.observe(**step)
        walked.append(step)
        decisions.append({"stop": decision.stop, "score": decision.score})
        if decision.stop:
            break
    return {"task": task, "steps": walked, "decisions": decisions}


def _edge(rule: StopRule, task: str, steps: list[GoldenStep]) -> list[dict[str, Any]]:
    """Vary the last step until the decision changes; give the nearest inputs on both sides."""
    for name, (low, high) in _RANGES.items():

        def ends(value: float, name: str = name) -> dict[str, Any]:
            return _entry(rule, task, [*steps[:-1], {**steps[-1], name: value}])

        sides = {value: ends(value) for value in (low, high)}
        if _stops(sides[low]) == _stops(sides[high]):
            continue
        while True:
            middle = (low + high) / 2
            if middle in (low, high):
                break
            if rule.family in _EXP_FAMILIES and high - low < _EXP_DISTANCE:
                break
            sides[middle] = ends(middle)
            if _stops(sides[middle]) == _stops(sides[low]):
                low = middle
            else:
                high = middle
        if all(_clear(rule, sides[value]) for value in (low, high)):
            return [sides[low], sides[high]]
    return []


def _stops(entry: Mapping[str, Any]) -> bool:
    return bool(entry["decisions"][-1]["stop"])


def _clear(rule: StopRule, entry: Mapping[str, Any]) -> bool:
    """Whether the last decision is safe from rounding of exp."""
    if rule.family not in _EXP_FAMILIES:
        return True
    distance = abs(entry["decisions"][-1]["score"] - rule.decision_threshold)
    return bool(distance > 10 * _EXP_TOLERANCE)
