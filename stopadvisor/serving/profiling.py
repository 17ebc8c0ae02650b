"""What tokens cost in seconds with a model that is loaded here.

Knows no command line and writes no file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from stopadvisor.ground.progress import Progress
from stopadvisor.rules.cost_fit import fit_costs
from stopadvisor.rules.serving_profile import ServingProfile

if TYPE_CHECKING:
    from stopadvisor.engines.hf.engine import HfEngine

__all__ = ["profile_model"]

_LONGEST_PREFIX = 1024
"""Tokens of the longer prefix by which tokens are measured, where the context has room."""


def profile_model(
    batches: Sequence[int],
    open_engine: Callable[[], AbstractContextManager[HfEngine]],
    progress: Progress,
) -> ServingProfile:
    """Measure a model on this machine, at each of these batch sizes.

    Raises
    ------
    ModelError
        The model cannot be used here.
    CalibrationError
        What was measured does not separate the costs.
    """
    with open_engine() as engine:
        from stopadvisor.engines.hf.measure import device_name, measure_tokens

        longest = min(_LONGEST_PREFIX, (engine.context or 2 * _LONGEST_PREFIX) // 2)
        progress.remark("measuring seconds per token")
        fit = fit_costs(measure_tokens(engine, longest // 2, batches))
        identity = engine.identity()
        return ServingProfile.of_fit(
            fit,
            model=engine.name,
            engine=f"hf {identity['engine_version']}",
            device=device_name(engine),
            settings={
                "dtype": identity["dtype"],
                "torch": identity["torch"],
                "prefix": longest // 2,
                "batches": list(batches),
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
            },
        )
