"""The studies by name: what each shows, what it needs, and the module that is loaded for it.

A module has an `OUTLINE` and either `rows`, which takes the view of one run, or `run`, which takes
all sources.  It is imported when its study runs, so that listing the studies imports none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module

from stopadvisor.ground.errors import StudyError
from stopadvisor.runs.sources import Source
from stopadvisor.studies.runner import study_each
from stopadvisor.studies.tables import StudyOptions, StudyReport

__all__ = ["ALONE", "STUDIES", "StudyLine", "StudyList", "run_study"]


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
    """Options that it alone has, for `--set`."""


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
    StudyLine("probe-cap", "Savings if probes were capped at other lengths."),
    StudyLine(
        "calibration", "Calibration of the scores as probabilities: ECE, Brier score, reliability."
    ),
    StudyLine("calibration-size", "What is certified with fewer calibration questions."),
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
"""By name, in the order of `study list`, and of the tables that `study all` prints."""
ALONE = "rivals"
"""`study all` leaves it out: it takes minutes."""


def run_study(name: str, sources: Sequence[Source], options: StudyOptions) -> StudyReport:
    """Run one study.

    Raises
    ------
    StudyError
        There are too few runs, the study has no such option, or it refuses the runs itself.
    """
    line = STUDIES[name]
    if len(sources) < 2 and line.needs.startswith("two"):
        raise StudyError(f"needs {line.needs}, got {len(sources)}")
    if strange := options.extra.keys() - line.options.keys():
        known = ", ".join(line.options) or "none"
        raise StudyError(f"study {name} has no option {min(strange)!r}; its own options: {known}")
    module = import_module(f"stopadvisor.studies.{name.replace('-', '_')}")
    if hasattr(module, "rows"):
        return study_each(module.OUTLINE, sources, options, module.rows)
    found: StudyReport = module.run(sources, options)
    return found
