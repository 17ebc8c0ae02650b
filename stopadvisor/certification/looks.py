"""Looks at calibration outcomes: plan one, record it in the log, then open the questions.

All code that shows outcomes of calibration questions comes through here: certificates use
`plan_look` and `take`, the rest `open_rows`, `open_calibration` and `open_for_paper`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopadvisor.assessment.choice import Settings
from stopadvisor.assessment.settings import SettingsOverrides
from stopadvisor.ground.errors import CalibrationError, ProbeError
from stopadvisor.ground.fields import plain
from stopadvisor.probes.grouping import in_groups_of
from stopadvisor.probes.outcomes import CalibrationQuestions, OpenQuestions, SealedQuestions
from stopadvisor.rules.costs import CACHE_BLOCK
from stopadvisor.rules.losses import LOSSES, LOST
from stopadvisor.runs.access import (
    closed_questions,
    hand_out,
    neighbour_looks,
    take_look,
    unsealed_rows,
    unshown_questions,
)
from stopadvisor.runs.directory import PROBES, digest_of
from stopadvisor.runs.look_log import Look, as_recorded, digests_of, read_log, record_shown
from stopadvisor.runs.prices import default_settings
from stopadvisor.runs.sources import Part, Source, read_assessment
from stopadvisor.runs.storage import lock_directory, lock_neighbours
from stopadvisor.workload.questions import PARTS

__all__ = [
    "PlannedLook", "TakenLook", "deploy_request", "named_settings", "open_calibration",
    "open_for_paper", "open_rows", "plan_look", "show_fit", "spent_in_fit", "take",
    "without_shown_fit", "without_used",
]  # fmt: skip

_FIT, _CALIBRATION = PARTS.index("fit"), PARTS.index("calibration")


def deploy_request(settings: Settings) -> dict[str, Any]:
    """Settings that the log records for a look of `calibrate`; delta is a field of its own."""
    asked = {"protocol": "deploy", **named_settings(settings)}
    del asked["delta"]
    return asked


def named_settings(settings: Settings) -> dict[str, Any]:
    """Settings as a look records them, without those on losses and traces that have the default.

    The constant ``cache_block`` is recorded because earlier looks have it: without it a request
    would not match its look in the log, and would spend delta again.
    """
    named = asdict(settings) | {"weights": plain(settings.weights), "cache_block": CACHE_BLOCK}
    for name, unsaid in (
        ("loss", LOST.name),
        ("also", ()),
        ("traces", 1),
        ("on_give_up", "escalate"),
    ):
        if getattr(settings, name) == unsaid:
            del named[name]
    return named


def _with_data(source: Source, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Add the hash of the probes to a request, with answers if a loss or a label needs them."""
    limits = [asked.get("loss", LOST.name), *(each["loss"] for each in asked.get("also", ()))]
    compared = "asking" in asked or any(LOSSES[name].reads_answers for name in limits)
    return {**asked, "data": source.fingerprint(answers=compared)}


def _lines(source: Source, questions: SealedQuestions) -> set[str]:
    return {line for key in questions.keys for line in source.lines.get(key, ())}


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
    that an earlier look opened are gone or changed.
    """
    log, keys = read_log(source.folder), digests_of(questions.keys)
    for look, n in log.missing(line for each in source.lines.values() for line in each):
        raise ProbeError(
            f"{source.folder / PROBES}: {n} of {len(look.lines)} lines that look {look.number} of "
            f"{look.created[:10]} opened are gone or changed: put them back, or probe into another "
            "--out"
        )
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
            "other probes of these in runs next to it: each certificate holds on its own, but not "
            "the best of several tries"
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
    return look.questions == keys and look.asked == as_recorded(_with_data(view, asked))


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
    opening = source.table.take(rows)
    looked = opening.take(source.parts[rows] == _CALIBRATION)
    fit_keys = opening.take(source.parts[rows] == _FIT).keys
    if fit_keys:
        with lock_directory(source.folder):
            record_shown(source.folder, fit_keys, str(asked.get("protocol", "study")))
    n_looked = 0
    if looked.n_questions:
        if standing is None:
            standing = SettingsOverrides().settings(
                read_assessment(source.folder), defaults=default_settings(source)
            )
        asked = {**_with_data(source, asked), "standing": deploy_request(standing)}
        keys, lines = digests_of(looked.keys), _lines(source, looked)
        with lock_directory(source.folder):
            earlier = read_log(source.folder).at(keys)
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
    serving regime.
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
    asked = {"protocol": "paper", "alpha": settings.alpha, "serving": settings.serving}
    # What `calibrate` will read from the paper's assessment.
    of_paper = SettingsOverrides(settings.alpha, settings.delta)
    standing = of_paper.settings(defaults=default_settings(source))
    open_calibration(source, asked, delta=settings.delta, standing=standing)
