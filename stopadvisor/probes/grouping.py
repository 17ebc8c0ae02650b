"""Which rows of a table belong together, and which of each group count in a test.

Decided by identity alone, never by outcomes.
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
    """Rows of these questions and of all others in their groups; shape (n_questions,)."""
    groups = {g for g, k in zip(table.groups, table.keys, strict=True) if k in keys}
    return np.array([g in groups for g in table.groups], dtype=bool)


def calibration_rows(table: ProbeTable) -> IntArray:
    """Rows that count in a test: one trace per group, in ascending order.

    From each group, the first sample of the question with the smallest content hash.  The order of
    rows must not matter: an engine that finishes short traces first would favour them.
    """
    groups = group_numbers(table)
    first = np.flatnonzero(table.samples == 0)
    if len(np.unique(groups[first])) < first.size:
        by_content = sorted(first.tolist(), key=lambda row: (table.keys[row], table.ids[row]))
        first = np.array(by_content, dtype=np.int64)
        first = first[np.unique(groups[first], return_index=True)[1]]
    return np.sort(first).astype(np.int64)


def second_traces(table: ProbeTable, rows: IntArray) -> IntArray | None:
    """Rows of the second traces of these questions, in their order; None if there are none.

    Raises
    ------
    CalibrationError
        Only some questions have one, which may depend on how they ended; or every second trace
        repeats the first, as with greedy sampling.
    """
    second = {table.ids[row]: row for row in np.flatnonzero(table.samples == 1).tolist()}
    names = [table.ids[row] for row in rows.tolist()]
    again = np.array([second[name] for name in names if name in second], dtype=np.int64)
    if not again.size:
        return None
    if again.size < rows.size:
        raise CalibrationError(
            f"{again.size} of {rows.size} questions have a second trace, and both count only where "
            "all have two: finish `stopadvisor probe` with --samples 2"
        )
    same = (table.trace_tokens, table.answer_codes, table.markers, table.probe_tokens)
    if all(np.array_equal(values[rows], values[again], equal_nan=True) for values in same):
        raise CalibrationError(
            "the second trace of every question is the first again, as a model that takes the "
            "likeliest token makes it: probe with --temperature, or into another --out without "
            "--samples"
        )
    return again


def has_groups(table: ProbeTable) -> bool:
    """Whether any group holds several questions, copies among them, not just samples of one."""
    return len(set(zip(table.groups, table.ids, strict=True))) > len(set(table.groups))
