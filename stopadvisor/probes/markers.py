"""Backtracking markers in a reasoning prefix: the one counting rule.

Engines count with it, the frozen policy quotes `RULE`, and a gateway in another language can
rebuild it from those words.  Knows text only: no tokens, no model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stopadvisor.ground.constants import MARKERS

__all__ = ["RULE", "MarkerCounter", "count_markers"]

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


@dataclass
class MarkerCounter:
    """Counts the markers of texts, most of which continue the one before.

    Counts are those of `count_markers`; what two texts have in common is searched once.
    """

    _before: str = ""
    _searched: int = 0
    """A marker that starts before this place, or none there, is the same in every longer text."""
    _final: int = 0
    """Markers before it."""

    def count(self, text: str) -> int:
        """Count the markers in a text.

        Examples
        --------
        >>> counter = MarkerCounter()
        >>> [counter.count(text) for text in ("Wait", "Waiter, hold", "Waiter, hold on")]
        [1, 0, 1]
        """
        if not text.startswith(self._before):
            self._searched = self._final = 0
        final = len(text) - _LONGEST
        n_open = 0
        for match in _PATTERN.finditer(text, self._searched):
            if match.start() < final:
                self._searched = match.end()
                self._final += 1
            else:
                n_open += 1
        self._before, self._searched = text, max(self._searched, final, 0)
        return self._final + n_open
