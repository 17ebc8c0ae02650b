"""Looks at calibration outcomes: which questions count, plan a look, log it, then open them.

All code that shows outcomes of calibration questions comes through here: certificates use
`plan_look` and `take`, the rest `open_rows`, `open_calibration` and `open_for_paper`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopadvisor.assessment.choice import Choice, Settings
from stopadvisor.assessment.fit_assessment import words_on_cut
from stopadvisor.assessment.limits import Shares, counted_rows, labels_for
from stopadvisor.assessment.settings import SettingsOverrides
from stopadvisor.ground.arrays import IntArray
from stopadvisor.ground.constants import MOST_TRUNCATED
from stopadvisor.ground.errors import CalibrationError, ProbeError
from stopadvisor.ground.fields import plain
from stopadvisor.probes.grouping import calibration_rows, in_groups_of, second_traces
from stopadvisor.probes.outcomes import CalibrationQuestions, OpenQuestions, SealedQuestions
from stopadvisor.probes.table import ProbeTable
from stopadvisor.rules.costs import CACHE_BLOCK
from stopadvisor.rules.losses import LOSSES, LOST, Guarantee
from stopadvisor.runs.access import (
    closed_questions,
    hand_out,
    neighbour_looks,
    take_look,
    unsealed_rows,
    unshown_questions,
)
from stopadvisor.runs.directory import PROBES, digest_of
from stopadvisor.runs.look_log import Look, digests_of, read_log, record_shown
from stopadvisor.runs.prices import default_settings
from stopadvisor.runs.sources import Part, Source, read_assessment
from stopadvisor.runs.storage import lock_directory, lock_neighbours
from stopadvisor.workload.questions import PARTS

__all__ = [
    "PlannedLook", "TakenLook", "check_categories", "check_questions", "counted_traces",
    "entering_rows", "named_settings", "open_calibration", "open_for_paper", "open_rows",
    "plan_look", "planned_labels", "require_gold", "show_fit", "spent_in_fit",
    "standing_limits", "take", "unseen_rows", "without_shown_fit", "without_used",
]  # fmt: skip

_FIT, _CALIBRATION = PARTS.index("fit"), PARTS.index("calibration")
_DEFAULTS: Mapping[str, Any] = {
    "loss": LOST.name,
    "also": [],
    "traces": 1,
    "on_give_up": "escalate",
}
"""Values of settings that a look leaves out."""


def named_settings(settings: Settings) -> dict[str, Any]:
    """Settings as JSON values for a look, without those of `_DEFAULTS` and without delta.

    Delta is a field of a look.  The constant ``cache_block`` is recorded because earlier looks have
    it: without it a request would not match its look in the log, and would spend delta again.
    """
    also = [asdict(each) for each in settings.also]
    named = vars(settings) | {"also": also, "cache_block": CACHE_BLOCK}
    left_out = {"delta": settings.delta, **_DEFAULTS}.items()
    return dict(
        plain({name: value for name, value in named.items() if (name, value) not in left_out})
    )


def planned_labels(
    source: Source, asked: Mapping[str, Any], wanted: int | None, *, fresh: bool
) -> int | None:
    """Number of labels to plan for: the one that the first look recorded, else `wanted`.

    `asked` are the settings of the look, including the order of asking if labels are needed.  With
    `fresh` other questions may be labelled, with another number.  CalibrationError if the number
    differs from the one recorded before figures were shown.
    """
    log = read_log(source.folder)
    here = log.at(digests_of(source.part("calibration").keys))
    for look in reversed(log.looks):
        is_same = all(look.asked.get(name) == value for name, value in asked.items())
        if not is_same and (fresh or not look.opened or look not in here):
            continue
        planned: int | None = look.asked.get("sampled_labels")
        if wanted in (None, planned):
            return planned
        if not fresh:
            named = "without --labels" if planned is None else f"with --labels {planned}"
            raise CalibrationError(
                f"look {look.number} at these questions was taken {named}, and which labels count "
                f"is fixed before any figure is shown, got --labels {wanted}: pass --fresh for "
                "questions that no look has used"
            )
    return wanted


def _with_data(source: Source, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Add the hash of the probes to a request, with answers if a loss or a label needs them."""
    limits = [asked.get("loss", LOST.name), *(each["loss"] for each in asked.get("also", ()))]
    compared = "asking" in asked or any(LOSSES[name].reads_answers for name in limits)
    return {**asked, "data": source.fingerprint(answers=compared)}


