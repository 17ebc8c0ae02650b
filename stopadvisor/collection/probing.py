"""Probe a workload into a run directory, or only check on a few questions that it would work.

`probe` does everything from a workload's path to its graded probes; `try_questions` stops after the
preflight.  Both show outcomes of fit questions only.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from stopadvisor.answers.grading import Graders, open_graders
from stopadvisor.collection.collect import collect, say_what_is_kept
from stopadvisor.collection.grades import check_grader, regrade, remarks_on_grader
from stopadvisor.collection.markers import sentence_ids
from stopadvisor.collection.model_checks import (
    PreflightReport,
    keep_checks,
    run_preflight,
    with_shortage,
)
from stopadvisor.collection.pilot import (
    CAP_STEP,
    NO_MARKERS,
    SettledPlan,
    cue_ids,
    recorded_cap,
    settle_plan,
    thinking_cap,
)
from stopadvisor.collection.probe_settings import (
    ProbeSettings,
    ProbeSummary,
    check_parts,
    fit_questions,
    repeated_questions,
    trial_questions,
)
from stopadvisor.ground.constants import PAPER_BUDGETS, SMALL_WORKLOAD, TRUNCATED_WARN
from stopadvisor.ground.errors import ModelError, ProbeError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.ground.progress import Progress, report_remarks
from stopadvisor.probes.asking import Engine, ProbePlan, RawTrace
from stopadvisor.runs.directory import MANIFEST, RunDirectory
from stopadvisor.runs.manifest import build_manifest, run_path, split_of
from stopadvisor.runs.storage import check_writable, lock_directory
from stopadvisor.workload.questions import PARTS, PartCounts, Question, Workload, default_split

__all__ = ["OpenEngine", "probe", "try_questions"]


OpenEngine = Callable[[], AbstractContextManager[Engine]]
"""Loads a model on entry, and closes it on exit."""


def probe(
    settings: ProbeSettings, open_engine: OpenEngine, progress: Progress, *, whole: bool = False
) -> ProbeSummary:
    """Probe the questions of a workload that its run does not hold yet.

    In this order: read the workload and check its split, load the model, open or begin the run (a
    pilot on fit questions fixes `auto` budgets in its manifest), pass the preflight, ask the
    questions.  The model is loaded only when nothing else is left to refuse.  With `whole`, a
    `limit` is refused if it leaves a part too small to be assessed.

    Raises
    ------
    WorkloadError
        The workload cannot be used, or a part of its split would be too small.
    ModelError
        The model cannot be used.
    OutputError
        The run cannot be written.
    ProbeError
        The run directory holds something else, or another process writes it.
    PreflightError
        A check of the engine failed.
    GraderError
        The grader cannot be loaded, or breaks the rules of graders.
    """
    workload = settings.read()
    for remark in _remarks(workload, settings):
        progress.remark(remark)
    check_parts(workload, settings, workload.questions[: settings.limit if whole else None])
    count = len(workload.questions[: settings.limit])
    if count < SMALL_WORKLOAD and settings.shares(workload)[2] > 0:
        progress.remark(
            f"{count} questions: with fewer than {SMALL_WORKLOAD}, --split 40/60/0 certifies more"
        )
    check_writable(settings.out or Path("runs"))
    with open_graders(settings.grader) as graders, open_engine() as engine:
        return _probe_with(engine, settings.for_engine(engine), workload, graders, progress)


def _remarks(workload: Workload, settings: ProbeSettings) -> list[str]:
    """Remarks on guessed tasks, missing gold, and recorded traces of other questions."""
    remarks = [
        f"task {task!r} guessed from gold for {count} questions"
        for task, count in workload.guessed_tasks.items()
    ]
    n, labelled = len(workload.questions), workload.n_labelled
    if workload.assumed_task is not None:
        remarks.append(
            f"task {workload.assumed_task!r} taken for questions without task and gold; --task "
            "names another"
        )
    if labelled < n:
        count = f"{n - labelled} of {n} questions have" if labelled else "the questions have"
        remarks.append(
            f"{count} no gold: a part of the split that holds such counts a reply as right where "
            "it agrees with what full thinking answers"
        )
    if settings.recorded is not None:
        asked = {question.key for question in workload.questions}
        others = sum(len(t) for key, t in settings.recorded.by_key.items() if key not in asked)
        if others:
            remarks.append(
                f"{others} recorded traces are of no question of {workload.path}: left out"
            )
    return remarks


def try_questions(
    settings: ProbeSettings, open_engine: OpenEngine, progress: Progress
) -> PreflightReport:
    """Run the preflight alone, on fit questions.

    Raises
    ------
    WorkloadError
        The workload cannot be used, or has no fit question.
    ModelError
        The model cannot be used.
    EngineError
        The engine failed, or did not answer every prompt.
    """
    workload = settings.read()
    fit, shortage = trial_questions(workload, settings)
    with open_graders(settings.grader) as graders, open_engine() as engine:
        settings = settings.for_engine(engine)
        plan = _settle_cap(engine, workload, settings.plan(), settings, progress)
        size = settings.batch_size or _choose_batch_size(engine, plan)
        settled = SettledPlan(plan)
        if settings.schedule in ("auto", "marker"):  # as `probe` will settle it
            settled = settle_plan(engine, fit, plan, settings, batch_size=size, progress=progress)
            plan = settled.plan
        report = run_preflight(
            engine,
            fit,
            plan,
            grader=graders.equal,
            right=graders.right,
            template=settings.prompt_template,
            batch_size=size,
            named=settings.markers,
            markers=settled.markers,
            pilot=settled.pilot,
            progress=progress,
        )
        report_remarks(engine.remarks, progress, set())
    return with_shortage(report, shortage)


def _probe_with(
    engine: Engine,
    settings: ProbeSettings,
    workload: Workload,
    graders: Graders,
    progress: Progress,
) -> ProbeSummary:
    """Open or begin the run of this engine and workload, and probe."""
    if (
        settings.traces is None
        and settings.samples > 1
        and engine.temperature(settings.plan()) == 0
    ):
        raise ModelError(
            "the model's own settings always take the likeliest token, so that all traces of a "
            f"question would be equal, got --samples {settings.samples}: give --temperature"
        )

    def described(fractions: tuple[float, float, float]) -> tuple[Path, dict[str, Any]]:
        manifest = build_manifest(
            engine.identity(),
            settings.plan(),
            workload,
            fractions=fractions,
            auto=settings.auto,
            cue_ids=cue_ids(engine, settings.cue),
            template=settings.prompt_template,
            grading=graders.right.identity,
            traces=settings.recorded.describe() if settings.recorded else None,
        )
        return settings.out or run_path(Path("runs"), manifest), manifest

    path, manifest = described(settings.shares(workload))
    if settings.split is None and (begun := _split_begun(path, described)) is not None:
        # A growing workload keeps the split that its run began with.
        path, manifest = described(begun)
        settings = replace(settings, split=begun)
    with lock_directory(path):
        return _Probing(settings, workload, engine, graders, progress).go(path, manifest)


def _split_begun(
    path: Path, described: Callable[[tuple[float, float, float]], tuple[Path, dict[str, Any]]]
) -> tuple[float, float, float] | None:
    """The split of a run that began with another default; None if there is no such run."""
    if (path / MANIFEST).exists():
        return split_of(RunDirectory.load(path).manifest)[1]
    others = (default_split(0), default_split(sys.maxsize))
    begun = (split for split in others if (described(split)[0] / MANIFEST).exists())
    return next(begun, None)


@dataclass(frozen=True)
class _Probing:
    """The part of `probe` that happens under the run's lock."""

    settings: ProbeSettings
    workload: Workload
    engine: Engine
    graders: Graders
    progress: Progress
    reported: set[str] = field(default_factory=set)
    """Remarks of the engine that were shown already."""

    def go(self, path: Path, manifest: dict[str, Any]) -> ProbeSummary:
        fit = fit_questions(self.workload, self.settings)
        report_remarks(self.engine.remarks, self.progress, self.reported)
        begun = RunDirectory.resume(path, manifest)
        plan = begun.plan if begun else self.settings.plan()
        plan = _settle_cap(
            self.engine, self.workload, plan, self.settings, self.progress, begun=bool(begun)
        )
        # Resumed with the same batches, it writes the same bytes as an uninterrupted run.
        recorded = begun.manifest.get("batch_size") if begun else None
        batch_size = self.settings.batch_size or recorded
        batch_size = batch_size or _choose_batch_size(self.engine, plan)
        run, pilot = (begun, ()) if begun else self._begin(path, manifest, fit, plan, batch_size)
        if begun and self.settings.regrade:
            check_grader(run, self.settings.grader)
            changed = regrade(run, self.graders.right, self.workload)
            self.progress.remark(f"graded again: {changed} questions changed")
        if self.settings.preflight:
            self._preflight(run, fit, pilot, batch_size)
        draws = self.engine.temperature(run.plan) > 0
        repeated = repeated_questions(self.workload, self.settings, draws=draws)
        if repeated and self.settings.samples == 1:
            self.progress.remark(
                f"{len(repeated)} fit questions think twice, to see how often full thinking gives "
                "another answer"
            )
        report_remarks(self.engine.remarks, self.progress, self.reported)
        began = time.monotonic()
        with say_what_is_kept(run, self.progress):
            n_new = collect(
                self.engine,
                self.workload,
                run,
                batch_size=batch_size,
                grader=self.graders.right,
                template=self.settings.prompt_template,
                limit=self.settings.limit,
                samples=self.settings.samples,
                repeated=repeated,
                progress=self.progress,
            )
        seconds = time.monotonic() - began
        report_remarks(self.engine.remarks, self.progress, self.reported)
        for remark in [*self.graders.right.remarks(), *remarks_on_grader(run)]:
            self.progress.remark(remark)
        table = run.table()
        first = table.samples == 0  # every question has one: samples are collected in turn
        counts = np.bincount(run.parts(table.groups)[first], minlength=len(PARTS)).tolist()
        truncated = float(table.truncated.mean())
        if truncated > TRUNCATED_WARN:
            self.progress.remark(
                f"{truncated:.1%} of traces are cut at {run.plan.max_think} thinking tokens: "
                "calibrate refuses more than 10%; --max-think should be production's cap"
            )
        return ProbeSummary(
            run=run.path,
            questions=int(first.sum()),
            traces=table.n_questions,
            new=n_new,
            schedule=run.plan.schedule,
            budgets=run.plan.budgets,
            every=run.plan.every,
            markers=tuple(word["text"] for word in run.manifest.get("markers", [])),
            max_think=run.plan.max_think,
            truncated_share=truncated,
            seconds=round(seconds, 3),
            split=PartCounts(*counts),
        )

    def _begin(
        self,
        path: Path,
        manifest: dict[str, Any],
        fit: Sequence[Question],
        plan: ProbePlan,
        batch_size: int,
    ) -> tuple[RunDirectory, Sequence[RawTrace]]:
        """Begin the run with a settled plan; also returns the traces of a pilot."""
        settings, say = self.settings, self.progress.remark
        settled = settle_plan(
            self.engine, fit, plan, settings, batch_size=batch_size, progress=self.progress
        )
        plan, markers = settled.plan, settled.markers
        if plan.schedule == "marker" and not plan.markers:
            raise ProbeError(NO_MARKERS)
        if settings.auto_every:
            say(f"budgets: every {plan.every} thinking tokens{settled.remark}")
        elif plan.every is None and settings.budgets is None:
            say(f"budgets: {', '.join(map(str, plan.budgets))}")
        if markers is not None:
            used = (f"{word.text} {word.per_1000:.1f}" for word in markers.used)
            say(f"markers per 1,000 thinking tokens: {', '.join(used)}")
        noted = {"markers": self._noted(settled)} if plan.schedule == "marker" else {}
        frozen = parse_json(json.dumps(plan.to_dict()))  # tuples become lists
        return RunDirectory.create(path, {**manifest, "plan": frozen, **noted}), settled.pilot

    def _noted(self, settled: SettledPlan) -> list[dict[str, Any]]:
        """The run's markers as words, for readers of its manifest."""
        if settled.markers is not None:
            words = {word.text: word.ids for word in settled.markers.used}
        elif self.settings.markers is not None:
            words = {text: sentence_ids(self.engine, text) for text in self.settings.markers}
        else:  # from a policy, which holds only token ids
            words = {self.engine.decode(ids).strip(): (ids,) for ids in settled.plan.markers}
        return [{"text": text, "ids": [list(i) for i in ids]} for text, ids in words.items()]

    def _preflight(
        self, run: RunDirectory, fit: Sequence[Question], pilot: Sequence[RawTrace], batch_size: int
    ) -> None:
        """Check the engine, unless an earlier call has passed."""
        file = run.path / "preflight.json"
        if _passed(file):
            return
        report = run_preflight(
            self.engine,
            fit,
            run.plan,
            grader=self.graders.equal,
            right=self.graders.right,
            template=self.settings.prompt_template,
            batch_size=batch_size,
            named=[word["text"] for word in run.manifest.get("markers", [])] or None,
            pilot=pilot,
            progress=self.progress,
        )
        keep_checks(report, file, self.progress)
        if report.cost is not None:
            self.progress.remark(f"probing will take {report.cost}")


