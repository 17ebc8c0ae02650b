"""The online stepper: takes one forced answer at a time and decides whether to stop.

It uses plain Python floats in the same order of operations as `features` and `scores` do on whole
tables.  So a replay of recorded probes gives the same scores to the last bit, and the same stops as
at calibration.  `session` decides when to probe.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, SupportsFloat, SupportsIndex

from stopadvisor.answers.normal_form import TASKS, normalize
from stopadvisor.ground.errors import PolicyError, UndecidedError
from stopadvisor.ground.printable import short_repr
from stopadvisor.policy.terms import MIXED_TASKS, PolicyTerms, trigger_of
from stopadvisor.probes.trigger import Trigger
from stopadvisor.rules.families import AGREEMENT_FAMILIES
from stopadvisor.rules.features import (
    FEATURES,
    MOST_LOG_ODDS,
    OPEN_FEATURES,
    POSITION_FEATURES,
    SUREST_LOGPROB,
)

__all__ = ["Decision", "Stepper", "StopRule", "log_odds", "normalize_under", "task_under"]

_SLACK = 1e-3
"""Nats by which rounding may lift a log-probability above 0, or push an entropy below it."""

_KNOWN = FEATURES + POSITION_FEATURES + OPEN_FEATURES
_OF_ANSWERS = (
    *("previous_match", "run_length", "vote_share", "log_run", "log_votes", "vote_fraction"),
)
_ANYWHERE = 2**63
"""More than any position."""
_LIMITS = {
    "mean_logprob": (-math.inf, _SLACK, "finite and at most 0 (nats)"),
    "mean_entropy": (-_SLACK, math.inf, "finite and at least 0 (nats)"),
    "markers": (0.0, math.inf, "a count, finite and >= 0"),
}


class Decision(NamedTuple):
    """What to do after one checkpoint."""

    stop: bool
    """Stop thinking now; the policy's `on_stop` says what to serve."""
    score: float
    """The linear score, compared with `decision_threshold`; higher means stop sooner."""
    checkpoint: int
    """Index of the checkpoint just decided on."""
    natural_end: bool
    """No stop and no checkpoint left: let the model think to its own end.  False if more markers
    may come."""


@dataclass(frozen=True)
class StopRule:
    """A policy's rule as its steppers need it, made once and shared by them."""

    family: str | None
    trigger: Trigger
    positions: tuple[int, ...] | None
    """All positions of the trigger; None if they depend on a trace's markers."""
    most_probes: int
    """Limit on the positions of a trace."""
    stop_at: int | None
    """The position at which every trace is stopped; None for none."""
    furthest: int
    """Upper limit on positions."""
    decision_threshold: float
    task: str
    intercept: float
    columns: tuple[tuple[int, float, float, float], ...]
    """(index into `_KNOWN`, mean, scale, coefficient), in the order of summation."""
    features: frozenset[str]
    """Features that the rule reads."""
    reads_positions: bool
    """Whether it reads one of `POSITION_FEATURES` or `OPEN_FEATURES`."""
    needs_answer: bool
    needs_logprob: bool
    needs_entropy: bool
    entropy_slope: float
    """Absolute change of the score per nat of entropy."""
    needs_markers: bool
    needs_closed: bool

    @classmethod
    def of(cls, terms: PolicyTerms) -> StopRule:
        """Extract the rule from checked terms; for a ladder, a rule that never stops."""
        names = terms.features if terms.ladder is None else ()
        family, used, threshold = terms.family, frozenset(names), terms.decision_threshold
        places = tuple(_KNOWN.index(name) for name in names)
        # These lists are empty for a family that is not learned.
        columns = zip(places, terms.mean, terms.scale, terms.coef, strict=False)
        trigger = trigger_of(terms)

        def reads(*features: str) -> bool:
            return not used.isdisjoint(features)

        return cls(
            family=family,
            trigger=trigger,
            positions=trigger.positions,
            most_probes=trigger.most_probes,
            stop_at=trigger.stop_at,
            furthest=_ANYWHERE if trigger.stop_at is None else trigger.stop_at,
            decision_threshold=math.inf if threshold is None else threshold,
            task=terms.task,
            intercept=terms.intercept or 0.0,
            columns=tuple(columns),
            features=used,
            reads_positions=reads(*POSITION_FEATURES, *OPEN_FEATURES),
            needs_answer=family in ("run-stability", *AGREEMENT_FAMILIES) or reads(*_OF_ANSWERS),
            needs_logprob=family in ("confidence", "confidence-leap", "deer")
            or reads("answer_logprob", "answer_log_odds"),
            needs_entropy=family == "entropy" or reads("answer_entropy"),
            entropy_slope=_entropy_slope(terms),
            needs_markers=reads("marker_density"),
            needs_closed=reads(*OPEN_FEATURES),
        )


