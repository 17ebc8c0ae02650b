"""Types of the arrays that the package computes with, and numbers for saved results.

Axis 0 is questions and axis 1 checkpoints wherever an array has them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["BoolArray", "FloatArray", "IntArray", "Numbers", "numbers"]

BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

Numbers = tuple[float | None, ...]
"""Numbers of a result; None for NaN and infinity."""


def numbers(values: FloatArray) -> Numbers:
    """Convert a one-dimensional array to the numbers of a result."""
    return tuple(v if np.isfinite(v) else None for v in values.tolist())
