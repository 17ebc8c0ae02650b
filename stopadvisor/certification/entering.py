"""Calibration questions that a test counts, and refusals that need no look; opens no outcome."""

from __future__ import annotations

import numpy as np

from stopadvisor.assessment.choice import Choice, Settings
from stopadvisor.assessment.limits import Shares, counted_rows, labels_for, most_of
from stopadvisor.assessment.rated import counted_labels
from stopadvisor.assessment.recommendation import Recommendation, deciding_reason
from stopadvisor.ground.arrays import IntArray
from stopadvisor.ground.constants import MOST_TRUNCATED
from stopadvisor.ground.errors import CalibrationError, ProbeError
from stopadvisor.probes.grouping import calibration_rows, second_traces
from stopadvisor.probes.table import ProbeTable
from stopadvisor.stats.bounds import NotCertified

__all__ = [
    "advised_against", "cannot_exclude", "check_categories", "check_questions", "counted_traces",
    "entering_rows", "labels_to_name", "refused_beforehand", "require_gold", "unseen_rows",
]  # fmt: skip


def unseen_rows(choice: Choice, calibration_table: ProbeTable) -> IntArray:
    """Return `entering_rows`; CalibrationError also if a question was used for fitting."""
    fit = choice.fit.table
    shared = {*fit.groups} & {*calibration_table.groups} | {*fit.keys} & {*calibration_table.keys}
    if shared:
        raise CalibrationError(
            f"{len(shared)} calibration questions were used for fitting, e.g. {min(shared)!r}"
        )
    return entering_rows(calibration_table, choice.settings)


def check_questions(choice: Choice, calibration_table: ProbeTable) -> IntArray:
    """Return `unseen_rows` if every rule can be tested on them.

    Raises CalibrationError as `unseen_rows`, and if a question lacks a probe or signal that a rule
    needs.
    """
    rows = unseen_rows(choice, calibration_table)
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
    """Refuse a loss that needs gold if questions have none; reads no outcome."""
    for each in settings.guarantees:
        if each.counted.needs_gold and table.graded_by != "gold":
            raise CalibrationError(
                f"--loss {each.loss} needs gold for every question that certifies it, and some of "
                "these have none: add gold to the workload and probe again with --regrade, or "
                "certify --loss differs"
            )


def entering_rows(calibration_table: ProbeTable, settings: Settings) -> IntArray:
    """Rows that the test counts, as returned by `counted_traces`.

    Raises CalibrationError if there is none, too many traces were cut off, or a category has too
    few questions; also as `second_traces`.
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
    """Rows that a test counts, one question per group; shape (n_traces, n_questions).

    Two traces if every question has two and some loss is 0 or 1; one for a drop alone, or if labels
    are missing.  Raises as `second_traces`.
    """
    rows = calibration_rows(table)
    counted = [each.counted for each in settings.guarantees]
    labelled = table.graded_by == "gold" or not any(each.needs_gold for each in counted)
    again = None
    if labelled and any(each.is_binary for each in counted):
        again = second_traces(table, rows)
    return np.array([rows] if again is None else [rows, again])


def check_categories(questions: ProbeTable, settings: Settings) -> None:
    """Refuse a category with fewer questions than its limit needs."""
    for each in settings.guarantees:
        if each.category is None:
            continue
        n = counted_rows(questions, each).size
        known = sorted({name for name in questions.categories if name is not None})
        if not n:
            raise CalibrationError(
                f"no calibration question is in category {each.category!r}; the categories are "
                f"{', '.join(map(repr, known)) or 'none'}"
            )
        needed = labels_for(each, settings.delta, Shares())
        if needed is not None and n < needed:
            raise CalibrationError(
                f"category {each.category!r} has {n} calibration questions, and "
                f"{each.loss}={each.alpha:g} needs at least {needed}, none of them lost: no "
                "calibration question was opened"
            )


# --- Where no look can help -----------------------------------------------------------------------


def refused_beforehand(choice: Choice, questions: ProbeTable) -> NotCertified | None:
    """Return a refusal if no look could end in an exported rule; opens nothing."""
    if choice.nothing is not None:
        return NotCertified(f"{choice.nothing}; no calibration question was opened", None, None)
    if not any(sequence.saves.any() for sequence in choice.sequences):
        why = "no rule saves anything on fit questions: no calibration question was opened"
        return NotCertified(f"{why}, and no look spent", None, None)
    settings, rows = choice.settings, counted_traces(questions, choice.settings)
    table, why = questions.take(rows[0]), ""
    for each in settings.guarantees:
        traces = len(rows) if each.counted.is_binary else 1
        # The last entry is the best case: every question gained, or lost by neither trace.
        if most_of(each, counted_rows(table, each).size, settings.delta, traces)[-1] < 0:
            asked = ", ".join(map(str, settings.guarantees))
            why = (
                f"{table.n_questions} calibration questions cannot show {asked} at confidence "
                f"{1 - settings.delta:g}, whatever their answers are"
            )
            if settings.is_plain and traces == 1:
                why = cannot_exclude(table.n_questions, settings.alpha, settings.delta)
    if not why:
        return None
    reason = f"{why}: none was opened, and no look spent"
    return NotCertified(reason, *labels_to_name(settings, choice))


def cannot_exclude(n: int, alpha: float, delta: float) -> str:
    """Say why so few questions can show nothing, whatever the answers."""
    return (
        f"{n} calibration questions cannot exclude a risk above {alpha:g} at confidence "
        f"{1 - delta:g} by the exact test, not even with no loss"
    )


def advised_against(choice: Choice, advice: Recommendation) -> NotCertified | None:
    """Return a refusal if full thinking is advised; opens nothing."""
    if advice.policy != "full-budget":
        return None
    reason = deciding_reason(advice.policy, advice.reasons).rstrip(".")
    step, _, why = reason.partition(": ")
    needed, expected = labels_to_name(choice.settings, choice)
    # More labels raise the chance of a certificate, but make no probe cheaper and no rule better.
    helps = choice.advised is None or step == "Certificate"
    return NotCertified(
        f"the advice is full thinking ({why}), and calibrate follows it: no calibration question "
        "was opened, and no look spent; --despite advice certifies all the same",
        needed if helps else None,
        expected if helps else None,
    )


def labels_to_name(settings: Settings, choice: Choice | None) -> tuple[int | None, float | None]:
    """Labels needed, and the risk they assume: that on fit questions, or 0 without a choice.

    None if no rule saves anything: no number of labels would help.
    """
    if choice and choice.saves_nothing:
        return None, None
    expected = 0.0 if choice is None else choice.risk_to_expect
    return counted_labels(settings, settings.delta, expected), expected
