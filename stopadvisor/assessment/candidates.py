"""Candidate rules: families on schedules, each measured on fit questions.

Schedules are strides over the positions that all questions share, with an early or late start, and
markers with a minimum gap; all end at a position after which stopping loses no fit question.  For a
ladder, a candidate is a selection of rungs, a signal and a path.  There are few on purpose: with
160 fit questions each further rule costs more than it gains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from stopadvisor.assessment.sequences import (
    FREE_FEATURES,
    FULL_FEATURES,
    SHORT_FEATURES,
    FeatureSet,
    FitData,
    ThresholdSequence,
    learned_sequence,
    scalar_sequence,
    score_by_folds,
    sequence_of,
)
from stopadvisor.ground.arrays import BoolArray, FloatArray
from stopadvisor.ground.progress import tracked
from stopadvisor.probes.rungs import Rungs, known_mean
from stopadvisor.probes.trigger import ListedTrigger, MarkerTrigger
from stopadvisor.rules.climb import RUNG_FEATURES, Climb, OnGiveUp, rung_features, rungs_of
from stopadvisor.rules.families import FIXED_BUDGET, STOP_SCALARS
from stopadvisor.rules.features import LinearModel
from stopadvisor.rules.scorer import Schedule, Scorer, view_at
from stopadvisor.rules.scores import fit_logistic

__all__ = [
    "AlwaysRung", "always_rungs", "candidates", "grid_schedules", "last_resort", "marker_schedules",
]  # fmt: skip

_STRIDES = 3
"""Number of strides: the smallest distance between probes, then twice and four times as much."""
_MOST_PROBES = 128
"""Longer grids are thinned to every second position, every fourth, and so on: probes this close
together cost more than they save."""
_FEW_POSITIONS = 16
"""On grids up to this length it matters whether a stride begins at the first or ends at the last
position, and learned rules read more features."""
_GAPS = (64, 128, 256)
"""Minimum distances, in thinking tokens, between two probes at markers."""
_LATE_QUANTILE = 0.05
"""A late start skips positions that 95 % of fit traces pass: almost every question would pay for
probes there."""
_CAP_MARGIN = 1.25
"""Factor on the first position after which stopping loses no fit question: others may need a little
longer."""
_FROM_THE_START = ("run-stability", "confidence-leap", "agreement")
"""Published families, never tried with a late start."""


def last_resort(fit: FitData) -> int | None:
    """Position at which every trace is stopped; None for none.

    It lies a quarter beyond the first position after which stopping loses no fit question.  None
    under the last-checkpoint reference, where the last checkpoint is already such an end.
    """
    table, positions = fit.table, fit.positions
    if table.reference == "last-checkpoint" or not positions:
        return None
    view = view_at(ListedTrigger(positions), table)
    lost = view.live & view.full_correct[:, None] & ~view.stop_correct
    after = np.flatnonzero(lost.any(axis=0))
    earliest = int(after[-1]) + 1 if after.size else 0
    if earliest >= len(positions):
        return None
    wanted = _CAP_MARGIN * positions[earliest]
    return next((p for p in positions if p >= max(wanted, 1)), None)


def grid_schedules(fit: FitData, stop_at: int | None = None) -> tuple[ListedTrigger, ...]:
    """Strides over the positions that all questions share, with an early and a late start.

    Position 0, a probe before any thinking, is tried both with and without.
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
    found: dict[ListedTrigger, None] = {}
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
                found[ListedTrigger(whole, stop_at)] = None
    return tuple(found)


def marker_schedules(fit: FitData, stop_at: int | None = None) -> tuple[MarkerTrigger, ...]:
    """Markers with a minimum gap; none if markers were not recorded.

    Only schedules whose probes were all made, on every question of every part.
    """
    table = fit.table
    if table.marker_positions is None or table.reference == "last-checkpoint":
        return ()
    most = fit.probed_markers
    width = table.marker_positions.shape[1]
    counted = width if most is None else most
    if not counted:
        return ()
    found = [MarkerTrigger((), gap, counted, most, stop_at) for gap in _GAPS]
    return tuple(schedule for schedule in found if fit.was_probed(schedule))


