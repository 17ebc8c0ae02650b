"""Where to probe: every so many tokens, at markers with a gap between them, and at the cap.

First positions and caps are settled on fit questions.  Knows nothing of scores and thresholds.
"""

from __future__ import annotations

import numpy as np

from stopadvisor.arrays import BoolArray, IntArray
from tests.benchmarks.candidate.observations import ProbesMade

__all__ = ["cap_column", "first_position", "gapped", "stride"]

_CAP_MARGIN = 1.25
"""Times the position from which stopping loses no fit question: others may need a little longer."""
_FIRST_QUANTILE = 0.05
_LONG_AGO = -(10**9)
"""Tokens; before any probe."""


def first_position(think_tokens: IntArray, step: int) -> int:
    """Where a late start begins: 95 % of fit traces think at least so long.

    Every trace pays for the probes before it, so that it can be worth going without them.

    Parameters
    ----------
    think_tokens : ndarray of int, shape (n_fit,)
    step : int
        Tokens between two positions of the grid; the result is a multiple of it, perhaps 0.
    """
    return int(np.quantile(think_tokens, _FIRST_QUANTILE) // step * step)


def cap_column(grid: ProbesMade, fit: IntArray) -> int | None:
    """Column of the grid at which thinking ends for everybody; None where that is never.

    A quarter beyond the smallest position from which stopping loses no fit question: traces that
    go on from there are the longest, and thinking on made no fit question right.
    """
    wrong = grid.live & ~grid.correct & grid.traces.full_correct[:, None]
    after = np.flatnonzero(wrong[fit].any(axis=0))
    earliest = int(after[-1]) + 1 if after.size else 0
    positions = grid.traces.positions  # (n_positions,)
    if earliest >= positions.size:
        return None
    reached = np.flatnonzero(positions >= _CAP_MARGIN * positions[earliest])
    return int(reached[0]) if reached.size else None


def stride(grid: ProbesMade, every: int, first: int, cap: int | None) -> BoolArray:
    """Positions that are multiples of `every` tokens, from `first` on, before the cap's column.

    Shape (n_questions, n_positions).
    """
    keep: BoolArray = (grid.position % every == 0) & (grid.position >= max(first, 1))
    return keep if cap is None else keep & (np.arange(keep.shape[1]) < cap)


def gapped(made: ProbesMade, gap: int, before: float) -> BoolArray:
    """Markers at least `gap` tokens after the last one that was taken, before the cap's position.

    Shape (n_questions, n_markers); `before` is in tokens, infinite without a cap.
    """
    keep = np.zeros(made.live.shape, dtype=bool)
    last = np.full(len(keep), _LONG_AGO, dtype=np.int64)
    for j in range(made.live.shape[1]):  # each choice hangs on the one before
        keep[:, j] = made.live[:, j] & (made.position[:, j] - last >= gap)
        last = np.where(keep[:, j], made.position[:, j], last)
    return keep & (made.position < before)
