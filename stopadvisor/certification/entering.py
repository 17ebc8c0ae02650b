"""Which calibration questions a test counts; settled without looking at an outcome.

Callers that log looks ask this first, so that a refusal costs no look.
"""

from __future__ import annotations

import numpy as np

from stopadvisor.assessment.choice import Choice, Settings
from stopadvisor.assessment.limits import counted_rows, fewest
from stopadvisor.ground.arrays import IntArray
from stopadvisor.ground.constants import MOST_TRUNCATED
from stopadvisor.ground.errors import CalibrationError, ProbeError
from stopadvisor.probes.grouping import calibration_rows, second_traces
from stopadvisor.probes.table import ProbeTable

__all__ = [
    "check_categories", "check_questions", "counted_traces", "entering_rows", "require_gold",
]  # fmt: skip


def check_questions(choice: Choice, calibration_table: ProbeTable) -> IntArray:
    """Say which traces enter the bound, as `entering_rows`, or why none may.

    Raises
    ------
    CalibrationError
        A question served for fitting already, or was not probed where a rule probes it, or lacks
        what the rule reads there; or as `entering_rows`.
    """
    fit = choice.fit.table
    shared = {*fit.groups} & {*calibration_table.groups} | {*fit.keys} & {*calibration_table.keys}
    if shared:
        raise CalibrationError(
            f"{len(shared)} calibration questions were used for fitting, e.g. {min(shared)!r}"
        )
    rows = entering_rows(calibration_table, choice.settings)
    for sequence in choice.sequences:
        try:
            view = sequence.scorer.view(calibration_table.take(rows.ravel()))
            sequence.scorer.curve(view, sequence.thresholds)
        except (ProbeError, CalibrationError) as error:
            raise CalibrationError(
                f"the {sequence.scorer.family} rule cannot be tested on these calibration "
                f"questions: {error}"
            ) from error
    return rows


def require_gold(settings: Settings, table: ProbeTable) -> None:
    """Refuse a promise that takes gold where questions have none; looks at no outcome."""
    for each in settings.guarantees:
        if each.counted.needs_gold and table.graded_by != "gold":
            raise CalibrationError(
                f"--loss {each.loss} takes gold for every question that certifies it, and not all "
                "of these have it: add gold to the workload and probe again with --regrade, or "
                "certify --loss differs"
            )


def entering_rows(calibration_table: ProbeTable, settings: Settings) -> IntArray:
    """Rows that enter the bound, as `counted_traces`.

    Raises
    ------
    CalibrationError
        There is none, too many were cut off, a category has too few, or as `second_traces`.
    """
    rows = counted_traces(calibration_table, settings)
    if not rows.size:
        raise CalibrationError("no calibration questions: nothing can be certified")
    truncated = float(calibration_table.truncated[rows].mean())
    if truncated > MOST_TRUNCATED and not settings.allow_truncated:
        raise CalibrationError(
            f"{truncated:.1%} of the traces were cut off by max-think; certification allows "
            f"{MOST_TRUNCATED:.0%} (a question cut off cannot be lost): raise --max-think, or "
            "say --despite truncated"
        )
    check_categories(calibration_table.take(rows[0]), settings)
    return rows


def counted_traces(table: ProbeTable, settings: Settings) -> IntArray:
    """Rows that a bound counts, one question of each group; shape (n_traces, n_questions).

    Two traces where each question has two and a loss of 0 or 1 is limited.  A drop, and few labels,
    count the first alone.  Raises as `second_traces`.
    """
    rows = calibration_rows(table)
    counted = [each.counted for each in settings.guarantees]
    labelled = table.graded_by == "gold" or not any(each.needs_gold for each in counted)
    again = None
    if labelled and any(each.is_binary for each in counted):
        again = second_traces(table, rows)
    return np.array([rows] if again is None else [rows, again])


def check_categories(questions: ProbeTable, settings: Settings) -> None:
    """Hold each category to the fewest questions that its limit takes."""
    for each in settings.guarantees:
        if each.category is None:
            continue
        n = counted_rows(questions, each).size
        known = sorted({name for name in questions.categories if name is not None})
        if not n:
            raise CalibrationError(
                f"no calibration question is of category {each.category!r}; there are "
                f"{', '.join(map(repr, known)) or 'none'}"
            )
        needed = fewest(each, settings.delta)
        if n < needed:
            raise CalibrationError(
                f"category {each.category!r} has {n} calibration questions, and "
                f"{each.loss}={each.alpha:g} takes at least {needed} of which none is lost: no "
                "calibration question was opened"
            )
