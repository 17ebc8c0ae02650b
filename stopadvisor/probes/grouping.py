"""Which rows of a table belong together, and which of each group enter a bound.

Looks at identities alone, never at an outcome.
"""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from stopadvisor.ground.arrays import BoolArray, IntArray
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.probes.table import ProbeTable

__all__ = ["calibration_rows", "group_numbers", "has_groups", "in_groups_of", "second_traces"]


def group_numbers(table: ProbeTable) -> IntArray:
    """Number of each question's group, in order of first appearance; shape (n_questions,)."""
    seen: dict[str, int] = {}
    return np.array([seen.setdefault(g, len(seen)) for g in table.groups], dtype=np.int64)


def in_groups_of(table: ProbeTable, keys: Container[str]) -> BoolArray:
    """Rows of these questions and of all others of their groups; shape (n_questions,)."""
    groups = {g for g, k in zip(table.groups, table.keys, strict=True) if k in keys}
    return np.array([g in groups for g in table.groups], dtype=bool)


def calibration_rows(table: ProbeTable) -> IntArray:
    """The questions that may enter a bound: one trace per group, chosen beforehand.

    Ascending row numbers; of each group the first sample of the question whose content hash comes
    first.  The order of rows must not choose: an engine that finishes short traces first would fill
    the bound with them.
    """
    groups = group_numbers(table)
    first = np.flatnonzero(table.samples == 0)
    if len(np.unique(groups[first])) < first.size:
        by_content = sorted(first.tolist(), key=lambda row: (table.keys[row], table.ids[row]))
        first = np.array(by_content, dtype=np.int64)
        first = first[np.unique(groups[first], return_index=True)[1]]
    return np.sort(first).astype(np.int64)


def second_traces(table: ProbeTable, rows: IntArray) -> IntArray | None:
    """Rows of the second trace of these questions, in their order; None where none has one.

    Raises
    ------
    CalibrationError
        Only some have one, and which do may depend on how they ended; or every second trace is the
        first again, as greedy ones are.
    """
    second = {table.ids[row]: row for row in np.flatnonzero(table.samples == 1).tolist()}
    found = [second[name] for row in rows.tolist() if (name := table.ids[row]) in second]
    if not found:
        return None
    if len(found) < rows.size:
        raise CalibrationError(
            f"{len(found)} of {rows.size} questions have a second trace, and both count only where "
            "all have two: finish `stopadvisor probe` with --samples 2"
        )
    again = np.array(found, dtype=np.int64)
    same = (table.trace_tokens, table.answer_codes, table.markers, table.probe_tokens)
    if all(np.array_equal(values[rows], values[again], equal_nan=True) for values in same):
        raise CalibrationError(
            "the second trace of every question is the first again, as a model that takes the "
            "likeliest token makes it: probe with --temperature, or into another --out without "
            "--samples"
        )
    return again


def has_groups(table: ProbeTable) -> bool:
    """Whether any group holds several questions; samples of one question are no group."""
    return len(set(zip(table.groups, table.keys, strict=True))) > len(set(table.groups))
