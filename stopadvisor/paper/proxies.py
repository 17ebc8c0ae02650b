"""Rules for comparison only: proxies of published early exits, and other learned rules.

DEER, EAT, PUMA and TERMINATOR as the paper's scripts imitate them on recorded probes, the learned
rule with the two audit features (LearnStop-10), and other classifier classes.  None is exported.
The real systems read more than forced answers, so these proxies do not represent them.  Peaks of
rules with two conditions are searched here too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from stopadvisor.assessment.frontier import Frontier, Interpolation, gains
from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.ground.constants import (
    LOGISTIC_C,
    LOGISTIC_MAX_ITER,
    PAPER_DEER_GRID,
    PAPER_EAT_GRID,
    PAPER_EAT_WINDOW,
    PAPER_LEAP_GRID,
    PAPER_PUMA_DENSITIES,
)
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.paper.protocol import PaperSetting, paper_probability
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.rules.features import AUDIT_FEATURES, FEATURES, feature_array, run_lengths

__all__ = [
    "AUDIT_FAMILIES", "CLASSIFIERS", "TWO_CONDITION_FAMILIES", "Classifier", "Peak",
    "audit_setting", "classify_out_of_fold", "pair_peak", "proxy_scores",
]  # fmt: skip

Proxy = Literal["deer", "eat", "puma", "terminator-light"]
_PROXIES: tuple[Proxy, ...] = get_args(Proxy)
AUDIT_FAMILIES = (*_PROXIES, "learned-10")
TWO_CONDITION_FAMILIES = ("confidence-leap", "deer", "eat", "puma")
"""Families whose peak is searched over two numbers; at matched risk each has one score."""

_NO_VARIANCE = 999.0
"""Stands for the variance of an incomplete window; no real one is as large."""


# --- One score, for matched risk ------------------------------------------------------------------


def proxy_scores(family: Proxy, table: GradedTable) -> FloatArray:
    """Return the score of a proxy at every checkpoint; higher means stop sooner.

    Returns
    -------
    ndarray of float, shape (n_questions, n_checkpoints)
        ``deer``: confidence times marker density, which imitates confidence at a transition.
        ``eat``: minus the variance of the last three entropies.  ``puma``: run length times (1 -
        marker density / its maximum).  ``terminator-light``: out-of-fold probability,
        by the eight features, that a right answer has been seen by now.

    Paper, Appendix "Extended Baselines" and "Matched-Risk Audit of Output-Level Recent-Method
    Proxies"; the formulas are those of its published scripts.  The methods: Yang et al. (DEER),
    Wang et al. 2025 (EAT), Min et al. (PUMA), Nagle et al. (TERMINATOR).
    """
    if family == "deer":
        return np.asarray(np.exp(table.mean_logprob) * _density(table), dtype=np.float64)
    if family == "eat":
        return -_entropy_variance(table, PAPER_EAT_WINDOW)
    if family == "puma":
        density = _density(table)
        share = density / max(float(density.max()), 1e-9)
        return np.asarray(run_lengths(table.answer_codes) * (1 - share), dtype=np.float64)
    reached = np.maximum.accumulate(table.correct, axis=1)
    return paper_probability(table, reached)


def audit_setting(table: GradedTable, setting: PaperSetting) -> PaperSetting:
    """Add the families of this module to the paper's setting of a table."""
    scores = dict(setting.scores)
    scores |= {family: proxy_scores(family, table) for family in _PROXIES}
    # In the order of the archives, on which the last digits of lbfgs depend.
    names = (*FEATURES, *reversed(AUDIT_FEATURES))
    scores["learned-10"] = paper_probability(table, table.correct, names)
    return replace(setting, scores=scores)


def _density(table: GradedTable) -> FloatArray:
    return feature_array(table, names=("marker_density",))[..., 0]


def _entropy_variance(table: GradedTable, window: int) -> FloatArray:
    variance = np.full(table.mean_entropy.shape, _NO_VARIANCE)
    if table.n_checkpoints >= window:
        runs = np.lib.stride_tricks.sliding_window_view(table.mean_entropy, window, axis=1)
        variance[:, window - 1 :] = runs.var(axis=-1)
    return variance


# --- Two conditions, for the peak -----------------------------------------------------------------


