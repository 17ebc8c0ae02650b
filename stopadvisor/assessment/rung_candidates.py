"""Candidate rules of a ladder: which rungs are asked, by which signal, along which path.

Few on purpose: on 160 fit questions every further rule costs more than it brings.  Chooses nothing,
and sees no calibration question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from stopadvisor.assessment.sequences import (
    FitData,
    ScoredRule,
    ThresholdSequence,
    score_by_folds,
    sequence_of,
)
from stopadvisor.ground.arrays import FloatArray
from stopadvisor.probes.rungs import Rungs
from stopadvisor.rules.climb import RUNG_FEATURES, Climb, rung_features, rung_scores
from stopadvisor.rules.scorer import Scorer
from stopadvisor.rules.scores import LinearModel, fit_logistic

__all__ = ["AlwaysRung", "always_rungs", "rung_candidates"]

_MOST_STEPS = 200
"""Of a path: every fit question that is served or not, up to here."""
_MOST_RUNGS = 3
"""Before the reference: up to this many all selections are tried, beyond that all rungs or one."""
_RIDGE = 1.0


def rung_candidates(fit: FitData, families: Sequence[str]) -> Iterator[ThresholdSequence]:
    """Measure every family on the selections of rungs that suit it."""
    rungs = fit.table.rungs
    assert rungs is not None  # `candidates` asks
    for columns in _selections(rungs):
        found: list[ScoredRule | None] = []
        # The boldest step of a cap serves every reply that ended: it is the same rule.
        if "rung" in families and "cap" not in families and len(columns) == 1:
            found.append(_always(fit, columns[0]))
        is_vote = any(len(block) > 1 for block in rungs.blocks if columns[-1] in block)
        if "cap" in families and not is_vote:
            found.append(_scored(fit, "cap", columns))
        if "rung-agreement" in families and len(columns) > 1:
            found.append(_scored(fit, "rung-agreement", columns))
        known = bool(np.isfinite(fit.table.mean_logprob[:, list(columns)]).all())
        if "rung-confidence" in families and known:
            found.append(_scored(fit, "rung-confidence", columns))
        if "rung-learned" in families and (known or len(columns) > 1):
            found.append(_learned(fit, columns, with_logprob=known))
        yield from (sequence_of(fit, rule) for rule in found if rule is not None)


@dataclass(frozen=True)
class AlwaysRung:
    """One rung served to everybody, without a rule: what people do today."""

    name: str
    """The rung."""
    replies: int
    """Of it: more than one where the plurality of samples is the answer."""
    saving_pct: float
    """Against the reference, in the prices of the ladder."""
    token_saving_pct: float
    """Of the decoded tokens."""
    risk: float
    """What a question counts on average, by the first loss asked for."""
    accuracy: float
    """Share answered right."""


def always_rungs(fit: FitData) -> tuple[AlwaysRung, ...]:
    """What each rung alone costs and loses on fit questions; empty where there is no ladder."""
    rungs, table = fit.table.rungs, fit.table
    if rungs is None:
        return ()
    losses, found = fit.loss.of(table), []
    for block in rungs.blocks:
        for k in dict.fromkeys((block[0], block[-1])):
            price, decoded = rungs.spent.price.sum(axis=0), rungs.spent.decoded.sum(axis=0)
            found.append(
                AlwaysRung(
                    rungs.names[k],
                    k - block[0] + 1,
                    float(100 * (1 - price[k] / price[-1])),
                    float(100 * (1 - decoded[k] / decoded[-1])),
                    float(losses[:, k].mean()),
                    float(table.stop_correct[:, k].mean()),
                )
            )
    return tuple(found)


def _always(fit: FitData, column: int) -> ScoredRule:
    """Always the same rung; the reference only where the reply was cut or has no answer."""
    climb = _climb(fit, "rung", (column,), ((0.0,),))
    return _rule(climb, fit, rung_scores("rung", fit.table, (column,), None))


def _selections(rungs: Rungs) -> Iterator[tuple[int, ...]]:
    """Columns that may be asked before the reference; samples of a rung come all together."""
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
    fit: FitData,
    family: str,
    columns: tuple[int, ...],
    path: tuple[tuple[float, ...], ...],
    model: LinearModel | None = None,
) -> Climb:
    rungs = fit.table.rungs
    assert rungs is not None
    names = tuple(rungs.names[k] for k in (*columns, len(rungs.names) - 1))
    return Climb(family, names, columns, path, model)


def _rule(climb: Climb, fit: FitData, scores: FloatArray) -> ScoredRule:
    view = climb.view_of(fit.table, scores)
    scorer = Scorer(climb.family, climb, None)
    return ScoredRule(scorer, view, scorer.scores(view))


def _scored(fit: FitData, family: str, columns: tuple[int, ...]) -> ScoredRule | None:
    scores = rung_scores(family, fit.table, columns, None)
    path = _path(fit, columns, scores, separate=family == "cap")
    return _rule(_climb(fit, family, columns, path), fit, scores) if path else None


def _path(
    fit: FitData, columns: tuple[int, ...], scores: FloatArray, *, separate: bool
) -> tuple[tuple[float, ...], ...]:
    """Thresholds from bold to careful: the same score for every rung, or `separate` quantiles.

    The boldest of separate ones is the lowest score of all, replies that were cut included: the cap
    under which they were recorded.
    """
    assert fit.table.rungs is not None
    served = fit.table.rungs.served[:, list(columns)]
    if separate:
        each = [np.sort(scores[served[:, k], k]) for k in range(len(columns))]
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
        levels = np.repeat(values[:, None], len(columns), axis=1)
    return tuple(dict.fromkeys(map(tuple, levels.tolist())))


def _learned(fit: FitData, columns: tuple[int, ...], *, with_logprob: bool) -> ScoredRule | None:
    """Probability that serving a reply counts nothing, fitted on all rungs at once."""
    table, rungs = fit.table, fit.table.rungs
    assert rungs is not None
    names: tuple[str, ...] = RUNG_FEATURES if with_logprob else RUNG_FEATURES[:-1]
    if len(columns) == 1:
        names = tuple(n for n in names if n in ("log_tokens", "answer_log_odds"))
    x = rung_features(table, columns, names)  # (n_questions, n_asked, n_features)
    rows, labels = rungs.served[:, list(columns)], fit.loss.of(table)[:, list(columns)] <= 0

    def fitted(train: np.ndarray) -> LinearModel | None:
        y = labels[train]
        if y.size == 0 or y.all() or not y.any():
            return None
        return fit_logistic(x[train], y, names, ridge=_RIDGE)

    out = score_by_folds(fit, rows, x, fitted)
    if out is None:
        return None
    model, scores = out
    path = _path(fit, columns, scores, separate=False)
    return _rule(_climb(fit, "rung-learned", columns, path, model), fit, scores) if path else None
