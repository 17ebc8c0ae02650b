"""Settings of probing, chosen before a model is loaded, and its summary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from stopadvisor.collection.markers import sentence_ids
from stopadvisor.ground.constants import CUES, PROBE_CAP, SMALL_WORKLOAD
from stopadvisor.ground.errors import ProbeError, WorkloadError
from stopadvisor.ground.progress import Progress
from stopadvisor.probes.asking import Engine, OnStop, ProbePlan, Schedule
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.replies import RungReplies, replies_by_rung
from stopadvisor.runs.storage import check_writable
from stopadvisor.workload.questions import (
    ASSUMED_TASK,
    PARTS,
    SMALLEST_PARTS,
    PartCounts,
    Question,
    Workload,
    assign_parts,
    default_split,
    read_workload,
)
from stopadvisor.workload.traces import RecordedTraces, read_traces, with_traces

__all__ = [
    "ProbeSettings", "ProbeSummary",
    "fit_questions", "ready", "repeated_questions", "summary_of", "trial_questions",
]  # fmt: skip

REPEATED = 50
"""Fit questions that are asked twice if the workload has no gold."""


@dataclass(frozen=True)
class ProbeSettings:
    """What to probe and how; only the workload has no default."""

    workload: Path
    out: Path | None = None
    """The run directory; None for one under ``runs/``."""
    budgets: tuple[int, ...] | None = None
    """None lets a pilot choose."""
    max_think: int | None = None
    """None for the plan's default cap, or less if the model's context leaves less."""
    cap: int = PROBE_CAP
    answer_cap: int = 512
    cue: str = CUES["terse"]
    on_stop: OnStop = "probe"
    schedule: Schedule = "auto"
    """``auto`` becomes ``grid`` if `budgets` are given."""
    every: int | None = None
    """Distance between probes; None lets a pilot choose, unless `budgets` are given."""
    markers: tuple[str, ...] | None = None
    """Words that begin a sentence; None lets a pilot find them."""
    marker_ids: tuple[tuple[int, ...], ...] = ()
    """Token ids of the markers; empty until an engine has encoded them."""
    min_gap: int = ProbePlan.min_gap
    max_markers: int = ProbePlan.max_markers
    max_probes: int | None = None
    """As in `ProbePlan`, for probing with a policy's trigger."""
    greedy: bool = False
    temperature: float | None = None
    samples: int = 1
    """Traces per question, all in the same part of the split."""
    seed: int = 0
    batch_size: int | None = None
    """None for the engine's own size."""
    limit: int | None = None
    entropy: str = "auto"
    """``auto`` is the whole vocabulary for a local model, otherwise what the server offers."""
    prompt_template: str | None = None
    split: tuple[float, float, float] | None = None
    """Shares of fit, calibration and test; None for `default_split`."""
    preflight: bool = True
    regrade: bool = False
    grader: str | None = None
    """``MODULE:FUNCTION`` that grades answers; ``gold`` or None compares them with gold."""
    task: str | None = None
    """Task of questions that name none; None guesses it from gold."""
    traces: Path | None = None
    """File of recorded traces; None if the model is to think."""
    assumed_task: str = ASSUMED_TASK
    """Task of questions with neither task nor gold; the policy's when probing for a policy."""

    def __post_init__(self) -> None:
        for name, least in {"max_think": 1, "samples": 1, "limit": 1, "seed": 0}.items():
            if (value := getattr(self, name)) is not None and value < least:
                raise ProbeError(f"{name} must be at least {least}, got {value!r}")
        if self.schedule == "auto" and self.budgets is not None:
            object.__setattr__(self, "schedule", "grid")

    def for_engine(self, engine: Engine) -> ProbeSettings:
        """These settings, with ``auto`` entropy and marker ids filled in by the engine."""
        entropy = engine.capabilities.entropy if self.entropy == "auto" else self.entropy
        words = self.markers or ()
        ids = sorted({ids for word in words for ids in sentence_ids(engine, word)})
        return replace(self, entropy=entropy, marker_ids=tuple(ids) or self.marker_ids)

    def read(self) -> Workload:
        """Read the workload, with recorded traces if there are any.

        Raises as `read_workload`, `read_traces` and `with_traces`.
        """
        workload = read_workload(self.workload, default_task=self.task, assumed=self.assumed_task)
        if self.recorded is None:
            return workload
        return with_traces(workload, self.recorded, self.samples)

    @cached_property
    def recorded(self) -> RecordedTraces | None:
        """The recorded traces; None if the model is to think."""
        return None if self.traces is None else read_traces(self.traces)

    @property
    def auto_every(self) -> bool:
        """Whether a pilot chooses the distance between probes."""
        return self.schedule != "grid" and self.budgets is None and self.every is None

    @property
    def auto(self) -> set[str]:
        """Fields that the model's context or a pilot settles; see `build_manifest`."""
        is_auto = {
            "budgets": self.budgets is None,
            "max_think": self.max_think is None,
            "every": self.auto_every,
            "markers": not self.marker_ids,
            "schedule": self.schedule == "auto",
        }
        return {name for name, holds in is_auto.items() if holds}

    def shares(self, workload: Workload) -> tuple[float, float, float]:
        """Shares of fit, calibration and test."""
        return self.split or default_split(len(workload.questions))

    def plan(self) -> ProbePlan:
        """The plan before a model is loaded: no `auto` budgets, and the longest `auto` cap.

        `pilot.thinking_cap` and `pilot.settle_plan` settle them later.
        """
        settled: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(ProbePlan)}
        settled["budgets"] = self.budgets or ()
        settled["max_think"] = self.max_think or ProbePlan.max_think
        settled["entropy"] = "full" if self.entropy == "auto" else self.entropy
        return ProbePlan(**settled | {"markers": self.marker_ids})


