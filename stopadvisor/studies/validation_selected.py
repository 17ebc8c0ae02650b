"""Study `validation-selected`: thresholds chosen on some questions, measured on the others.

Paper, Appendix "Validation-Selected Operating Points": of 40 evenly spaced thresholds the one of
highest gain on the calibration questions of the 40/60 split, and its gain on the test questions.
The deploy protocol takes the threshold that calibration is expected to certify and measures it on
the test part, once calibration has been opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stopadvisor.arrays import FloatArray
from stopadvisor.constants import PAPER_VALIDATION_POINTS
from stopadvisor.paper.gain_bootstrap import resample_gains
from stopadvisor.paper.peaks import fixed_budgets, gain_at, peak
from stopadvisor.paper.protocol import first_stops, paper_split
from stopadvisor.rules.families import display_threshold
from stopadvisor.runs.access import View, is_unsealed, labels, open_test
from stopadvisor.runs.sources import Source
from stopadvisor.stats.bootstrap import interval
from stopadvisor.studies.protocols import DeployProtocol, measure_on_test, paper_setting, study_both
from stopadvisor.studies.rows import Ends, Outline, RunRow, column, ends
from stopadvisor.studies.study import StudyOptions, StudyResult

__all__ = ["OUTLINE", "run"]


class _Selected(
    RunRow,
    table="selected",
    title="Thresholds chosen on validation questions",
    note="saving in thinking and capped probe tokens",
):
    family: str = column("Rule")
    threshold: float = column("Threshold")
    validation_gain: float = column("Validation gain", of="gain")
    test_gain: float = column("Test gain")
    test_gain_ci: Ends = ends("95 % CI")
    test_accuracy: float = column("Accuracy", "share")
    total_saving_pct: float = column("Total saving", "%")
    questions: int = column("Test questions")


class _Deployed(
    RunRow,
    table="deployed",
    title="Thresholds chosen on fit questions, {serving}",
    note="the last threshold that calibration is expected to certify, over all checkpoints",
):
    family: str = column("Rule")
    threshold: float | None = column("Threshold")
    fit_risk: float | None = column("Risk (fit)", "share")
    test_risk: float | None = column("Risk (test)", "share", of="risk")
    fit_saving_pct: float | None = column("Net saving (fit)", "%")
    test_saving_pct: float | None = column("Net saving (test)", "%", of="total_saving_pct")
    test_saving_ci: Ends = ends("95 % CI", "%", of="saving_interval")
    test_accuracy: float | None = column("Accuracy", "share", of="accuracy")
    questions: int = column("Test questions", of="n")


OUTLINE = Outline(
    "validation-selected", 'Appendix "Validation-Selected Operating Points"', (_Selected, _Deployed)
)


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Select a threshold of every family on one part and measure it on another."""
    by_name = dict(zip(labels(sources), sources, strict=True))

    def deployed(deploy: DeployProtocol, options: StudyOptions) -> Iterator[_Deployed | str]:
        source = by_name[deploy.label]
        if is_unsealed(source) and source.counts()["test"]:
            yield from _deployed_rows(deploy, source, options)
        else:
            yield f"{deploy.label}: no test questions to show"

    return study_both(OUTLINE, sources, options, _selected_rows, deployed)


def _sweep(scores: FloatArray) -> FloatArray:
    found = np.linspace(scores.min(), scores.max(), PAPER_VALIDATION_POINTS).round(4)
    return np.unique(found)


def _selected_rows(view: View, options: StudyOptions) -> Iterator[_Selected]:
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
    rows = np.arange(test.size)
    for family, found in chosen.items():
        total = setting.costs.total[test][rows, stops[family]].mean()
        scores = setting.scores[family][test]
        yield _Selected.of(
            found,
            run=view.label,
            family=family,
            test_gain=gain_at(scores, thinking[test], correct[test], found.threshold, fixed_test),
            test_gain_ci=interval(resampled[family]),
            test_accuracy=float(correct[test][rows, stops[family]].mean()),
            total_saving_pct=float(100 * (1 - total / setting.costs.full_total[test].mean())),
            questions=int(test.size),
        )


def _deployed_rows(
    deploy: DeployProtocol, source: Source, options: StudyOptions
) -> Iterator[_Deployed]:
    """Every family over all checkpoints: chosen on fit questions, measured on the test part."""
    test = open_test(source)
    for sequence in deploy.sequences(deploy.every_checkpoint):
        scorer, limit = sequence.scorer, deploy.limit(sequence)
        if limit is None:
            untested = source.counts()["test"]
            yield _Deployed.of(None, run=deploy.label, family=scorer.family, questions=untested)
            continue
        yield _Deployed.of(
            measure_on_test(scorer, limit.threshold, test, deploy.settings, seed=options.seed),
            run=deploy.label,
            family=scorer.family,
            threshold=display_threshold(scorer.family, limit.threshold),
            fit_risk=limit.risk,
            fit_saving_pct=limit.saving_pct,
        )
