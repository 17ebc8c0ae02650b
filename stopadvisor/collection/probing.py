"""Probe a workload into a run directory, or only check on a few questions that it would work.

`probe` goes from a workload's path to graded probes; `try_questions` stops after the preflight.
Both show outcomes of fit questions only, and ask the rungs of a ladder if the engine names one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from stopadvisor.answers.grading import Graders, open_graders
from stopadvisor.collection.collect import collect, say_what_is_kept
from stopadvisor.collection.grades import check_grader, regrade, remarks_on_grader
from stopadvisor.collection.markers import sentence_ids
from stopadvisor.collection.model_checks import (
    Preflight,
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
    fit_questions,
    ready,
    repeated_questions,
    summary_of,
    trial_questions,
)
from stopadvisor.collection.rung_recording import record_replies, try_rungs
from stopadvisor.engines.engine_settings import EngineSettings, open_engine
from stopadvisor.ground.constants import PAPER_BUDGETS, TRUNCATED_WARN
from stopadvisor.ground.errors import ModelError, ProbeError
from stopadvisor.ground.fields import plain
from stopadvisor.ground.json_text import read_object
from stopadvisor.ground.progress import Progress, report_remarks
from stopadvisor.probes.asking import Engine, ProbePlan, RawTrace
from stopadvisor.runs.directory import MANIFEST, RunDirectory
from stopadvisor.runs.manifest import build_manifest, run_path, split_of
from stopadvisor.runs.prices import keep_model_files
from stopadvisor.runs.sources import keep_model_as_given
from stopadvisor.runs.storage import lock_directory
from stopadvisor.workload.questions import Question, Workload, default_split

__all__ = ["probe", "try_questions"]


def probe(
    settings: ProbeSettings, engine: EngineSettings, progress: Progress, *, whole: bool = False
) -> ProbeSummary:
    """Probe the questions that the run of a workload lacks; see `record_replies` for a ladder.

    In this order: read the workload and check its split, load the model, open or begin the run (a
    pilot on fit questions fixes `auto` budgets in its manifest), pass the preflight, ask the
    questions.  Everything that can be refused without the model is refused first.  With `whole`, a
    `limit` is refused if it leaves a part too small to assess.

    Raises
    ------
    WorkloadError
        The workload cannot be used, or a part of its split would be too small.
    ModelError
        The model cannot be used.
    OutputError
        The run cannot be written.
    ProbeError
        The run directory contains something else, or another process is writing it.
    PreflightError
        A check of the engine failed.
    GraderError
        The grader cannot be loaded, or breaks the rules of graders.
    """
    workload = ready(settings, progress, whole=whole)
    with open_graders(settings.grader) as graders:
        if engine.ladder is not None:
            return record_replies(settings, workload, engine, graders.right, progress)
        with open_engine(engine) as model:
            settings = settings.for_engine(model)
            summary = _Probing(settings, workload, model, graders, progress).probe()
    keep_model_files(engine.model, summary.run)
    keep_model_as_given(engine.model, summary.run)
    return summary


def try_questions(settings: ProbeSettings, engine: EngineSettings, progress: Progress) -> Preflight:
    """Run the preflight alone, on fit questions; see `try_rungs` for a ladder.

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
    report: Preflight
    # A ladder's preflight grades nothing, but a wrong grader is refused before its recording.
    with open_graders(settings.grader) as graders:
        if engine.ladder is not None:
            report = try_rungs(fit, settings.prompt_template, engine, progress)
        else:
            with open_engine(engine) as model:
                settings = settings.for_engine(model)
                report = _Probing(settings, workload, model, graders, progress).try_out()
    return with_shortage(report, shortage)


