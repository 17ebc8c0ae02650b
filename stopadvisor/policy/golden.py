"""Golden decisions: example trajectories in a policy, with the decisions that must follow.

They are made when a policy is built and replayed whenever it is loaded.  A version of this package,
or a reader in another language, that decides differently fails there, before it serves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from stopadvisor.answers.normal_form import TASKS, normalize
from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.printable import short_repr
from stopadvisor.policy.climber import Climber, ClimbRule
from stopadvisor.policy.stepper import Stepper, StopRule
from stopadvisor.policy.terms import MIXED_TASKS, GoldenDecision, GoldenExample, GoldenStep
from stopadvisor.probes.trigger import MarkerTrigger

__all__ = ["make_golden", "replay_golden"]

_MOST_STEPS = 32
"""Steps kept of a golden trajectory."""
_MOST_STEPS_TO_THE_END = 256
"""Limit on the steps of a trajectory that shows the stop at `stop_at`."""
_MOST_GAPS = 64
"""Largest distance between markers, in units of `min_gap`, in examples at the threshold."""
_N_RANDOM = 6
_FINISHED = 0.8
"""Share of golden replies that end by themselves."""
_MOST_REPLY = 65_536
"""Longest golden reply, in tokens."""
_N_EDGES = 3

_ANSWERS = (" 7", "7.", "\\boxed{12}", "", "B", "(b)", "0.50", "1/2", "yes")

# Families and features that use exp or log, which C libraries round differently in the last bit.
# Their golden scores may differ by a tolerance, and their examples stay clear of the threshold.
_INEXACT = frozenset(
    ("confidence-leap", "log_position", "log_run", "log_votes", "answer_log_odds", "log_tokens")
)
_TOLERANCE = 1e-12
_DISTANCE = 1e-7

_RANGES = {"mean_logprob": (-30.0, 0.0), "mean_entropy": (0.0, 20.0), "markers": (0.0, 64.0)}

Rule = StopRule | ClimbRule


def make_golden(rule: Rule) -> list[GoldenExample]:
    """Make examples for a rule: steady, changing and empty answers, and the threshold's two sides.

    Deterministic: the same rule gives the same examples.  Empty for a rule without checkpoints.
    """
    if not (rule.asked if isinstance(rule, ClimbRule) else rule.most_probes):
        return []
    tasks = TASKS if rule.task == MIXED_TASKS else (rule.task,)
    if isinstance(rule, ClimbRule):
        candidates = _climbs(rule)
    else:
        candidates = _trajectories(rule, _MOST_STEPS)
    golden = [_entry(rule, tasks[k % len(tasks)], steps) for k, steps in enumerate(candidates)]
    edges: list[GoldenExample] = []
    for k, steps in enumerate(candidates):
        if len(edges) < 2 * _N_EDGES:
            edges += _edge(rule, tasks[k % len(tasks)], steps[: len(golden[k].steps)])
    if isinstance(rule, StopRule) and rule.stop_at is not None:
        shown = any(_stopped_by_position(rule, entry) for entry in golden)
        if not shown and rule.most_probes <= _MOST_STEPS_TO_THE_END:
            whole = _trajectories(rule, _MOST_STEPS_TO_THE_END)
            ends = (_entry(rule, tasks[0], steps) for steps in whole)
            edges += [entry for entry in ends if _stopped_by_position(rule, entry)][:1]
    return golden + edges


def _stopped_by_position(rule: StopRule, entry: GoldenExample) -> bool:
    """Whether `stop_at`, not the score, stops an example."""
    unscored = entry.decisions[-1].score < rule.decision_threshold
    return unscored and entry.steps[-1].think_tokens == rule.stop_at


# --- Replay ---------------------------------------------------------------------------------------


def replay_golden(rule: Rule, golden: Sequence[GoldenExample]) -> None:
    """Replay every example through the stepper.

    Raises
    ------
    PolicyError
        An answer's normal form, score or decision differs from the file.
    """
    for number, entry in enumerate(golden):
        name = f"golden decision {number} of {len(golden)} does not replay"
        decide = _decider(rule, entry.task)
        steps = zip(entry.steps, entry.decisions, strict=True)
        for checkpoint, (step, expected) in enumerate(steps):
            normalized = normalize(entry.task, step.answer)
            if normalized != step.normalized:
                raise PolicyError(
                    f"{name}: answer {short_repr(step.answer)} normalises to "
                    f"{short_repr(normalized)} here, to {short_repr(step.normalized)} in the file"
                )
            try:
                stop, score, _ = decide(step)
            except PolicyError as error:
                raise PolicyError(f"{name}: {error}") from error
            slack = _TOLERANCE if _is_inexact(rule) else 0.0
            same = math.isclose(score, expected.score, rel_tol=slack, abs_tol=slack)
            if stop != expected.stop or not same:
                raise PolicyError(
                    f"{name}: checkpoint {checkpoint} gives stop={stop}, score {score!r} here; "
                    f"stop={expected.stop}, score {expected.score!r} in the file"
                )


def _decider(rule: Rule, task: str) -> Callable[[GoldenStep], tuple[bool, float, bool]]:
    """A function from a step of one example to (stop, score, whether it is the last step)."""
    if isinstance(rule, StopRule):
        stepper = Stepper(rule, task)

        def observed(step: GoldenStep) -> tuple[bool, float, bool]:
            stop, score = stepper.observe(**vars(step))[:2]
            return stop, score, stop

        return observed
    climber = Climber(rule, task)

    def judged(step: GoldenStep) -> tuple[bool, float, bool]:
        judgement = climber.observe(
            finished=step.closed_by_itself is True,
            completion_tokens=step.think_tokens,
            mean_logprob=step.mean_logprob,
            normalized=step.normalized,
        )
        return judgement.serve, judgement.score, judgement.serve or judgement.gives_up

    return judged


def _is_inexact(rule: Rule) -> bool:
    """Whether scores depend on exp or log, which C libraries round differently."""
    return rule.family in _INEXACT or not rule.features.isdisjoint(_INEXACT)


# --- Made-up trajectories -------------------------------------------------------------------------


def _entry(rule: Rule, task: str, steps: Sequence[GoldenStep]) -> GoldenExample:
    """Follow a trajectory up to its stop, and record each decision."""
    decide = _decider(rule, task)
    walked, decisions = [], []
    for step in steps:
        walked.append(replace(step, normalized=normalize(task, step.answer)))
        stop, score, is_last = decide(walked[-1])
        decisions.append(GoldenDecision(stop, score))
        if is_last:
            break
    return GoldenExample(task, tuple(walked), tuple(decisions))


def _positions(rule: StopRule, most: int) -> tuple[int, ...]:
    """Positions of a trace: the trigger's, or those of made-up markers."""
    trigger = rule.trigger
    if not isinstance(trigger, MarkerTrigger):
        return trigger.positions[:most]
    found = [trigger.min_gap]
    while len(found) < min(trigger.max_probes, most):
        found.append(found[-1] + trigger.min_gap * (1 + len(found) % 3))  # unevenly
    if trigger.stop_at is None:
        return tuple(found)
    return (*(at for at in found if at < trigger.stop_at), trigger.stop_at)[-most:]


