"""Study `ablation`: how much of its gain the learned rule owes to which features.

Paper, Appendix "Feature Ablations": peak gain of logistic regression on the confidence, the
entropy, both, the three features of answer stability, all eight, and the ten of the audit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from scipy.special import expit

from stopadvisor.rules.features import AUDIT_FEATURES, FEATURES, feature_array
from stopadvisor.rules.scores import out_of_fold, paper_folds
from stopadvisor.runs.access import View
from stopadvisor.studies.tables import Outline, Row, StudyOptions
from stopadvisor.studies.variants import variant_peaks, variant_table

__all__ = ["OUTLINE", "rows"]

_ALL = "all eight"
_SUBSETS: Mapping[str, tuple[str, ...]] = {
    "confidence": ("answer_logprob",),
    "entropy": ("answer_entropy",),
    "confidence and entropy": ("answer_logprob", "answer_entropy"),
    "stability": ("previous_match", "run_length", "vote_share"),
    _ALL: FEATURES,
    "all ten": (*FEATURES, *reversed(AUDIT_FEATURES)),
}
"""In the order of the paper's table; the ten features in the order of its archives."""

_PEAKS = variant_table(
    "Peak gain by features",
    "logistic regression out of fold; all ten add the two features that leak length",
    ahead="Ahead of all eight",
)
OUTLINE = Outline("ablation", 'Appendix "Feature Ablations"', (_PEAKS,))


def rows(view: View, options: StudyOptions) -> Iterator[Row]:
    """Peak gain and AUROC of each subset."""
    folds = paper_folds(view.table.n_questions)
    probabilities = {}
    for name, names in _SUBSETS.items():
        features = feature_array(view.table, names=names)
        z = out_of_fold(features, view.table.correct, folds, names=names, solver="lbfgs")
        probabilities[name] = expit(z)
    return variant_peaks(_PEAKS, view, probabilities, _ALL, options)
