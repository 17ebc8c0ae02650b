"""Verifying a frozen policy on fresh labelled probes.

The policy is given, so nothing is chosen and every interval is what it says.  Questions that
served to fit or to calibrate it are left out: they cannot confirm it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

from stopadvisor.boosting import BoostedModel, Tree
from stopadvisor.calibration import calibration_rows
from stopadvisor.chains import Scorer
from stopadvisor.costs import DEFAULT_CACHE_BLOCK, Weights, full_counts, stopped_counts
from stopadvisor.drift import Drift, feature_drift, question_features
from stopadvisor.errors import PolicyError
from stopadvisor.outcomes import Outcome, measure
from stopadvisor.probes import ProbeTable
from stopadvisor.risk import max_losses, power, upper_limit
from stopadvisor.scores import LinearModel

__all__ = ["CategoryRisk", "Verification", "fresh_rows", "scorer_of", "verify"]

Verdict = Literal["confirmed", "contradicted", "silent"]


@dataclass(frozen=True)
class CategoryRisk:
    """Lost-correct risk within one category; the certificate itself is about all questions."""

    category: str
    n: int
    losses: int
    ci95: tuple[float, float]
    """Exact, simultaneous over categories (Bonferroni)."""


@dataclass(frozen=True)
class Verification:
    """What fresh probes say about a certificate."""

    verdict: Verdict
    alpha: float
    delta: float
    n: int
    n_left_out: int
    """Traces left out because their question was used before, or was drawn more than once."""
    losses: int
    lower: float
    """One-sided exact limit at level 1 - delta."""
    upper: float
    power_to_confirm: float
    """Chance to confirm at the risk that the policy expects of itself."""
    expected_risk: float
    outcome: Outcome
    categories: tuple[CategoryRisk, ...]
    drift: tuple[Drift, ...]
    """Features against the calibration questions; empty where the policy stores none."""


def scorer_of(content: Mapping[str, Any], table: ProbeTable) -> Scorer:
    """The vectorised twin of a policy's stepper, over a table's columns.

    Raises
    ------
    PolicyError
        A budget of the policy was not probed in the table.
    """
    budgets = table.budgets.tolist()
    missing = [b for b in content["budgets"] if b not in budgets]
    if missing:
        raise PolicyError(
            f"the policy probes at {content['budgets']} thinking tokens, the run did not probe at "
            f"{missing[0]}; its budgets are {budgets}"
        )
    schedule = tuple(budgets.index(b) for b in content["budgets"])
    family = content["family"]
    if family == "learned-boosted":
        trees = tuple(
            Tree(**{key: tuple(tree[key]) for key in Tree.__dataclass_fields__})
            for tree in content["trees"]
        )
        boosted = BoostedModel(tuple(content["features"]), content["intercept"], trees)
        return Scorer(family, schedule, boosted)
    if family.startswith("learned"):
        linear = LinearModel(
            tuple(content["features"]),
            tuple(content["mean"]),
            tuple(content["scale"]),
            tuple(content["coef"]),
            content["intercept"],
        )
        return Scorer(family, schedule, linear)
    return Scorer(family, schedule, None)


def fresh_rows(content: Mapping[str, Any], table: ProbeTable) -> np.ndarray[Any, Any]:
    """Rows that may confirm a policy: one trace per question that it has never met."""
    split = content["split"] or {}
    met = {*split.get("fit", ()), *split.get("calibration", ())}
    unmet = np.array([key not in met for key in table.keys], dtype=bool)
    rows = np.flatnonzero(unmet)
    return rows[calibration_rows(table.take(rows))] if rows.size else rows


def verify(
    content: Mapping[str, Any],
    table: ProbeTable,
    *,
    weights: Weights,
    cache_block: int = DEFAULT_CACHE_BLOCK,
    rng: np.random.Generator,
) -> Verification:
    """Hold a policy's certificate against fresh labelled probes.

    Parameters
    ----------
    content : mapping
        Content of a policy of kind ``stop``.
    table : ProbeTable
        Fresh probes, graded; at the policy's budgets among others.
    weights : Weights
    cache_block : int
    rng : numpy.random.Generator

    Raises
    ------
    PolicyError
        The policy never stops, no fresh question is left, or budgets differ.
    """
    certificate = content["certificate"]
    if content["kind"] != "stop" or certificate is None:
        raise PolicyError("a full-budget policy has no certificate to verify")
    if table.reference != certificate["reference"]:
        table = table.with_reference(certificate["reference"])
    rows = fresh_rows(content, table)
    if not rows.size:
        raise PolicyError(
            f"all {table.n_questions} traces belong to questions that fitted or calibrated this "
            "policy; fresh ones are required"
        )
    fresh = table.take(rows)
    scorer = scorer_of(content, fresh)
    stops = scorer.curve(fresh, np.array([content["decision_threshold"]])).stops(0)
    costs = stopped_counts(fresh, scorer.schedule, content["serving"], cache_block=cache_block)
    outcome = measure(
        scorer, fresh, stops, costs.weighed(weights), full_counts(fresh).weighed(weights), rng=rng
    )
    lost = np.take_along_axis(scorer.losses(fresh), stops[:, None], axis=1)[:, 0]
    counted = np.ones(len(lost), dtype=bool)
    if certificate.get("conditional"):
        counted = fresh.full_correct
    n, losses = int(counted.sum()), int(lost.sum())
    if n == 0:
        raise PolicyError("no fresh question is right with full thinking: nothing can be lost")
    alpha, delta = certificate["alpha"], certificate["delta"]
    lower = float(stats.beta.ppf(delta, losses, n - losses + 1)) if losses else 0.0
    upper = upper_limit(losses, n, delta)
    verdict: Verdict = "silent"
    if lower > alpha:
        verdict = "contradicted"
    elif losses <= max_losses(n, alpha, delta):
        verdict = "confirmed"
    told = (content["expected"] or {}).get("fit_risk")
    expected = float(certificate["losses"] / certificate["n"] if told is None else told)
    return Verification(
        verdict,
        alpha,
        delta,
        n,
        table.n_questions - fresh.n_questions,
        losses,
        lower,
        upper,
        power(n, alpha, delta, min(expected, 1.0)),
        expected,
        outcome,
        _categories(fresh, lost, counted),
        _drift(content, fresh, scorer, rng),
    )


def _categories(
    table: ProbeTable, lost: np.ndarray[Any, Any], counted: np.ndarray[Any, Any]
) -> tuple[CategoryRisk, ...]:
    names = np.array([c if c is not None else "" for c in table.categories], dtype=object)
    present = sorted({name for name in names[counted] if name})
    if not present:
        return ()
    level = 1 - 0.05 / len(present)
    out = []
    for name in present:
        rows = counted & (names == name)
        n, losses = int(rows.sum()), int(lost[rows].sum())
        interval = stats.binomtest(losses, n).proportion_ci(level, method="exact")
        out.append(CategoryRisk(name, n, losses, (float(interval.low), float(interval.high))))
    return tuple(out)


def _drift(
    content: Mapping[str, Any], fresh: ProbeTable, scorer: Scorer, rng: np.random.Generator
) -> tuple[Drift, ...]:
    stored = content.get("calibration_features")
    if not stored:
        return ()
    return feature_drift(
        np.array(stored, dtype=np.float64), question_features(fresh, scorer.schedule), rng=rng
    )