@dataclass(frozen=True)
class _Probing:
    """A loaded model, and the workload to probe it with."""

    settings: ProbeSettings
    workload: Workload
    engine: Engine
    graders: Graders
    progress: Progress
    reported: set[str] = field(default_factory=set)
    """Remarks of the engine that were already shown."""

    @cached_property
    def fit(self) -> list[Question]:
        """The questions that pilot and preflight may look at."""
        return fit_questions(self.workload, self.settings)

    def probe(self) -> ProbeSummary:
        """Open or begin the run of this engine and workload, and probe."""
        settings = self.settings
        if (
            settings.traces is None
            and settings.samples > 1
            and self.engine.temperature(settings.plan()) == 0
        ):
            raise ModelError(
                "the model's own settings always take the likeliest token, so all traces of a "
                f"question would be equal, got --samples {settings.samples}: give --temperature"
            )
        path, manifest = self._described(settings.shares(self.workload))
        if settings.split is None and (begun := self._split_begun(path)) is not None:
            # A growing workload keeps the split that its run began with.
            path, manifest = self._described(begun)
            settings = replace(settings, split=begun)
        with lock_directory(path):
            return replace(self, settings=settings)._locked(path, manifest)

    def try_out(self) -> PreflightReport:
        """Run the preflight alone."""
        plan = self._with_cap(self.settings.plan(), auto=self.settings.max_think is None)
        size = self.settings.batch_size or _choose_batch_size(self.engine, plan)
        settled = SettledPlan(plan)
        if self.settings.schedule in ("auto", "marker"):  # as `probe` will settle it
            settled = self._settled(plan, size)
        report = self._checked(settled, size, self.settings.markers)
        self._pass_remarks_on()
        return report

    def _described(self, fractions: tuple[float, float, float]) -> tuple[Path, dict[str, Any]]:
        """The run's path and manifest under a split."""
        recorded = self.settings.recorded
        manifest = build_manifest(
            self.engine.identity(),
            self.settings.plan(),
            self.workload,
            fractions=fractions,
            auto=self.settings.auto,
            cue_ids=cue_ids(self.engine, self.settings.cue),
            template=self.settings.prompt_template,
            grading=self.graders.right.identity,
            traces=recorded.describe() if recorded else None,
        )
        return self.settings.out or run_path(Path("runs"), manifest), manifest

    def _split_begun(self, path: Path) -> tuple[float, float, float] | None:
        """The split of a run that began with another default; None if there is no such run."""
        if (path / MANIFEST).exists():
            return split_of(RunDirectory.load(path).manifest)[1]
        others = (default_split(0), default_split(sys.maxsize))
        begun = (split for split in others if (self._described(split)[0] / MANIFEST).exists())
        return next(begun, None)

    def _locked(self, path: Path, manifest: dict[str, Any]) -> ProbeSummary:
        """The part of `probe` that happens under the run's lock."""
        self._pass_remarks_on()
        begun = RunDirectory.resume(path, manifest)
        plan = begun.plan if begun else self.settings.plan()
        plan = self._with_cap(plan, auto=self.settings.max_think is None and not begun)
        # With the same batches a resumed run writes the same bytes as an uninterrupted one.
        recorded = begun.manifest.get("batch_size") if begun else None
        batch_size = self.settings.batch_size or recorded
        batch_size = batch_size or _choose_batch_size(self.engine, plan)
        run, pilot = (begun, ()) if begun else self._begin(path, manifest, plan, batch_size)
        if begun and self.settings.regrade:
            check_grader(run, self.settings.grader)
            regrade(run, self.graders.right, self.workload)
            self.progress.remark(f"graded {path} again")  # how many changed would tell outcomes
        if self.settings.preflight:
            self._preflight(run, pilot, batch_size)
        draws = self.engine.temperature(run.plan) > 0
        repeated = repeated_questions(self.workload, self.settings, draws=draws)
        if repeated and self.settings.samples == 1:
            self.progress.remark(
                f"{len(repeated)} fit questions are asked twice, to see how often full thinking "
                "changes its answer"
            )
        self._pass_remarks_on()
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
        self._pass_remarks_on()
        for remark in [*self.graders.right.remarks(), *remarks_on_grader(run)]:
            self.progress.remark(remark)
        summary = summary_of(run, n_new, seconds)
        if (truncated := summary.truncated_share) > TRUNCATED_WARN:
            self.progress.remark(
                f"{truncated:.1%} of traces are cut at {run.plan.max_think} thinking tokens: "
                "calibrate refuses more than 10%; --max-think should be production's cap"
            )
        return summary

    def _begin(
        self, path: Path, manifest: dict[str, Any], plan: ProbePlan, batch_size: int
    ) -> tuple[RunDirectory, Sequence[RawTrace]]:
        """Begin the run with a settled plan; also returns the traces of a pilot."""
        settings, say = self.settings, self.progress.remark
        settled = self._settled(plan, batch_size)
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
        frozen = {**manifest, "plan": plain(plan.to_dict()), **noted}
        return RunDirectory.create(path, frozen), settled.pilot

    def _noted(self, settled: SettledPlan) -> list[dict[str, Any]]:
        """The run's markers as words, for readers of its manifest."""
        if settled.markers is not None:
            words = {word.text: word.ids for word in settled.markers.used}
        elif self.settings.markers is not None:
            words = {text: sentence_ids(self.engine, text) for text in self.settings.markers}
        else:  # from a policy, which holds only token ids
            words = {self.engine.decode(ids).strip(): (ids,) for ids in settled.plan.markers}
        return [{"text": text, "ids": [list(i) for i in ids]} for text, ids in words.items()]

    def _preflight(self, run: RunDirectory, pilot: Sequence[RawTrace], batch_size: int) -> None:
        """Check the engine, unless it passed in an earlier call."""
        file = run.path / "preflight.json"
        if _passed(file):
            return
        named = [word["text"] for word in run.manifest.get("markers", [])] or None
        report = self._checked(SettledPlan(run.plan, pilot=pilot), batch_size, named)
        keep_checks(report, file, self.progress)
        if report.cost is not None:
            self.progress.remark(f"probing will take {report.cost}")

    def _with_cap(self, plan: ProbePlan, *, auto: bool) -> ProbePlan:
        """The plan with a cap on thinking that fits the model's context and recorded traces.

        Unless `auto`, questions that are too long are refused, as in a run that has begun.
        """
        engine, questions, progress = self.engine, self.workload.questions, self.progress
        longest = recorded_cap(engine, questions, plan, auto=auto, progress=progress)
        plan = replace(plan, max_think=longest)
        template = self.settings.prompt_template
        cap = thinking_cap(engine, questions, plan, template=template, auto=auto)
        if cap != plan.max_think:
            progress.remark(
                f"max-think: {cap} tokens: the model's context has room for fewer than "
                f"{cap + CAP_STEP} after the longest prompt"
            )
        return replace(plan, max_think=cap)

    def _settled(self, plan: ProbePlan, batch_size: int) -> SettledPlan:
        return settle_plan(
            self.engine,
            self.fit,
            plan,
            self.settings,
            batch_size=batch_size,
            progress=self.progress,
        )

    def _checked(
        self, settled: SettledPlan, batch_size: int, named: Sequence[str] | None
    ) -> PreflightReport:
        return run_preflight(
            self.engine,
            self.fit,
            settled,
            self.graders,
            template=self.settings.prompt_template,
            batch_size=batch_size,
            named=named,
            progress=self.progress,
        )

    def _pass_remarks_on(self) -> None:
        report_remarks(self.engine.remarks, self.progress, self.reported)


def _passed(file: Path) -> bool:
    """Whether an earlier preflight did not fail."""
    if not file.exists():
        return False
    return read_object(file, ProbeError, "; remove it").get("status") in ("pass", "warn")


def _choose_batch_size(engine: Engine, plan: ProbePlan) -> int:
    # Until a grid is chosen, assume that it takes as much memory as the paper's.
    if plan.schedule == "grid" and not plan.budgets:
        plan = replace(plan, budgets=PAPER_BUDGETS)
    return engine.auto_batch_size(plan)