def _trajectories(rule: StopRule, most: int) -> list[list[GoldenStep]]:
    """Make inputs for up to `most` positions; steps after a stop are cut off later."""
    budgets = _positions(rule, most)
    # On a grid, thinking may have ended before the budget.
    earlier = rule.trigger.kind == "grid" and rule.stop_at is None
    # Python guarantees the sequence only of random().
    draw = Random(0).random

    # Answers get their normal form once the task is known.
    def steps(*answers: str, means: tuple[float, float], share: float = 1.0) -> list[GoldenStep]:
        thought = [int(share * budget) if earlier else budget for budget in budgets]
        return [
            GoldenStep(answers[j % len(answers)], "", *means, float(j), think)
            for j, think in enumerate(thought)
        ]

    def drawn(budget: int) -> GoldenStep:
        answer = _ANSWERS[int(draw() ** 2 * len(_ANSWERS))]
        means = -round(4.0 * draw() ** 3, 3), round(3.0 * draw() ** 3, 3)
        return GoldenStep(answer, "", *means, float(int(6.0 * draw())), budget)

    found = [
        steps(" 7", means=(-0.01, 0.02)),  # sure and steady
        steps(*_ANSWERS, means=(-1.5, 2.0)),  # unsure and wavering
        steps("", means=(-0.3, 0.4)),  # no answer at all
        steps(" 7", "7.", means=(0.0, 0.0), share=0.0),  # perfectly sure, nothing thought
        # growing surer
        [GoldenStep("B", "", -3.0 / j, 3.0 / j, 0.0, at) for j, at in enumerate(budgets, start=1)],
        *([drawn(budget) for budget in budgets] for _ in range(_N_RANDOM)),
    ]
    if not rule.needs_closed:
        return found
    return [
        [replace(step, closed_by_itself=(j + k) % 2 == 1) for j, step in enumerate(trajectory)]
        for k, trajectory in enumerate(found)
    ]


