"""Mean cost per request of one rule under every serving regime, in the unit of the weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stopadvisor.ground.arrays import FloatArray
from stopadvisor.probes.table import ProbeTable
from stopadvisor.rules.costs import (
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

__all__ = ["RequestMoney", "RequestTokens", "StackCost", "serving_costs"]


@dataclass(frozen=True)
class RequestTokens:
    """Mean tokens of a request."""

    decoded: float
    """Generated."""
    cached: float
    """Read from the cache."""
    prefilled: float
    """Read for the first time."""


@dataclass(frozen=True)
class RequestMoney:
    """Money per 1000 requests."""

    policy: float
    """With stopping."""
    full: float
    """With full thinking."""


@dataclass(frozen=True)
class StackCost:
    """Cost of the advised rule on one serving stack; all null where none is advised."""

    saving_pct: float | None
    """Net saving."""
    decoded_saving_pct: float | None
    """Saving in decoded tokens."""
    held_saving_pct: float | None
    """Saving in KV-token-time, the context summed over decoded tokens."""
    tokens: RequestTokens | None
    """Mean tokens of a request."""
    money_per_1000: RequestMoney | None
    """Money per 1000 requests; null without `--price`."""
    probes: float | None
    """Probes per request."""
    break_even_probes: float | None
    """Probes per request, at the present mean cost of one, at which the saving is gone; null if
    they cost nothing or thinking is not shortened.  Above `probes` exactly where the rule saves."""
    break_even_cached_price: float | None
    """Price of a cached token at which the saving is gone; null where no cached token is read or
    only a negative price would do."""


def serving_costs(
    view: ProbeTable, stops: NDArray[np.int64], weights: Weights, *, asking: Asking = EVERYWHERE
) -> dict[Serving, StackCost]:
    """Compute the cost of one rule under every regime.

    `view` is as `stopped_counts` takes it; `stops`, (n_questions,), is the probe at which each
    question stops, n_probes for never.
    """
    if view.rungs is not None:
        return {LADDER: _ladder_cost(view, stops, weights)}
    full = full_counts(view)
    full_cost, full_decoded = float(full.weighed(weights).mean()), float(full.decoded.mean())
    full_attended = float(full.attended.mean())
    positions = view.positions_at(range(view.n_checkpoints)).astype(np.float64)
    asked = asked_at(view, positions, view.live, asking)
    column = np.arange(view.n_checkpoints)
    reached = column <= stops[:, None] if asking.before else column == stops[:, None]
    probes = float((asked & reached).sum(axis=1).mean())
    # The same stops if probes were free.
    reply = view.think_tokens.astype(np.float64)
    if view.visible_tokens is not None:
        reply += view.visible_tokens
    prompt = view.prompt_tokens[:, None].astype(np.float64)
    last = np.column_stack([reply, full.decoded])
    held = np.column_stack([attended_by(prompt, reply), full.attended])
    thinking = float(
        weights.decoded * _mean_at(stops, last)
        + weights.held * _mean_at(stops, held)
        + weights.prefilled * full.prefilled.mean()
        + weights.request
    )
    found: dict[Serving, StackCost] = {}
    for regime in REGIMES:
        counts = stopped_counts(view, regime, asking=asking)
        decoded = _mean_at(stops, counts.decoded + counts.wasted(weights))
        cached, prefilled = _mean_at(stops, counts.cached), _mean_at(stops, counts.prefilled)
        requests, attended = _mean_at(stops, counts.requests), _mean_at(stops, counts.attended)
        bare = (
            weights.decoded * decoded
            + weights.held * attended
            + weights.prefilled * prefilled
            + weights.request * requests
        )
        cost = bare + weights.cached * cached
        probing, shortened = cost - thinking, full_cost - thinking
        found[regime] = StackCost(
            100 * (1 - cost / full_cost),
            100 * (1 - decoded / full_decoded),
            100 * (1 - attended / full_attended),
            RequestTokens(decoded, cached, prefilled),
            _money(weights, cost, full_cost),
            probes,
            probes * shortened / probing if probes > 0 and probing > 0 and shortened > 0 else None,
            (full_cost - bare) / cached if cached > 0 and full_cost > bare else None,
        )
    return found


def _mean_at(stops: NDArray[np.int64], values: FloatArray) -> float:
    """Mean over questions, each at its stop; `values` has shape (n_questions, n_probes + 1)."""
    return float(np.take_along_axis(values, stops[:, None], axis=1).mean())


def _money(weights: Weights, cost: float, full_cost: float) -> RequestMoney | None:
    """Money for 1000 requests; None unless the weights are prices in money."""
    policy, full = weights.per_thousand(cost), weights.per_thousand(full_cost)
    return None if policy is None or full is None else RequestMoney(policy, full)


def _ladder_cost(view: ProbeTable, stops: NDArray[np.int64], weights: Weights) -> StackCost:
    """Cost of climbing a ladder at one threshold, at the prices of its rungs."""
    full, counts = full_counts(view), stopped_counts(view, LADDER)
    cost, full_cost = _mean_at(stops, counts.weighed(weights)), float(full.weighed(weights).mean())
    decoded, attended = _mean_at(stops, counts.decoded), _mean_at(stops, counts.attended)
    cached, prefilled = _mean_at(stops, counts.cached), _mean_at(stops, counts.prefilled)
    return StackCost(
        100 * (1 - cost / full_cost),
        100 * (1 - decoded / float(full.decoded.mean())),
        100 * (1 - attended / float(full.attended.mean())),
        RequestTokens(decoded, cached, prefilled),
        _money(weights, cost, full_cost),
        _mean_at(stops, counts.requests) - 1,
        None,
        None,
    )
