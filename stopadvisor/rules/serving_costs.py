"""What one rule costs under every way of serving it.

Counts come from `costs`; means per request, in the unit of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stopadvisor.ground.arrays import FloatArray
from stopadvisor.probes.table import ProbeTable
from stopadvisor.rules.costs import (
    DEFAULT_CACHE_BLOCK,
    EVERYWHERE,
    LADDER,
    REGIMES,
    Asking,
    Serving,
    Weights,
    asked_at,
    attended_by,
    full_counts,
    stopped_counts,
)

__all__ = ["ServingCost", "serving_costs"]


@dataclass(frozen=True)
class ServingCost:
    """What one rule costs under one serving regime; means per request."""

    serving: Serving
    saving_pct: float
    """Net saving against full thinking, in the weights given."""
    decoded_saving_pct: float
    """Of the decoded tokens alone."""
    held_saving_pct: float
    """Of KV-token-time, see `TokenCounts`."""
    decoded: float
    cached: float
    prefilled: float
    cost: float
    """In the unit of the weights."""
    full_cost: float
    probes: float
    """Probes per request."""
    break_even_probes: float | None
    """Probes per request, each as dear as the mean one now, at which the saving is gone; None if
    they cost nothing or thinking itself is not shortened.  Above `probes` just where it saves."""
    break_even_cached: float | None
    """Weight of a cached token at which the saving is gone; None where none is read or none above
    zero would do."""
    money_per_1000: float | None
    """For a thousand requests; None where the weights are no prices."""
    full_money_per_1000: float | None
    """The same with full thinking."""


def serving_costs(
    view: ProbeTable,
    stops: NDArray[np.int64],
    weights: Weights,
    *,
    cache_block: int = DEFAULT_CACHE_BLOCK,
    asking: Asking = EVERYWHERE,
) -> tuple[ServingCost, ...]:
    """Cost one rule under every regime.

    `view` is as `stopped_counts` takes it; `stops`, (n_questions,), is the probe at which each
    question stops, and their number stands for never.
    """
    if view.rungs is not None:
        return (_ladder_cost(view, stops, weights),)
    full = full_counts(view)
    full_cost, full_decoded = float(full.weighed(weights).mean()), float(full.decoded.mean())
    full_attended = float(full.attended.mean())
    positions = view.positions_at(range(view.n_checkpoints)).astype(np.float64)
    asked = asked_at(view, positions, view.live, asking)
    column = np.arange(view.n_checkpoints)
    reached = column <= stops[:, None] if asking.before else column == stops[:, None]
    probes = float((asked & reached).sum(axis=1).mean())
    # The same stops with nothing to pay for finding them.
    reply = view.think_tokens.astype(np.float64)
    if view.visible_tokens is not None:
        reply += view.visible_tokens
    prompt = view.prompt_tokens[:, None].astype(np.float64)
    last = np.column_stack([reply, full.decoded])
    held = np.column_stack([attended_by(prompt, reply), full.attended])
    thinking = float(
        weights.decoded * np.take_along_axis(last, stops[:, None], axis=1).mean()
        + weights.held * np.take_along_axis(held, stops[:, None], axis=1).mean()
        + weights.prefilled * full.prefilled.mean()
        + weights.request
    )
    rows = []
    for regime in REGIMES:
        counts = stopped_counts(view, regime, cache_block=cache_block, asking=asking)
        decoded, cached, prefilled, requests, attended = (
            float(np.take_along_axis(kind, stops[:, None], axis=1).mean())
            for kind in (
                counts.decoded + counts.wasted(weights),
                counts.cached,
                counts.prefilled,
                counts.requests,
                counts.attended,
            )
        )
        bare = (
            weights.decoded * decoded
            + weights.held * attended
            + weights.prefilled * prefilled
            + weights.request * requests
        )
        cost = bare + weights.cached * cached
        probing, shortened = cost - thinking, full_cost - thinking
        rows.append(
            ServingCost(
                regime,
                100 * (1 - cost / full_cost),
                100 * (1 - decoded / full_decoded),
                100 * (1 - attended / full_attended),
                decoded,
                cached,
                prefilled,
                cost,
                full_cost,
                probes,
                probes * shortened / probing
                if probes > 0 and probing > 0 and shortened > 0
                else None,
                (full_cost - bare) / cached if cached > 0 and full_cost > bare else None,
                weights.per_thousand(cost),
                weights.per_thousand(full_cost),
            )
        )
    return tuple(rows)


def _ladder_cost(view: ProbeTable, stops: NDArray[np.int64], weights: Weights) -> ServingCost:
    """One path at one of its steps, in the prices of its rungs."""
    full, counts = full_counts(view), stopped_counts(view, LADDER)

    def mean(values: FloatArray) -> float:
        return float(np.take_along_axis(values, stops[:, None], axis=1).mean())

    cost, full_cost = mean(counts.weighed(weights)), float(full.weighed(weights).mean())
    decoded, attended = mean(counts.decoded), mean(counts.attended)
    return ServingCost(
        LADDER,
        100 * (1 - cost / full_cost),
        100 * (1 - decoded / float(full.decoded.mean())),
        100 * (1 - attended / float(full.attended.mean())),
        decoded,
        mean(counts.cached),
        mean(counts.prefilled),
        cost,
        full_cost,
        mean(counts.requests) - 1,
        None,
        None,
        weights.per_thousand(cost),
        weights.per_thousand(full_cost),
    )
