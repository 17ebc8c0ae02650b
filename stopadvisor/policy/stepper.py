"""The online stepper: takes one forced answer at a time, and says whether to stop.

It uses plain Python floats and the same order of operations as `features`, `scores` and `boosting`
use on whole tables.  So a replay of recorded probes gives the same scores to the last bit, and the
same stops that calibration saw.  Knows no files, no model, and not when to probe: `session` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, SupportsFloat, SupportsIndex

from stopadvisor.answers.normal_form import TASKS, normalize
from stopadvisor.errors import PolicyError
from stopadvisor.policy.schema import MIXED_TASKS
from stopadvisor.policy.values import short_repr
from stopadvisor.rules.features import FEATURES

__all__ = ["Decision", "Stepper", "StopRule"]

_SLACK = 1e-3
"""Nats by which a mean log-probability may pass 0, or an entropy fall below it, by rounding."""

_TEXT_ONLY = frozenset(("previous_match", "run_length", "vote_share"))

# A node is its value at a leaf, else (feature, threshold, left, right): the fastest walk found.
Node = Any


class Decision(NamedTuple):
    """What to do after one checkpoint."""

    stop: bool
    """Stop thinking now and serve as the policy's `on_stop` says."""
    score: float
    """The linear score, compared with `decision_threshold`; higher means stop sooner."""
    checkpoint: int
    """Index of the checkpoint just decided on."""
    natural_end: bool
    """No stop, and no checkpoint left: let the model think to its own end."""


@dataclass(frozen=True)
class StopRule:
    """A policy's rule in the form the stepper needs; made once and shared by all its steppers."""

    family: str | None
    budgets: tuple[int, ...]
    decision_threshold: float
    task: str
    intercept: float
    columns: tuple[tuple[int, float, float, float], ...]
    """(index into FEATURES, mean, scale, coefficient), in the order of summation."""
    trees: tuple[Node, ...]
    tree_columns: tuple[int, ...]
    """Index into FEATURES of each feature that the trees number."""
    needs_answer: bool
    needs_logprob: bool
    needs_entropy: bool
    needs_markers: bool

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> StopRule:
        """Take the rule out of a checked content."""
        family, features = content["family"], content["features"]
        used = set(features)
        linear = family in ("learned", "learned-keeps", "learned-text")
        positions = tuple(FEATURES.index(name) for name in features)
        return cls(
            family=family,
            budgets=tuple(content["budgets"]),
            decision_threshold=(math.inf if family is None else content["decision_threshold"]),
            task=content["task"],
            intercept=content["intercept"] or 0.0,
            columns=(
                tuple(
                    zip(positions, content["mean"], content["scale"], content["coef"], strict=True)
                )
                if linear
                else ()
            ),
            trees=tuple(_root(tree) for tree in content.get("trees", ())),
            tree_columns=() if linear else positions,
            needs_answer=family == "run-stability" or bool(used & _TEXT_ONLY),
            needs_logprob=(family in ("confidence", "confidence-leap") or "answer_logprob" in used),
            needs_entropy=family == "entropy" or "answer_entropy" in used,
            needs_markers="marker_density" in used,
        )


def _root(tree: Mapping[str, Sequence[Any]]) -> Node:
    """Find the root of a tree given as lists; children stand after their parents."""
    nodes: list[Node] = list(tree["value"])
    for k in range(len(nodes) - 1, -1, -1):
        if tree["feature"][k] >= 0:
            nodes[k] = (
                tree["feature"][k],
                tree["threshold"][k],
                nodes[tree["left"][k]],
                nodes[tree["right"][k]],
            )
    return nodes[0]


