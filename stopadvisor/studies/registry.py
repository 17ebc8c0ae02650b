"""The list of studies, and how one runs.

A module with studies' `OUTLINES` is imported only when one of them runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module

import numpy as np

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.ground.errors import CalibrationError, StudyError
from stopadvisor.paper.peaks import resample_gains
from stopadvisor.paper.protocol import MatchedRisk, PaperSetting, match_risk, paper_split
from stopadvisor.rules.families import SCALAR_FAMILIES
from stopadvisor.runs.sources import Source
from stopadvisor.studies.tables import Outline, StudyOptions, StudyReport, View

__all__ = [
    "ALONE", "STUDIES", "StudyLine", "StudyList", "check_request", "compare_at_risk",
    "gains_resampled", "outline_of", "paper_setting", "run_study",
]  # fmt: skip


@dataclass(frozen=True)
class StudyLine:
    """A study that can be run."""

    name: str
    """Its name."""
    help: str
    """What it shows."""
    needs: str = "one run"
    """Which runs it takes."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Its own options for `--set`, with their help."""


@dataclass(frozen=True)
class StudyList:
    """`study list --json`."""

    studies: tuple[StudyLine, ...]
    """All of them."""


_STUDIES = (
    StudyLine(
        "frontier", "Peak gain: how far each rule gets above fixed budgets at equal thinking."
    ),
    StudyLine(
        "validation-selected", "Thresholds chosen on validation questions, measured on the others."
    ),
    StudyLine("alpha-grid", "Learned against scalar rules at several risk targets."),
    StudyLine("split-sensitivity", "The matched-risk comparison under five calibration splits."),
    StudyLine(
        "rivals",
        "Fixed budget, equal answers and confidence at markers against ours, at equal certified "
        "risk over many splits.",
        options={"splits": "N: splits of the questions, 30 by default"},
    ),
    StudyLine(
        "proxies",
        "DEER-, EAT-, PUMA-style and TERMINATOR-light rules, at peak and at matched risk.",
    ),
    StudyLine("ablation", "Peak gain of subsets of the features."),
    StudyLine("classifiers", "Logistic regression against forest, boosting and a neural network."),
    StudyLine(
        "schedules", "What fewer and other checkpoints keep of the gain, and what they cost."
    ),
    StudyLine(
        "calibration", "Calibration of the scores as probabilities: ECE, Brier score, reliability."
    ),
    StudyLine(
        "transfer",
        "A rule of one run on another: zero-shot, target-calibrated, target-trained.",
        "two runs or more",
    ),
    StudyLine(
        "cues",
        "Accuracy and gain under other cues, the words that force an answer.",
        "two runs or more that differ in their cue only",
    ),
    StudyLine(
        "temperature",
        "Accuracy and gain at other sampling temperatures, seeds and samples.",
        needs="one run with several samples, or runs that differ in temperature or seed only",
    ),
    StudyLine(
        "failure-cases",
        "Lost questions, wins and overhead failures, with their trajectories.",
        options={"cases": "N: questions shown of each case, 5 by default"},
    ),
    StudyLine("serving", "Savings under each serving regime, and where they end."),
    StudyLine(
        "map",
        "One row a run: profile, regime, verdict and savings.",
        options={"paper": "1 (the paper's 18 settings next to your own)"},
    ),
)
STUDIES = {line.name: line for line in _STUDIES}
"""By name, in the order of `study list` and `study all`."""
ALONE = "rivals"
"""The study that `study all` leaves out, because it takes minutes."""
_MODULES = {
    "peak_gain": ("frontier", "validation-selected", "schedules", "proxies", "serving", "map"),
    "matched_risk": ("alpha-grid", "split-sensitivity"),
    "learned_rule": ("ablation", "classifiers", "calibration"),
    "related_runs": ("cues", "temperature"),
    "transfer": ("transfer",),
    "failure_cases": ("failure-cases",),
    "rivals": ("rivals",),
}
"""Studies by module."""


def outline_of(name: str) -> Outline:
    """Return the outline of a study; imports its module."""
    stem = next(stem for stem, names in _MODULES.items() if name in names)
    outlines = import_module(f"stopadvisor.studies.{stem}").OUTLINES
    outline: Outline = next(outline for outline in outlines if outline.study == name)
    return outline


def check_request(name: str, n_runs: int, extra: Mapping[str, str]) -> None:
    """Raise StudyError if a study takes more runs, or has no such option; opens nothing."""
    line = STUDIES[name]
    if n_runs < 2 and line.needs.startswith("two"):
        raise StudyError(f"needs {line.needs}, got {n_runs}")
    if unknown := extra.keys() - line.options.keys():
        known = ", ".join(line.options) or "none"
        raise StudyError(f"study {name} has no option {min(unknown)!r}; its own options: {known}")


def run_study(name: str, sources: Sequence[Source], options: StudyOptions) -> StudyReport:
    """Run one study.

    Raises StudyError as `check_request`, and for runs that the study refuses.
    """
    check_request(name, len(sources), options.extra)
    return outline_of(name).report(sources, options)


# --- Shared by the paper's studies --------------------------------------------------------------


def paper_setting(view: View) -> PaperSetting:
    """Return scores and costs of a view under the paper's protocol."""
    try:
        return PaperSetting.build(view.table)
    except CalibrationError as error:
        raise StudyError(f"{view.label}: {error}") from error


def compare_at_risk(
    setting: PaperSetting, options: StudyOptions, *, rivals: Sequence[str] = SCALAR_FAMILIES
) -> MatchedRisk:
    """Compare the learned rule with `rivals` at `options.alpha`, on the paper's 40/60 split."""
    (comparison,) = match_risk(
        setting,
        *paper_split(len(setting.correct)),
        alphas=[options.alpha],
        delta=options.delta,
        rivals=rivals,
        n_resamples=options.resamples,
    )
    return comparison


def gains_resampled(
    stops: Mapping[str, IntArray], thinking: FloatArray, correct: BoolArray, options: StudyOptions
) -> dict[str, FloatArray]:
    """Return each rule's gain in the same resamples, (n_resamples,); thresholds are frozen."""
    rng = np.random.default_rng(options.seed)
    return resample_gains(stops, thinking, correct, n_resamples=options.resamples, rng=rng)
