"""Capped tokens as the paper counts them, beside which `rules.costs` counts every request.

Knows no weights but the paper's own, no scores and no thresholds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stopadvisor.ground.arrays import FloatArray
from stopadvisor.ground.constants import PAPER_CACHED_WEIGHT, PROBE_CAP
from stopadvisor.probes.table import ProbeTable

__all__ = ["PaperCosts", "paper_costs"]


@dataclass(frozen=True)
class PaperCosts:
    """Capped tokens under the paper's accounting."""

    thinking: FloatArray  # (n_questions, n_checkpoints) min(T, B_j)
    total: FloatArray  # (n_questions, n_checkpoints) thinking + cap · (j + 1)
    full_thinking: FloatArray  # (n_questions,) T, whatever the last budget
    full_total: FloatArray  # (n_questions,) T + cap
    prefix_cache: FloatArray  # (n_questions, n_checkpoints)
    black_box: FloatArray  # (n_questions, n_checkpoints)


def paper_costs(table: ProbeTable, *, cap: int = PROBE_CAP) -> PaperCosts:
    """The paper's capped accounting under its three regimes.

    References
    ----------
    Paper, Section "Training and Metrics" (Eq. for C^cap) and Section "Deployment Cost".  As in
    the published scripts, prefix-cache adds 0.1 · B_j per probe so far, black-box the prefixes of
    all of them.
    """
    thinking = table.think_tokens.astype(np.float64)
    steps = np.arange(1, table.n_checkpoints + 1)
    total = thinking + cap * steps
    full = table.trace_tokens.astype(np.float64)
    budgets = table.budgets.astype(np.float64)
    return PaperCosts(
        thinking,
        total,
        full,
        full + cap,
        total + PAPER_CACHED_WEIGHT * budgets * steps,
        total + np.cumsum(budgets),
    )