class Stepper:
    """Decides at each checkpoint of one question; made by ``Policy.start()``.

    Do not share one between questions or threads.  Call `observe` at each of the trigger's
    positions in order; a trace that ends by itself needs no more probes.
    """

    __slots__ = (
        *("_began", "_confidence", "_finished", "_next", "_previous"),
        *("_rule", "_run", "_task", "_think", "_votes"),
    )

    def __init__(self, rule: StopRule, task: str | None = None) -> None:
        self._rule = rule
        self._task = task_under(rule.task, task)
        self._next = 0
        self._finished = not rule.most_probes
        self._think = 0
        self._run = 0
        self._began = 0  # position at which the current run of equal answers began
        self._previous = ""
        self._votes: dict[str, int] = {}
        self._confidence = 0.0

    def observe(
        self,
        *,
        think_tokens: int,
        answer: str | None = None,
        mean_logprob: float | None = None,
        mean_entropy: float | None = None,
        markers: float | None = None,
        normalized: str | None = None,
        closed_by_itself: bool | None = None,
        entropy_slack: float = 0.0,
    ) -> Decision:
        """Decide on the forced answer at the next checkpoint.

        Parameters
        ----------
        think_tokens : int
            Thinking tokens in the probed prefix: the checkpoint's position; on a grid, at most its
            budget.
        answer : str
            Raw text of the probe.  Optional if the policy compares no answers.
        mean_logprob, mean_entropy : float, nats
            Means over the answer's tokens, without the ending one.  Optional if the policy does not
            read them.
        markers : float
            Backtracking markers in the prefix, counted by the policy's own rule.
        normalized : str, optional
            The normalised answer, if already known; `answer` is then ignored.
        closed_by_itself : bool
            Whether the model closed its thinking right after the answer.  Optional if the policy
            does not read it, for example because its cue follows the closer.
        entropy_slack : float, nats
            Largest possible error of `mean_entropy`.

        Raises
        ------
        UndecidedError
            An error of `mean_entropy` within its slack could change the decision.  The stepper is
            unchanged.
        PolicyError
            There is nothing more to observe, or an input is missing or impossible.  The stepper is
            unchanged, and the same checkpoint may be observed again.
        """
        rule = self._rule
        j = self._next
        if self._finished:
            raise PolicyError(self._why_finished())
        positions = rule.positions
        if type(think_tokens) is not int:
            think_tokens = _whole(think_tokens)
        if positions is not None:
            if not self._think <= think_tokens <= positions[j]:
                raise PolicyError(
                    f"think_tokens at checkpoint {j} must be from {self._think} to its budget "
                    f"{positions[j]}, got {think_tokens}"
                )
        elif not (self._think + 1 if j else 0) <= think_tokens <= rule.furthest:
            at_most = "" if rule.stop_at is None else f" and be at most stop_at ({rule.stop_at})"
            raise PolicyError(
                f"think_tokens at checkpoint {j} must come after {self._think}{at_most}, "
                f"got {think_tokens}"
            )
        # Fast path for floats within their limits, because this runs for every probe.
        if type(mean_logprob) is not float or not -math.inf < mean_logprob <= _SLACK:
            mean_logprob = _number("mean_logprob", mean_logprob, rule, rule.needs_logprob)
        if type(mean_entropy) is not float or not -_SLACK <= mean_entropy < math.inf:
            mean_entropy = _number("mean_entropy", mean_entropy, rule, rule.needs_entropy)
        if type(markers) is not float or not 0.0 <= markers < math.inf:
            markers = _number("markers", markers, rule, rule.needs_markers)
        if type(closed_by_itself) is not bool:
            if closed_by_itself is not None:
                raise PolicyError(
                    f"closed_by_itself must be true or false, got {short_repr(closed_by_itself)}"
                )
            if rule.needs_closed:
                raise PolicyError(_missing(rule, "closed_by_itself"))
        run = votes = 1
        began = think_tokens
        if rule.needs_answer:
            if normalized is None:
                normalized = self._normalized(answer)
            elif type(normalized) is not str:
                raise PolicyError(f"normalized must be a string, got {short_repr(normalized)}")
            if j and normalized == self._previous:
                run = self._run + 1
                began = self._began
            votes = self._votes.get(normalized, 0) + 1

        family = rule.family
        confidence = 0.0
        if family in ("confidence", "deer"):
            score = mean_logprob
        elif family == "entropy":
            score = -mean_entropy
        elif family == "run-stability":
            score = float(run)
        elif family == "confidence-leap":
            confidence = math.exp(mean_logprob)
            rise = confidence - self._confidence
            score = rise * confidence if j and rise > 0.0 else 0.0
        elif family == "agreement":
            score = float(think_tokens - began) if normalized else 0.0
        elif family == "agreement-scaled":
            stood = float(think_tokens - began) if normalized else 0.0
            score = stood / math.sqrt(max(think_tokens, 1))
        elif family == "fixed-budget":
            score = float(think_tokens)
        else:
            last = 0 if positions is None else len(positions) - 1
            values: tuple[float, ...] = (
                positions[j] / positions[last] if positions and positions[last] else 0.0,
                j / last if last else 0.0,
                mean_logprob,
                mean_entropy,
                1.0 if run > 1 else 0.0,
                float(run),
                votes / (j + 1),
                markers / think_tokens if think_tokens else 0.0,
            )
            if rule.reads_positions:
                equal = bool(normalized)  # an empty answer equals no other
                values += _position_values(
                    think_tokens,
                    think_tokens - self._think,
                    run if equal else 0,
                    votes if equal else 0,
                    j + 1,
                    mean_logprob,
                )
                values += (1.0 if closed_by_itself else 0.0,)
            score = rule.intercept
            for k, mean, scale, coef in rule.columns:
                score = score + coef * ((values[k] - mean) / scale)
            if score - score != 0.0:
                raise PolicyError(f"the score at checkpoint {j} is not finite: {score!r}")
        if entropy_slack and (
            abs(score - rule.decision_threshold) <= entropy_slack * rule.entropy_slope
        ):
            raise UndecidedError(f"the score at checkpoint {j} is within its slack: {score!r}")

        if normalized is not None:
            self._votes[normalized] = votes
            self._previous = normalized
        self._run = run
        self._began = began
        self._confidence = confidence
        self._think = think_tokens
        self._next = j + 1
        stop = score >= rule.decision_threshold or think_tokens == rule.stop_at
        self._finished = stop or j + 1 == rule.most_probes
        # The named tuple's own constructor takes twice as long.
        return tuple.__new__(Decision, (stop, score, j, self._finished and not stop))

    def _normalized(self, answer: str | None) -> str:
        if answer is None:
            raise PolicyError(_missing(self._rule, "answer"))
        if not isinstance(answer, str):
            raise PolicyError(f"answer must be a string, got {short_repr(answer)}")
        return normalize_under(self._task, answer, "start")

    def _why_finished(self) -> str:
        if not self._rule.most_probes:
            return "the policy is full-budget: it has no checkpoint to observe"
        if self._next == self._rule.most_probes:
            return f"the last of {self._next} checkpoints was already observed; start() a new one"
        return f"the policy stopped at checkpoint {self._next - 1}; start() a new one"


