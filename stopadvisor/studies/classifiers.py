"""Study `classifiers`: logistic regression against forest, boosting and a neural network.

Paper, Appendix "Classifier Class Comparison": peak gain of each class on the same eight features,
out of fold.  The deploy side compares what can be exported, logistic regression and this package's
boosted trees, on fit questions at the risk that calibration could still certify.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stopadvisor.arrays import FloatArray
from stopadvisor.assessment.sequences import chain_of, score_out_of_fold
from stopadvisor.paper.classifiers import CLASSIFIERS, classify_out_of_fold
from stopadvisor.rules.features import feature_array
from stopadvisor.rules.scores import paper_folds
from stopadvisor.runs.access import View, basis_remarks
from stopadvisor.runs.sources import Source
from stopadvisor.studies.protocols import FitSide, fit_sides, paper_views, study_settings
from stopadvisor.studies.study import Cell, StudyOptions, StudyResult, Table
from stopadvisor.studies.variants import PEAKS, SERVED, peak_rows, served_row

__all__ = ["run"]

_EXPORTED = {"learned": "logistic", "learned-boosted": "boosted trees"}


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Peak gain and AUROC of each class; net saving of those that can be exported."""
    views = paper_views(sources)
    peaks = [
        row for view in views for row in peak_rows(view, _chances(view), CLASSIFIERS[0], options)
    ]
    sides, reasons = fit_sides(sources, study_settings(options))
    served = [row for side in sides for row in _served_rows(side)]
    columns = tuple(
        replace(c, title="Ahead of logistic") if c.name == "ahead" else c for c in PEAKS
    )
    return StudyResult(
        "classifiers",
        'Appendix "Classifier Class Comparison"',
        ("paper", "deploy"),
        (
            Table(
                "peaks",
                "Peak gain by class of classifier",
                columns,
                tuple(peaks),
                "the eight features, out of fold",
            ),
            Table(
                "served",
                f"What can be exported, on fit questions at equal risk, {options.serving}",
                SERVED,
                tuple(served),
                "over all checkpoints",
            ),
        ),
        (*basis_remarks(views), *reasons),
    )


def _chances(view: View) -> dict[str, FloatArray]:
    features, folds = feature_array(view.table), paper_folds(view.table.n_questions)
    return {
        kind: classify_out_of_fold(kind, features, view.table.correct, folds)
        for kind in CLASSIFIERS
    }


def _served_rows(side: FitSide) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    for family, name in _EXPORTED.items():
        found = score_out_of_fold(side.fit, family, tuple(range(side.fit.table.n_checkpoints)))
        if found is None:
            rows.append((side.label, name, None, None, None))
        else:
            rows.append(served_row(side, name, found[1], chain_of(side.fit, *found)))
    return rows
