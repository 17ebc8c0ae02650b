"""Mistakes in runs that no test can detect."""

from __future__ import annotations

__all__ = ["EQUIVALENT"]

EQUIVALENT: dict[str, dict[str, str]] = {
    "runs/imported": {"_run_of: r.gold or None -> r.gold and None": "a manifest names no gold"},
    "runs/replies": {
        ": 2 ** 40 ->": "longer than any trace is fine",
        "ReplyRecord.votes: len(samples) > 1 -> len(samples) >= 1": (
            "a single sample is its own plurality"
        ),
        "ReplyRecord.votes: made if len(samples) > 1 else 0 ->": (
            "a single sample is its own plurality"
        ),
        "reply_table: -1 -> -2": "any negative number means no answer",
        "reply_table: suffix_tokens=0 -> suffix_tokens=1": "the cost of rungs is recorded",
    },
    "runs/storage": {
        "write_json_atomically: indent=1 ->": "indentation does not change what is read"
    },
}
"""Reasons, by module and by how the description continues after it."""