def _position_values(
    position: int, since: int, run: int, votes: int, made: int, logprob: float
) -> tuple[float, ...]:
    """`POSITION_FEATURES`, in their order."""
    return (
        float(position),
        math.log(position) if position > 1 else 0.0,
        math.log1p(run),
        math.log1p(votes),
        votes / made,
        float(since),
        log_odds(logprob),
    )


def task_under(own: str, task: str | None) -> str | None:
    """Task of a question under a policy of task `own`; None if not known yet."""
    if task is not None and own not in (task, MIXED_TASKS):
        raise PolicyError(f"task must be {own!r}, as the policy says, got {short_repr(task)}")
    if task is not None and task not in TASKS:
        raise PolicyError(f"task must be one of {', '.join(TASKS)}, got {short_repr(task)}")
    return task if own == MIXED_TASKS else own


def normalize_under(task: str | None, answer: str, method: str) -> str:
    """Normal form of an answer; PolicyError if `method` of the policy was not told the task."""
    if task is None:
        raise PolicyError(
            f"the policy covers mixed tasks: {method}(task=…) must name the question's, got none"
        )
    return normalize(task, answer)


def log_odds(logprob: float) -> float:
    """Log-odds of the confidence exp(logprob), clipped."""
    odds = logprob - math.log(-math.expm1(min(logprob, SUREST_LOGPROB)))
    return max(-MOST_LOG_ODDS, min(MOST_LOG_ODDS, odds))


def _entropy_slope(terms: PolicyTerms) -> float:
    """Absolute change of a rule's score per nat of entropy."""
    if terms.family == "entropy":
        return 1.0
    if "answer_entropy" not in terms.features:
        return 0.0
    at = terms.features.index("answer_entropy")
    return abs(terms.coef[at] / terms.scale[at])


def _missing(rule: StopRule, name: str) -> str:
    return f"family {rule.family!r} with its features needs {name}, got None"


def _number(name: str, value: object, rule: StopRule, needed: bool) -> float:
    """Convert an input that is no plain float: None, an int, a numpy scalar, a 0-d tensor."""
    if value is None and not needed:
        return 0.0
    if value is None:
        raise PolicyError(_missing(rule, name))
    if not isinstance(value, SupportsFloat) or isinstance(value, bool):
        raise PolicyError(f"{name} must be a number, got {short_repr(value)}")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise PolicyError(f"{name} must be a number, got {short_repr(value)}") from error
    low, high, expected = _LIMITS[name]
    if not (math.isfinite(number) and low <= number <= high):
        raise PolicyError(f"{name} must be {expected}, got {number!r}")
    return number


def _whole(value: object) -> int:
    try:
        if isinstance(value, SupportsIndex) and not isinstance(value, bool):
            return value.__index__()
    except TypeError:  # an array with several elements
        pass
    raise PolicyError(f"think_tokens must be an integer, got {short_repr(value)}")
