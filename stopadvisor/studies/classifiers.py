"""Study `classifiers`: logistic regression against forest, boosting and a neural network.

Paper, Appendix "Classifier Class Comparison": peak gain of each class on the same eight features,
out of fold.
"""

from __future__ import annotations

from collections.abc import Iterator

from stopadvisor.ground.arrays import FloatArray
from stopadvisor.paper.classifiers import CLASSIFIERS, classify_out_of_fold
from stopadvisor.rules.features import feature_array
from stopadvisor.rules.scores import paper_folds
from stopadvisor.runs.access import View
from stopadvisor.studies.tables import Outline, Row, StudyOptions
from stopadvisor.studies.variants import variant_peaks, variant_table

__all__ = ["OUTLINE", "rows"]

_PEAKS = variant_table(
    "Peak gain by class of classifier", "the eight features, out of fold", ahead="Ahead of logistic"
)
OUTLINE = Outline("classifiers", 'Appendix "Classifier Class Comparison"', (_PEAKS,))


def rows(view: View, options: StudyOptions) -> Iterator[Row]:
    """Peak gain and AUROC of each class."""
    features, folds = feature_array(view.table), paper_folds(view.table.n_questions)
    probabilities: dict[str, FloatArray] = {
        kind: classify_out_of_fold(kind, features, view.table.correct, folds)
        for kind in CLASSIFIERS
    }
    return variant_peaks(_PEAKS, view, probabilities, CLASSIFIERS[0], options)
