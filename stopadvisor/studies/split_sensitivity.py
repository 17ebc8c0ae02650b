"""Study `split-sensitivity`: the matched-risk comparison under five calibration splits.

Paper, Appendix "Calibration Split Sensitivity": five seeds of the 40/60 split at one α; means and
standard deviations over them, and how often the learned rule saves more.  The deploy side draws
fit, calibration and test parts anew and repeats choice and certificate, which shows how far
a certificate hangs on its draw.  The best of several splits is no certificate: a run has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stopadvisor.arrays import FloatArray
from stopadvisor.assessment.assess import calibration_size
from stopadvisor.assessment.choice import Settings, choose
from stopadvisor.certification.calibration import calibrate
from stopadvisor.constants import PAPER_SPLIT_SEEDS
from stopadvisor.errors import CalibrationError
from stopadvisor.paper.protocol import OperatingPoint, operating_points, paper_split
from stopadvisor.runs.access import View, basis_remarks, is_opened
from stopadvisor.runs.sources import Source
from stopadvisor.studies.protocols import paper_setting, paper_views, study_settings
from stopadvisor.studies.study import Cell, Column, StudyOptions, StudyResult, Table
from stopadvisor.studies.tested import measure_rule
from stopadvisor.workload.questions import PARTS, assign_parts

__all__ = ["run"]

_SUMMARY = (
    Column("run", "Run"),
    Column("rule", "Rule"),
    Column("families", "Families chosen"),
    Column("mean_risk", "Mean risk", "share"),
    Column("mean_accuracy", "Mean accuracy", "share"),
    Column("mean_saving_pct", "Mean saving", "%"),
    Column("sd_saving_pct", "SD saving", "%"),
    Column("learned_ahead", "Learned ahead", "share"),
    Column("mean_difference_pp", "Mean difference", "pp"),
)
_SEEDS = (
    Column("run", "Run"),
    Column("seed", "Seed"),
    Column("scalar", "Best scalar"),
    Column("learned_feasible", "Learned feasible"),
    Column("scalar_feasible", "Scalar feasible"),
    Column("learned_risk", "Learned risk", "share"),
    Column("scalar_risk", "Scalar risk", "share"),
    Column("learned_saving_pct", "Learned saving", "%"),
    Column("scalar_saving_pct", "Scalar saving", "%"),
)
_CERTIFIED = (
    Column("run", "Run"),
    Column("seed", "Seed"),
    Column("family", "Certified"),
    Column("checkpoints", "Checkpoints"),
    Column("losses", "Calibration losses"),
    Column("calibration", "of"),
    Column("fit_saving_pct", "Net saving (fit)", "%"),
    Column("test_risk", "Risk (test)", "share"),
    Column("test_saving_pct", "Net saving (test)", "%"),
    Column("test", "Test questions"),
)


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Repeat the comparison under the paper's five seeds."""
    views = paper_views(sources)
    settings = study_settings(options)
    summary: list[tuple[Cell, ...]] = []
    seeds: list[tuple[Cell, ...]] = []
    certified: list[tuple[Cell, ...]] = []
    remarks: list[str] = []
    for source, view in zip(sources, views, strict=True):
        splits = _splits(view, options)
        summary += _summary_rows(view.label, splits)
        seeds += [(view.label, *_seed_row(split)) for split in splits]
        if not is_opened(source):
            remarks.append(f"{view.label}: no certificates while its calibration is closed")
            continue
        for seed in PAPER_SPLIT_SEEDS:
            try:
                certified.append((view.label, seed, *_certified_row(source, seed, settings)))
            except CalibrationError as error:
                remarks.append(f"{view.label}, seed {seed}: {error}")
    return StudyResult(
        "split-sensitivity",
        'Appendix "Calibration Split Sensitivity"',
        ("paper", "deploy"),
        (
            Table(
                "summary",
                f"Five 40/60 splits at α = {options.alpha:g}",
                _SUMMARY,
                tuple(summary),
                "learned ahead: share of the splits in which it saves more on the test questions; "
                "a probe is charged the paper's cap",
            ),
            Table("seeds", "Split by split", _SEEDS, tuple(seeds)),
            Table(
                "certified",
                f"Chosen and certified anew, {options.serving}",
                _CERTIFIED,
                tuple(certified),
                "to look at, not to choose from: the best of several splits is no certificate",
            ),
        ),
        (*basis_remarks(views), *remarks),
    )


@dataclass(frozen=True)
class _Split:
    seed: int
    learned: OperatingPoint
    scalar: OperatingPoint


def _splits(view: View, options: StudyOptions) -> list[_Split]:
    setting = paper_setting(view)
    found = []
    for seed in PAPER_SPLIT_SEEDS:
        calibration, test = paper_split(view.table.n_questions, seed)
        points = operating_points(
            setting, calibration, test, alpha=options.alpha, delta=options.delta
        )
        found.append(_Split(seed, *points))
    return found


def _summary_rows(label: str, splits: Sequence[_Split]) -> list[tuple[Cell, ...]]:
    learned, scalar = [s.learned for s in splits], [s.scalar for s in splits]
    ahead = np.array([s.learned.total_saving_pct - s.scalar.total_saving_pct for s in splits])
    return [
        (label, "learned", "learned", *_means(learned), float((ahead > 0).mean()), _mean(ahead)),
        (
            label,
            "best scalar",
            ", ".join(dict.fromkeys(point.family for point in scalar)),
            *_means(scalar),
            None,
            None,
        ),
    ]


def _means(points: Sequence[OperatingPoint]) -> tuple[float, ...]:
    savings = [point.total_saving_pct for point in points]
    return (
        _mean([point.test_risk for point in points]),
        _mean([point.test_accuracy for point in points]),
        _mean(savings),
        float(np.std(savings, ddof=1)),
    )


def _mean(values: Sequence[float] | FloatArray) -> float:
    return float(np.mean(values))


def _seed_row(split: _Split) -> tuple[Cell, ...]:
    learned, scalar = split.learned, split.scalar
    return (
        split.seed,
        scalar.family,
        learned.feasible,
        scalar.feasible,
        learned.test_risk,
        scalar.test_risk,
        learned.total_saving_pct,
        scalar.total_saving_pct,
    )


def _certified_row(source: Source, seed: int, settings: Settings) -> tuple[Cell, ...]:
    """Choice on new fit questions, certificate on new calibration questions, then the test."""
    table = source.table
    parts = assign_parts(table.groups, seed=seed, fractions=source.fractions)
    fit, calibration, test = (table.take(parts == k) for k in range(len(PARTS)))
    n_test = int((test.samples == 0).sum())
    choice = choose(fit, calibration_size(calibration), settings)
    found = calibrate(choice, calibration)
    if found.rule is None:
        return (None, None, None, int(found.rows.size), None, None, None, n_test)
    rule = found.rule
    outcome = None
    if test.n_questions:
        outcome = measure_rule(rule.scorer, rule.threshold, test, settings, seed=seed)
    return (
        rule.scorer.family,
        len(rule.scorer.schedule),
        rule.certificate.losses,
        rule.certificate.n,
        rule.fit_saving_pct,
        outcome.risk if outcome else None,
        outcome.total_saving_pct if outcome else None,
        n_test,
    )