def _climbs(rule: ClimbRule) -> list[list[GoldenStep]]:
    """Make replies of each rung: equal and different, cut off, short and long."""
    draw = Random(0).random
    caps = sorted({int(-threshold) for threshold in rule.thresholds if rule.family == "cap"})
    lengths = (1, 40, 400, 4000, *caps[:_MOST_STEPS])

    def replies(answers: Sequence[str], lengths: Sequence[int]) -> list[GoldenStep]:
        found = []
        for j in range(min(len(rule.asked), _MOST_STEPS)):
            logprob = -round(2.0 * draw() ** 3, 3)
            answer = answers[int(draw() ** 2 * len(answers))]
            tokens, finished = lengths[j % len(lengths)], draw() < _FINISHED
            found.append(GoldenStep(answer, "", logprob, 0.0, 0.0, tokens, finished))
        return found

    found = [replies([" 7"], [40]), replies(["", " 7"], [400])]
    found += [replies(_ANSWERS, lengths[k % len(lengths) :]) for k in range(_N_RANDOM)]
    return found


# --- At the threshold -----------------------------------------------------------------------------


def _edge(rule: Rule, task: str, steps: list[GoldenStep]) -> list[GoldenExample]:
    """Bisect an input of the last step to where the decision changes; return both sides."""
    inexact = _is_inexact(rule)
    for name, (low, high) in _ranges(rule, steps).items():
        sides: dict[float, GoldenExample] = {}

        def stops(
            value: float, name: str = name, sides: dict[float, GoldenExample] = sides
        ) -> bool:
            changed: dict[str, Any] = {name: value}
            sides[value] = _entry(rule, task, [*steps[:-1], replace(steps[-1], **changed)])
            return sides[value].decisions[-1].stop

        below = stops(low)
        if below == stops(high):
            continue
        while not (inexact and high - low < _DISTANCE):
            middle = (low + high) // 2 if isinstance(low, int) else (low + high) / 2
            if middle in (low, high):
                break
            if stops(middle) == below:
                low = middle
            else:
                high = middle
        if not inexact or all(_clear(rule, sides[value]) for value in (low, high)):
            return [sides[low], sides[high]]
    return []


def _ranges(rule: Rule, steps: Sequence[GoldenStep]) -> dict[str, tuple[float, float]]:
    """Smallest and largest value of each input of the last step."""
    if isinstance(rule, ClimbRule):
        return {"mean_logprob": _RANGES["mean_logprob"], "think_tokens": (0, _MOST_REPLY)}
    trigger = rule.trigger
    if not isinstance(trigger, MarkerTrigger) or steps[-1].think_tokens == trigger.stop_at:
        return dict(_RANGES)
    last = steps[-2].think_tokens if len(steps) > 1 else 0
    far = last + _MOST_GAPS * trigger.min_gap
    if trigger.stop_at is not None:
        far = min(far, trigger.stop_at - 1)
    return {**_RANGES, "think_tokens": (last + trigger.min_gap, far)}


def _clear(rule: Rule, entry: GoldenExample) -> bool:
    """Whether the last score is too far from the threshold for rounding to matter."""
    if isinstance(rule, ClimbRule):
        threshold = rule.thresholds[len(entry.decisions) - 1]
    else:
        threshold = rule.decision_threshold
    return abs(entry.decisions[-1].score - threshold) > 10 * _TOLERANCE
