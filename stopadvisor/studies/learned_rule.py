"""Studies of the learned rule: `ablation` (features), `classifiers`, `calibration` (of its scores).

Paper, Appendices "Feature Ablations", "Classifier Class Comparison" and "Probability Calibration".
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

import numpy as np

from stopadvisor.assessment.frontier import fixed_budget_frontier
from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.ground.constants import LOGISTIC_C, LOGISTIC_MAX_ITER
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.paper.peaks import peak, peak_thresholds
from stopadvisor.paper.protocol import first_stops, paper_probability
from stopadvisor.rules.features import AUDIT_FEATURES, FEATURES, feature_array
from stopadvisor.rules.scores import paper_folds
from stopadvisor.stats.intervals import Interval, block_sums, interval, resample_counts
from stopadvisor.stats.reliability import auroc, reliability
from stopadvisor.studies.registry import gains_resampled, paper_setting
from stopadvisor.studies.tables import Outline, Row, StudyOptions, Table, View, layout, of_each

__all__ = ["OUTLINES", "classify_out_of_fold"]

# fmt: off
_VARIANTS = {"run": "Run", "variant": "Variant", "threshold": "Threshold", "peak_gain": "Peak gain",
    "gain_ci": "95 % CI"}
_BY_FEATURES = layout("peaks", "Peak gain by features",
    "logistic regression out of fold; all ten add the two features that leak length", **_VARIANTS,
    ahead="Ahead of all eight", ahead_ci="95 % CI", auroc="AUROC")
_BY_CLASS = layout("peaks", "Peak gain by class of classifier", "the eight features, out of fold",
    **_VARIANTS, ahead="Ahead of logistic", ahead_ci="95 % CI", auroc="AUROC")
_SCORES = layout("scores", "Calibration of scores",
    "scores that are not probabilities have only an AUROC", run="Run", protocol="Protocol",
    score="Score", questions="Questions", checkpoints="Checkpoints", right=("Right", "share"),
    ece="ECE", brier="Brier", brier_ci="Brier 95% low", auroc="AUROC")
_BINS = layout("bins", "Reliability", "ten bins of equal width", run="Run", protocol="Protocol",
    score="Score", low="From", high="To", count="Checkpoints", predicted=("Predicted", "share"),
    observed=("Right", "share"))
# fmt: on
_ALL = "all eight"
_SUBSETS: Mapping[str, tuple[str, ...]] = {
    "confidence": ("answer_logprob",),
    "entropy": ("answer_entropy",),
    "confidence and entropy": ("answer_logprob", "answer_entropy"),
    "stability": ("previous_match", "run_length", "vote_share"),
    _ALL: FEATURES,
    "all ten": (*FEATURES, *reversed(AUDIT_FEATURES)),
}
"""In the order of the paper's table; the ten features as ordered in its archives."""
_PROBABILITIES = ("learned", "confidence")
"""Scores that are probabilities; the others only rank."""


def _ablation(view: View, options: StudyOptions) -> Iterator[Row]:
    """Fit logistic regression on each subset of the features."""
    table = view.table
    probabilities = {
        name: paper_probability(table, table.correct, names) for name, names in _SUBSETS.items()
    }
    return _peaks(_BY_FEATURES, view, probabilities, _ALL, options)


def _classifiers(view: View, options: StudyOptions) -> Iterator[Row]:
    features, folds = feature_array(view.table), paper_folds(view.table.n_questions)
    probabilities: dict[str, FloatArray] = {
        kind: classify_out_of_fold(kind, features, view.table.correct, folds)
        for kind in _CLASSIFIERS
    }
    return _peaks(_BY_CLASS, view, probabilities, _CLASSIFIERS[0], options)


def _peaks(
    table: Table,
    view: View,
    probabilities: Mapping[str, FloatArray],
    reference: str,
    options: StudyOptions,
) -> Iterator[Row]:
    """Yield each variant's peak gain, its lead over the variant `reference`, and its AUROC.

    `probabilities` are out of fold, shape (n_questions, n_checkpoints).
    """
    thinking, correct = view.table.think_tokens.astype(np.float64), view.table.correct
    fixed = fixed_budget_frontier(thinking, correct, view.table.budgets)
    peaks = {
        name: peak(values, thinking, correct, peak_thresholds("learned", values), fixed)
        for name, values in probabilities.items()
    }
    stops = {name: first_stops(probabilities[name], best.threshold) for name, best in peaks.items()}
    resampled = gains_resampled(stops, thinking, correct, options)
    for name, best in peaks.items():
        other = name != reference
        yield table.row(run=view.label, variant=name, threshold=best.threshold,
            peak_gain=best.gain, gain_ci=interval(resampled[name]),
            ahead=best.gain - peaks[reference].gain if other else None,
            ahead_ci=interval(resampled[name] - resampled[reference]) if other else None,
            auroc=auroc(probabilities[name], correct))  # fmt: skip