def candidates(
    fit: FitData, families: Sequence[str], on_give_up: OnGiveUp = "escalate"
) -> Iterator[ThresholdSequence]:
    """Measure every family on every schedule that suits it."""
    if fit.table.rungs is not None:
        yield from _rung_candidates(fit, families, on_give_up)
        return
    shared = fit.positions
    if FIXED_BUDGET in families and shared:
        budgets = scalar_sequence(fit, FIXED_BUDGET, ListedTrigger(shared))
        if budgets is not None:
            yield budgets
    stop_at = last_resort(fit)
    on_grid = grid_schedules(fit, stop_at)
    scalars = [family for family in families if family in STOP_SCALARS and family != "deer"]
    more = FREE_FEATURES if len(shared) <= _FEW_POSITIONS else FULL_FEATURES
    late = {s for s in on_grid if _starts_late(s, on_grid)}
    at_markers = [f for f in families if f in ("deer", "agreement-scaled")]
    schedules: list[Schedule] = [*on_grid, *marker_schedules(fit, stop_at)]
    for schedule in tracked("measuring rules", schedules):
        if isinstance(schedule, MarkerTrigger):
            yield from _measured(fit, families, at_markers, schedule, FULL_FEATURES)
            continue
        known = [f for f in scalars if schedule not in late or f not in _FROM_THE_START]
        yield from _measured(fit, families, known, schedule, more)


def _starts_late(schedule: ListedTrigger, others: Sequence[ListedTrigger]) -> bool:
    """Whether another schedule is this one plus earlier probes."""
    n = len(schedule.positions)
    return any(len(o.positions) > n and o.positions[-n:] == schedule.positions for o in others)


def _measured(
    fit: FitData,
    families: Sequence[str],
    scalars: Sequence[str],
    schedule: Schedule,
    more: FeatureSet,
) -> Iterator[ThresholdSequence]:
    found = [scalar_sequence(fit, family, schedule) for family in scalars]
    found += [
        learned_sequence(fit, family, schedule, features)
        for family in ("learned", "learned-keeps")
        if family in families
        for features in (SHORT_FEATURES, more)
    ]
    yield from (sequence for sequence in found if sequence is not None)


# --- Rungs of a ladder ----------------------------------------------------------------------------

_MOST_STEPS = 200
"""Most thresholds of a path."""
_MOST_RUNGS = 3
"""With up to this many rungs before the reference, every selection is tried; with more, all of them
and each alone."""
_RIDGE = 1.0
_GIVING_UP = ("rung-confidence", "rung-learned")
"""Families whose scores tell wrong replies from unsure ones.  A cap abandons every reply that it
does not serve, at the same length; and a first answer has no other to agree with, so its agreement
says nothing."""
_GIVEN_UP = 0.25
"""With `reply`, the share of replies that the boldest step of a path may give up."""
_LEVELS = 16
"""Levels tried for each step, at evenly spaced quantiles of the scores."""
_PAYS = 2.0
"""Standard errors by which giving up must save on fit questions, because the best of several levels
is partly best by luck."""


def _rung_candidates(
    fit: FitData, families: Sequence[str], on_give_up: OnGiveUp
) -> Iterator[ThresholdSequence]:
    """Measure each family on the selections of rungs that suit it, giving up if that pays."""
    rungs = rungs_of(fit.table)
    for columns in _selections(rungs):
        is_vote = any(len(block) > 1 for block in rungs.blocks if columns[-1] in block)
        known = bool(np.isfinite(fit.table.mean_logprob[:, list(columns)]).all())
        suits = {
            # The boldest step of `cap` serves every finished reply: the same rule as `rung`.
            "rung": "cap" not in families and len(columns) == 1,
            "cap": not is_vote,
            "rung-agreement": len(columns) > 1,
            "rung-confidence": known,
            "rung-learned": known or len(columns) > 1,
        }
        for family in (name for name, fits in suits.items() if fits and name in families):
            climb, scores = _climb(fit, family, columns, with_logprob=known)
            if not climb.path:
                continue
            gives_up = _giving_up(fit, climb, scores, on_give_up)
            # Escalating replaces the plain rule: it costs less on fit questions and loses no more
            # replies, though a drop may gain fewer.
            if gives_up is None or on_give_up == "reply":
                yield _climbing(climb, fit, scores)
            if gives_up is not None:
                yield _climbing(gives_up, fit, scores)