def ready(settings: ProbeSettings, progress: Progress, *, whole: bool) -> Workload:
    """Read the workload, and refuse what can be refused before a model is loaded.

    With `whole`, a `limit` is refused if it leaves a part too small to be assessed.
    """
    workload = settings.read()
    for remark in _remarks(workload, settings):
        progress.remark(remark)
    asked = workload.questions[: settings.limit if whole else None]
    if shortage := _too_few(workload, settings, asked):
        raise WorkloadError(f"{workload.path}: {shortage}")
    count = len(workload.questions[: settings.limit])
    if count < SMALL_WORKLOAD and settings.shares(workload)[2] > 0:
        progress.remark(
            f"{count} questions: with fewer than {SMALL_WORKLOAD}, --split 40/60/0 certifies more"
        )
    check_writable(settings.out or Path("runs"))
    return workload


def _remarks(workload: Workload, settings: ProbeSettings) -> list[str]:
    """Remarks on guessed tasks, missing gold, and recorded traces of other questions."""
    remarks = [
        f"task {task!r} guessed from gold for {count} questions"
        for task, count in workload.guessed_tasks.items()
    ]
    n, labelled = len(workload.questions), workload.n_labelled
    if workload.assumed_task is not None:
        remarks.append(
            f"task {workload.assumed_task!r} assumed for questions with neither task nor gold; "
            "--task names another"
        )
    if labelled < n:
        count = f"{n - labelled} of {n} questions have" if labelled else "the questions have"
        remarks.append(
            f"{count} no gold: parts of the split with such questions count a reply as right if it "
            "agrees with the full answer"
        )
    if settings.recorded is not None:
        asked = {question.key for question in workload.questions}
        others = sum(len(t) for key, t in settings.recorded.by_key.items() if key not in asked)
        if others:
            remarks.append(
                f"left out {others} recorded traces, of questions that {workload.path} lacks"
            )
    return remarks


def fit_questions(workload: Workload, settings: ProbeSettings) -> list[Question]:
    """The questions that pilot and preflight may look at, in the workload's order.

    Drawn from the whole workload, so that a `limit` does not change the budgets.
    """
    keys = [q.group_key for q in workload.questions]
    parts = assign_parts(keys, seed=settings.seed, fractions=settings.shares(workload))
    return [q for q, part in zip(workload.questions, parts, strict=True) if PARTS[part] == "fit"]


def trial_questions(
    workload: Workload, settings: ProbeSettings
) -> tuple[list[Question], str | None]:
    """Fit questions for a preflight without a run, and which part of the split would be too small.

    Raises WorkloadError: there is no fit question.
    """
    fit = fit_questions(workload, settings)
    shortage = _too_few(workload, settings, workload.questions)
    if not fit:
        raise WorkloadError(f"{workload.path}: {shortage}")
    return fit, shortage


