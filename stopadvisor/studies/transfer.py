"""Study `transfer`: the learned rule of every run, applied to every other run.

Paper, Appendix "Transfer Protocols" and Section "Transfer, Robustness, and Cross-Family Checks":
its gain over fixed budgets, zero-shot, target-calibrated and target-trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

import numpy as np
from scipy.special import expit

from stopadvisor.ground.arrays import FloatArray, IntArray
from stopadvisor.paper.peaks import Peak, fixed_budgets, learned_peak, peak, peak_thresholds
from stopadvisor.paper.protocol import PaperSetting, paper_split
from stopadvisor.rules.features import feature_array
from stopadvisor.rules.scores import fit_logistic
from stopadvisor.runs.sources import Source
from stopadvisor.studies.registry import paper_setting
from stopadvisor.studies.tables import Outline, Row, StudyOptions, View, layout

__all__ = ["OUTLINES"]

# fmt: off
_GAINS = layout("gains", "Gain of the learned rule on the target's test questions",
    "accuracy above fixed budgets at equal thinking; thresholds are those of peak gain",
    source="From", target="To", type="Type", source_gain="At source", zero_shot_gain="Zero-shot",
    target_calibrated_gain="Target-calibrated", target_trained_gain="Target-trained")
# fmt: on


def _gains(
    sources: Sequence[Source], views: Sequence[View], options: StudyOptions
) -> Iterator[Row | str]:
    """Yield gains on the target's test questions, for every ordered pair of the runs.

    The features are those of the paper's text: the budget is a fraction of the last one, so that
    grids of different lengths can be compared.
    """
    settings = [paper_setting(view) for view in views]
    features = [feature_array(view.table) for view in views]
    models = [  # fitted on all questions of a workload; they score other workloads only
        fit_logistic(f.reshape(-1, f.shape[-1]), setting.correct.ravel(), solver="lbfgs")
        for f, setting in zip(features, settings, strict=True)
    ]
    peaks = [learned_peak(setting) for setting in settings]
    for a, b in permutations(range(len(sources)), 2):
        target = settings[b]
        calibration, test = paper_split(len(target.correct))
        moved = expit(models[a].scores(features[b]))
        # At the threshold with the highest gain on the target's calibration questions.
        calibrated, trained = (
            _peak(target, scores, test, _peak(target, scores, calibration).threshold).gain
            for scores in (moved, target.scores["learned"])
        )
        yield _GAINS.row(
            source=views[a].label,
            target=views[b].label,
            type=_kind(sources[a], sources[b]),
            source_gain=peaks[a].gain,
            zero_shot_gain=_peak(target, moved, test, peaks[a].threshold).gain,
            target_calibrated_gain=calibrated,
            target_trained_gain=trained,
        )
        if a < b and _keys(sources[a]) & _keys(sources[b]):
            yield (
                f"{views[a].label} and {views[b].label} share questions: their gains show transfer "
                "to another model or decoding, on questions already seen"
            )


def _peak(
    setting: PaperSetting, scores: FloatArray, rows: IntArray, threshold: float | None = None
) -> Peak:
    """Return the peak on `rows`, or the gain of a given threshold there."""
    return peak(
        scores[rows],
        setting.costs.thinking[rows],
        setting.correct[rows],
        peak_thresholds("learned", scores[rows]) if threshold is None else np.array([threshold]),
        fixed_budgets(setting, rows),
    )


def _keys(source: Source) -> set[str]:
    """Return the keys of a source's questions; none for an archive, whose rows have no names."""
    return set() if source.is_archive else set(source.table.keys)


def _kind(source: Source, target: Source) -> str:
    """Say how two runs differ, as far as their manifests tell."""
    if source.manifest is None or target.manifest is None:
        return "unknown"
    same_task = bool(_keys(source) & _keys(target))
    if source.model == target.model:
        return "same task and model" if same_task else "cross-task"
    return "cross-model" if same_task else "cross-task and -model"


OUTLINES = (Outline("transfer", 'Appendix "Transfer Protocols"', (_GAINS,), _gains),)
