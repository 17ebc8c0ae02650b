"""What the advised rule saves at other loads, and what a measured server says of its costs.

Knows what `probe` wrote down of a server, and asks none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stopadvisor.assessment.choice import Choice, Settings
from stopadvisor.rules.costs import Weights
from stopadvisor.rules.roofline import Prices
from stopadvisor.rules.serving_costs import serving_costs
from stopadvisor.runs.server_regime import RegimeMeasure

__all__ = ["LoadSaving", "remark_on_serving", "savings_by_load"]


@dataclass(frozen=True)
class LoadSaving:
    """What the advised rule saves at another load than the one it was chosen for."""

    in_flight: int
    """Requests that decode together."""
    decoded: float
    """Seconds of a decoded token, at the mean context."""
    saving_pct: float
    """Net saving on fit questions."""


def savings_by_load(choice: Choice, loads: Sequence[Weights]) -> tuple[LoadSaving, ...]:
    """Net saving of the advised rule at the prices of other loads; empty where none is advised."""
    sequence, settings, found = choice.advised, choice.settings, []
    if not choice.serving or sequence is None:
        return ()
    stops = sequence.curve.stops(choice.advised_index)
    for weights in loads:
        rows = serving_costs(
            sequence.view,
            stops,
            weights,
            cache_block=settings.cache_block,
            asking=sequence.scorer.asking,
        )
        saving = rows[settings.serving].saving_pct
        assert saving is not None  # a rule is advised
        found.append(LoadSaving(weights.in_flight or 1, Prices.of(weights).decoded, saving))
    return tuple(found)


def remark_on_serving(server: RegimeMeasure | None, settings: Settings) -> str:
    """What the server was measured to be, and whether costs are counted so."""
    if server is None or server.regime is None:
        why = (
            "was not measured: `stopadvisor probe` again does, with the server up"
            if server is None
            else f"is not clear: {server.reason}"
        )
        return (
            f"the serving regime {why}; costs are those of {settings.serving}, --serving says "
            "another"
        )
    block = server.cache_block or settings.cache_block
    measured = f"this server is {server.regime}, as measured: {server.reason}"
    if settings.serving != server.regime:
        return f"{measured}; costs are those of {settings.serving}, as asked"
    if server.regime == "prefix-cache" and server.cache_block is None:
        return f"{measured}; blocks of {block} tokens are taken for granted"
    return measured