def repeated_questions(
    workload: Workload, settings: ProbeSettings, *, draws: bool
) -> list[Question]:
    """Fit questions to ask twice, to see how often full thinking disagrees with itself.

    Chosen by content hash, so that a sorted file gives no biased sample.  Empty unless the model
    `draws` its tokens: otherwise the second trace would equal the first.
    """
    if settings.traces is not None or not draws or workload.n_labelled:
        return []
    fit = {question.key: question for question in fit_questions(workload, settings)}
    return [fit[key] for key in sorted(fit)[:REPEATED]]


def _too_few(
    workload: Workload, settings: ProbeSettings, questions: Sequence[Question]
) -> str | None:
    """Name the part that would be too small, and how many questions it takes; None if none is.

    Duplicates and groups count once.
    """
    keys = list(dict.fromkeys(q.group_key for q in questions))
    split = settings.shares(workload)
    parts = assign_parts(keys, seed=settings.seed, fractions=split)
    counts = np.bincount(parts, minlength=len(PARTS)).tolist()
    for name, count, share in zip(PARTS, counts, split, strict=True):
        needed = SMALLEST_PARTS[name]
        if share > 0 and count < needed:
            shown = "/".join(f"{100 * f:g}" for f in split)
            advice = " or use --split 40/60/0" if split[2] > 0 and name != "fit" else ""
            return (
                f"too few questions: the {name} part needs at least {needed} different ones, "
                f"got {count} of {len(keys)} (--split {shown}): take about {_enough(split)} or "
                f"more{advice}; `stopadvisor plan` says how many a promise takes"
            )
    return None


def _enough(split: tuple[float, float, float]) -> int:
    """Questions that fill each part in 19 of 20 random splits, rounded up to tens."""
    return max(
        10 * math.ceil((needed + 1.645 * math.sqrt(needed)) / share / 10)
        for needed, share in zip(map(SMALLEST_PARTS.__getitem__, PARTS), split, strict=True)
        if share > 0
    )


# --- The result ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProbeSummary:
    """`probe --json`: the content of the run, and what this call added."""

    run: Path
    """The run directory."""
    questions: int
    """Questions in the run, earlier ones included."""
    traces: int
    """Traces in the run, several per question with `--samples`; of a ladder, replies."""
    new: int
    """Traces that this call added; of a ladder, questions."""
    schedule: str
    """`grid`, `stride`, `marker`, or `ladder` for whole replies."""
    budgets: tuple[int, ...]
    """Thinking tokens at each checkpoint; with a stride or markers, only in traces that long."""
    every: int | None
    """Distance between probes; null on a grid, or if budgets were given."""
    markers: tuple[str, ...]
    """Words before which answers are forced; empty unless `marker`."""
    max_think: int
    """Cap on thinking tokens."""
    truncated_share: float
    """Share of the traces that were cut off."""
    seconds: float
    """Time that probing took in this call."""
    split: PartCounts
    """Questions in each part."""
    rungs: tuple[RungReplies, ...] = ()
    """Rungs of a ladder; empty if a model was probed."""


def summary_of(run: RunDirectory, new: int, seconds: float) -> ProbeSummary:
    """Sum up what a run holds, of which `new` was added in this call."""
    table, ladder = run.table(), run.ladder
    first = table.samples == 0  # every question has one: samples are collected in turn
    counts = np.bincount(run.parts(table.groups)[first], minlength=len(PARTS)).tolist()
    return ProbeSummary(
        run=run.path,
        questions=int(first.sum()),
        traces=table.n_questions * (1 if ladder is None else len(ladder.columns)),
        new=new,
        schedule=run.plan.schedule if ladder is None else "ladder",
        budgets=run.plan.budgets,
        every=run.plan.every,
        markers=tuple(word["text"] for word in run.manifest.get("markers", [])),
        max_think=run.plan.max_think,
        truncated_share=float(table.truncated.mean()),
        seconds=round(seconds, 3),
        split=PartCounts(*counts),
        rungs=() if ladder is None else replies_by_rung(run.replies(), ladder),
    )
