"""Study `schedules`: what fewer, or other, checkpoints keep of the gain and of the saving.

Paper, Appendix "Checkpoint Schedule Sweep" and Figure "Deployment sensitivity": peak gain, its
retention, and the most that probing can cost.  Schedules are laid over what was probed: their
budgets are scaled to the last probed one, and each takes the nearest probed budget, which the table
names.  The paper's side reads the gain against fixed budgets at every probed checkpoint, the same
baseline for all schedules; the deploy side keeps the risk matched and counts recorded tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import expit

from stopadvisor.arrays import IntArray
from stopadvisor.constants import PAPER_SCHEDULES, PROBE_CAP
from stopadvisor.errors import CalibrationError
from stopadvisor.paper.peaks import fixed_budgets, peak, peak_thresholds
from stopadvisor.paper.protocol import PaperSetting
from stopadvisor.probes.table import ProbeTable
from stopadvisor.rules.costs import serving_costs
from stopadvisor.rules.features import feature_array
from stopadvisor.rules.scores import out_of_fold, paper_folds
from stopadvisor.runs.access import View, basis_remarks
from stopadvisor.runs.sources import Source
from stopadvisor.studies.protocols import (
    FitSide,
    fit_sides,
    paper_setting,
    paper_views,
    study_settings,
)
from stopadvisor.studies.study import Cell, Column, StudyOptions, StudyResult, Table

__all__ = ["nearest_columns", "run"]

_PROBED = "as probed"

_SCHEDULES = (
    Column("run", "Run"),
    Column("schedule", "Schedule"),
    Column("asked", "Asked"),
    Column("probed", "Nearest probed"),
)
_GAIN = (
    Column("run", "Run"),
    Column("schedule", "Schedule"),
    Column("checkpoints", "Checkpoints"),
    Column("peak_gain", "Peak gain"),
    Column("retention_pct", "Retention", "%"),
    Column("max_overhead", "Max overhead", "tokens"),
)
_SAVING = (
    Column("run", "Run"),
    Column("schedule", "Schedule"),
    Column("checkpoints", "Checkpoints"),
    Column("family", "Rule"),
    Column("fit_risk", "Risk (fit)", "share"),
    Column("fit_saving_pct", "Saves (fit)", "%"),
    Column("retention_pct", "Retention", "%"),
    Column("difference_pp", "Differs by", "pp"),
    Column("probes", "Probes"),
    Column("probe_tokens", "Probe tokens", "tokens"),
)


def nearest_columns(budgets: IntArray, schedule: Sequence[int]) -> tuple[int, ...]:
    """Columns of the probed budgets nearest to a schedule scaled to the last of them.

    Of two equally near the smaller budget is taken; a column counts once.
    """
    wanted = np.asarray(schedule) * (budgets[-1] / schedule[-1])
    nearest = np.abs(budgets[None, :] - wanted[:, None]).argmin(axis=1)
    return tuple(np.unique(nearest).tolist())


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Peak gain and net saving of the paper's schedules."""
    views = paper_views(sources)
    sides, reasons = fit_sides(sources, study_settings(options))
    gains = [row for view in views for row in _gain_rows(view)]
    budgets = [row for view in views for row in _schedule_rows(view)]
    savings = [row for side in sides for row in _saving_rows(side)]
    return StudyResult(
        "schedules",
        'Appendix "Checkpoint Schedule Sweep"',
        ("paper", "deploy"),
        (
            Table("schedules", "Budgets asked and probed", _SCHEDULES, tuple(budgets)),
            Table(
                "gain",
                "Peak gain of the learned rule",
                _GAIN,
                tuple(gains),
                "against fixed budgets at all probed checkpoints; overhead is the paper's cap for "
                "each checkpoint",
            ),
            Table(
                "saving",
                f"Net saving on fit questions at equal risk, {options.serving}",
                _SAVING,
                tuple(savings),
                "the cheapest rule of each schedule, beside that of all checkpoints; probes and "
                "recorded tokens are per request",
            ),
        ),
        (*basis_remarks(views), *reasons, *_inexact(views)),
    )