@dataclass(frozen=True)
class AlwaysRung:
    """Always the same rung, without a rule."""

    name: str
    """The rung."""
    replies: int
    """Replies asked of it; if several, the plurality answer is served."""
    saving_pct: float
    """Saving against the reference, at the ladder's prices."""
    token_saving_pct: float
    """Saving in decoded tokens."""
    risk: float
    """Mean of the first limited loss."""
    accuracy: float
    """Share answered right."""
    request_seconds: float | None
    """Mean seconds of a request at the concurrency of the recording; null unless every reply was
    timed and each rung is asked once."""


def always_rungs(fit: FitData) -> tuple[AlwaysRung, ...]:
    """Cost and loss of each rung alone on fit questions; empty without a ladder."""
    rungs, table = fit.table.rungs, fit.table
    if rungs is None:
        return ()
    totals = (values.sum(axis=0) for values in (rungs.spent.price, rungs.spent.decoded))
    saved, tokens_saved = (100 * (1 - total / total[-1]) for total in totals)
    risk, accuracy = fit.loss.of(table).mean(axis=0), table.stop_correct.mean(axis=0)
    return tuple(
        AlwaysRung(
            rungs.names[k],
            k - block[0] + 1,
            float(saved[k]),
            float(tokens_saved[k]),
            float(risk[k]),
            float(accuracy[k]),
            known_mean(rungs.spent.seconds[:, k]),
        )
        for block in rungs.blocks
        for k in dict.fromkeys((block[0], block[-1]))
    )


def _selections(rungs: Rungs) -> Iterator[tuple[int, ...]]:
    """Sets of columns to ask before the reference; all samples of a rung or none."""
    before = [tuple(block) for block in rungs.blocks[:-1]]
    if len(rungs.blocks[-1]) > 1:
        before.append(tuple(rungs.blocks[-1])[:-1])
    sizes = range(1, len(before) + 1)
    if len(before) > _MOST_RUNGS:
        sizes = range(1, 2)
        yield tuple(k for block in before for k in block)
    for size in sizes:
        for chosen in combinations(before, size):
            yield tuple(k for block in chosen for k in block)


def _climb(
    fit: FitData, family: str, columns: tuple[int, ...], *, with_logprob: bool
) -> tuple[Climb, FloatArray]:
    """A family's rule and its scores; without a path if nothing can be learned."""
    rungs = rungs_of(fit.table)
    climb = Climb(family, tuple(rungs.names[k] for k in (*columns, -1)), columns, path=())
    if family == "rung-learned":
        learned = _learned(fit, columns, with_logprob=with_logprob)
        if learned is None:
            return climb, np.zeros(0)
        climb, scores = replace(climb, model=learned[0]), learned[1]
    else:
        scores = climb.scores(fit.table)
    path = _path(rungs.served[:, list(columns)], scores, separate=family == "cap")
    return replace(climb, path=path), scores


def _climbing(climb: Climb, fit: FitData, scores: FloatArray) -> ThresholdSequence:
    view, scorer = climb.view_of(fit.table, scores), Scorer(climb.family, climb, None)
    return sequence_of(fit, scorer, view, scorer.scores(view))


