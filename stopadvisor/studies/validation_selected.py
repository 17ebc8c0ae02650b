"""Study `validation-selected`: thresholds chosen on some questions, measured on the others.

Paper, Appendix "Validation-Selected Operating Points": of 40 evenly spaced thresholds the one of
highest gain on the calibration questions of the 40/60 split, and its gain on the test questions.
The deploy side takes the threshold that fit questions expect to be certifiable and measures it on
the test part, once calibration has been opened.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stopadvisor.arrays import FloatArray
from stopadvisor.constants import PAPER_VALIDATION_POINTS
from stopadvisor.paper.gain_bootstrap import resample_gains
from stopadvisor.paper.peaks import fixed_budgets, gain_at, peak
from stopadvisor.paper.protocol import first_stops, paper_split
from stopadvisor.rules.families import display_threshold
from stopadvisor.runs.access import View, basis_remarks, is_opened
from stopadvisor.runs.sources import Source
from stopadvisor.stats.bootstrap import interval
from stopadvisor.studies.protocols import (
    FitSide,
    fit_sides,
    paper_setting,
    paper_views,
    study_settings,
)
from stopadvisor.studies.study import Cell, Column, StudyOptions, StudyResult, Table
from stopadvisor.studies.tested import measure_rule

__all__ = ["run"]

_SELECTED = (
    Column("run", "Run"),
    Column("family", "Rule"),
    Column("threshold", "Threshold"),
    Column("validation_gain", "Validation gain"),
    Column("test_gain", "Test gain"),
    Column("test_gain_low", "95 % CI"),
    Column("test_gain_high", "high"),
    Column("test_accuracy", "Accuracy", "share"),
    Column("total_saving_pct", "Total saving", "%"),
    Column("questions", "Test questions"),
)
_DEPLOYED = (
    Column("run", "Run"),
    Column("family", "Rule"),
    Column("threshold", "Threshold"),
    Column("fit_risk", "Risk (fit)", "share"),
    Column("test_risk", "Risk (test)", "share"),
    Column("fit_saving_pct", "Net saving (fit)", "%"),
    Column("test_saving_pct", "Net saving (test)", "%"),
    Column("test_saving_low", "95 % CI", "%"),
    Column("test_saving_high", "high", "%"),
    Column("test_accuracy", "Accuracy", "share"),
    Column("questions", "Test questions"),
)


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Select a threshold of every family on one part and measure it on another."""
    views = paper_views(sources)
    selected = [row for view in views for row in _selected_rows(view, options)]
    sides, reasons = fit_sides(sources, study_settings(options))
    by_name = {view.label: source for view, source in zip(views, sources, strict=True)}
    deployed: list[tuple[Cell, ...]] = []
    closed: list[str] = []
    for side in sides:
        source = by_name[side.label]
        if not is_opened(source) or not source.counts()["test"]:
            closed.append(f"{side.label}: no test questions to show")
            continue
        deployed += _deployed_rows(side, source, options)
    return StudyResult(
        "validation-selected",
        'Appendix "Validation-Selected Operating Points"',
        ("paper", "deploy"),
        (
            Table(
                "selected",
                "Thresholds chosen on validation questions",
                _SELECTED,
                tuple(selected),
                "saving in thinking and capped probe tokens",
            ),
            Table(
                "deployed",
                f"Thresholds chosen on fit questions, {options.serving}",
                _DEPLOYED,
                tuple(deployed),
                "the last threshold that calibration is expected to certify, over all checkpoints",
            ),
        ),
        (*basis_remarks(views), *reasons, *closed),
    )


def _sweep(scores: FloatArray) -> FloatArray:
    found = np.linspace(scores.min(), scores.max(), PAPER_VALIDATION_POINTS).round(4)
    return np.unique(found)


def _selected_rows(view: View, options: StudyOptions) -> list[tuple[Cell, ...]]:
    setting = paper_setting(view)
    validation, test = paper_split(view.table.n_questions)
    thinking, correct = setting.costs.thinking, setting.correct
    fixed, fixed_test = fixed_budgets(setting, validation), fixed_budgets(setting, test)
    chosen = {
        family: peak(
            scores[validation],
            thinking[validation],
            correct[validation],
            _sweep(scores[validation]),
            fixed,
        )
        for family, scores in setting.scores.items()
    }
    stops = {
        family: first_stops(setting.scores[family][test], found.threshold)
        for family, found in chosen.items()
    }
    resampled = resample_gains(
        stops,
        thinking[test],
        correct[test],
        n_resamples=options.resamples,
        rng=np.random.default_rng(options.seed),
    )
    rows: list[tuple[Cell, ...]] = []
    rest = np.arange(test.size)
    for family, found in chosen.items():
        spread = interval(resampled[family])
        at = stops[family]
        total = setting.costs.total[test][rest, at].mean()
        scores = setting.scores[family][test]
        rows.append(
            (
                view.label,
                family,
                found.threshold,
                found.gain,
                gain_at(scores, thinking[test], correct[test], found.threshold, fixed_test),
                spread.low,
                spread.high,
                float(correct[test][rest, at].mean()),
                float(100 * (1 - total / setting.costs.full_total[test].mean())),
                int(test.size),
            )
        )
    return rows


def _deployed_rows(side: FitSide, source: Source, options: StudyOptions) -> list[tuple[Cell, ...]]:
    """Every family over all checkpoints: chosen on fit questions, measured on the test part."""
    test = source.part("test")
    n_test = source.counts()["test"]
    rows: list[tuple[Cell, ...]] = []
    for chain in side.chains(tuple(range(side.fit.table.n_checkpoints))):
        scorer, position = chain.scorer, chain.position(side.limit)
        if position < 0:
            rows.append((side.label, scorer.family, *([None] * 8), n_test))
            continue
        threshold = float(chain.thresholds[position])
        outcome = measure_rule(scorer, threshold, test, side.settings, seed=options.seed)
        spread = outcome.saving_interval
        assert spread is not None  # asked for by the generator
        rows.append(
            (
                side.label,
                scorer.family,
                display_threshold(scorer.family, threshold),
                float(chain.losses[position]) / side.fit.table.n_questions,
                outcome.risk,
                side.saving(chain),
                outcome.total_saving_pct,
                spread.low,
                spread.high,
                outcome.accuracy,
                outcome.n,
            )
        )
    return rows
