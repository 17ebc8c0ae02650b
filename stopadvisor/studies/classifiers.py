"""Study `classifiers`: logistic regression against forest, boosting and a neural network.

Paper, Appendix "Classifier Class Comparison": peak gain of each class on the same eight features,
out of fold.  The deploy protocol compares what can be exported, logistic regression and this
package's boosted trees, on fit questions at the risk that calibration could still certify.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stopadvisor.arrays import FloatArray
from stopadvisor.assessment.sequences import score, sequence_of
from stopadvisor.paper.classifiers import CLASSIFIERS, classify_out_of_fold
from stopadvisor.rules.features import feature_array
from stopadvisor.rules.scores import paper_folds
from stopadvisor.runs.access import View
from stopadvisor.runs.sources import Source
from stopadvisor.studies.protocols import DeployProtocol, study_both
from stopadvisor.studies.rows import Outline, column
from stopadvisor.studies.study import StudyOptions, StudyResult
from stopadvisor.studies.variants import VariantPeak, VariantSaving, variant_peaks, variant_saving

__all__ = ["OUTLINE", "run"]

_EXPORTED = {"learned": "logistic", "learned-boosted": "boosted trees"}


class _ClassifiersPeak(
    VariantPeak,
    table="peaks",
    title="Peak gain by class of classifier",
    note="the eight features, out of fold",
):
    ahead: float | None = column("Ahead of logistic")


class _ClassifiersSaving(
    VariantSaving,
    table="served",
    title="What can be exported, on fit questions at equal risk, {serving}",
    note="over all checkpoints",
):
    """A class on fit questions."""


OUTLINE = Outline(
    "classifiers", 'Appendix "Classifier Class Comparison"', (_ClassifiersPeak, _ClassifiersSaving)
)


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Peak gain and AUROC of each class; net saving of those that can be exported."""
    return study_both(OUTLINE, sources, options, _peaks, _savings)


def _peaks(view: View, options: StudyOptions) -> Iterator[_ClassifiersPeak]:
    features, folds = feature_array(view.table), paper_folds(view.table.n_questions)
    correct = view.table.correct
    probabilities: dict[str, FloatArray] = {
        kind: classify_out_of_fold(kind, features, correct, folds) for kind in CLASSIFIERS
    }
    return variant_peaks(_ClassifiersPeak, view, probabilities, CLASSIFIERS[0], options)


def _savings(deploy: DeployProtocol, options: StudyOptions) -> Iterator[_ClassifiersSaving]:
    for family, name in _EXPORTED.items():
        rule = score(deploy.fit, family, deploy.every_checkpoint)
        if rule is None:
            yield _ClassifiersSaving.of(None, run=deploy.label, variant=name)
        else:
            sequence = sequence_of(deploy.fit, rule)
            yield variant_saving(_ClassifiersSaving, deploy, name, rule.scores, sequence)