def _path(
    served: BoolArray, scores: FloatArray, *, separate: bool
) -> tuple[tuple[float, ...], ...]:
    """Thresholds from bold to careful: one score for all rungs, or `separate` quantiles of each.

    The boldest separate threshold is the lowest score of all replies, cut ones included: the cap
    under which they were recorded.
    """
    if separate:
        each = [np.sort(scores[ended, k]) for k, ended in enumerate(served.T)]
        if not all(values.size for values in each):
            return ()
        steps = min(_MOST_STEPS, max(values.size for values in each))
        at = np.linspace(0, 1, steps)
        quantiles = [v[np.rint(at * (v.size - 1)).astype(int)] for v in each]
        levels = np.vstack([scores.min(axis=0), np.column_stack(quantiles)])
    else:
        values = np.unique(scores[served])
        if values.size > _MOST_STEPS:
            values = values[np.rint(np.linspace(0, values.size - 1, _MOST_STEPS)).astype(int)]
        levels = np.repeat(values[:, None], served.shape[1], axis=1)
    return tuple(dict.fromkeys(map(tuple, levels.tolist())))


def _learned(
    fit: FitData, columns: tuple[int, ...], *, with_logprob: bool
) -> tuple[LinearModel, FloatArray] | None:
    """One model for all rungs that serving a reply loses nothing, and its out-of-fold log-odds."""
    table, rungs = fit.table, rungs_of(fit.table)
    names: tuple[str, ...] = RUNG_FEATURES if with_logprob else RUNG_FEATURES[:-1]
    if len(columns) == 1:
        names = tuple(n for n in names if n in ("log_tokens", "answer_log_odds"))
    x = rung_features(table, columns, names)  # (n_questions, n_asked, n_features)
    rows, labels = rungs.served[:, list(columns)], fit.loss.of(table)[:, list(columns)] <= 0

    def fitted(train: BoolArray) -> LinearModel:
        return fit_logistic(x[train], labels[train], names, ridge=_RIDGE)

    return score_by_folds(fit, rows, x, labels, fitted)


def _giving_up(
    fit: FitData, climb: Climb, scores: FloatArray, on_give_up: OnGiveUp
) -> Climb | None:
    """The rule with a level for each step, below which it gives up; None if none pays.

    With `escalate` any rung but the last cheap one may give up.  Each step gets the level that
    saves most among those that save more than `_PAYS` standard errors, or else the lowest, which
    gives up nothing; all rungs share it, as they share the threshold.  With `reply` the boldest
    step gives up the lowest quarter of the replies and the most careful one none; the test counts
    the losses.
    """
    rungs, columns = rungs_of(fit.table), list(climb.columns)
    sampled = any(len(block) > 1 and block[0] in columns for block in rungs.blocks)
    if climb.family not in _GIVING_UP or sampled:
        return None
    shown, steps = scores[rungs.served[:, columns]], len(climb.path)
    if on_give_up == "reply":
        levels = np.quantile(shown, np.linspace(_GIVEN_UP, 0.0, steps), method="lower")
        return replace(climb, on_give_up=on_give_up, give_up=tuple(levels.tolist()))
    if len(columns) < 2:  # the reference is next anyway
        return None

    def prices(level: float) -> FloatArray:
        rule = replace(climb, on_give_up=on_give_up, give_up=(level,) * steps)
        view = rule.view_of(fit.table, scores)
        assert view.rungs is not None
        return view.rungs.spent.price[:, :-1]

    at = np.linspace(0, 1, _LEVELS, endpoint=False)
    levels = np.unique(np.quantile(shown, at, method="higher"))  # the lowest gives up nothing
    costs = np.stack([prices(level) for level in levels.tolist()])
    saved = costs[0] - costs  # (n_levels, n_questions, n_steps)
    mean, error = saved.mean(axis=1), saved.std(axis=1) / np.sqrt(len(scores))
    best = np.where(mean > _PAYS * error, mean, 0.0).argmax(axis=0)
    if not best.any():
        return None
    return replace(climb, on_give_up=on_give_up, give_up=tuple(levels[best].tolist()))
