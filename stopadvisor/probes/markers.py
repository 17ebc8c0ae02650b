"""Backtracking markers in a reasoning prefix: the one counting rule.

Engines count with it, the frozen policy quotes `RULE`, and a gateway in another language can
rebuild it from those words.  Knows text only: no tokens, no model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from stopadvisor.ground.constants import MARKERS

__all__ = ["RULE", "count_markers", "count_markers_of_prefixes"]

RULE = "case-insensitive, non-overlapping, not inside a longer word"
"""The counting rule in words, as it stands in a frozen policy."""

# Word-bounded where the paper says only "matched case-insensitively": "waiter" or "awaits" is no
# sign of backtracking.  `\w` lookarounds rather than `\b`, so that the rule does not hang on a
# marker's own first and last character.
_PATTERN = re.compile(
    r"(?<!\w)(?:" + "|".join(re.escape(marker) for marker in MARKERS) + r")(?!\w)", re.IGNORECASE
)
_LONGEST = max(map(len, MARKERS))


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


def count_markers_of_prefixes(texts: Iterable[str]) -> list[int]:
    """Count the markers in each of several texts, most of which continue the one before.

    The counts are those of `count_markers`; what two texts have in common is searched once.

    Examples
    --------
    >>> count_markers_of_prefixes(["Wait", "Waiter, hold", "Waiter, hold on"])
    [1, 0, 1]
    """
    counts = []
    before, searched, n_final = "", 0, 0
    for text in texts:
        if not text.startswith(before):
            searched, n_final = 0, 0
        # A marker that starts before this place, or none there, is the same in every longer text.
        final = len(text) - _LONGEST
        n_open = 0
        for match in _PATTERN.finditer(text, searched):
            if match.start() < final:
                searched = match.end()
                n_final += 1
            else:
                n_open += 1
        counts.append(n_final + n_open)
        before, searched = text, max(searched, final, 0)
    return counts
