"""Mistakes in runs that nothing can tell from the original."""

from __future__ import annotations

__all__ = ["EQUIVALENT"]

EQUIVALENT: dict[str, dict[str, str]] = {
    "runs/replies": {
        ": 2 ** 40 ->": "longer than any trace is as good",
        "ReplyRecord.answered: len(samples) > 1 -> len(samples) >= 1": (
            "a single sample is its own plurality"
        ),
        "ReplyRecord.answered: made if len(samples) > 1 else 0 ->": (
            "a single sample is its own plurality"
        ),
        "reply_table: -1 -> -2": "no answer is any negative number",
    },
    "runs/storage": {"write_json_atomically: indent=1 ->": "a wider indent reads alike"},
}
"""Why, by module and how the description goes on after it."""