def _lines(source: Source, questions: SealedQuestions) -> set[str]:
    return {line for key in questions.keys for line in source.lines.get(key, ())}


# --- Questions that a test counts -----------------------------------------------------------------


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
        was_cut, more = words_on_cut(calibration_table)
        raise CalibrationError(
            f"{truncated:.1%} of {was_cut}; certification allows {MOST_TRUNCATED:.0%} (a question "
            f"cut off cannot be lost): raise {more}, or say --despite truncated"
        )
    check_categories(calibration_table.take(rows[0]), settings)
    return rows


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


# --- Looks of certificates ------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannedLook:
    """A look that is decided on but not yet in the log."""

    source: Source
    questions: SealedQuestions
    asked: Mapping[str, Any]
    """Everything that may change the outcome, including the hash of the data."""
    delta: float
    """Error probability of all planned looks together."""
    planned: int | None
    """Number of looks planned; None without a plan."""
    n_earlier: int
    """Number of earlier looks at these questions."""

    @property
    def test_delta(self) -> float:
        """Error probability of this look: planned looks share delta equally."""
        return self.delta / (self.planned or 1)


@dataclass(frozen=True)
class TakenLook:
    """A look that is in the log, and the questions that it opened."""

    look: Look
    questions: CalibrationQuestions
    remarks: tuple[str, ...]
    """What earlier looks mean for this one's certificate."""


def plan_look(
    source: Source,
    questions: SealedQuestions,
    asked: Mapping[str, Any],
    *,
    delta: float,
    looks: int | None,
) -> PlannedLook:
    """Plan a look at these calibration questions; opens and records nothing.

    `source` holds exactly the questions that may be used; `asked` holds, as JSON values, everything
    that may change the outcome.  `delta` covers all planned looks together; with `looks` None the
    number that the first look at these questions declared stands.  ProbeError if lines of probes
    that an earlier look opened are gone or changed, or as `Source.require_whole`.
    """
    log, keys = read_log(source.folder), digests_of(questions.keys)
    for look, n in log.missing(line for each in source.lines.values() for line in each):
        raise ProbeError(
            f"{source.folder / PROBES}: {n} of {len(look.lines)} lines that look {look.number} of "
            f"{look.created[:10]} opened are gone or changed: put them back, or probe into another "
            "--out"
        )
    source.require_whole()
    earlier = log.at(keys)
    others = neighbour_looks(source.folder, keys, _lines(source, questions)).same.values()
    known = [*earlier, *(look for theirs in others for look in theirs)]
    planned = looks or (known[0].planned if known else None)
    asked = _with_data(source, asked)
    return PlannedLook(source, questions, asked, delta, planned, len(earlier))


def take(plan: PlannedLook) -> TakenLook:
    """Record a look in the log of its run, then open its questions.

    The caller holds the run's lock.  Looks that neighbouring runs recorded since this one was
    planned count too.
    """
    folder = plan.source.folder
    keys, lines = digests_of(plan.questions.keys), _lines(plan.source, plan.questions)
    with lock_neighbours(folder):
        others = neighbour_looks(folder, keys, lines)
        look = take_look(
            folder,
            keys,
            plan.asked,
            delta=plan.delta,
            planned=plan.planned,
            lines=lines,
            neighbours=others,
        )
    remarks = list(others.remarks)
    remarks += [
        f"{name} next to this run holds the same probes: its {len(looks)} look(s) count here"
        for name, looks in others.same.items()
    ]
    if plan.n_earlier and look.number > 1:  # repeating the first look is not another one
        remarks.append(
            f"these calibration questions were looked at before ({plan.n_earlier} recorded); each "
            "further look leaves a certificate less confidence"
        )
    if look.elsewhere:
        remarks.append(
            f"{look.elsewhere} further look(s) are on record, at other questions of this run or at "
            "other probes of these in runs next to it: each certificate holds on its own, unless "
            "its settings were chosen by what another showed, but not the best of several tries"
        )
    return TakenLook(look, hand_out(plan.questions, look), tuple(remarks))


