"""Checks between a policy's fields: rule, model, certificate, evidence, and the cost of a replay.

The types in `terms` have already checked each value alone; `golden` replays the decisions later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise

from stopadvisor.answers.normal_form import NORMALIZER
from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.fields import expect
from stopadvisor.ground.printable import short_repr
from stopadvisor.policy.claims import CertificateTerms, check_certificate
from stopadvisor.policy.climber import check_ladder
from stopadvisor.policy.evidence import check_expected, check_split
from stopadvisor.policy.terms import PolicyTerms, TriggerTerms, trigger_of
from stopadvisor.probes.asking import reserved_arguments
from stopadvisor.rules.climb import RUNG_FEATURES
from stopadvisor.rules.families import LEARNED_FAMILIES, RUNG_FAMILIES, display_threshold
from stopadvisor.rules.features import FEATURES, GRID_FEATURES, OPEN_FEATURES, POSITION_FEATURES
from stopadvisor.rules.losses import LOST

__all__ = ["check_consistency", "check_trigger"]

_MAX_GOLDEN_STEPS = 4096
MAX_GOLDEN_TEXT = 65_536
"""Limit on the characters of all golden answers; policies built here have a few hundred."""

_BOUND = ("model", "engine", "probe", "sampling", "max_think")
_LINEAR = ("features", "mean", "scale", "coef")
_LISTS = (*_LINEAR, "budgets", "order", "golden")
_RULE = ("family", "threshold", "decision_threshold", "trigger")

_MOST_STRIDES = 65_536
_REQUIRED = {"stride": ("every", "cap"), "marker": ("min_gap", "max_probes"), "none": ("stop_at",)}
_OPTIONAL = {
    "grid": ("stop_at",),
    "stride": ("first", "stop_at"),
    "marker": ("max_markers", "stop_at"),
}


def check_consistency(terms: PolicyTerms, *, golden: bool = True) -> None:
    """Refuse a policy whose fields contradict each other.

    Parameters
    ----------
    golden : bool
        False before golden decisions are made.

    Raises
    ------
    PolicyError
        The message names the first wrong field, what it must be, and its value.
    """
    certificate = terms.certificate
    if terms.model is not None:
        _given(terms, (*_BOUND, "split"), "when a model is named")
    for key in reserved_arguments(terms.chat_template_kwargs):
        raise PolicyError(
            f"field 'chat_template_kwargs': argument {short_repr(key)} is reserved: "
            "it would replace what the policy is bound to"
        )
    if terms.normalizer != NORMALIZER:
        raise PolicyError(
            f"calibrated with answer normaliser {short_repr(terms.normalizer)}; this "
            f"version of StopAdvisor has {NORMALIZER!r} and would compare answers differently"
        )
    if terms.ladder is not None:
        check_ladder(terms)
        _absent(terms, _BOUND, "with a ladder")
    what = "'ladder' with a ladder, and nowhere else"
    same = (terms.serving == "ladder") == (terms.ladder is not None)
    expect(same, "serving", what, terms.serving)
    if terms.kind == "full-budget":
        rest = ("budgets", "order", "golden", "certificate", "expected", "served")
        rule = (*_RULE, *_LINEAR, "intercept", *rest, "calibration_features")
        _absent(terms, rule, "for kind 'full-budget'")
    else:
        _check_stop(terms)
        if golden:
            _check_golden(terms)
    if certificate is not None:
        check_certificate(certificate)
        _check_repeated(terms, certificate)
    if terms.split is not None:
        check_split(terms.split, certificate)
    if terms.expected is not None and certificate is not None:
        check_expected(terms.expected, certificate)


def _given(terms: PolicyTerms, names: Sequence[str], when: str) -> None:
    for name in names:
        expect(getattr(terms, name) is not None, name, f"a value {when}", None)


def _absent(terms: PolicyTerms, names: Sequence[str], when: str) -> None:
    for name in names:
        value = getattr(terms, name)
        if name in _LISTS:
            expect(not value, name, f"an empty list {when}", list(value))
        else:
            expect(value is None, name, f"null {when}", value)


def _check_repeated(terms: PolicyTerms, certificate: CertificateTerms) -> None:
    """Check what the certificate repeats, or implies, about other fields."""
    elsewhere = {
        "max_think": terms.max_think,
        "on_stop": terms.on_stop,
        "answer_cap": None if terms.probe is None else terms.probe.answer_cap,
    }
    for name, value in elsewhere.items():
        here = getattr(certificate, name)
        same = here == value or None in (here, value)
        expect(same, f"certificate.{name}", f"the policy's own ({value})", here)
    if certificate.grader is not None:
        name, what = certificate.grader.name, f"grader ({terms.grader!r})"
        expect(name == terms.grader, "certificate.grader.name", what, name)
    alpha, of_right = certificate.alpha, certificate.alpha_over_full_accuracy
    what = f"at least alpha ({alpha})"
    expect(of_right >= alpha, "certificate.alpha_over_full_accuracy", what, of_right)
    differs = certificate.differs_upper
    if differs is not None and certificate.loss == LOST.name:
        # Every lost reply differs; `differs_upper` counts only the first of two traces.
        lost = certificate.losses if certificate.both is None else certificate.both
        least = (certificate.differing or lost) / certificate.n
        expect(differs > least, "certificate.differs_upper", f"above {least:g}", differs)


def _check_stop(terms: PolicyTerms) -> None:
    _given(terms, (*_RULE, "certificate"), "for kind 'stop'")
    assert terms.trigger is not None  # just checked, as are the next
    assert terms.threshold is not None
    assert terms.decision_threshold is not None
    family, order, linear = str(terms.family), terms.order, terms.decision_threshold
    check_trigger(terms)
    _check_where(terms, terms.trigger, family)
    try:
        threshold = display_threshold(family, linear)
    except OverflowError:
        threshold = math.inf
    what = f"{threshold!r}, which family '{family}' gives for decision_threshold {linear!r}"
    same = math.isclose(terms.threshold, threshold, rel_tol=1e-9, abs_tol=1e-12)
    expect(same, "threshold", what, terms.threshold)
    if order:
        descending = all(a > b for a, b in pairwise(order))
        expect(descending, "order", "strictly descending thresholds", list(order))
        what = f"to hold decision_threshold {linear!r}"
        expect(linear in order, "order", what, list(order))
    if family in (*LEARNED_FAMILIES, "rung-learned"):
        _check_learned(terms, family)
    else:
        _absent(terms, (*_LINEAR, "intercept"), f"for family '{family}'")
    if terms.entropy_source == "none" and terms.reads_logprobs:
        raise PolicyError(
            f"field 'entropy_source': family '{family}' reads log-probabilities, got 'none'"
        )


def _check_where(terms: PolicyTerms, trigger: TriggerTerms, family: str) -> None:
    """Check that the rule's family and features suit the trigger."""
    kind, stop_at = trigger.kind, trigger.stop_at
    what = "'none' for family 'fixed-budget' and for no other"
    fits = (kind == "none") == (family == "fixed-budget")
    expect(fits, "trigger.kind", what, f"{kind} for {family}")
    if kind == "none":
        what = f"trigger.stop_at ({stop_at})"
        linear = terms.decision_threshold
        expect(linear == stop_at, "decision_threshold", what, linear)
    what = "a ladder for trigger.kind 'ladder' and its families, and for no other"
    of_ladder = {kind == "ladder", family in RUNG_FAMILIES, terms.ladder is not None}
    expect(len(of_ladder) == 1, "ladder", what, f"{kind} for {family}")
    for name in terms.features:
        known = RUNG_FEATURES if kind == "ladder" else (*FEATURES, *POSITION_FEATURES)
        what = f"a feature that family '{family}' can read"
        expect(name in (*known, *OPEN_FEATURES), "features", what, name)
    for name in GRID_FEATURES if kind != "grid" else ():
        what = f"no '{name}' where the trigger is no grid"
        expect(name not in terms.features, "features", what, list(terms.features))


