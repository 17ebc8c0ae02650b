"""Study `validation-selected`: thresholds chosen on some questions, measured on the others.

Paper, Appendix "Validation-Selected Operating Points": of 40 evenly spaced thresholds, the one with
the highest gain on the calibration questions of the 40/60 split; its gain on the test questions.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stopadvisor.ground.constants import PAPER_VALIDATION_POINTS
from stopadvisor.paper.peaks import fixed_budgets, peak, resample_gains
from stopadvisor.paper.protocol import first_stops, paper_split
from stopadvisor.runs.access import View
from stopadvisor.stats.bootstrap import interval
from stopadvisor.studies.runner import paper_setting
from stopadvisor.studies.tables import Outline, Row, StudyOptions, layout

__all__ = ["OUTLINE", "rows"]

_SELECTED = layout(
    "selected",
    "Thresholds chosen on validation questions",
    "saving in thinking and capped probe tokens",
    run="Run", family="Rule", threshold="Threshold", validation_gain="Validation gain",
    test_gain="Test gain", test_gain_ci="95 % CI", test_accuracy=("Accuracy", "share"),
    total_saving_pct=("Total saving", "%"), questions="Test questions",
)  # fmt: skip
_PAPER = 'Appendix "Validation-Selected Operating Points"'
OUTLINE = Outline("validation-selected", _PAPER, (_SELECTED,))


def rows(view: View, options: StudyOptions) -> Iterator[Row]:
    """Select a threshold of every family on one part and measure it on another."""
    setting = paper_setting(view)
    chosen_on, test = paper_split(view.table.n_questions)
    thinking, correct = setting.costs.thinking, setting.correct
    fixed, fixed_test = fixed_budgets(setting, chosen_on), fixed_budgets(setting, test)
    chosen, stops = {}, {}
    for family, scores in setting.scores.items():
        seen = scores[chosen_on]
        grid = np.unique(np.linspace(seen.min(), seen.max(), PAPER_VALIDATION_POINTS).round(4))
        chosen[family] = peak(seen, thinking[chosen_on], correct[chosen_on], grid, fixed)
        stops[family] = first_stops(scores[test], chosen[family].threshold)
    rng = np.random.default_rng(options.seed)
    resampled = resample_gains(
        stops, thinking[test], correct[test], n_resamples=options.resamples, rng=rng
    )
    every = np.arange(test.size)
    for family, best in chosen.items():
        scores, total = setting.scores[family][test], setting.costs.total[test]
        spent = total[every, stops[family]].mean() / setting.costs.full_total[test].mean()
        yield _SELECTED.row(
            run=view.label,
            family=family,
            threshold=best.threshold,
            validation_gain=best.gain,
            test_gain=peak(
                scores, thinking[test], correct[test], np.array([best.threshold]), fixed_test
            ).gain,
            test_gain_ci=interval(resampled[family]),
            test_accuracy=float(correct[test][every, stops[family]].mean()),
            total_saving_pct=float(100 * (1 - spent)),
            questions=int(test.size),
        )
