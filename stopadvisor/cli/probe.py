"""`stopadvisor probe`: collect the probes of a workload into a run directory.

`probe_workload` is what `assess` calls too.  Nothing here shows an outcome of any question: until
`calibrate` has run, nobody may see one of a calibration question.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import click
import numpy as np

from stopadvisor.answers.grading import GRADING, Grader
from stopadvisor.cli.like import like_policy
from stopadvisor.cli.options import ProbeOptions, in_use, load_engine, probe_options
from stopadvisor.cli.page import Command
from stopadvisor.cli.progress import progress_on
from stopadvisor.collection.collect import Progress, collect, show_remarks
from stopadvisor.collection.labels import regrade
from stopadvisor.collection.pilot import cue_ids, pilot_budgets, thinking_cap
from stopadvisor.collection.preflight import run_preflight
from stopadvisor.constants import PAPER_BUDGETS, SMALL_WORKLOAD, TRUNCATED_WARN
from stopadvisor.errors import EngineError, ModelError, ProbeError, WorkloadError
from stopadvisor.probes.plan import Engine, ProbePlan
from stopadvisor.report.text.screen import place
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.manifest import build_manifest, run_path
from stopadvisor.runs.storage import check_writable, lock_directory, write_json_atomically
from stopadvisor.workload.questions import (
    PARTS,
    SMALLEST_PARTS,
    Question,
    Workload,
    assign_parts,
    read_workload,
)

if TYPE_CHECKING:
    from stopadvisor.engines.openai.engine import OpenAiEngine

__all__ = ["ProbeSummary", "command", "fit_questions", "probe", "probe_workload", "run"]

DEFAULT_BATCH = 8
"""For engines that give no size of their own."""


@dataclass(frozen=True)
class ProbeSummary:
    """What `probe` leaves behind."""

    run: RunDirectory
    n_questions: int
    """Questions the run holds now, earlier ones included."""
    n_traces: int
    """Their traces: several per question with `samples`."""
    n_new: int
    """Traces that this call added."""
    seconds: float
    truncated_share: float
    split: dict[str, int]
    """Questions in each part."""

    def to_dict(self) -> dict[str, Any]:
        """What `probe --json` prints."""
        return {
            "schema": 1,
            "run": str(self.run.path),
            "questions": self.n_questions,
            "traces": self.n_traces,
            "new": self.n_new,
            "budgets": list(self.run.plan.budgets),
            "max_think": self.run.plan.max_think,
            "truncated_share": self.truncated_share,
            "seconds": round(self.seconds, 3),
            "split": self.split,
        }


@click.command(
    "probe",
    cls=Command,
    reads="WORKLOAD: JSONL with `question` and `gold`, a question a line.",
    writes="A run directory (--out, else one under runs/): manifest.json, which says how "
    "it was probed, probes.jsonl, a question a line as each batch ends, and "
    "preflight.json.",
    examples=[
        "stopadvisor probe samples/hard.jsonl --model samples/tiny-reasoner",
        "stopadvisor probe my.jsonl --model Qwen/Qwen3-8B --budgets 0,512,1024,2048",
        "stopadvisor probe fresh.jsonl --like policy.joblib",
    ],
    exit_codes=(0, 1, 2, 5, 130),
)
@click.argument("workload", type=click.Path(path_type=Path))
@click.option(
    "--like",
    metavar="POLICY",
    type=click.Path(path_type=Path),
    help="Probe as POLICY was probed: its budgets, caps, cue, sampling, entropy and template.",
)
@probe_options
@click.pass_context
def command(ctx: click.Context, /, workload: Path, like: Path | None, **params: Any) -> int:
    """Collect forced answers along the thinking of each question in WORKLOAD (JSONL).

    Goes on where an earlier call stopped: finished questions are never asked again.
    """
    if like is not None:
        params = like_policy(ctx, params, like) | {"like": like}
    return run(ProbeOptions.take(params, workload), sys.stdout, sys.stderr)


def run(options: ProbeOptions, out: TextIO, err: TextIO) -> int:
    """Probe and say what was collected."""
    probed = probe(options, err)
    if options.output.json:
        print(json.dumps(probed.to_dict(), allow_nan=False), file=out)
        return 0
    parts = ", ".join(f"{name} {count}" for name, count in probed.split.items())
    print(f"{probed.run.path}", file=out)
    several = "" if probed.n_traces == probed.n_questions else f" in {probed.n_traces} traces"
    plan = probed.run.plan
    print(f"  questions  {probed.n_questions}{several} ({probed.n_new} new): {parts}", file=out)
    print(f"  budgets    {', '.join(map(str, plan.budgets))}", file=out)
    print(
        f"  truncated  {probed.truncated_share:.1%} at {plan.max_think} thinking tokens", file=out
    )
    if not options.output.quiet:
        # What is probed like a policy is there to check it.
        step = "assess" if options.like is None else f"verify {place(options.like)}"
        print(f"next: stopadvisor {step} {place(probed.run.path)}", file=err)
    return 0


def probe_workload(options: ProbeOptions, err: TextIO, *, whole: bool = False) -> RunDirectory:
    """Make sure that a run holds the probes of a workload; see `probe`."""
    return probe(options, err, whole=whole).run


def probe(options: ProbeOptions, err: TextIO, *, whole: bool = False) -> ProbeSummary:
    """Probe what is missing of a workload, with everything that has to come before.

    In this order: the workload is read and its split checked, the model loaded, the run opened or
    begun (a pilot on fit questions freezes `auto` budgets in its manifest), the preflight passed,
    the questions asked.

    Parameters
    ----------
    options
        What to ask of which model.
    err
        Where progress and remarks go.
    whole
        Refuse a `limit` that leaves a part too small to be assessed.

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
        The engine does not do what probing needs.
    """
    with progress_on(err, quiet=options.output.quiet) as progress:
        workload = read_workload(options.workload)
        for task, count in workload.guessed_tasks.items():
            progress.remark(f"task {task!r} guessed from gold for {count} questions")
        check_split(workload, options, workload.questions[: options.limit if whole else None])
        count = len(workload.questions[: options.limit])
        if count < SMALL_WORKLOAD and options.split[2] > 0:
            progress.remark(
                f"{count} questions: with fewer than {SMALL_WORKLOAD}, "
                "--split 40/60/0 certifies more"
            )
        check_writable(options.out or Path("runs"))
        engine = load_engine(options)
        with in_use(engine):
            return _probe_with(engine, options.settled(engine), workload, progress)


def _probe_with(
    engine: Engine, options: ProbeOptions, workload: Workload, progress: Progress
) -> ProbeSummary:
    """Open or begin the run of this engine and workload, and probe."""
    _check_samples(engine, options, progress)
    manifest = build_manifest(
        engine.identity(),
        options.plan(),
        workload,
        fractions=options.split,
        auto_budgets=options.budgets is None,
        auto_max_think=options.max_think is None,
        cue_ids=cue_ids(engine, options.cue),
        template=options.prompt_template,
        grading=GRADING,
    )
    path = options.out or run_path(Path("runs"), manifest)
    with lock_directory(path), Grader() as grader:
        return _Probing(options, workload, engine, grader, progress).go(path, manifest)


@dataclass(frozen=True)
class _Probing:
    """The part of `probe` that happens under the run's lock."""

    options: ProbeOptions
    workload: Workload
    engine: Engine
    grader: Grader
    progress: Progress
    said: set[str] = field(default_factory=set)
    """Remarks of the engine that were shown."""

    def go(self, path: Path, manifest: dict[str, Any]) -> ProbeSummary:
        fit = fit_questions(self.workload, self.options)
        show_remarks(self.engine, self.progress, self.said)
        found = RunDirectory.resume(path, manifest)
        plan = found.plan if found else self.options.plan()
        plan = settle_cap(
            self.engine, self.workload, plan, self.options, self.progress, begun=bool(found)
        )
        # A run goes on with the batches it began with, so that it writes what it would have.
        recorded = found.manifest.get("batch_size") if found else None
        batch_size = self.options.batch_size or recorded
        batch_size = batch_size or choose_batch_size(self.engine, plan)
        run = found or self._begin(path, manifest, fit, plan, batch_size)
        if found and self.options.regrade:
            changed = regrade(run, self.grader, self.workload)
            self.progress.remark(f"graded again: {changed} questions changed")
        self._preflight(run, fit, batch_size)
        show_remarks(self.engine, self.progress, self.said)
        try:
            collected = collect(
                self.engine,
                self.workload,
                run.plan,
                run,
                batch_size=batch_size,
                grader=self.grader,
                template=self.options.prompt_template,
                limit=self.options.limit,
                samples=self.options.samples,
                shrink=self.options.batch_size is None,
                progress=self.progress,
            )
        except KeyboardInterrupt:
            self.progress.remark(
                f"interrupted: what was collected is kept in {run.path}; "
                "the same command goes on from there"
            )
            raise
        except EngineError:
            self.progress.remark(
                f"what was collected is kept in {run.path}; the same command goes on from there"
            )
            raise
        show_remarks(self.engine, self.progress, self.said)
        if self.options.server.engine == "openai":
            self._measure_serving(run, new=collected.n_new > 0)
        table = run.table()
        first = table.samples == 0  # of every question, as the samples are collected in turn
        counts = np.bincount(run.parts(table)[first], minlength=len(PARTS)).tolist()
        truncated = float(table.truncated.mean())
        if truncated > TRUNCATED_WARN:
            self.progress.remark(
                f"{truncated:.1%} of traces are cut at {run.plan.max_think} thinking tokens: "
                "calibrate refuses more than 10%; --max-think should be production's cap"
            )
        return ProbeSummary(
            run=run,
            n_questions=int(first.sum()),
            n_traces=table.n_questions,
            n_new=collected.n_new,
            seconds=collected.seconds,
            truncated_share=truncated,
            split=dict(zip(PARTS, counts, strict=True)),
        )

    def _begin(
        self,
        path: Path,
        manifest: dict[str, Any],
        fit: Sequence[Question],
        plan: ProbePlan,
        batch_size: int,
    ) -> RunDirectory:
        """Start the run; from here on its cap and its budgets are fixed."""
        budgets = plan.budgets
        if self.options.budgets is None:
            budgets = pilot_budgets(
                self.engine,
                fit,
                plan,
                batch_size=batch_size,
                template=self.options.prompt_template,
                progress=self.progress,
            )
            self.progress.remark(f"budgets: {', '.join(map(str, budgets))}")
        settled = {"budgets": list(budgets), "max_think": plan.max_think}
        return RunDirectory.create(path, {**manifest, "plan": {**manifest["plan"], **settled}})

    def _measure_serving(self, run: RunDirectory, *, new: bool) -> None:
        """Find out who pays for tokens that are sent again, for `assess` to cost with."""
        from stopadvisor.engines.openai.regime import measure_engine, read_regime, write_regime

        if not new and read_regime(run.path) is not None:
            return
        try:
            found = measure_engine(cast("OpenAiEngine", self.engine), run.plan.cue)
        except EngineError as error:  # the probes are there, and worth having without it
            self.progress.remark(f"note: the serving regime was not measured: {error}")
            return
        write_regime(run.path, found)
        self.progress.remark(f"serving regime: {found.regime or 'not told'}: {found.reason}")

    def _preflight(self, run: RunDirectory, fit: Sequence[Question], batch_size: int) -> None:
        file = run.path / "preflight.json"
        if not self.options.preflight or _passed(file):
            return
        report = run_preflight(
            self.engine,
            fit,
            run.plan,
            grader=self.grader,
            template=self.options.prompt_template,
            batch_size=batch_size,
            progress=self.progress,
        )
        write_json_atomically(file, report.to_dict())
        for check in report.checks:
            if check.status == "warn":
                self.progress.remark(f"preflight: {check.name}: {check.detail}; {check.advice}")
        report.raise_on_failure()