def _check_learned(terms: PolicyTerms, family: str) -> None:
    """Check that a learned rule's features and coefficients fit together."""
    features = terms.features
    expect(bool(features), "features", f"at least one for family '{family}'", list(features))
    expect(len(set(features)) == len(features), "features", "each at most once", list(features))
    open_cue = terms.probe is not None and terms.probe.open_cue
    if not open_cue and not set(features).isdisjoint(OPEN_FEATURES):
        raise PolicyError(
            f"field 'probe.open_cue': expected true where {', '.join(OPEN_FEATURES)} is read"
        )
    _given(terms, ("intercept",), f"for family '{family}'")
    for key in _LINEAR[1:]:
        what, size = f"{len(features)} numbers, one per feature", len(getattr(terms, key))
        expect(size == len(features), key, what, size)


def _check_golden(terms: PolicyTerms) -> None:
    """Check that golden examples are complete, and small enough to replay quickly."""
    golden, most = terms.golden, trigger_of(terms).most_probes
    if terms.ladder is not None:
        most = len(terms.ladder.asked)
    expect(bool(golden), "golden", "at least one trajectory for kind 'stop'", [])
    for index, entry in enumerate(golden):
        sizes = [len(entry.steps), len(entry.decisions)]
        what = f"1 to {most} steps and as many decisions"
        expect(1 <= sizes[0] == sizes[1] <= most, f"golden[{index}]", what, sizes)
    steps = [step for entry in golden for step in entry.steps]
    what = f"at most {_MAX_GOLDEN_STEPS} steps"
    expect(len(steps) <= _MAX_GOLDEN_STEPS, "golden", what, len(steps))
    text = sum(len(step.answer) for step in steps)
    what = f"at most {MAX_GOLDEN_TEXT} characters of answers"
    expect(text <= MAX_GOLDEN_TEXT, "golden", what, text)