def _calibration(view: View, options: StudyOptions) -> Iterator[Row | str]:
    """Yield ECE, Brier score, AUROC and reliability bins of every score.

    The paper does not say how it bins; we use ten bins of equal width, over all checkpoints.
    """
    setting = paper_setting(view)
    correct = setting.correct
    for family, values in setting.scores.items():
        names = {"run": view.label, "protocol": "paper", "score": family}
        curve = reliability(values, correct) if family in _PROBABILITIES else None
        yield _SCORES.row(**names, questions=len(correct), checkpoints=correct.size,
            right=float(correct.mean()), ece=curve and curve.ece, brier=curve and curve.brier,
            brier_ci=curve and _brier_interval(values, correct, options),
            auroc=auroc(values, correct))  # fmt: skip
        if curve is not None:
            keys = ("low", "high", "count", "predicted", "observed")
            for row in zip(*(getattr(curve, key) for key in keys), strict=True):
                yield _BINS.row(**names, **dict(zip(keys, row, strict=True)))
    yield "the Brier interval resamples questions; the scores are not fitted again"


def _brier_interval(values: FloatArray, correct: BoolArray, options: StudyOptions) -> Interval:
    squares = ((values - correct) ** 2).sum(axis=1)
    sums = block_sums(np.column_stack([squares, np.full(len(squares), correct.shape[1])]))
    counts = resample_counts(len(sums), options.resamples, rng=np.random.default_rng(options.seed))
    resampled = counts @ sums.astype(np.float32)
    return interval((resampled[:, 0] / resampled[:, 1]).astype(np.float64))


# --- Classes of classifiers -----------------------------------------------------------------------

Classifier = Literal["logistic", "random-forest", "gradient-boosting", "mlp"]
_CLASSIFIERS: tuple[Classifier, ...] = get_args(Classifier)
_SEED = 42


def classify_out_of_fold(
    kind: Classifier, features: FloatArray, correct: BoolArray, folds: IntArray
) -> FloatArray:
    """Return the probability of a right answer, by a classifier that never saw the question.

    `features` have shape (n_questions, n_checkpoints, n_features), `correct` and the result
    (n_questions, n_checkpoints), `folds` (n_questions,).

    Raises CalibrationError: all labels of a training part are alike.

    Paper, Appendix "Classifier Class Comparison"; seed 42 as in its reproducibility manifest, the
    sizes from its published scripts.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.preprocessing import StandardScaler
    from threadpoolctl import threadpool_limits  # a dependency of scikit-learn

    probability = np.empty(correct.shape)
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # A network that stops at its last iteration is still the one the paper reports.
        warnings.simplefilter("ignore", ConvergenceWarning)
        for fold in np.unique(folds):
            held = folds == fold
            labels = correct[~held].ravel()
            if labels.size == 0 or labels.all() or not labels.any():
                raise CalibrationError(
                    "a classifier needs both right and wrong forced answers in each training part"
                )
            train = features[~held].reshape(-1, features.shape[-1])
            scaler = StandardScaler().fit(train)
            model = _unfitted(kind).fit(scaler.transform(train), labels)
            flat = scaler.transform(features[held].reshape(-1, features.shape[-1]))
            probability[held] = model.predict_proba(flat)[:, 1].reshape(-1, correct.shape[1])
    return probability


def _unfitted(kind: Classifier) -> Any:
    if kind == "logistic":
        from sklearn.linear_model import LogisticRegression

        return LogisticRegression(C=LOGISTIC_C, max_iter=LOGISTIC_MAX_ITER)
    if kind == "random-forest":
        from sklearn.ensemble import RandomForestClassifier

        return RandomForestClassifier(n_estimators=100, max_depth=8, random_state=_SEED)
    if kind == "gradient-boosting":
        from sklearn.ensemble import GradientBoostingClassifier

        return GradientBoostingClassifier(n_estimators=100, max_depth=4, random_state=_SEED)
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier(hidden_layer_sizes=(32, 16), max_iter=500, random_state=_SEED)


OUTLINES = (
    Outline("ablation", 'Appendix "Feature Ablations"', (_BY_FEATURES,), of_each(_ablation)),
    Outline(
        "classifiers", 'Appendix "Classifier Class Comparison"', (_BY_CLASS,), of_each(_classifiers)
    ),
    Outline(
        "calibration", 'Appendix "Probability Calibration"', (_SCORES, _BINS), of_each(_calibration)
    ),
)
