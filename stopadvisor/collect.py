"""The probing loop: ask the engine batch by batch, grade, append.

Batches are cut from the workload's order alone, so that a resumed run asks in the same company as
an uninterrupted one and, in float32, writes the same bytes.  This module knows no particular
engine and no command line; it reports through the small `Progress` that it declares.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from stopadvisor.engines import OutOfMemory
from stopadvisor.errors import EngineError, ProbeError
from stopadvisor.labels import GRADING, Grades, grade_traces
from stopadvisor.manifest import describe_workload
from stopadvisor.probes import Engine, ProbePlan, Prompt, RawTrace
from stopadvisor.runs import RunDirectory
from stopadvisor.workload import Question, Workload, render_messages

__all__ = [
    "Collected",
    "Progress",
    "Quiet",
    "ask_all",
    "collect",
    "make_prompts",
]


class Progress(Protocol):
    """What the loop tells whoever watches."""

    def begin(self, title: str, total: int, done: int = 0) -> None:
        """A stage of `total` traces starts, `done` of them from an earlier run."""
        ...

    def advance(self, traces: int, tokens: int) -> None:
        """So many traces were finished, and so many tokens decoded, since the last call."""
        ...

    def remark(self, text: str) -> None:
        """Something the user should know, in one line."""
        ...


class Quiet:
    """A `Progress` that shows nothing."""

    def begin(self, title: str, total: int, done: int = 0) -> None:
        """Pass over a stage."""

    def advance(self, traces: int, tokens: int) -> None:
        """Pass over finished traces."""

    def remark(self, text: str) -> None:
        """Pass over a remark."""


@dataclass(frozen=True)
class Collected:
    """What one call of `collect` did."""

    n_traces: int
    """Traces the run holds of those asked for."""
    n_new: int
    """Those of them that this call added."""
    seconds: float
    batch_size: int
    """The size it ended with: smaller than it began where memory ran out."""


# --- Asking the engine ----------------------------------------------------------------------------


def make_prompts(
    questions: Sequence[Question], template: str | None, sample: int = 0
) -> list[Prompt]:
    """The questions as the engine sees them, prompt template applied."""
    return [Prompt(q.key, tuple(render_messages(q, template)), sample) for q in questions]


@runtime_checkable
class _Telling(Protocol):
    """An engine that tells of its tokens while it draws a batch, which may take minutes."""

    on_tokens: Callable[[int], None] | None


def _probe(
    engine: Engine, prompts: Sequence[Prompt], plan: ProbePlan, progress: Progress
) -> list[RawTrace]:
    """Ask one batch and report its tokens: as they come, where the engine tells."""
    told = 0

    def tell(tokens: int) -> None:
        nonlocal told
        told += tokens
        progress.advance(0, tokens)

    if isinstance(engine, _Telling):
        engine.on_tokens = tell
    try:
        traces = engine.probe(prompts, plan)
    finally:
        if isinstance(engine, _Telling):
            engine.on_tokens = None
    progress.advance(0, max(0, _decoded_tokens(traces) - told))
    if len(traces) != len(prompts):
        raise EngineError(
            f"the engine must answer {len(prompts)} prompts, got {len(traces)} traces"
        )
    return traces


def ask_all(
    engine: Engine,
    prompts: Sequence[Prompt],
    plan: ProbePlan,
    *,
    batch_size: int,
    progress: Progress,
) -> list[RawTrace]:
    """Ask a few questions, batch by batch, keeping the traces; pilot and preflight do so.

    Batches are halved when memory runs out.

    Raises
    ------
    EngineError
        The engine failed, or did not answer every prompt.
    """
    traces: list[RawTrace] = []
    while len(traces) < len(prompts):
        batch = prompts[len(traces) : len(traces) + batch_size]
        try:
            answered = _probe(engine, batch, plan, progress)
        except OutOfMemory as error:
            batch_size = _halve(batch_size, error, progress)
            continue
        traces += answered
        progress.advance(len(answered), 0)
    return traces


def _check_probes(
    questions: Sequence[Question], traces: Sequence[RawTrace], plan: ProbePlan
) -> None:
    """Hold the engine to its contract before anything is written."""
    for question, trace in zip(questions, traces, strict=True):
        budgets = tuple(p.budget for p in trace.probes)
        if budgets != plan.budgets:
            raise EngineError(
                f"the engine must probe at budgets {list(plan.budgets)}, got {list(budgets)} "
                f"for question {question.id!r}"
            )
        for probe in trace.probes:
            for name in ("mean_logprob", "mean_entropy"):
                value = getattr(probe, name)
                if not math.isfinite(value):
                    raise EngineError(
                        f"{name} must be finite, got {value!r} for question {question.id!r} "
                        f"at budget {probe.budget}"
                    )
            if plan.on_stop == "answer" and not probe.ended and probe.visible_text is None:
                raise EngineError(
                    f"the engine must write a visible answer at budget {probe.budget} for "
                    f"--on-stop answer, got none for question {question.id!r}"
                )


def _decoded_tokens(traces: Sequence[RawTrace]) -> int:
    return sum(
        t.trace_tokens + t.natural_tokens + sum(p.probe_tokens + p.visible_tokens for p in t.probes)
        for t in traces
    )


def _halve(batch_size: int, error: OutOfMemory, progress: Progress) -> int:
    if batch_size == 1:
        raise error
    smaller = batch_size // 2
    progress.remark(f"out of memory with {batch_size} questions at once; going on with {smaller}")
    return smaller


# --- Collecting -----------------------------------------------------------------------------------


def collect(
    engine: Engine,
    workload: Workload,
    plan: ProbePlan,
    run: RunDirectory,
    *,
    batch_size: int,
    grader: Grades,
    template: str | None = None,
    limit: int | None = None,
    samples: int = 1,
    shrink: bool = True,
    progress: Progress | None = None,
) -> Collected:
    """Probe what the run does not hold yet; the caller holds the run's lock.

    Batch k of a sample is questions [k·b, (k+1)·b) of the workload.  One of which some members
    are done is asked again whole, and only the missing lines are appended.  An interrupt keeps
    every batch that was finished.

    Parameters
    ----------
    plan
        With the frozen budgets, as in the run's manifest.
    limit
        Probe the first so many questions; None for all.
    samples
        Traces per question.
    shrink
        Halve the batch when the engine runs out of memory, instead of giving up.

    Raises
    ------
    ProbeError
        The run holds probes of another workload, or was graded by other rules.
    EngineError
        The engine failed or broke its contract.
    OutputError
        The probes cannot be written.
    """
    started = time.monotonic()
    progress = progress or Quiet()
    questions = workload.questions[:limit]
    if note := run.repair():
        progress.remark(note)
    done = _finished(run, workload, progress)
    wanted = {(q.id, sample) for sample in range(samples) for q in questions}
    already = len(wanted & done)
    if done and already < len(wanted) and run.manifest["grading"] != GRADING:
        raise ProbeError(
            f"{run.path} was graded with {_versions(run.manifest['grading'])}, this installation "
            f"grades with {_versions(GRADING)}: use --regrade to grade all its answers alike"
        )
    if not done:
        run.annotate(grading=GRADING)
    run.annotate(workload=describe_workload(workload), batch_size=batch_size)
    progress.begin("probing", len(wanted), already)
    for sample in range(samples):
        start = 0  # always a multiple of batch_size
        while start < len(questions):
            members = questions[start : start + batch_size]
            if all((q.id, sample) in done for q in members):
                start += batch_size
                continue
            try:
                prompts = make_prompts(members, template, sample)
                traces = _probe(engine, prompts, plan, progress)
            except OutOfMemory as error:
                if not shrink:
                    raise
                batch_size = _halve(batch_size, error, progress)
                run.annotate(batch_size=batch_size)
                start -= start % batch_size
                continue
            _check_probes(members, traces, plan)
            graded = grade_traces(members, traces, grader, entropy=plan.entropy, sample=sample)
            fresh = [record for record in graded if (record.id, sample) not in done]
            run.append(fresh)
            done.update((record.id, sample) for record in fresh)
            progress.advance(len(fresh), 0)
            start += batch_size
    return Collected(
        n_traces=len(wanted),
        n_new=len(wanted) - already,
        seconds=time.monotonic() - started,
        batch_size=batch_size,
    )


def _finished(run: RunDirectory, workload: Workload, progress: Progress) -> set[tuple[str, int]]:
    """What the run holds already, after checking that it is about these questions."""
    records = run.records()
    asked = {q.id: q for q in workload.questions}
    strangers = relabelled = 0
    for record in records:
        question = asked.get(record.id)
        if question is None:
            strangers += 1
        elif question.key != record.key:
            raise ProbeError(
                f"{run.path} holds another question under the id {record.id!r} than "
                f"{workload.path}: ids must keep their questions; choose another --out"
            )
        else:
            relabelled += question.gold != record.gold
    if records and strangers == len(records):
        raise ProbeError(
            f"{run.path} holds probes of another workload, it has no question in common with "
            f"{workload.path}; choose another --out"
        )
    if strangers:
        progress.remark(f"{strangers} probed questions are not in {workload.path}; they are kept")
    if relabelled:
        progress.remark(
            f"gold of {relabelled} probed questions has changed since; the run keeps the old "
            "labels until it is graded again (--regrade)"
        )
    return {(r.id, r.sample) for r in records}


def _versions(grading: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(grading.items()))