@dataclass(frozen=True)
class Peak:
    """The point of highest gain of a rule, and where it stops each question."""

    settings: tuple[float, ...]
    """The threshold, or both numbers of a rule with two conditions."""
    gain: float
    """Accuracy above fixed budgets at the same mean thinking tokens."""
    accuracy: float
    cost: float
    """Mean thinking tokens per question."""
    stops: IntArray  # (n_questions,)

    @property
    def threshold(self) -> float:
        """The threshold of a rule with one condition."""
        return self.settings[0]

    @property
    def spelled(self) -> str:
        """The settings as text."""
        return ", ".join(f"{value:g}" for value in self.settings)


def pair_peak(
    family: str,
    table: GradedTable,
    setting: PaperSetting,
    fixed: Frontier,
    how: Interpolation = "linear",
) -> Peak:
    """Return the peak gain of a rule that stops where two conditions hold; ties go to the first.

    Parameters
    ----------
    family : {"confidence-leap", "deer", "eat", "puma"}
        Least leap and least confidence; least confidence and least marker density; checkpoints and
        largest variance of their entropies; least run length and largest marker density.
    setting : PaperSetting
        Setting of the same questions.
    fixed : Frontier
        Frontier of fixed budgets, in mean thinking tokens.
    how : {"linear", "nearest", "floor", "ceiling"}

    Paper, Appendix "Extended Baselines" and "Risk-Controlled Scalar Comparisons" (the original
    two-dimensional sweep of confidence-leap); the grids are those of the published scripts.
    """
    thinking, correct = setting.costs.thinking, setting.correct
    pairs, stops = [], []
    for pair, hit in _hits(family, table):
        hit[:, -1] = True  # where nothing fires, the last checkpoint answers
        pairs.append(pair)
        stops.append(hit.argmax(axis=1))
    at = np.stack(stops, axis=1)  # (n_questions, n_pairs)
    cost = np.take_along_axis(thinking, at, axis=1).mean(axis=0)
    accuracy = np.take_along_axis(correct, at, axis=1).mean(axis=0)
    rule = Frontier(np.arange(len(pairs), dtype=np.float64), cost, accuracy)
    above = gains(rule, fixed, how)
    k = int(np.argmax(above))
    return Peak(pairs[k], float(above[k]), float(accuracy[k]), float(cost[k]), at[:, k])


def _hits(family: str, table: GradedTable) -> Iterator[tuple[tuple[float, float], BoolArray]]:
    """Yield each pair of numbers, with the checkpoints at which both conditions hold."""
    confidence = np.exp(table.mean_logprob)
    if family == "confidence-leap":
        leap = np.zeros_like(confidence)
        leap[:, 1:] = confidence[:, 1:] - confidence[:, :-1]
        leaps, levels = (_even(*grid, 3) for grid in PAPER_LEAP_GRID)
        for least in leaps:
            for level in levels:
                yield (least, level), (leap >= least) & (confidence >= level)
    elif family == "deer":
        density = _density(table)
        grid, number = PAPER_DEER_GRID
        for level in _even(*grid, 3):
            for least in _even(0.0, float(density.max()), number, 4):
                yield (level, least), (confidence >= level) & (density >= least)
    elif family == "eat":
        windows, grid = PAPER_EAT_GRID
        for window in windows:
            variance = _entropy_variance(table, window)
            for most in _even(*grid, 4):
                yield (float(window), most), variance <= most
    elif family == "puma":
        runs, density = run_lengths(table.answer_codes), _density(table)
        for length in range(1, table.n_checkpoints + 1):
            for most in _even(0.0, float(density.max()), PAPER_PUMA_DENSITIES, 4):
                yield (float(length), most), (runs >= length) & (density <= most)
    else:
        raise ValueError(f"a rule of two conditions is one of {TWO_CONDITION_FAMILIES}: {family!r}")


def _even(start: float, stop: float, number: int, digits: int) -> list[float]:
    values: list[float] = np.linspace(start, stop, number).round(digits).tolist()
    return values


# --- Classifier classes for the learned rule ------------------------------------------------------

Classifier = Literal["logistic", "random-forest", "gradient-boosting", "mlp"]
CLASSIFIERS: tuple[Classifier, ...] = get_args(Classifier)

_SEED = 42


def classify_out_of_fold(
    kind: Classifier, features: NDArray[np.float64], correct: BoolArray, folds: IntArray
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
