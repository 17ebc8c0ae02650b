"""Study `rivals`: what simple rules and the advised one save at the same certified risk.

A run's questions are split many times: some choose a rule, some certify it, the others measure it.
Every contestant is chosen by the same code, tested by the same exact test and charged the same
costs; a simple one has only its own kind of rule to choose from.  The best of many splits is no
certificate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stopadvisor.assessment.choice import Choice, Settings, choose
from stopadvisor.certification.calibration import calibrate
from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.ground.errors import CalibrationError, NothingToChoose, StudyError
from stopadvisor.ground.progress import tracked
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.rules.families import FIXED_BUDGET
from stopadvisor.runs.access import View, labels, view
from stopadvisor.runs.sources import Source
from stopadvisor.studies.runner import study_settings
from stopadvisor.studies.tables import Outline, Row, StudyOptions, StudyReport, layout
from stopadvisor.studies.trial import Trial, draw_split

__all__ = ["OURS", "OUTLINE", "AppliedRule", "certified", "run"]

OURS = "StopAdvisor"
_AT_MARKERS = "sure at markers"
_SIMPLE: Mapping[str, tuple[str, ...]] = {
    "fixed budget": (FIXED_BUDGET,),
    "equal answers": ("run-stability", "agreement"),
    _AT_MARKERS: ("deer",),
}
"""Simple contestants, and the families that each chooses from."""
_FIT, _CALIBRATION = 0.32, 0.48
"""Shares of the questions; the rest measures.  Their ratio is that of the default 40/60 split."""


# fmt: off
_SAVINGS = layout("savings", "Net saving at equal certified risk, α = {alpha:g}, {serving}, "
    "{splits} splits", "on held-out questions; intervals resample questions; uncut: without traces "
    "cut off at the cap; stops: share of the splits in which a certified rule stops anything; "
    "ahead: StopAdvisor's saving minus this rule's, on the same questions", run="Run", rule="Rule",
    saving_pct=("Saves", "%"), saving_ci=("95 % CI", "%"), uncut_saving_pct=("Uncut", "%"),
    lost=("Lost", "share"), stops=("Stops", "share"), ahead_pp=("Ahead", "pp"),
    ahead_ci=("95 % CI", "pp"))
# fmt: on
OUTLINE = Outline("rivals", "", (_SAVINGS,), protocols=("deploy",), defaults={"splits": "30"})


def run(sources: Sequence[Source], options: StudyOptions) -> StudyReport:
    """Compare the rules on each source."""
    views = [view(s, name) for s, name in zip(sources, labels(sources), strict=True)]
    n_splits = OUTLINE.whole(options, "splits")
    settings = replace(study_settings(options), allow_truncated=True)
    rows: list[Row | str] = []
    for shown in views:
        if shown.table.graded_by == "agreement":
            bare = replace(settings, loss="differs")
            rows += [f"{shown.label}: no gold for every question: what differs counts as lost"]
            rows += _rows(shown, bare, n_splits)
        else:
            rows += _rows(shown, settings, n_splits)
    return OUTLINE.result(rows, options, views)


# --- One rule in one split ------------------------------------------------------------------------


@dataclass(frozen=True)
class AppliedRule:
    """What a certified rule does to each question: full thinking if nothing was certified."""

    lost: BoolArray  # (n_questions,)
    cost: FloatArray  # (n_questions,)


def certified(choice: Choice, table: OpenQuestions, rows: IntArray) -> AppliedRule:
    """Certify a choice on some questions of a table, and apply the rule to all of them.

    Parameters
    ----------
    rows : ndarray of int
        They certify; a row may come twice if questions were drawn with replacement.
    """
    settings = choice.settings
    names = tuple(f"calibration {number}" for number in range(rows.size))
    drawn = replace(table.take(rows), ids=names, keys=names, groups=names)
    rule = calibrate(choice, drawn.as_calibration()).rule
    if rule is None:
        return _full_thinking(table, settings)
    scorer = rule.scorer
    seen = scorer.view(table)
    stops = scorer.stops(seen, rule.threshold)
    every = np.arange(table.n_questions)
    return AppliedRule(
        scorer.losses(seen, settings.counted)[every, stops] > 0,
        scorer.costs(seen, settings.costing)[every, stops],
    )


def _full_thinking(table: OpenQuestions, settings: Settings) -> AppliedRule:
    full = settings.costing.full(table)
    return AppliedRule(np.zeros(table.n_questions, dtype=bool), full)


# --- All rules in all splits ----------------------------------------------------------------------


def _rows(shown: View, settings: Settings, n_splits: int) -> Iterator[Row | str]:
    table = _one_a_group(shown.table)
    if table.n_questions < shown.table.n_questions:
        yield (
            f"{shown.label}: one question of each group, {table.n_questions} of "
            f"{shown.table.n_questions}"
        )
    wanted = {OURS: settings.families, **_SIMPLE}
    if table.marker_positions is None:
        del wanted[_AT_MARKERS]
        yield f"{shown.label}: {_AT_MARKERS}: needs answers that were forced at markers"
    outcomes: dict[str, list[AppliedRule]] = {name: [] for name in wanted}
    reasons: dict[str, str] = {}
    n = table.n_questions
    n_fit, n_calibration = round(_FIT * n), round(_CALIBRATION * n)
    held_out = np.zeros((n_splits, n), dtype=bool)
    for number in tracked(f"splits of {shown.label}", range(n_splits)):
        split = draw_split(np.arange(n), n_fit, n_calibration, number)
        held_out[number, split.held_out] = True
        fit = table.take(split.fit).as_fit()
        for name, families in wanted.items():
            try:
                choice = choose(fit, n_calibration, replace(settings, families=families))
                outcomes[name].append(certified(choice, table, split.calibration))
            except CalibrationError as error:
                if name == OURS and not isinstance(error, NothingToChoose):
                    raise StudyError(f"{shown.label}: {error}") from error
                reasons[name] = str(error)
                outcomes[name].append(_full_thinking(table, settings))
    full = settings.costing.full(table)
    trial = Trial(
        held_out,
        np.broadcast_to(table.truncated, held_out.shape),
        np.broadcast_to(full, held_out.shape),
        {name: np.stack([o.cost for o in applied]) for name, applied in outcomes.items()},
        {name: np.stack([o.lost for o in applied]) for name, applied in outcomes.items()},
    )
    for name in (*list(wanted)[1:], OURS):
        if name in reasons and not trial.stopping_share(name):
            yield f"{shown.label}: {name}: {reasons[name]}"
        else:
            yield _row(shown.label, name, trial)


def _one_a_group(table: OpenQuestions) -> OpenQuestions:
    first = {group: row for row, group in reversed(list(enumerate(table.groups)))}
    return table.take(np.array(sorted(first.values())))


def _row(label: str, name: str, trial: Trial) -> Row:
    saving = trial.saving(name)
    ahead = None if name == OURS else trial.saving(OURS, name)
    return _SAVINGS.row(
        run=label,
        rule=name,
        saving_pct=saving.mean,
        saving_ci=(saving.low, saving.high),
        uncut_saving_pct=trial.saving(name, uncut=True).mean,
        lost=trial.lost_share(name),
        stops=trial.stopping_share(name),
        ahead_pp=None if ahead is None else ahead.mean,
        ahead_ci=None if ahead is None else (ahead.low, ahead.high),
    )
