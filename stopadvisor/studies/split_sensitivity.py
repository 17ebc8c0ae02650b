"""Study `split-sensitivity`: the matched-risk comparison under five calibration splits.

Paper, Appendix "Calibration Split Sensitivity": five seeds of the 40/60 split at one α; means and
standard deviations over them, and how often the learned rule saves more.  The deploy protocol draws
fit, calibration and test parts anew and repeats choice and certificate, which shows how much a
certificate depends on its split.  The best of several splits is no certificate: a run has one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stopadvisor.arrays import FloatArray
from stopadvisor.assessment.assess import calibration_size
from stopadvisor.assessment.choice import Settings, choose
from stopadvisor.certification.calibration import calibrate
from stopadvisor.constants import PAPER_SPLIT_SEEDS
from stopadvisor.errors import CalibrationError
from stopadvisor.paper.protocol import OperatingPoint, operating_points, paper_split
from stopadvisor.runs.access import View, basis_remarks, is_unsealed, open_all
from stopadvisor.runs.sources import Source
from stopadvisor.studies.protocols import (
    measure_on_test,
    paper_setting,
    paper_views,
    study_settings,
)
from stopadvisor.studies.rows import Outline, Row, RunRow, column
from stopadvisor.studies.study import StudyOptions, StudyResult
from stopadvisor.workload.questions import PARTS, assign_parts

__all__ = ["OUTLINE", "run"]


class _SplitSensitivitySummary(
    RunRow,
    table="summary",
    title="Five 40/60 splits at α = {alpha:g}",
    note="learned ahead: share of the splits in which it saves more on the test questions; a probe "
    "is charged the paper's cap",
):
    rule: str = column("Rule")
    families: str = column("Families chosen")
    mean_risk: float = column("Mean risk", "share")
    mean_accuracy: float = column("Mean accuracy", "share")
    mean_saving_pct: float = column("Mean saving", "%")
    sd_saving_pct: float = column("SD saving", "%")
    learned_ahead: float | None = column("Learned ahead", "share")
    mean_difference_pp: float | None = column("Mean difference", "pp")


class _Seed(RunRow, table="seeds", title="Split by split"):
    seed: int = column("Seed")
    scalar: str = column("Best scalar", of="scalar.family")
    learned_feasible: bool = column("Learned feasible", of="learned.feasible")
    scalar_feasible: bool = column("Scalar feasible", of="scalar.feasible")
    learned_risk: float = column("Learned risk", "share", of="learned.test_risk")
    scalar_risk: float = column("Scalar risk", "share", of="scalar.test_risk")
    learned_saving_pct: float = column("Learned saving", "%", of="learned.total_saving_pct")
    scalar_saving_pct: float = column("Scalar saving", "%", of="scalar.total_saving_pct")


class _CertifiedRow(
    RunRow,
    table="certified",
    title="Chosen and certified anew, {serving}",
    note="to look at, not to choose from: the best of several splits is no certificate",
):
    seed: int = column("Seed")
    family: str | None = column("Certified", of="scorer.family")
    checkpoints: int | None = column("Checkpoints")
    losses: int | None = column("Calibration losses", of="certificate.losses")
    calibration: int = column("of")
    fit_saving_pct: float | None = column("Net saving (fit)", "%")
    test_risk: float | None = column("Risk (test)", "share")
    test_saving_pct: float | None = column("Net saving (test)", "%")
    test: int = column("Test questions")


OUTLINE = Outline(
    "split-sensitivity",
    'Appendix "Calibration Split Sensitivity"',
    (_SplitSensitivitySummary, _Seed, _CertifiedRow),
)


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Repeat the comparison under the paper's five seeds."""
    views = paper_views(sources)
    settings = study_settings(options)
    found: list[Row | str] = []
    for source, view in zip(sources, views, strict=True):
        found += _paper_rows(view, options)
        if is_unsealed(source):
            found += _certified_rows(view.label, source, settings)
        else:
            found.append(f"{view.label}: no certificates while its calibration is closed")
    return OUTLINE.result(found, options, basis_remarks(views))


@dataclass(frozen=True)
class _SplitPoints:
    seed: int
    learned: OperatingPoint
    scalar: OperatingPoint


def _paper_rows(view: View, options: StudyOptions) -> Iterator[Row]:
    setting = paper_setting(view)
    splits = []
    for seed in PAPER_SPLIT_SEEDS:
        calibration, test = paper_split(view.table.n_questions, seed)
        points = operating_points(
            setting, calibration, test, alpha=options.alpha, delta=options.delta
        )
        splits.append(_SplitPoints(seed, *points))
    learned, scalar = [s.learned for s in splits], [s.scalar for s in splits]
    ahead = np.array([s.learned.total_saving_pct - s.scalar.total_saving_pct for s in splits])
    yield _summary(view.label, "learned", learned, float((ahead > 0).mean()), _mean(ahead))
    yield _summary(view.label, "best scalar", scalar)
    for split in splits:
        yield _Seed.of(split, run=view.label)


def _summary(
    label: str,
    rule: str,
    points: Sequence[OperatingPoint],
    ahead: float | None = None,
    difference: float | None = None,
) -> _SplitSensitivitySummary:
    savings = [point.total_saving_pct for point in points]
    return _SplitSensitivitySummary(
        run=label,
        rule=rule,
        families=", ".join(dict.fromkeys(point.family for point in points)),
        mean_risk=_mean([point.test_risk for point in points]),
        mean_accuracy=_mean([point.test_accuracy for point in points]),
        mean_saving_pct=_mean(savings),
        sd_saving_pct=float(np.std(savings, ddof=1)),
        learned_ahead=ahead,
        mean_difference_pp=difference,
    )


def _mean(values: Sequence[float] | FloatArray) -> float:
    return float(np.mean(values))


def _certified_rows(
    label: str, source: Source, settings: Settings
) -> Iterator[_CertifiedRow | str]:
    for seed in PAPER_SPLIT_SEEDS:
        try:
            yield _certified(label, source, seed, settings)
        except CalibrationError as error:
            yield f"{label}, seed {seed}: {error}"


def _certified(label: str, source: Source, seed: int, settings: Settings) -> _CertifiedRow:
    """Choice on new fit questions, certificate on new calibration questions, then the test."""
    table = open_all(source)
    parts = assign_parts(table.groups, seed=seed, fractions=source.fractions)
    fit, calibration, test = (table.take(parts == k) for k in range(len(PARTS)))
    choice = choose(fit.as_fit(), calibration_size(calibration), settings)
    found = calibrate(choice, calibration.as_calibration())
    rule, outcome = found.rule, None
    if rule is not None and test.n_questions:
        outcome = measure_on_test(rule.scorer, rule.threshold, test, settings, seed=seed)
    return _CertifiedRow.of(
        rule,
        run=label,
        seed=seed,
        checkpoints=len(rule.scorer.schedule) if rule else None,
        calibration=rule.certificate.n if rule else found.entered.n_questions,
        test_risk=outcome.risk if outcome else None,
        test_saving_pct=outcome.total_saving_pct if outcome else None,
        test=int((test.samples == 0).sum()),
    )