def check_trigger(terms: PolicyTerms) -> None:
    """Check that a stopping policy's trigger and budgets are consistent.

    Raises
    ------
    PolicyError
        The message names the wrong field.
    """
    trigger, budgets = terms.trigger, terms.budgets
    assert trigger is not None
    kind = trigger.kind
    numbers = {field.name for field in fields(trigger)} - {"kind", "markers"}
    required, optional = _REQUIRED.get(kind, ()), _OPTIONAL.get(kind, ())
    for name in required:
        known = getattr(trigger, name) is not None
        expect(known, f"trigger.{name}", f"a number for kind '{kind}'", None)
    for name in sorted(numbers - {*required, *optional}):
        value = getattr(trigger, name)
        expect(value is None, f"trigger.{name}", f"null for kind '{kind}'", value)
    for index, ids in enumerate(trigger.markers):
        expect(kind == "marker", "trigger.markers", f"an empty list for kind '{kind}'", list(ids))
        expect(bool(ids), f"trigger.markers[{index}]", "at least one token id", [])
    if kind == "grid":
        expect(bool(budgets), "budgets", "at least one budget for kind 'stop'", [])
        rising = all(before < after for before, after in pairwise(budgets))
        expect(rising, "budgets", "strictly increasing integers", list(budgets))
    else:
        what = f"an empty list for a trigger of kind '{kind}'"
        expect(not budgets, "budgets", what, list(budgets))
    stop_at, every, cap = trigger.stop_at, trigger.every, trigger.cap
    if kind == "grid" and stop_at is not None:
        expect(stop_at == budgets[-1], "trigger.stop_at", f"the last budget {budgets[-1]}", stop_at)
    if kind == "stride" and every is not None and cap is not None:
        expect(stop_at in (None, cap), "trigger.cap", f"stop_at {stop_at}", cap)
        expect(cap // every <= _MOST_STRIDES, "trigger.cap", f"<= {_MOST_STRIDES} strides", cap)
        first = every if trigger.first is None else trigger.first
        what = f"at most the cap {cap}"
        expect(stop_at is not None or first <= cap, "trigger.first", what, first)
    if terms.max_think is not None:
        # Thinking is cut there, so no probe can follow.
        last = (*budgets[-1:], cap, stop_at, trigger.min_gap)
        at = max((number for number in last if number is not None), default=0)
        what = f"no position beyond max_think ({terms.max_think})"
        expect(at <= terms.max_think, "trigger", what, at)