def _passed(file: Path) -> bool:
    try:
        return bool(json.loads(file.read_bytes())["status"] != "fail")
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProbeError(f"{file}: not a preflight report ({error}); remove it") from error


def choose_batch_size(engine: Engine, plan: ProbePlan) -> int:
    """Take the engine's own size, where it has one."""
    own = getattr(engine, "auto_batch_size", None)
    # A grid that is not chosen yet takes as much memory as the paper's.
    plan = plan if plan.budgets else replace(plan, budgets=PAPER_BUDGETS)
    return max(1, int(own(plan))) if own else DEFAULT_BATCH


def settle_cap(
    engine: Engine,
    workload: Workload,
    plan: ProbePlan,
    options: ProbeOptions,
    progress: Progress,
    *,
    begun: bool = False,
) -> ProbePlan:
    """The plan with a cap on thinking that the model's context leaves to every question.

    A run that has begun keeps its cap, or refuses questions that are too long for it.
    """
    auto = options.max_think is None and not begun
    cap = thinking_cap(
        engine, workload.questions, plan, template=options.prompt_template, auto=auto
    )
    if cap != plan.max_think:
        progress.remark(f"max-think: {cap} tokens, which is what the model's context leaves")
    return replace(plan, max_think=cap)


def _check_samples(engine: Engine, options: ProbeOptions, progress: Progress) -> None:
    """Refuse to draw the same trace several times; say so where it cannot be told."""
    own = getattr(engine, "sampling", None)
    if options.samples == 1 or own is None:
        return
    settings = own(options.plan())
    if settings.temperature == 0:
        raise ModelError(
            "the model's own settings always take the likeliest token, so that all traces of a "
            f"question would be equal, got --samples {options.samples}: give --temperature"
        )


