"""What to ask of a workload's questions: everything that is decided before a model is loaded.

These settings end in a run's manifest.  This module knows no engine but the little that settles
what is left to it, and nothing of how a command line or a file names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from stopadvisor.constants import CUES, PROBE_CAP
from stopadvisor.errors import WorkloadError
from stopadvisor.probes.plan import Engine, OnStop, ProbePlan
from stopadvisor.workload.questions import PARTS, SMALLEST_PARTS, Question, Workload, assign_parts

__all__ = ["ProbeSettings", "check_split", "fit_questions"]


@dataclass(frozen=True)
class ProbeSettings:
    """What to probe, and how; only the workload has no default."""

    workload: Path
    out: Path | None = None
    """The run directory; None for one under ``runs/``."""
    budgets: tuple[int, ...] | None = None
    """None: chosen by a pilot."""
    max_think: int | None = None
    """None: the plan's own cap, or less where the model's context leaves less."""
    cap: int = PROBE_CAP
    answer_cap: int = 512
    cue: str = CUES["terse"]
    on_stop: OnStop = "probe"
    greedy: bool = False
    temperature: float | None = None
    samples: int = 1
    """Traces per question; those of a question share its part of the split."""
    seed: int = 0
    batch_size: int | None = None
    """None: the engine's own, halved when memory runs out."""
    limit: int | None = None
    entropy: str = "auto"
    """``auto``: the whole vocabulary here, a server's log-probabilities there."""
    prompt_template: str | None = None
    split: tuple[float, float, float] = (0.4, 0.4, 0.2)
    preflight: bool = True
    regrade: bool = False

    def for_engine(self, engine: Engine) -> ProbeSettings:
        """The same, with what is left to the engine as this engine has it."""
        if self.entropy != "auto":
            return self
        return replace(self, entropy=engine.capabilities.entropy)

    def plan(self) -> ProbePlan:
        """The plan before a model is seen: no budgets, and the longest cap, where both are auto.

        `pilot.thinking_cap` and a pilot settle what is auto, `for_engine` the entropy.
        """
        return ProbePlan(
            budgets=self.budgets or (),
            cue=self.cue,
            cap=self.cap,
            max_think=self.max_think or ProbePlan.max_think,
            answer_cap=self.answer_cap,
            greedy=self.greedy,
            temperature=self.temperature,
            entropy="full" if self.entropy == "auto" else self.entropy,
            seed=self.seed,
            on_stop=self.on_stop,
        )


def fit_questions(workload: Workload, settings: ProbeSettings) -> list[Question]:
    """The questions that pilot and preflight may look at, in the workload's order.

    Taken from the whole workload, so that a `limit` does not change the frozen budgets.
    """
    keys = [q.group_key for q in workload.questions]
    parts = assign_parts(keys, seed=settings.seed, fractions=settings.split)
    return [q for q, part in zip(workload.questions, parts, strict=True) if PARTS[part] == "fit"]


def check_split(workload: Workload, settings: ProbeSettings, questions: Sequence[Question]) -> None:
    """Refuse a workload whose parts would be too small, before a model is loaded.

    Raises
    ------
    WorkloadError
        A part with a share is smaller than `SMALLEST_PARTS`; duplicates and groups count once.
    """
    keys = list(dict.fromkeys(q.group_key for q in questions))
    parts = assign_parts(keys, seed=settings.seed, fractions=settings.split)
    counts = np.bincount(parts, minlength=len(PARTS)).tolist()
    for name, count, share in zip(PARTS, counts, settings.split, strict=True):
        needed = SMALLEST_PARTS[name]
        if share > 0 and count < needed:
            split = "/".join(f"{100 * f:g}" for f in settings.split)
            # That split has the same share for fit.
            advice = " or use --split 40/60/0" if settings.split[2] > 0 and name != "fit" else ""
            raise WorkloadError(
                f"{workload.path}: the {name} part needs at least {needed} different questions, "
                f"got {count} of {len(keys)} (--split {split}): "
                f"add questions{advice}"
            )
