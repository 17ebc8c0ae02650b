"""Names for the arrays that everything here computes with, and numbers that can be saved.

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
"""Numbers of a result; None where there is none."""


def numbers(values: FloatArray) -> Numbers:
    """Return an array's numbers as a result keeps them: None for NaN and infinity."""
    return tuple(v if np.isfinite(v) else None for v in values.tolist())