class Stepper:
    """Decides at each checkpoint of one question; made by ``Policy.start()``.

    Not shared between questions or threads.  Call `observe` at each of the policy's budgets in
    order, for as long as the trace goes on: a trace that ends by itself needs no more probes.
    """

    __slots__ = (
        "_confidence",
        "_finished",
        "_next",
        "_previous",
        "_rule",
        "_run",
        "_task",
        "_think",
        "_votes",
    )

    def __init__(self, rule: StopRule, task: str | None = None) -> None:
        if task is not None and rule.task not in (task, MIXED_TASKS):
            raise PolicyError(
                f"task must be {rule.task!r}, as the policy says, got {short_repr(task)}"
            )
        if task is not None and task not in TASKS:
            raise PolicyError(f"task must be one of {', '.join(TASKS)}, got {short_repr(task)}")
        self._rule = rule
        self._task = task if rule.task == MIXED_TASKS else rule.task
        self._next = 0
        self._finished = not rule.budgets
        self._think = 0
        self._run = 0
        self._previous = ""
        self._votes: dict[str, int] = {}
        self._confidence = 0.0

    @property
    def next_budget(self) -> int | None:
        """Thinking tokens at which to probe next; None when there is nothing more to ask."""
        return None if self._finished else self._rule.budgets[self._next]

    def observe(
        self,
        *,
        think_tokens: int,
        answer: str | None = None,
        mean_logprob: float | None = None,
        mean_entropy: float | None = None,
        markers: float | None = None,
        normalized: str | None = None,
    ) -> Decision:
        """Decide on the forced answer at the next checkpoint.

        Parameters
        ----------
        think_tokens : int
            Thinking tokens in the probed prefix; at most the checkpoint's budget.
        answer : str
            Raw text of the probe.  May be left out by policies that compare no answers.
        mean_logprob, mean_entropy : float, nats
            Means over the answer's tokens, the ending one left out.  May be left out by policies
            that do not read them.
        markers : float
            Backtracking markers in the prefix, by the policy's own rule.
        normalized : str, optional
            The normalised answer, where it is known already; `answer` is not looked at then.

        Raises
        ------
        PolicyError
            Nothing more to observe, an input that the policy needs is missing, or one is
            impossible.  The stepper is unchanged then; observe the same checkpoint again.
        """
        rule = self._rule
        j = self._next
        if self._finished:
            raise PolicyError(self._why_finished())
        if type(think_tokens) is not int:
            think_tokens = _whole(think_tokens)
        if not self._think <= think_tokens <= rule.budgets[j]:
            raise PolicyError(
                f"think_tokens at checkpoint {j} must be from {self._think} to its budget "
                f"{rule.budgets[j]}, got {think_tokens}"
            )
        if mean_logprob is None:
            if rule.needs_logprob:
                raise PolicyError(_missing(rule, "mean_logprob"))
            mean_logprob = 0.0
        else:
            if type(mean_logprob) is not float:
                mean_logprob = _real("mean_logprob", mean_logprob)
            if not -math.inf < mean_logprob <= _SLACK:
                raise PolicyError(
                    f"mean_logprob must be finite and at most 0 (nats), got {mean_logprob!r}"
                )
        if mean_entropy is None:
            if rule.needs_entropy:
                raise PolicyError(_missing(rule, "mean_entropy"))
            mean_entropy = 0.0
        else:
            if type(mean_entropy) is not float:
                mean_entropy = _real("mean_entropy", mean_entropy)
            if not -_SLACK <= mean_entropy < math.inf:
                raise PolicyError(
                    f"mean_entropy must be finite and at least 0 (nats), got {mean_entropy!r}"
                )
        if markers is None:
            if rule.needs_markers:
                raise PolicyError(_missing(rule, "markers"))
            markers = 0.0
        else:
            if type(markers) is not float:
                markers = _real("markers", markers)
            if not 0.0 <= markers < math.inf:
                raise PolicyError(f"markers must be a count, finite and >= 0, got {markers!r}")
        run = votes = 1
        if rule.needs_answer:
            if normalized is None:
                normalized = self._normalized(answer)
            elif type(normalized) is not str:
                raise PolicyError(f"normalized must be a string, got {short_repr(normalized)}")
            if j and normalized == self._previous:
                run = self._run + 1
            votes = self._votes.get(normalized, 0) + 1

        family = rule.family
        confidence = 0.0
        if family == "confidence":
            score = mean_logprob
        elif family == "entropy":
            score = -mean_entropy
        elif family == "run-stability":
            score = float(run)
        elif family == "confidence-leap":
            confidence = math.exp(mean_logprob)
            rise = confidence - self._confidence
            score = rise * confidence if j and rise > 0.0 else 0.0
        else:
            last = len(rule.budgets) - 1
            values = (
                rule.budgets[j] / rule.budgets[last] if rule.budgets[last] else 0.0,
                j / last if last else 0.0,
                mean_logprob,
                mean_entropy,
                1.0 if run > 1 else 0.0,
                float(run),
                votes / (j + 1),
                markers / think_tokens if think_tokens else 0.0,
            )
            score = _learned_score(rule, values)
            if score - score != 0.0:
                raise PolicyError(f"the score at checkpoint {j} is not finite: {score!r}")

        if normalized is not None:
            self._votes[normalized] = votes
            self._previous = normalized
        self._run = run
        self._confidence = confidence
        self._think = think_tokens
        self._next = j + 1
        stop = score >= rule.decision_threshold
        self._finished = stop or j + 1 == len(rule.budgets)
        return Decision(stop, score, j, self._finished and not stop)

    def _normalized(self, answer: str | None) -> str:
        if answer is None:
            raise PolicyError(_missing(self._rule, "answer"))
        if not isinstance(answer, str):
            raise PolicyError(f"answer must be a string, got {short_repr(answer)}")
        if self._task is None:
            raise PolicyError(
                "the policy covers mixed tasks: start(task=…) must name the question's, got none"
            )
        return normalize(self._task, answer)

    def _why_finished(self) -> str:
        if not self._rule.budgets:
            return "the policy is full-budget: it has no checkpoint to observe"
        if self._next == len(self._rule.budgets):
            return f"the last of {self._next} checkpoints was observed already; start() a new one"
        return f"the policy stopped at checkpoint {self._next - 1}; start() a new one"


def _learned_score(rule: StopRule, values: tuple[float, ...]) -> float:
    z = rule.intercept
    if rule.trees:
        inputs = [values[k] for k in rule.tree_columns]
        for node in rule.trees:
            while type(node) is tuple:
                feature, threshold, left, right = node
                node = left if inputs[feature] <= threshold else right
            z = z + node
        return z
    for k, mean, scale, coef in rule.columns:
        z = z + coef * ((values[k] - mean) / scale)
    return z


def _missing(rule: StopRule, name: str) -> str:
    return f"family {rule.family!r} with its features needs {name}, got None"


def _real(name: str, value: object) -> float:
    """Convert a number that is no Python float: an int, a numpy scalar, a tensor of one element."""
    if isinstance(value, SupportsFloat) and not isinstance(value, bool):
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise PolicyError(f"{name} must be a number, got {short_repr(value)}") from error
    raise PolicyError(f"{name} must be a number, got {short_repr(value)}")


def _whole(value: object) -> int:
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        try:
            return value.__index__()
        except TypeError as error:
            raise PolicyError(
                f"think_tokens must be an integer, got {short_repr(value)}"
            ) from error
    raise PolicyError(f"think_tokens must be an integer, got {short_repr(value)}")
