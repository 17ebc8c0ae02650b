"""Study `schedules`: what fewer, or other, checkpoints keep of the gain and of the saving.

Paper, Appendix "Checkpoint Schedule Sweep" and Figure "Deployment sensitivity": peak gain, its
retention, and the most that probing can cost.  A schedule is laid over what was probed: its budgets
are scaled to the last probed one, and each takes the nearest probed budget, which the table names.
The paper's protocol reads the gain against fixed budgets at every probed checkpoint, the same
baseline for all schedules; the deploy protocol compares at equal risk and counts recorded tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

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
from stopadvisor.rules.schedules import GridSchedule
from stopadvisor.rules.scores import out_of_fold, paper_folds
from stopadvisor.runs.access import View
from stopadvisor.runs.sources import Source
from stopadvisor.studies.protocols import (
    DeployProtocol,
    paper_setting,
    paper_views,
    study_both,
    with_gold,
)
from stopadvisor.studies.rows import Outline, Row, RunRow, column
from stopadvisor.studies.study import StudyOptions, StudyResult

__all__ = ["OUTLINE", "nearest_columns", "run"]

_PROBED = "as probed"


class _Schedule(RunRow, table="schedules", title="Budgets asked and probed"):
    schedule: str = column("Schedule")
    asked: str = column("Asked")
    probed: str = column("Nearest probed")


class _SchedulesGain(
    RunRow,
    table="gain",
    title="Peak gain of the learned rule",
    note="against fixed budgets at all probed checkpoints; overhead is the paper's cap for each "
    "checkpoint",
):
    schedule: str = column("Schedule")
    checkpoints: int = column("Checkpoints")
    peak_gain: float | None = column("Peak gain")
    retention_pct: float | None = column("Retention", "%")
    max_overhead: int = column("Max overhead", "tokens")


class _SchedulesSaving(
    RunRow,
    table="saving",
    title="Net saving on fit questions at equal risk, {serving}",
    note="the cheapest rule of each schedule, beside that of all checkpoints; probes and recorded "
    "tokens are per request",
):
    schedule: str = column("Schedule")
    checkpoints: int = column("Checkpoints")
    family: str | None = column("Rule")
    fit_risk: float | None = column("Risk (fit)", "share", of="risk")
    fit_saving_pct: float | None = column("Saves (fit)", "%", of="saving_pct")
    retention_pct: float | None = column("Retention", "%")
    difference_pp: float | None = column("Differs by", "pp")
    probes: float | None = column("Probes")
    probe_tokens: float | None = column("Probe tokens", "tokens")


OUTLINE = Outline(
    "schedules",
    'Appendix "Checkpoint Schedule Sweep"',
    (_Schedule, _SchedulesGain, _SchedulesSaving),
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
    found = study_both(OUTLINE, sources, options, _paper_rows, _savings)
    inexact = [remark for view in paper_views(with_gold(sources)) for remark in _inexact(view)]
    return replace(found, remarks=(*found.remarks, *inexact))


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


def _paper_rows(view: View, options: StudyOptions) -> Iterator[Row]:
    setting = paper_setting(view)
    budgets = view.table.budgets
    schedules = _schedules(budgets)
    # Different schedules may stand on the same probed budgets.
    gains = {c: _peak_gain(view.table, setting, c) for c in set(schedules.values())}
    whole = gains[schedules[_PROBED]]
    for name, columns in schedules.items():
        used, gain = _spelled(budgets[list(columns)]), gains[columns]
        asked = PAPER_SCHEDULES.get(name)
        yield _Schedule(view.label, name, used if asked is None else _spelled(asked), used)
        yield _SchedulesGain(
            run=view.label,
            schedule=name,
            checkpoints=len(columns),
            peak_gain=gain,
            retention_pct=None if gain is None or not whole or whole < 0 else 100 * gain / whole,
            max_overhead=PROBE_CAP * len(columns),
        )


def _savings(deploy: DeployProtocol, options: StudyOptions) -> Iterator[_SchedulesSaving]:
    table, settings = deploy.fit.table, deploy.settings
    whole: float | None = None
    for name, columns in _schedules(table.budgets).items():
        at = GridSchedule(tuple(table.budgets[list(columns)].tolist()))
        found = deploy.cheapest(deploy.sequences(at))
        names = {"run": deploy.label, "schedule": name, "checkpoints": len(columns)}
        if found is None:
            yield _SchedulesSaving.of(None, **names)
            continue
        sequence, limit = found
        saving = limit.saving_pct
        if name == _PROBED:
            whole = saving
        stops = sequence.curve.stops(limit.index)
        live = ~table.ended[:, list(columns)]
        asked = live & (np.arange(len(columns)) <= stops[:, None])
        tokens = np.where(asked, table.probe_tokens[:, list(columns)], 0.0).sum(axis=1).mean()
        cost = serving_costs(
            sequence.view,
            stops,
            settings.weights,
            cache_block=settings.cache_block,
            asking=sequence.scorer.asking,
        )
        yield _SchedulesSaving.of(
            limit,
            **names,
            family=sequence.scorer.family,
            retention_pct=100 * saving / whole if whole is not None and whole > 0 else None,
            difference_pp=saving - whole if whole is not None else None,
            probes=cost[0].probes,
            probe_tokens=float(tokens),
        )


def _inexact(view: View) -> Iterator[str]:
    """Say which schedules name budgets that the source was not probed at."""
    probed = set(view.table.budgets.tolist())
    missed = [name for name, s in PAPER_SCHEDULES.items() if not probed.issuperset(s)]
    if missed:
        yield (
            f"{view.label}: {', '.join(missed)} stand on the nearest probed budgets, scaled "
            f"to the last one ({int(view.table.budgets[-1])})"
        )
