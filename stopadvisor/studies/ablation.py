"""Study `ablation`: what the learned rule gains from which features.

Paper, Appendix "Feature Ablations": peak gain of logistic regression on the confidence, the
entropy, both, the three of answer stability, all eight, and the ten of the audit.  The deploy side
fits the same subsets on fit questions and says what each saves at the risk that calibration could
still certify; the audit's two features leak length and stay out of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from scipy.special import expit

from stopadvisor.arrays import FloatArray
from stopadvisor.assessment.sequences import chain_of
from stopadvisor.errors import CalibrationError
from stopadvisor.rules.features import AUDIT_FEATURES, FEATURES, feature_array
from stopadvisor.rules.scorer import Scorer
from stopadvisor.rules.scores import fit_logistic, out_of_fold, paper_folds
from stopadvisor.runs.access import View, basis_remarks
from stopadvisor.runs.sources import Source
from stopadvisor.studies.protocols import FitSide, fit_sides, paper_views, study_settings
from stopadvisor.studies.study import Cell, StudyOptions, StudyResult, Table
from stopadvisor.studies.variants import PEAKS, SERVED, peak_rows, served_row

__all__ = ["run"]

_ALL = "all eight"
_SUBSETS: Mapping[str, tuple[str, ...]] = {
    "confidence": ("answer_logprob",),
    "entropy": ("answer_entropy",),
    "confidence and entropy": ("answer_logprob", "answer_entropy"),
    "stability": ("previous_match", "run_length", "vote_share"),
    _ALL: FEATURES,
    "all ten": (*FEATURES, *reversed(AUDIT_FEATURES)),
}
"""In the order of the paper's table; the ten in that of its archives."""


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Peak gain, AUROC and net saving of each subset."""
    views = paper_views(sources)
    peaks = [row for view in views for row in peak_rows(view, _chances(view), _ALL, options)]
    sides, reasons = fit_sides(sources, study_settings(options))
    served: list[tuple[Cell, ...]] = []
    missing: list[str] = []
    for side in sides:
        for name, names in _SUBSETS.items():
            if set(names) & set(AUDIT_FEATURES):
                continue
            try:
                served.append(_served(side, name, names))
            except CalibrationError as error:
                missing.append(f"{side.label}, {name}: {error}")
    return StudyResult(
        "ablation",
        'Appendix "Feature Ablations"',
        ("paper", "deploy"),
        (
            Table(
                "peaks",
                "Peak gain by features",
                tuple(
                    replace(c, title="Ahead of all eight") if c.name == "ahead" else c
                    for c in PEAKS
                ),
                tuple(peaks),
                "logistic regression out of fold; all ten add the two features that leak length",
            ),
            Table(
                "served",
                f"On fit questions at equal risk, {options.serving}",
                SERVED,
                tuple(served),
                "over all checkpoints",
            ),
        ),
        (*basis_remarks(views), *reasons, *missing),
    )


def _chances(view: View) -> dict[str, FloatArray]:
    folds = paper_folds(view.table.n_questions)
    found = {}
    for name, names in _SUBSETS.items():
        features = feature_array(view.table, names=names)
        z = out_of_fold(features, view.table.correct, folds, names=names, solver="lbfgs")
        found[name] = expit(z)
    return found


def _served(side: FitSide, name: str, names: tuple[str, ...]) -> tuple[Cell, ...]:
    table, schedule = side.fit.table, tuple(range(side.fit.table.n_checkpoints))
    features, live = feature_array(table, names=names), ~table.ended
    correct = table.stop_correct
    scores = out_of_fold(features, correct, side.fit.folds, usable=live, names=names)
    model = fit_logistic(features[live], correct[live], names)
    chain = chain_of(side.fit, Scorer("learned", schedule, model), scores)
    return served_row(side, name, scores, chain)