def _schedules(budgets: IntArray) -> Mapping[str, tuple[int, ...]]:
    found = {_PROBED: tuple(range(budgets.size))}
    return found | {n: nearest_columns(budgets, s) for n, s in PAPER_SCHEDULES.items()}


def _spelled(budgets: Sequence[int] | IntArray) -> str:
    return " ".join(str(int(b)) for b in budgets)


def _peak_gain(table: ProbeTable, setting: PaperSetting, columns: tuple[int, ...]) -> float | None:
    """Peak gain of the rule that is fitted on these checkpoints and probes nowhere else.

    None where their answers are all right or all wrong, so that nothing can be learned there.
    """
    index = list(columns)
    correct, thinking = setting.correct[:, index], setting.costs.thinking[:, index]
    folds = paper_folds(table.n_questions)
    try:
        scores = expit(out_of_fold(feature_array(table, columns), correct, folds, solver="lbfgs"))
    except CalibrationError:
        return None
    thresholds = peak_thresholds("learned", scores)
    return peak(scores, thinking, correct, thresholds, fixed_budgets(setting)).gain


def _schedule_rows(view: View) -> list[tuple[Cell, ...]]:
    budgets = view.table.budgets
    rows: list[tuple[Cell, ...]] = []
    for name, columns in _schedules(budgets).items():
        used = _spelled(budgets[list(columns)])
        asked = PAPER_SCHEDULES.get(name)
        rows.append((view.label, name, used if asked is None else _spelled(asked), used))
    return rows


def _gain_rows(view: View) -> list[tuple[Cell, ...]]:
    setting = paper_setting(view)
    # Different schedules may stand on the same probed budgets.
    schedules = _schedules(view.table.budgets)
    gains = {c: _peak_gain(view.table, setting, c) for c in set(schedules.values())}
    whole = gains[schedules[_PROBED]]
    rows: list[tuple[Cell, ...]] = []
    for name, columns in schedules.items():
        gain = gains[columns]
        rows.append(
            (
                view.label,
                name,
                len(columns),
                gain,
                None if gain is None or not whole or whole < 0 else 100 * gain / whole,
                PROBE_CAP * len(columns),
            )
        )
    return rows


def _saving_rows(side: FitSide) -> list[tuple[Cell, ...]]:
    table = side.fit.table
    rows: list[tuple[Cell, ...]] = []
    whole: float | None = None
    for name, columns in _schedules(table.budgets).items():
        names = (side.label, name, len(columns))
        chain = side.cheapest(side.chains(columns))
        if chain is None:
            rows.append((*names, *([None] * 7)))
            continue
        saving = side.saving(chain)
        if name == _PROBED:
            whole = saving
        position = chain.position(side.limit)
        stops = chain.curve.stops(position)
        live = ~table.ended[:, list(columns)]
        asked = live & (np.arange(len(columns)) <= stops[:, None])
        tokens = np.where(asked, table.probe_tokens[:, list(columns)], 0.0).sum(axis=1).mean()
        served = serving_costs(
            table, columns, stops, side.settings.weights, cache_block=side.settings.cache_block
        )
        risk = float(chain.losses[position]) / table.n_questions
        retention = 100 * saving / whole if whole is not None and whole > 0 else None
        difference = saving - whole if whole is not None else None
        rows.append(
            (
                *names,
                chain.scorer.family,
                risk,
                saving,
                retention,
                difference,
                served[0].probes,
                float(tokens),
            )
        )
    return rows


def _inexact(views: Sequence[View]) -> tuple[str, ...]:
    """Which sources were not probed at the budgets that the schedules name."""
    found = []
    for view in views:
        probed = set(view.table.budgets.tolist())
        missed = [name for name, s in PAPER_SCHEDULES.items() if not probed.issuperset(s)]
        if missed:
            found.append(
                f"{view.label}: {', '.join(missed)} stand on the nearest probed budgets, scaled "
                f"to the last one ({int(view.table.budgets[-1])})"
            )
    return tuple(found)
