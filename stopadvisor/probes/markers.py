"""Backtracking markers in a reasoning prefix: the one counting rule.

Engines count with it, the frozen policy quotes `RULE`, and a gateway in another language can
rebuild it from those words.  Knows text only: no tokens, no model.
"""

from __future__ import annotations

import re

from stopadvisor.constants import MARKERS

__all__ = ["RULE", "count_markers"]

RULE = "case-insensitive, non-overlapping, not inside a longer word"
"""The counting rule in words, as it stands in a frozen policy."""

# Word-bounded where the paper says only "matched case-insensitively": "waiter" or "awaits" is no
# sign of backtracking.  `\w` lookarounds rather than `\b`, so that the rule does not hang on a
# marker's own first and last character.
_PATTERN = re.compile(
    r"(?<!\w)(?:" + "|".join(re.escape(marker) for marker in MARKERS) + r")(?!\w)", re.IGNORECASE
)


def count_markers(text: str) -> int:
    """Count the backtracking markers in a decoded reasoning prefix.

    Occurrences of the markers of `constants.MARKERS`, counted from the left: each character belongs
    to at most one of them, and none may touch another letter, digit or underscore.

    References
    ----------
    Paper, Appendix, Table "Deployment feature definitions" (backtracking density).

    Examples
    --------
    >>> count_markers("Wait, 7+5=12. Hold on; the waiter waits. Wait.")
    3
    """
    return sum(1 for _ in _PATTERN.finditer(text))
