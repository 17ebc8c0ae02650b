"""Climb a ladder under a policy: which reply to ask for next, and whether to serve it.

Uses plain Python floats in the same order of operations as `rules.climb`, so live replies are
judged exactly as calibration judged recorded ones.  Reads no file and asks no model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.fields import MOST_TOKENS, expect, plain
from stopadvisor.ground.printable import short_repr
from stopadvisor.policy.stepper import log_odds, normalize_under, task_under
from stopadvisor.policy.terms import PolicyTerms
from stopadvisor.probes.asking import reserved_arguments
from stopadvisor.probes.rungs import Votes
from stopadvisor.rules.climb import RUNG_FEATURES, OnGiveUp
from stopadvisor.runs.ladder import Rung, check_order

__all__ = ["Ask", "ClimbRule", "Climber", "Judged", "check_ladder"]


@dataclass(frozen=True)
class Ask:
    """The reply to ask for next."""

    rung: Rung
    column: int
    """Number of the reply in the ladder, from 0."""
    sample: int
    """Number of the reply among those of its rung, from 0."""
    max_tokens: int | None
    """Abandon the reply after this many completion tokens; None for no limit.  The cap of a rule
    does not apply to a rung with a policy of its own."""
    needs_logprob: bool
    """Whether the rule reads the mean log-probability."""
    is_reference: bool
    """Whether the reply is served whatever it says."""


class Judged(NamedTuple):
    """What to do with a reply."""

    serve: bool
    """Serve now; else climb on."""
    score: float
    """The score, which is compared with the threshold; 0 for the reference."""
    reply: int
    """Number, from 0, of the observed reply with the answer to serve."""
    gives_up: bool = False
    """The rule expects every cheap rung to be wrong: skip to the reference, or serve anyway."""


@dataclass(frozen=True)
class ClimbRule:
    """A policy's rule on a ladder, shared by all its climbers."""

    family: str | None
    task: str
    rungs: tuple[Rung, ...]
    """The rung of each reply of the ladder."""
    asked: tuple[int, ...]
    """Replies asked for before the reference."""
    thresholds: tuple[float, ...]
    """One threshold for each of them."""
    on_give_up: OnGiveUp | None
    give_up: float
    """A score below this level gives up; minus infinity for never."""
    intercept: float
    terms: tuple[tuple[str, float, float, float], ...]
    """(feature, mean, scale, coefficient), in the order of summation."""

    @classmethod
    def of(cls, terms: PolicyTerms) -> ClimbRule:
        """Extract the rule from checked terms."""
        assert terms.ladder is not None
        step, levels = terms.decision_threshold, terms.ladder.give_up
        return cls(
            family=terms.family,
            task=terms.task,
            rungs=terms.ladder.columns,
            asked=terms.ladder.asked,
            thresholds=() if step is None else terms.ladder.path[int(step) - 1],
            on_give_up=terms.ladder.on_give_up,
            give_up=-math.inf if levels is None or step is None else levels[int(step) - 1],
            intercept=terms.intercept or 0.0,
            terms=tuple(zip(terms.features, terms.mean, terms.scale, terms.coef, strict=True)),
        )

    @property
    def columns(self) -> tuple[int, ...]:
        """Every reply that may be asked for, in order, ending with those of the reference."""
        last = len(self.rungs) - self.rungs[-1].repeat
        return (*self.asked, *(k for k in range(last, len(self.rungs)) if k not in self.asked))

    def of_reference(self) -> ClimbRule:
        """The rule that asks only the reference."""
        return replace(self, asked=(), thresholds=())

    @property
    def needs_logprob(self) -> bool:
        """Whether it reads log-probabilities."""
        return self.family == "rung-confidence" or "answer_log_odds" in self.features

    @property
    def features(self) -> frozenset[str]:
        """Features of a learned score."""
        return frozenset(name for name, *_ in self.terms)


