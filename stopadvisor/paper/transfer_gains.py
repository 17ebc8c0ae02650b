"""Gain of a learned rule on another workload or model, by the paper's three transfer protocols.

Everything is a gain over fixed budgets on the target's test questions; nothing is certified.
`certification.transfer` moves policies and certificates; this module knows neither.
"""

from __future__ import annotations

from dataclasses import dataclass

from scipy.special import expit

from stopadvisor.ground.arrays import FloatArray, IntArray
from stopadvisor.paper.peaks import fixed_budgets, gain_at, learned_peak, peak, peak_thresholds
from stopadvisor.paper.protocol import PaperSetting, paper_split
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.rules.features import feature_array
from stopadvisor.rules.scores import LinearModel, fit_logistic

__all__ = ["Learner", "TransferGains", "transfer_gains"]


@dataclass(frozen=True)
class Learner:
    """One workload as a source and as a target of transfers."""

    table: GradedTable
    setting: PaperSetting
    model: LinearModel
    """Fitted on all of its questions; scores other workloads only."""
    threshold: float
    """Of its own peak gain, out of fold."""
    peak_gain: float

    @classmethod
    def build(cls, table: GradedTable, setting: PaperSetting) -> Learner:
        """Fit a workload's classifier and find its threshold."""
        features = feature_array(table)
        model = fit_logistic(
            features.reshape(-1, features.shape[-1]), setting.correct.ravel(), solver="lbfgs"
        )
        found = learned_peak(setting)
        return cls(table, setting, model, found.threshold, found.gain)


@dataclass(frozen=True)
class TransferGains:
    """Gains on the target's test questions."""

    zero_shot: float
    """Source classifier, source threshold."""
    target_calibrated: float
    """Source classifier, threshold of highest gain on the target's calibration questions."""
    target_trained: float
    """The same with a classifier fitted on the target, out of fold."""


def transfer_gains(source: Learner, target: Learner) -> TransferGains:
    """What a source's rule gains on a target.

    References
    ----------
    Paper, Appendix "Transfer Protocols".  Features are those of its text, the budget as a fraction
    of the last one, so that grids of different length can be compared.
    """
    calibration, test = paper_split(target.table.n_questions)
    scores = expit(source.model.scores(feature_array(target.table)))
    own = target.setting.scores["learned"]
    return TransferGains(
        _test_gain(target.setting, scores, source.threshold, test),
        _test_gain(target.setting, scores, _threshold(target.setting, scores, calibration), test),
        _test_gain(target.setting, own, _threshold(target.setting, own, calibration), test),
    )


def _threshold(setting: PaperSetting, scores: FloatArray, rows: IntArray) -> float:
    """Threshold of highest gain on some questions."""
    return peak(
        scores[rows],
        setting.costs.thinking[rows],
        setting.correct[rows],
        peak_thresholds("learned", scores[rows]),
        fixed_budgets(setting, rows),
    ).threshold


def _test_gain(
    setting: PaperSetting, scores: FloatArray, threshold: float, rows: IntArray
) -> float:
    return gain_at(
        scores[rows],
        setting.costs.thinking[rows],
        setting.correct[rows],
        threshold,
        fixed_budgets(setting, rows),
    )
