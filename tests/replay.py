"""Recorded probes through the online stepper, as production would see them."""

from __future__ import annotations

import math
from typing import Any

from stopadvisor.policy.stepper import Stepper, StopRule
from stopadvisor.probes.table import ProbeTable
from stopadvisor.rules.boosting import BoostedModel
from stopadvisor.rules.scores import LinearModel

__all__ = ["replayed", "rule_of", "stops"]


def rule_of(
    table: ProbeTable,
    family: str,
    schedule: tuple[int, ...],
    model: LinearModel | BoostedModel | None,
    threshold: float,
) -> StopRule:
    """The stepper's rule for a scorer and a threshold on the linear scale."""
    content: dict[str, Any] = {
        "family": family,
        "features": list(model.features) if model else [],
        "budgets": table.budgets[list(schedule)].tolist(),
        "decision_threshold": threshold,
        "task": "exact",
        "intercept": model.intercept if model else None,
        "mean": [],
        "scale": [],
        "coef": [],
    }
    if isinstance(model, LinearModel):
        content |= {
            "mean": list(model.mean),
            "scale": list(model.scale),
            "coef": list(model.coef),
        }
    elif isinstance(model, BoostedModel):
        content["trees"] = [
            {
                key: list(getattr(t, key))
                for key in ("feature", "threshold", "left", "right", "value")
            }
            for t in model.trees
        ]
    return StopRule.from_content(content)


def _walk(table: ProbeTable, rule: StopRule, schedule: tuple[int, ...], i: int) -> list[float]:
    stepper, scores = Stepper(rule), []
    for j in schedule:
        if table.trace_tokens[i] <= table.budgets[j]:
            break  # the trace is over: production would not probe
        decision = stepper.observe(
            think_tokens=int(table.think_tokens[i, j]),
            normalized=str(table.answer_codes[i, j]),
            mean_logprob=float(table.mean_logprob[i, j]),
            mean_entropy=float(table.mean_entropy[i, j]),
            markers=float(table.markers[i, j]),
        )
        scores.append(decision.score)
        if decision.stop:
            break
    return scores


def replayed(
    table: ProbeTable,
    family: str,
    schedule: tuple[int, ...],
    model: LinearModel | BoostedModel | None,
) -> list[list[float]]:
    """Scores of every live checkpoint, by a rule that never stops."""
    rule = rule_of(table, family, schedule, model, math.inf)
    return [_walk(table, rule, schedule, i) for i in range(table.n_questions)]


def stops(
    table: ProbeTable,
    family: str,
    schedule: tuple[int, ...],
    model: LinearModel | BoostedModel | None,
    threshold: float,
) -> list[int]:
    """Where each question stops; the length of the schedule means never."""
    rule = rule_of(table, family, schedule, model, threshold)
    found = []
    for i in range(table.n_questions):
        scores = _walk(table, rule, schedule, i)
        hit = bool(scores) and scores[-1] >= threshold
        found.append(len(scores) - 1 if hit else len(schedule))
    return found