# --- Questions that may still be used -------------------------------------------------------------

_NONE_LEFT = (
    "--fresh: all {} calibration questions were looked at already; add labelled questions and "
    "probe them into the same run"
)


def spent_in_fit(source: Source, asked: Mapping[str, Any]) -> Source:
    """Move calibration questions that a look has used, and their groups, to the fit part.

    `asked` describes the look to take.  If it was taken already, its own questions stay, so that it
    is found again.
    """
    looks = read_log(source.folder).looks
    for n in reversed(range(1, len(looks))):
        view = _spent(source, looks[:n])
        if _is_look(looks[n], view, asked):
            return view
    view = _spent(source, looks)
    if looks and not view.part("calibration").n_questions:
        n_used = int((source.parts == _CALIBRATION).sum())
        raise CalibrationError(_NONE_LEFT.format(n_used))
    return view


def _is_look(look: Look, view: Source, asked: Mapping[str, Any]) -> bool:
    """Whether a look made exactly this request of the calibration questions of a view."""
    keys = digests_of(view.part("calibration").keys)
    return look.questions == keys and look.asked == _with_data(view, asked)


def _spent(source: Source, looks: Sequence[Look]) -> Source:
    used = {digest for look in looks for digest in look.questions}
    rows = _among(source, used) & (source.parts == _CALIBRATION)
    return replace(source, parts=np.where(rows, _FIT, source.parts).astype(np.int8))


def _among(source: Source, digests: Set[str]) -> NDArray[np.bool_]:
    """Rows of these questions and their groups."""
    return in_groups_of(source.table, {k for k in source.table.keys if digest_of(k) in digests})


def without_used(source: Source, names: Sequence[Part]) -> Source:
    """Leave out questions of these parts that were looked at or shown, and their groups."""
    log = read_log(source.folder)
    used = log.shown.union(*(look.questions for look in log.looks))
    among = np.isin(source.parts, [PARTS.index(name) for name in names])
    spent = _among(source, used) & among
    if used and spent.sum() == among.sum():
        raise CalibrationError(_NONE_LEFT.format(int(spent.sum())))
    return _without(source, spent)


def without_shown_fit(source: Source, asked: Mapping[str, Any]) -> Source:
    """Leave out fit questions whose outcomes were shown, and their groups.

    `asked` describes the look to take at fit and calibration questions.  If it was already taken,
    before anything was shown, nothing is left out.
    """
    log = read_log(source.folder)
    whole = replace(source, parts=np.where(source.parts == _FIT, _CALIBRATION, source.parts))
    if any(_is_look(look, whole, asked) for look in log.looks):
        return source
    return _without(source, _among(source, log.shown) & (source.parts == _FIT))


def _without(source: Source, rows: NDArray[np.bool_]) -> Source:
    return replace(source, table=source.table.take(~rows), parts=source.parts[~rows])


def standing_limits(source: Source, settings: Settings) -> tuple[Guarantee, ...] | None:
    """Limits that a look which showed outcomes left standing, if any did, with these settings."""
    for look in read_log(source.folder).at(digests_of(source.part("calibration").keys)):
        if look.opened:
            had = look.asked.get("standing", {"delta": look.delta, **look.asked})
            has = {"protocol": "deploy", "delta": settings.delta, **named_settings(settings)}
            for name in ("protocol", "delta", "serving", "weights", "families", "on_give_up"):
                if had.get(name) != has.get(name):
                    return ()
            first = Guarantee(had.get("loss", LOST.name), had["alpha"])
            return (first, *(Guarantee(**each) for each in had.get("also", ())))
    return None