def _passed(file: Path) -> bool:
    try:
        return bool(parse_json(file.read_bytes())["status"] != "fail")
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProbeError(f"{file}: not a preflight report ({error}); remove it") from error


def _choose_batch_size(engine: Engine, plan: ProbePlan) -> int:
    """The engine's own batch size."""
    # Until a grid is chosen, assume the memory that the paper's needs.
    if plan.schedule == "grid" and not plan.budgets:
        plan = replace(plan, budgets=PAPER_BUDGETS)
    return engine.auto_batch_size(plan)


def _settle_cap(
    engine: Engine,
    workload: Workload,
    plan: ProbePlan,
    settings: ProbeSettings,
    progress: Progress,
    *,
    begun: bool = False,
) -> ProbePlan:
    """The plan with a cap on thinking that fits the model's context and recorded traces.

    A run that has begun keeps its cap, and refuses questions that are too long for it.
    """
    auto = settings.max_think is None and not begun
    longest = recorded_cap(engine, workload.questions, plan, auto=auto, progress=progress)
    plan = replace(plan, max_think=longest)
    cap = thinking_cap(
        engine, workload.questions, plan, template=settings.prompt_template, auto=auto
    )
    if cap != plan.max_think:
        progress.remark(
            f"max-think: {cap} tokens: the model's context leaves fewer than {cap + CAP_STEP} "
            "after the longest prompt"
        )
    return replace(plan, max_think=cap)
