"""Backtracking markers in a reasoning prefix, and the one rule that counts them.

Engines count with it, and the frozen policy quotes `RULE`, from which a gateway in another language
can rebuild it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stopadvisor.ground.constants import MARKERS

__all__ = ["RULE", "MarkerCounter"]

RULE = "case-insensitive, non-overlapping, not inside a longer word"
"""The counting rule in words, as written in a frozen policy."""

# Whole words, where the paper says only "matched case-insensitively": "waiter" or "awaits" is no
# sign of backtracking.  `\w` lookarounds rather than `\b`, so that the rule does not depend on a
# marker's own first and last character.
_PATTERN = re.compile(
    r"(?<!\w)(?:" + "|".join(re.escape(marker) for marker in MARKERS) + r")(?!\w)", re.IGNORECASE
)
_LONGEST = max(map(len, MARKERS))


@dataclass
class MarkerCounter:
    """Counts backtracking markers in decoded prefixes, most of which extend the previous one.

    Occurrences of `constants.MARKERS` are counted from the left: each character belongs to at most
    one of them, and none may touch another letter, digit or underscore.  A text that extends the
    previous one is not searched from its beginning.

    References
    ----------
    Paper, Appendix, Table "Deployment feature definitions" (backtracking density).

    Examples
    --------
    >>> counter = MarkerCounter()
    >>> [counter.count(text) for text in ("Wait", "Waiter, hold", "Waiter, hold on")]
    [1, 0, 1]
    """

    _before: str = ""
    _searched: int = 0
    """Markers that start before this index are the same in every longer text."""
    _final: int = 0
    """Markers before that index."""

    def count(self, text: str) -> int:
        """Count the markers in a text."""
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