# --- Looks that certify nothing -------------------------------------------------------------------


def show_fit(source: Source, by: str) -> None:
    """Record that outcomes of the fit questions are shown, so that none can certify later.

    The caller holds the run's lock.
    """
    record_shown(source.folder, source.part("fit").keys, by)


def open_rows(
    source: Source,
    rows: NDArray[Any],
    asked: Mapping[str, Any],
    *,
    delta: float,
    standing: Settings | None = None,
) -> tuple[OpenQuestions, int]:
    """Open some questions, recording a look at the calibration questions among them.

    Also return how many calibration questions a new look opened.

    Parameters
    ----------
    rows : ndarray
        Mask or row numbers.
    asked : mapping
        Who looks, and for what, as the log records it.
    delta : float
        Error probability that the look takes from later certificates; if earlier looks were
        planned, theirs is used.
    standing : Settings, optional
        The settings with which `calibrate` may still certify here, because they were fixed before
        anything was shown; by default the assessment's, or the built-in ones.

    Raises CalibrationError: the planned looks are used up, or no confidence is left.
    """
    opening, parts = source.table.take(rows), source.parts[rows]
    looked = opening.take(parts == _CALIBRATION)
    keys, n_looked = digests_of(looked.keys), 0
    with lock_directory(source.folder):
        by = str(asked.get("protocol", "study"))
        record_shown(source.folder, opening.take(parts == _FIT).keys, by)
        if keys:
            if standing is None:
                standing = SettingsOverrides().settings(
                    read_assessment(source.folder), defaults=default_settings(source)
                )
            stands = {"protocol": "deploy", "delta": standing.delta, **named_settings(standing)}
            asked = {**_with_data(source, asked), "standing": stands}
            earlier, lines = read_log(source.folder).at(keys), _lines(source, looked)
            planned = earlier[0].planned if earlier else None
            shared = earlier[0].delta if planned else delta
            look = take_look(source.folder, keys, asked, delta=shared, planned=planned, lines=lines)
            n_looked = 0 if look in earlier else len(keys)
    return unsealed_rows(source, rows), n_looked


def open_calibration(
    source: Source, asked: Mapping[str, Any], *, delta: float, standing: Settings | None = None
) -> None:
    """Record a look at all calibration questions, unless all were shown before."""
    if unshown_questions(source):
        open_rows(source, source.parts == _CALIBRATION, asked, delta=delta, standing=standing)


def open_for_paper(source: Source, settings: Settings, *, allowed: bool) -> None:
    """Open the calibration questions to the paper's protocol, which shows all outcomes.

    Records a look.  Unless that is `allowed`, unseen questions are refused; an archive's are
    public.

    Raises CalibrationError: the look is not allowed, gold is missing, or the paper has no such
    serving regime.  ProbeError: the questions were not probed on one grid.
    """
    if settings.serving == "vllm":
        raise CalibrationError(
            "the paper's serving regimes are kv-fork, prefix-cache and black-box, got 'vllm'"
        )
    if source.table.graded_by != "gold":
        raise CalibrationError(
            "the paper's protocol needs gold for every question, and some of these have none"
        )
    closed = closed_questions(source)
    if closed and not allowed:
        raise CalibrationError(
            f"the paper protocol shows outcomes of {len(closed)} calibration questions "
            f"that nobody has seen: run `stopadvisor calibrate {source.folder}` first (a "
            "certificate opens them, a failed look does not), or say --open-calibration, which is "
            "recorded as a look: later certificates have less confidence, and the settings that "
            "stand now"
        )
    source.table.with_reference("last-checkpoint")  # else a look is spent on what is refused
    asked = {"protocol": "paper", "alpha": settings.alpha, "serving": settings.serving}
    # What `calibrate` will read from the paper's assessment.
    of_paper = SettingsOverrides(settings.alpha, settings.delta)
    standing = of_paper.settings(defaults=default_settings(source))
    open_calibration(source, asked, delta=settings.delta, standing=standing)
