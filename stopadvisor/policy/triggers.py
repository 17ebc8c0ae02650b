"""The field `trigger` of a policy: where it probes, as plain values and as a trigger.

Knows no rule, no file and no golden decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from stopadvisor.policy.checks import FieldCheck, expect, list_of, nullable, one_of, record, tokens
from stopadvisor.probes.trigger import GridTrigger, MarkerTrigger, StrideTrigger, Trigger

__all__ = [
    "MOST_GRID_POSITIONS",
    "TRIGGER",
    "check_trigger",
    "listed_positions",
    "most_probes",
    "trigger_content",
    "trigger_of",
]

MOST_GRID_POSITIONS = 1024
"""Longest list of `budgets`."""
_MOST_STRIDES = 65_536
_MOST_MARKERS = 1024

TRIGGER = nullable(
    record(
        {
            "kind": one_of("grid", "stride", "marker", "none").means(
                "At `budgets`, every so many tokens, just before a marker, or not at all."
            ),
            "every": nullable(tokens(1)).means(
                "Tokens from one position to the next; for `marker` where no marker came."
            ),
            "first": nullable(tokens(0)).means("First position of a stride; null: `every`."),
            "cap": nullable(tokens(0)).means("No position of a stride lies beyond it."),
            "min_gap": nullable(tokens(1)).means(
                "A marker that comes fewer tokens after the last probe is passed over."
            ),
            "max_probes": nullable(tokens(1)).means(
                "Most probes of a trace, not counting `stop_at`."
            ),
            "max_markers": nullable(tokens(1)).means(
                "Only the first so many markers of a trace count, those passed over too."
            ),
            "markers": list_of(list_of(tokens(0)), most=_MOST_MARKERS).means(
                "Token ids of each marker; empty where the kind is another, and in a policy from "
                "recorded answers, which cannot be served."
            ),
            "stop_at": nullable(tokens(0)).means(
                "Whoever still thinks here is stopped, whatever the score; null: nobody is."
            ),
        }
    )
)
"""What `trigger` holds; null for ``full-budget``."""

_NUMBERS = ("every", "first", "cap", "min_gap", "max_probes", "max_markers", "stop_at")
_REQUIRED = {
    "grid": (),
    "stride": ("every", "cap"),
    "marker": ("min_gap", "max_probes"),
    "none": ("stop_at",),
}
_OPTIONAL = {
    "grid": ("stop_at",),
    "stride": ("first", "stop_at"),
    "marker": ("every", "max_markers", "stop_at"),
    "none": (),
}


def trigger_content(trigger: Trigger, *, family: str | None = None) -> dict[str, Any]:
    """Fields `trigger` and `budgets` of a policy that probes so.

    Parameters
    ----------
    family : str, optional
        With ``fixed-budget`` the kind is ``none``: the trigger's last position is its only one.
    """
    fields: dict[str, Any] = {"kind": trigger.kind, **dict.fromkeys(_NUMBERS), "markers": []}
    kind = "none" if family == "fixed-budget" else trigger.kind
    fields["kind"] = kind
    for name in (*_REQUIRED[kind], *_OPTIONAL[kind]):
        fields[name] = getattr(trigger, name)
    budgets: list[int] = []
    if isinstance(trigger, MarkerTrigger):
        fields["markers"] = [list(marker) for marker in trigger.markers]
    elif isinstance(trigger, GridTrigger) and kind == "grid":
        budgets = list(trigger.budgets)
    return {"trigger": {name: fields[name] for name, _ in _parts()}, "budgets": budgets}


def _parts() -> list[tuple[str, FieldCheck]]:
    return [(suffix[1:], part) for suffix, part in TRIGGER.parts if suffix.count(".") == 1]


def check_trigger(content: Mapping[str, Any]) -> None:
    """Check that a stopping policy's trigger and budgets are consistent.

    Raises
    ------
    PolicyError
        Names the field at fault.
    """
    trigger, budgets = content["trigger"], content["budgets"]
    kind = trigger["kind"]
    for name in _REQUIRED[kind]:
        expect(trigger[name] is not None, f"trigger.{name}", f"a number for kind '{kind}'", None)
    for name in set(_NUMBERS) - {*_REQUIRED[kind], *_OPTIONAL[kind]}:
        expect(trigger[name] is None, f"trigger.{name}", f"null for kind '{kind}'", trigger[name])
    _check_markers(kind, trigger["markers"])
    _check_budgets(kind, budgets)
    stop_at, every, gap = trigger["stop_at"], trigger["every"], trigger["min_gap"]
    if kind == "grid" and stop_at is not None:
        expect(stop_at == budgets[-1], "trigger.stop_at", f"the last budget {budgets[-1]}", stop_at)
    if kind == "stride":
        if stop_at is not None:
            expect(trigger["cap"] == stop_at, "trigger.cap", f"stop_at {stop_at}", trigger["cap"])
        strides = trigger["cap"] // every
        expect(strides <= _MOST_STRIDES, "trigger.cap", f"<= {_MOST_STRIDES} strides", strides)
        first = every if trigger["first"] is None else trigger["first"]
        what = f"at most the cap {trigger['cap']}"
        expect(stop_at is not None or first <= trigger["cap"], "trigger.first", what, first)
    if kind == "marker" and every is not None:
        expect(every >= gap, "trigger.every", f"at least min_gap {gap}", every)
    most = content["max_think"]
    if most is not None:
        # Thinking is cut there, so that nothing is ever asked behind it.
        last = budgets[-1:] or [trigger[name] for name in ("cap", "stop_at", "min_gap")]
        at = max((number for number in last if number is not None), default=0)
        expect(at <= most, "trigger", f"no position beyond max_think ({most})", at)


def _check_markers(kind: str, markers: list[list[int]]) -> None:
    if kind != "marker":
        expect(not markers, "trigger.markers", f"an empty list for kind '{kind}'", markers)
        return
    for index, ids in enumerate(markers):
        expect(bool(ids), f"trigger.markers[{index}]", "at least one token id", ids)


def _check_budgets(kind: str, budgets: list[int]) -> None:
    if kind == "grid":
        expect(bool(budgets), "budgets", "at least one budget for kind 'stop'", budgets)
    else:
        what = f"an empty list for a trigger of kind '{kind}'"
        expect(not budgets, "budgets", what, budgets)
    for before, after in pairwise(budgets):
        expect(before < after, "budgets", "strictly increasing integers", budgets)


def trigger_of(content: Mapping[str, Any]) -> Trigger:
    """Make the trigger of a checked content."""
    fields = content["trigger"]
    if fields is None:
        return GridTrigger(tuple(content["budgets"]))
    kind, stop_at = fields["kind"], fields["stop_at"]
    if kind == "none":
        return GridTrigger((stop_at,), stop_at)
    if kind == "grid":
        return GridTrigger(tuple(content["budgets"]), stop_at)
    if kind == "stride":
        return StrideTrigger(fields["every"], fields["cap"], fields["first"], stop_at)
    return MarkerTrigger(
        markers=tuple(tuple(marker) for marker in fields["markers"]),
        min_gap=fields["min_gap"],
        max_probes=fields["max_probes"],
        every=fields["every"],
        max_markers=fields["max_markers"],
        stop_at=stop_at,
    )


def listed_positions(trigger: Trigger) -> tuple[int, ...] | None:
    """All positions of a trigger that are known before the trace; None where markers decide."""
    if isinstance(trigger, GridTrigger):
        return trigger.budgets
    if isinstance(trigger, StrideTrigger):
        return trigger.positions
    return None


def most_probes(trigger: Trigger) -> int:
    """Positions that a trace can have at most, `stop_at` included."""
    positions = listed_positions(trigger)
    if positions is not None:
        return len(positions)
    assert isinstance(trigger, MarkerTrigger)
    return trigger.max_probes + (trigger.stop_at is not None)
