"""The studies by name: what each shows, what it needs, and the module that is loaded for it.

A module has an `OUTLINE` and either `rows`, which takes the view of one run, or `run`, which takes
all sources.  It is imported when its study runs, so that listing the studies imports none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module

from stopadvisor.ground.errors import StudyError
from stopadvisor.runs.sources import Source
from stopadvisor.studies.runner import study_each
from stopadvisor.studies.tables import StudyOptions, StudyReport

__all__ = ["STUDIES", "StudyEntry", "run_study"]


@dataclass(frozen=True)
class StudyEntry:
    """One line of the table of studies."""

    help: str
    fewest_runs: int = 1
    needs: str = "one run"
    options: Mapping[str, str] = field(default_factory=dict)
    """Options that no other study has, and what they mean."""
    slow: bool = False
    """`study all` starts it first."""
    alone: bool = False
    """`study all` leaves it out: it takes minutes."""


STUDIES: Mapping[str, StudyEntry] = {
    "frontier": StudyEntry(
        "Peak gain: how far each rule gets above fixed budgets at equal thinking."
    ),
    "validation-selected": StudyEntry(
        "Thresholds chosen on validation questions, measured on the others."
    ),
    "alpha-grid": StudyEntry("Learned against scalar rules at several risk targets."),
    "split-sensitivity": StudyEntry("The matched-risk comparison under five calibration splits."),
    "rivals": StudyEntry(
        "Fixed budget, equal answers and confidence at markers against ours, at equal certified "
        "risk over many splits.",
        options={"splits": "N: splits of the questions, 30 by default"},
        alone=True,
    ),
    "proxies": StudyEntry(
        "DEER-, EAT-, PUMA-style and TERMINATOR-light rules, at peak and at matched risk."
    ),
    "ablation": StudyEntry("Peak gain of subsets of the features."),
    "classifiers": StudyEntry(
        "Logistic regression against forest, boosting and a neural network.", slow=True
    ),
    "schedules": StudyEntry(
        "What fewer and other checkpoints keep of the gain, and what they cost."
    ),
    "probe-cap": StudyEntry("Savings if probes were capped at other lengths."),
    "calibration": StudyEntry(
        "Calibration of the scores as probabilities: ECE, Brier score, reliability."
    ),
    "calibration-size": StudyEntry("What is certified with fewer calibration questions."),
    "transfer": StudyEntry(
        "A rule of one run on another: zero-shot, target-calibrated, target-trained.",
        2,
        "two runs or more",
    ),
    "cues": StudyEntry(
        "Accuracy and gain under other cues, the words that force an answer.",
        2,
        "two runs or more that differ in their cue only",
    ),
    "temperature": StudyEntry(
        "Accuracy and gain at other sampling temperatures, seeds and samples.",
        needs="one run with several samples, or runs that differ in temperature or seed only",
    ),
    "failure-cases": StudyEntry(
        "Lost questions, wins and overhead failures, with their trajectories.",
        options={"cases": "N: questions shown of each case, 5 by default"},
    ),
    "serving": StudyEntry("Savings under each serving regime, and where they end."),
    "map": StudyEntry(
        "One row a run: profile, regime, verdict and savings.",
        options={"paper": "1 (the paper's 18 settings next to your own)"},
    ),
}
"""In the order of `study list`, and of the tables that `study all` prints."""


def run_study(name: str, sources: Sequence[Source], options: StudyOptions) -> StudyReport:
    """Run one study.

    Raises
    ------
    StudyError
        There are too few runs, the study has no such option, or it refuses the runs itself.
    """
    entry = STUDIES[name]
    if len(sources) < entry.fewest_runs:
        raise StudyError(f"needs {entry.needs}, got {len(sources)}")
    for option in options.extra:
        if option not in entry.options:
            known = ", ".join(entry.options) or "none"
            raise StudyError(f"study {name} has no option {option!r}; its own options: {known}")
    module = import_module(f"stopadvisor.studies.{name.replace('-', '_')}")
    if hasattr(module, "rows"):
        result = study_each(module.OUTLINE, sources, options, module.rows)
    else:
        result = module.run(sources, options)
    simulated = [source.folder.name for source in sources if source.simulated]
    if not simulated:
        return result
    remark = f"Simulated probes, measured on no model: {', '.join(simulated)}."
    return replace(result, remarks=(remark, *result.remarks))
