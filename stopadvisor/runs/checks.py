"""Policies that were held against a run's questions: how many, and what each verdict may claim.

The best of several policies on the same questions may be best by luck, so `verify` enters each one
in the ledger before it reads an outcome.  Knows no policy but its digest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stopadvisor.errors import CalibrationError
from stopadvisor.runs.chain import Entry, timestamp
from stopadvisor.runs.ledger import Ledger

__all__ = ["PolicyCheck", "record_check"]


@dataclass(frozen=True)
class PolicyCheck:
    """One policy that was held against a run's questions."""

    number: int
    """Policies checked on any of these questions so far, this one included."""
    planned: int | None
    """Policies declared beforehand, which share the error probability of each; None: undeclared."""
    spent: float
    """Error probability of all verdicts so far together, each limit by itself."""

    def share_of(self, delta: float) -> float:
        """Return the error probability of each limit of this verdict, out of the policy's."""
        return delta / (self.planned or 1)


def record_check(
    folder: Path, policy: str, questions: Sequence[str], *, delta: float, planned: int | None
) -> PolicyCheck:
    """Record that a policy is held against questions, before an outcome is read.

    The same policy on the same questions is the same check.


    Raises
    ------
    CalibrationError
        Planned policies are used up, or declared too late.
    """
    ledger = Ledger.read(folder)
    keys = sorted(set(questions))
    earlier: list[Entry] = []
    for entry in ledger.entries:
        if entry["kind"] != "check":
            continue
        if (entry["policy"], entry["questions"]) == (policy, keys):
            if planned not in (None, entry["planned"]):
                break
            return _check(earlier, entry)
        if set(keys) & set(entry["questions"]):
            earlier.append(entry)
    first = earlier[0]["planned"] if earlier else planned
    if planned is None:
        planned = first
    if planned != first or any(entry["planned"] != planned for entry in earlier):
        raise CalibrationError(
            f"policies must be declared with the first one, got --policies {planned} after "
            f"{len(earlier)} without that plan"
        )
    others = {entry["policy"] for entry in earlier} - {policy}
    if planned is not None and len(others) >= planned:
        raise CalibrationError(
            f"all {planned} planned policies were checked on these questions; a further one needs "
            "fresh questions"
        )
    body = {
        "kind": "check",
        "policy": policy,
        "questions": keys,
        "delta": delta,
        "planned": planned,
        "created": timestamp(),
    }
    return _check(earlier, ledger.write(folder, [body]).entries[-1])


def _check(earlier: Sequence[Entry], entry: Entry) -> PolicyCheck:
    deltas = {row["policy"]: row["delta"] for row in (*earlier, entry)}
    planned = entry["planned"]
    spent = sum(delta / (planned or 1) for delta in deltas.values())
    return PolicyCheck(len(deltas), planned, min(spent, 1.0))
