"""Study `ablation`: what the learned rule gains from which features.

Paper, Appendix "Feature Ablations": peak gain of logistic regression on the confidence, the
entropy, both, the three features of answer stability, all eight, and the ten of the audit.  The
deploy protocol fits the same subsets on fit questions and says what each saves at the risk that
calibration could still certify; the audit's two features leak length and are left out there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from scipy.special import expit

from stopadvisor.arrays import FloatArray
from stopadvisor.assessment.sequences import ScoredRule, sequence_of
from stopadvisor.errors import CalibrationError
from stopadvisor.rules.features import AUDIT_FEATURES, FEATURES, feature_array
from stopadvisor.rules.scorer import Scorer
from stopadvisor.rules.scores import fit_logistic, out_of_fold, paper_folds
from stopadvisor.runs.access import View
from stopadvisor.runs.sources import Source
from stopadvisor.studies.protocols import DeployProtocol, study_both
from stopadvisor.studies.rows import Outline, column
from stopadvisor.studies.study import StudyOptions, StudyResult
from stopadvisor.studies.variants import VariantPeak, VariantSaving, variant_peaks, variant_saving

__all__ = ["OUTLINE", "run"]

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


class _AblationPeak(
    VariantPeak,
    table="peaks",
    title="Peak gain by features",
    note="logistic regression out of fold; all ten add the two features that leak length",
):
    ahead: float | None = column("Ahead of all eight")


class _AblationSaving(
    VariantSaving,
    table="served",
    title="On fit questions at equal risk, {serving}",
    note="over all checkpoints",
):
    """A subset on fit questions."""


OUTLINE = Outline("ablation", 'Appendix "Feature Ablations"', (_AblationPeak, _AblationSaving))


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Peak gain, AUROC and net saving of each subset."""
    return study_both(OUTLINE, sources, options, _peaks, _savings)


def _peaks(view: View, options: StudyOptions) -> Iterator[_AblationPeak]:
    folds = paper_folds(view.table.n_questions)
    probabilities: dict[str, FloatArray] = {}
    for name, names in _SUBSETS.items():
        features = feature_array(view.table, names=names)
        z = out_of_fold(features, view.table.correct, folds, names=names, solver="lbfgs")
        probabilities[name] = expit(z)
    return variant_peaks(_AblationPeak, view, probabilities, _ALL, options)


def _savings(deploy: DeployProtocol, options: StudyOptions) -> Iterator[_AblationSaving | str]:
    for name, names in _SUBSETS.items():
        if not set(names) & set(AUDIT_FEATURES):
            try:
                yield _saving(deploy, name, names)
            except CalibrationError as error:
                yield f"{deploy.label}, {name}: {error}"


def _saving(deploy: DeployProtocol, name: str, names: tuple[str, ...]) -> _AblationSaving:
    table = deploy.fit.table
    features, live = feature_array(table, names=names), ~table.ended
    correct = table.stop_correct
    scores = out_of_fold(features, correct, deploy.fit.folds, usable=live, names=names)
    model = fit_logistic(features[live], correct[live], names)
    scorer = Scorer("learned", deploy.every_checkpoint, model)
    sequence = sequence_of(deploy.fit, ScoredRule(scorer, table, scores))
    return variant_saving(_AblationSaving, deploy, name, scores, sequence)
