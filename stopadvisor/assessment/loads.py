"""What the advised rule saves at other loads than the one it was chosen for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stopadvisor.assessment.choice import Choice
from stopadvisor.rules.costs import Weights
from stopadvisor.rules.roofline import Prices
from stopadvisor.rules.serving_costs import serving_costs

__all__ = ["LoadSaving", "savings_by_load"]


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