class Climber:
    """Judges the replies to one question; made by ``Policy.climb()``.

    Do not share one between questions or threads.  Request `ask`, then `observe` the reply, until
    one is served.  If a rung cannot answer, observe a reply that did not finish.
    """

    def __init__(self, rule: ClimbRule, task: str | None = None) -> None:
        self._rule, self._columns = rule, rule.columns
        self._task = task_under(rule.task, task)
        self._next = 0
        self._votes = Votes()

    @property
    def ask(self) -> Ask | None:
        """The reply to ask for next; None once one is served."""
        return self._ask(self._next) if self._next < len(self._columns) else None

    @property
    def certain(self) -> tuple[Ask, ...]:
        """`ask`, and later replies that will be needed in any case, so request them at once.

        These are the samples of the reference, and replies until enough of them could agree.
        """
        rule, at = self._rule, self._next
        last = len(self._columns) - 1
        for new, k in enumerate(range(at, len(rule.asked)), start=1):
            if rule.family != "rung-agreement" or self._votes.most + new >= rule.thresholds[k]:
                last = k
                break
        return tuple(self._ask(k) for k in range(at, last + 1))

    def _ask(self, at: int) -> Ask:
        rule, column = self._rule, self._columns[at]
        rung, most = rule.rungs[column], rule.rungs[column].max_tokens
        is_reference = at >= len(rule.asked)
        if rule.family == "cap" and not is_reference and rung.policy_digest is None:
            cap = max(1, int(-rule.thresholds[at]))
            most = cap if most is None else min(cap, most)
        reads = rule.needs_logprob and not is_reference
        return Ask(rung, column, column - rule.rungs.index(rung), most, reads, is_reference)

    def observe(
        self,
        *,
        finished: bool,
        completion_tokens: int,
        answer: str = "",
        mean_logprob: float | None = None,
        normalized: str | None = None,
    ) -> Judged:
        """Judge the reply that was asked for.

        Parameters
        ----------
        finished : bool
            Whether it ended by itself; a reply that was cut is not served.
        completion_tokens : int
            Tokens of thinking and answer.
        answer : str
            The final answer, as the model wrote it; empty for none.
        mean_logprob : float, nats
            Mean over the tokens; optional if the policy does not read it.
        normalized : str, optional
            The normalised answer, if already known; `answer` is then ignored.

        Raises
        ------
        PolicyError
            A reply was already served, or an input is missing or impossible.  The climber is
            unchanged.
        """
        rule, at = self._rule, self._next
        if at >= len(self._columns):
            raise PolicyError("a reply was already served; climb() again for another question")
        if type(completion_tokens) is not int or completion_tokens < 0:
            raise PolicyError(f"completion_tokens must be a count, got {completion_tokens!r}")
        known = mean_logprob is not None and -math.inf < mean_logprob <= 0
        is_read = rule.needs_logprob and finished and at < len(rule.asked)  # not the reference's
        if (mean_logprob is not None or is_read) and not known:
            raise PolicyError(f"mean_logprob must be finite and at most 0, got {mean_logprob!r}")
        if finished and normalized is None:
            normalized = normalize_under(self._task, answer, "climb")
        given = normalized if finished else None
        rung = rule.rungs[self._columns[at]]
        made = self._columns[at] - rule.rungs.index(rung) + 1 if rung.repeat > 1 else 0
        leader, support, share, reply = self._votes.add(given or None, made)
        score, serve, gives_up = 0.0, at == len(self._columns) - 1, False
        if at < len(rule.asked):
            score = self._score(completion_tokens, support, share, mean_logprob or 0.0)
            serve = serve or (bool(leader) and score >= rule.thresholds[at])
            # After the last cheap rung the reference is next anyway: nothing to skip.
            may_give_up = rule.on_give_up == "reply" or at + 1 < len(rule.asked)
            gives_up = may_give_up and bool(leader) and not serve and score < rule.give_up
            serve = serve or (gives_up and rule.on_give_up == "reply")
        follows = len(rule.asked) if gives_up else at + 1
        self._next = len(self._columns) if serve else follows
        return Judged(serve, score, reply, gives_up)

    def _score(self, tokens: int, support: int, share: float, logprob: float) -> float:
        rule = self._rule
        if rule.family == "rung":
            return 0.0
        if rule.family == "cap":
            return -float(tokens)
        if rule.family == "rung-agreement":
            return float(support)
        if rule.family == "rung-confidence":
            return logprob
        column = self._columns[self._next]
        odds = log_odds(logprob) if "answer_log_odds" in rule.features else 0.0
        values = (math.log1p(tokens), float(support), share, float(column), odds)
        score = rule.intercept
        for name, mean, scale, coef in rule.terms:
            score = score + coef * ((values[RUNG_FEATURES.index(name)] - mean) / scale)
        if score - score != 0.0:
            raise PolicyError(f"the score of reply {self._next} is not finite: {score!r}")
        return score


# --- Checks ---------------------------------------------------------------------------------------


def check_ladder(terms: PolicyTerms) -> None:
    """Check that a ladder is valid and fits the rule's path; PolicyError names the field."""
    found = terms.ladder
    assert found is not None
    asked, low = found.asked, found.give_up
    check_order(PolicyError, found.rungs, "field 'ladder.rungs'")
    for k, rung in enumerate(found.rungs):
        expect(rung == rung.terms, f"ladder.rungs[{k}]", "no address and no key", plain(rung))
        for key in reserved_arguments(rung.chat_template_kwargs or {}):
            raise PolicyError(f"field 'ladder.rungs[{k}]': argument {short_repr(key)} is reserved")
    if terms.kind == "full-budget":
        empty = not (asked or found.path or low or found.on_give_up)
        expect(empty, "ladder.asked, path", "empty for kind 'full-budget'", list(asked))
        return
    last = len(found.columns) - 1
    rising = bool(asked) and all(a < b for a, b in pairwise((*asked, last)))
    what = f"increasing numbers below the reference's ({last})"
    expect(rising, "ladder.asked", what, list(asked))
    for block in found.blocks:
        wanted = [k for k in block if k < last]
        whole = {*wanted} <= {*asked} or {*wanted}.isdisjoint(asked)
        expect(whole, "ladder.asked", f"all samples of a rung {wanted} or none", list(asked))
    for k, levels in enumerate(found.path):
        what = f"a threshold for each of {len(asked)} replies"
        expect(len(levels) == len(asked), f"ladder.path[{k}]", what, len(levels))
        fits = terms.family != "cap" or all(-MOST_TOKENS <= value <= 0 for value in levels)
        what = f"minus the most tokens of each reply, at most {MOST_TOKENS}"
        expect(fits, f"ladder.path[{k}]", what, list(levels))
    both = (low is None) == (found.on_give_up is None)
    expect(both, "ladder.give_up", "levels with on_give_up, and null without", low)
    if low is not None:
        what = f"a level for each of {len(found.path)} steps"
        expect(len(low) == len(found.path), "ladder.give_up", what, len(low))
        single = all(found.columns[k].repeat == 1 for k in asked)
        tells = single and terms.family in ("rung-confidence", "rung-learned")
        what = "null for samples, and for rules that tell no wrong reply from an unsure one"
        expect(tells, "ladder.give_up", what, terms.family)
    step, steps = terms.decision_threshold, range(1, len(found.path) + 1)
    expect(step in steps, "decision_threshold", f"a step of ladder.path, 1 to {len(steps)}", step)
    # One more than `steps`: the last one tested always serves the reference.
    known = {float(k) for k in range(1, len(steps) + 2)}
    expect(known.issuperset(terms.order), "order", "numbers of steps", list(terms.order))
