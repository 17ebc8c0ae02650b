"""Where a policy probes: its fields `trigger` and `budgets`, and the trigger that they are.

Knows no rule, no file and no golden decision.
"""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise
from typing import Any

from stopadvisor.ground.fields import expect
from stopadvisor.policy.terms import PolicyTerms, TriggerTerms
from stopadvisor.probes.trigger import ListedTrigger, MarkerTrigger, Trigger, stride

__all__ = ["LADDER_TRIGGER", "check_trigger", "trigger_of", "trigger_terms"]

_MOST_STRIDES = 65_536
_REQUIRED = {
    "grid": (),
    "stride": ("every", "cap"),
    "marker": ("min_gap", "max_probes"),
    "none": ("stop_at",),
    "ladder": (),
}
_OPTIONAL = {
    "grid": ("stop_at",),
    "stride": ("first", "stop_at"),
    "marker": ("max_markers", "stop_at"),
    "none": (),
    "ladder": (),
}

_NOTHING: dict[str, Any] = dict.fromkeys(field.name for field in fields(TriggerTerms))
LADDER_TRIGGER = TriggerTerms(**_NOTHING | {"kind": "ladder", "markers": ()})
"""Field `trigger` of a policy that climbs a ladder: no trace is probed."""


def trigger_terms(
    trigger: Trigger, *, family: str | None = None
) -> tuple[TriggerTerms, tuple[int, ...]]:
    """Fields `trigger` and `budgets` of a policy that probes so.

    Parameters
    ----------
    family : str, optional
        With ``fixed-budget`` the kind is ``none``: the trigger's last position is its only one.
    """
    if isinstance(trigger, MarkerTrigger):
        found = {field.name: getattr(trigger, field.name) for field in fields(trigger)}
        return TriggerTerms(**_NOTHING | found | {"kind": "marker"}), ()
    kind = "none" if family == "fixed-budget" else trigger.kind
    found = {"kind": kind, "markers": (), "stop_at": trigger.stop_at}
    if kind == "stride":
        at = trigger.positions
        found |= {"every": trigger.every, "first": at[0], "cap": at[-1]}
    return TriggerTerms(**_NOTHING | found), trigger.positions if kind == "grid" else ()


def check_trigger(terms: PolicyTerms) -> None:
    """Check that a stopping policy's trigger and budgets are consistent.

    Raises
    ------
    PolicyError
        Names the field at fault.
    """
    trigger, budgets = terms.trigger, terms.budgets
    assert trigger is not None
    kind = trigger.kind
    numbers = {field.name for field in fields(trigger)} - {"kind", "markers"}
    for name in _REQUIRED[kind]:
        found = getattr(trigger, name)
        expect(found is not None, f"trigger.{name}", f"a number for kind '{kind}'", None)
    for name in sorted(numbers - {*_REQUIRED[kind], *_OPTIONAL[kind]}):
        found = getattr(trigger, name)
        expect(found is None, f"trigger.{name}", f"null for kind '{kind}'", found)
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
        # Thinking is cut there, so that nothing is ever asked beyond it.
        last = (*budgets[-1:], cap, stop_at, trigger.min_gap)
        at = max((number for number in last if number is not None), default=0)
        what = f"no position beyond max_think ({terms.max_think})"
        expect(at <= terms.max_think, "trigger", what, at)


def trigger_of(terms: PolicyTerms) -> Trigger:
    """The trigger of a checked policy; of one that stops no trace a trigger without positions."""
    trigger = terms.trigger
    if trigger is None or trigger.kind == "ladder":
        return ListedTrigger(())
    stop_at = trigger.stop_at
    if trigger.kind == "grid":
        return ListedTrigger(terms.budgets, stop_at)
    if trigger.kind == "none" and stop_at is not None:
        return ListedTrigger((stop_at,), stop_at)
    if trigger.kind == "stride":
        assert trigger.every is not None  # `check_trigger` saw to these
        assert trigger.cap is not None
        return stride(trigger.every, trigger.cap, trigger.first, stop_at)
    assert trigger.min_gap is not None
    assert trigger.max_probes is not None
    return MarkerTrigger(
        markers=trigger.markers,
        min_gap=trigger.min_gap,
        max_probes=trigger.max_probes,
        max_markers=trigger.max_markers,
        stop_at=stop_at,
    )
