"""Study `schedules`: how much of the gain fewer, or other, checkpoints keep.

Paper, Appendix "Checkpoint Schedule Sweep" and Figure "Deployment sensitivity": peak gain, its
retention, and the most that probing can cost.  A schedule is fitted to the probed budgets: its own
are scaled to the last probed one, and each becomes the nearest probed one, which the table names.
The gain is read against fixed budgets at every probed checkpoint, the same for all schedules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.special import expit

from stopadvisor.ground.arrays import IntArray
from stopadvisor.ground.constants import PAPER_SCHEDULES, PROBE_CAP
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.paper.peaks import fixed_budgets, peak, peak_thresholds
from stopadvisor.paper.protocol import PaperSetting
from stopadvisor.rules.features import feature_array
from stopadvisor.rules.scores import out_of_fold, paper_folds
from stopadvisor.runs.access import View
from stopadvisor.studies.runner import paper_setting
from stopadvisor.studies.tables import Outline, Row, StudyOptions, layout

__all__ = ["OUTLINE", "nearest_columns", "rows"]

# fmt: off
_ASKED = layout("schedules", "Budgets asked and probed",
    run="Run", schedule="Schedule", asked="Asked", probed="Nearest probed")
_GAIN = layout("gain", "Peak gain of the learned rule", "against fixed budgets at all probed "
    "checkpoints; overhead is the paper's cap for each checkpoint",
    run="Run", schedule="Schedule", checkpoints="Checkpoints", peak_gain="Peak gain",
    retention_pct=("Retention", "%"), max_overhead=("Max overhead", "tokens"))
# fmt: on
OUTLINE = Outline("schedules", 'Appendix "Checkpoint Schedule Sweep"', (_ASKED, _GAIN))


def nearest_columns(budgets: IntArray, schedule: Sequence[int]) -> tuple[int, ...]:
    """Columns of the probed budgets that are nearest to a schedule, scaled to the last of them.

    Of two equally near budgets the smaller is taken; each column counts once.
    """
    wanted = np.asarray(schedule) * (budgets[-1] / schedule[-1])
    return tuple(np.unique(np.abs(budgets - wanted[:, None]).argmin(axis=1)).tolist())


def rows(view: View, options: StudyOptions) -> Iterator[Row | str]:
    """Peak gain of the paper's schedules."""
    setting, budgets, run = paper_setting(view), view.table.budgets, view.label
    every = tuple(range(budgets.size))
    asked = {"as probed": tuple(budgets.tolist()), **PAPER_SCHEDULES}
    laid = {name: nearest_columns(budgets, s) for name, s in PAPER_SCHEDULES.items()}
    laid = {"as probed": every, **laid}
    # Different schedules may fall on the same probed budgets.
    gains = {columns: _peak_gain(view, setting, columns) for columns in set(laid.values())}
    whole = gains[every]
    for name, columns in laid.items():
        words = [" ".join(map(str, grid)) for grid in (asked[name], budgets[list(columns)])]
        yield _ASKED.row(run=run, schedule=name, asked=words[0], probed=words[1])
        gain, n = gains[columns], len(columns)
        kept = None if gain is None or not whole or whole < 0 else 100 * gain / whole
        yield _GAIN.row(run=run, schedule=name, checkpoints=n, peak_gain=gain, retention_pct=kept,
            max_overhead=PROBE_CAP * n)  # fmt: skip
    if missed := [n for n, s in PAPER_SCHEDULES.items() if not {*budgets.tolist()} >= {*s}]:
        nearest = "stand on the nearest probed budgets, scaled to the last one"
        yield f"{run}: {', '.join(missed)} {nearest} ({int(budgets[-1])})"


def _peak_gain(view: View, setting: PaperSetting, columns: tuple[int, ...]) -> float | None:
    """Peak gain of a rule fitted and probed at these columns; None if its labels are all equal."""
    index = list(columns)
    correct, thinking = setting.correct[:, index], setting.costs.thinking[:, index]
    folds, features = paper_folds(len(correct)), feature_array(view.table, columns)
    try:
        scores = expit(out_of_fold(features, correct, folds, solver="lbfgs"))
    except CalibrationError:
        return None
    thresholds = peak_thresholds("learned", scores)
    return peak(scores, thinking, correct, thresholds, fixed_budgets(setting)).gain
