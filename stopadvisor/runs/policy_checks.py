"""Policies that were held against a run's questions: how many, and what each verdict may claim.

The best of several policies on the same questions may be best by luck, so `verify` enters each one
in the log of looks before it reads an outcome.  Knows no policy but its digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stopadvisor.errors import CalibrationError
from stopadvisor.runs.look_log import digests_of, read_log, timestamp, write_rows

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
    folder: Path, policy: str, questions: Iterable[str], *, delta: float, planned: int | None
) -> PolicyCheck:
    """Record that a policy is held against questions, before an outcome is read.

    The same policy on the same questions is the same check.

    Raises
    ------
    CalibrationError
        Planned policies are used up, or declared too late.
    """
    keys = list(digests_of(questions))
    earlier: list[Mapping[str, Any]] = []
    for row in read_log(folder).checks:
        if (row["policy"], row["questions_sha256"]) == (policy, keys):
            if planned not in (None, row["planned"]):
                break
            return _policy_check(earlier, row)
        if set(keys) & set(row["questions_sha256"]):
            earlier.append(row)
    first = earlier[0]["planned"] if earlier else planned
    planned = first if planned is None else planned
    if planned != first or any(row["planned"] != planned for row in earlier):
        raise CalibrationError(
            f"policies must be declared with the first one, got --policies {planned} after "
            f"{len(earlier)} without that plan"
        )
    if planned is not None and len({row["policy"] for row in earlier} - {policy}) >= planned:
        raise CalibrationError(
            f"all {planned} planned policies were checked on these questions; a further one needs "
            "fresh questions"
        )
    row = {
        "policy": policy,
        "questions_sha256": keys,
        "delta": delta,
        "planned": planned,
        "time": timestamp(),
    }
    write_rows(folder, [row])
    return _policy_check(earlier, row)


def _policy_check(earlier: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> PolicyCheck:
    deltas = {each["policy"]: each["delta"] for each in (*earlier, row)}
    planned = row["planned"]
    spent = sum(delta / (planned or 1) for delta in deltas.values())
    return PolicyCheck(len(deltas), planned, min(spent, 1.0))
