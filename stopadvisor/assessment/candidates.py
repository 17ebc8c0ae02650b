"""Candidate rules: families on schedules, each measured on fit questions.

Schedules are strides over the positions that all questions share, starting at once or late, and
markers with a gap between them; all end at a position from which thinking on made no fit question
right.  Chooses nothing, and sees no calibration question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stopadvisor.assessment.rung_candidates import rung_candidates
from stopadvisor.assessment.sequences import (
    FREE_FEATURES,
    FULL_FEATURES,
    SHORT_FEATURES,
    FeatureSet,
    FitData,
    ThresholdSequence,
    score_learned,
    score_scalar,
    sequence_of,
)
from stopadvisor.ground.progress import tracked
from stopadvisor.rules.families import FIXED_BUDGET, STOP_SCALARS
from stopadvisor.rules.schedules import GridSchedule, MarkerSchedule, Schedule

__all__ = ["boosted_candidates", "candidates", "grid_schedules", "last_resort", "marker_schedules"]

_STRIDES = 3
"""Distances between two probes: the smallest, twice and four times as large."""
_MOST_PROBES = 128
"""On a grid; where one has more positions, every second one, or fourth: probes so near to each
other cost more than they save."""
_FEW_POSITIONS = 16
"""Of a grid.  With so few it matters whether a stride begins with the first or ends with the last,
and each stands for another stretch of the thinking."""
_GAPS = (64, 128, 256)
"""Thinking tokens between two probes at markers, at least."""
_LATE_QUANTILE = 0.05
"""A late start leaves out the positions that 95 % of fit traces pass: all pay for the probes
there, so that it can be worth going without."""
_CAP_MARGIN = 1.25
"""Times the position from which stopping loses no fit question: others may need a little longer."""
_FROM_THE_START = ("run-stability", "confidence-leap", "agreement")
"""Families as they are known: tried from the first probe on alone."""


def last_resort(fit: FitData) -> int | None:
    """Position at which thinking ends for everybody; None where that never pays.

    A quarter beyond the smallest position from which stopping loses no fit question: traces that
    go on from there are the longest, and thinking on made no fit question right.  Never under the
    last-checkpoint reference, where the last checkpoint is that end already.
    """
    table, positions = fit.table, fit.positions
    if table.reference == "last-checkpoint" or not positions:
        return None
    view = GridSchedule(positions).view(table)
    lost = view.live & view.full_correct[:, None] & ~view.stop_correct
    after = np.flatnonzero(lost.any(axis=0))
    earliest = int(after[-1]) + 1 if after.size else 0
    if earliest >= len(positions):
        return None
    wanted = _CAP_MARGIN * positions[earliest]
    return next((p for p in positions if p >= max(wanted, 1)), None)


def grid_schedules(fit: FitData, stop_at: int | None = None) -> tuple[GridSchedule, ...]:
    """Strides over the positions that all questions share, at once and late.

    A position 0, the probe without any thinking, is tried with and without.
    """
    table, shared = fit.table, fit.positions
    longest = int(table.trace_tokens.max()) if stop_at is None else stop_at
    inner = [p for p in shared if 0 < p < longest]
    late = float(np.quantile(table.trace_tokens, _LATE_QUANTILE))
    late = max([p for p in inner if p <= late], default=0)
    base = 1
    while len(inner) > base * _MOST_PROBES:
        base *= 2
    end: tuple[int, ...] = () if stop_at is None else (stop_at,)
    if table.reference == "last-checkpoint":
        end = shared[-1:]  # the reference's own answer
    found: dict[GridSchedule, None] = {}
    for stride in (base << k for k in range(_STRIDES)):
        every = inner[stride - 1 :: stride]
        starts = [every, [p for p in every if p >= late]]
        if len(shared) <= _FEW_POSITIONS:
            starts.append(inner[::-1][::stride][::-1])
        if 0 in shared:
            starts.insert(0, [0, *every])
        for positions in starts:
            whole = tuple(dict.fromkeys((*positions, *end)))
            if whole:
                found[GridSchedule(whole, stop_at)] = None
    return tuple(found)


def marker_schedules(fit: FitData, stop_at: int | None = None) -> tuple[MarkerSchedule, ...]:
    """Markers with a gap between them; none where nobody looked for any.

    Only those whose every probe was made on every question, in all parts.
    """
    table = fit.table
    if table.marker_positions is None or table.reference == "last-checkpoint":
        return ()
    most = fit.probed_markers
    width = table.marker_positions.shape[1]
    counted = width if most is None else most
    if not counted:
        return ()
    found = [MarkerSchedule(gap, counted, most, stop_at) for gap in _GAPS]
    return tuple(schedule for schedule in found if fit.was_probed(schedule))


def candidates(fit: FitData, families: Sequence[str]) -> Iterator[ThresholdSequence]:
    """Measure every family on every schedule that suits it; boosted trees are left out."""
    if fit.table.rungs is not None:
        yield from rung_candidates(fit, families)
        return
    shared = fit.positions
    if FIXED_BUDGET in families and shared:
        rule = score_scalar(fit, FIXED_BUDGET, GridSchedule(shared))
        if rule is not None:
            yield sequence_of(fit, rule)
    stop_at = last_resort(fit)
    on_grid = grid_schedules(fit, stop_at)
    scalars = [family for family in families if family in STOP_SCALARS and family != "deer"]
    more = FREE_FEATURES if len(shared) <= _FEW_POSITIONS else FULL_FEATURES
    late = {s for s in on_grid if _starts_late(s, on_grid)}
    at_markers = [f for f in families if f in ("deer", "agreement-scaled")]
    schedules: list[Schedule] = [*on_grid, *marker_schedules(fit, stop_at)]
    for schedule in tracked("measuring rules", schedules):
        if isinstance(schedule, MarkerSchedule):
            yield from _measured(fit, families, at_markers, schedule, FULL_FEATURES)
            continue
        known = [f for f in scalars if schedule not in late or f not in _FROM_THE_START]
        yield from _measured(fit, families, known, schedule, more)


def _starts_late(schedule: GridSchedule, others: Sequence[GridSchedule]) -> bool:
    """Whether another schedule is this one with probes before its first."""
    return any(
        len(o) > len(schedule) and o.positions[-len(schedule) :] == schedule.positions
        for o in others
    )


def _measured(
    fit: FitData,
    families: Sequence[str],
    scalars: Sequence[str],
    schedule: Schedule,
    more: FeatureSet,
) -> Iterator[ThresholdSequence]:
    rules = [score_scalar(fit, family, schedule) for family in scalars]
    rules += [
        score_learned(fit, family, schedule, features)
        for family in ("learned", "learned-keeps")
        if family in families
        for features in (SHORT_FEATURES, more)
    ]
    yield from (sequence_of(fit, rule) for rule in rules if rule is not None)


def boosted_candidates(
    fit: FitData, linear: ThresholdSequence | None
) -> Iterator[ThresholdSequence]:
    """Boosted trees on one schedule alone, because they are dear to fit.

    That of the best `linear` rule; without one the densest on the grid.
    """
    if linear is not None:
        schedules: Sequence[Schedule] = [linear.scorer.schedule]
    else:
        schedules = grid_schedules(fit, last_resort(fit))[:1]
    rules = [score_learned(fit, "learned-boosted", s, FULL_FEATURES) for s in schedules]
    yield from (sequence_of(fit, rule) for rule in rules if rule is not None)