def fit_questions(workload: Workload, options: ProbeOptions) -> list[Question]:
    """The questions that pilot and preflight may look at, in the workload's order.

    Taken from the whole workload, so that a `limit` does not change the frozen budgets.
    """
    keys = [q.group_key for q in workload.questions]
    parts = assign_parts(keys, seed=options.seed, fractions=options.split)
    return [q for q, part in zip(workload.questions, parts, strict=True) if PARTS[part] == "fit"]


def check_split(workload: Workload, options: ProbeOptions, questions: Sequence[Question]) -> None:
    """Refuse a workload whose parts would be too small, before a model is loaded.

    Raises
    ------
    WorkloadError
        A part with a share is smaller than `SMALLEST_PARTS`; duplicates and groups count once.
    """
    keys = list(dict.fromkeys(q.group_key for q in questions))
    parts = assign_parts(keys, seed=options.seed, fractions=options.split)
    counts = np.bincount(parts, minlength=len(PARTS)).tolist()
    for name, count, share in zip(PARTS, counts, options.split, strict=True):
        needed = SMALLEST_PARTS[name]
        if share > 0 and count < needed:
            split = "/".join(f"{100 * f:g}" for f in options.split)
            # That split has the same share for fit.
            advice = " or use --split 40/60/0" if options.split[2] > 0 and name != "fit" else ""
            raise WorkloadError(
                f"{workload.path}: the {name} part needs at least {needed} different questions, "
                f"got {count} of {len(keys)} (--split {split}): "
                f"add questions{advice}"
            )
