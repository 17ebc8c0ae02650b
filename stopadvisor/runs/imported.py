"""Write what was imported: logs and data sets as workloads, recorded probes as run directories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stopadvisor._version import __version__
from stopadvisor.ground.errors import OutputError
from stopadvisor.probes.asking import ProbePlan, plan_cue
from stopadvisor.probes.records import ProbeRecord
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.ladder import Ladder
from stopadvisor.runs.manifest import build_manifest
from stopadvisor.runs.recording import Recorded, Recording
from stopadvisor.runs.replies import ReplyRecord, RungReplies, replies_by_rung
from stopadvisor.runs.storage import json_lines, make_folder, replace_file
from stopadvisor.workload.converters import BENCHMARKS, Converted
from stopadvisor.workload.logged import Gathered
from stopadvisor.workload.questions import Question, Workload, read_workload

__all__ = [
    "IMPORTED", "ImportedDataset", "ImportedLog", "ImportedProbes", "ImportedReplies",
    "ImportedRun", "write_dataset", "write_log", "write_recording", "write_replies",
]  # fmt: skip

IMPORTED = "imported"
"""Name of the engine in the manifest of an imported run."""


@dataclass(frozen=True)
class ImportedLog:
    """`import --json` of a log."""

    out: Path
    """The workload."""
    format: str
    """Name of the format on the command line."""
    sources: tuple[Path, ...]
    """The files that were read."""
    n_questions: int
    """Different questions."""
    n_gold: int
    """Questions with gold."""
    tasks: Mapping[str, int]
    """Number of questions of each task."""
    n_traces: int
    """Recorded traces with their thinking."""
    n_cut: int
    """Traces cut while thinking, so without a reply."""
    n_without_thinking: int
    """Replies without their thinking."""
    n_untraced: int
    """Questions without a recorded trace."""
    n_left_out: int
    """Replies, questions or golds of the log that were left out."""


@dataclass(frozen=True)
class ImportedDataset:
    """`import dataset --json`."""

    benchmark: str
    """Its name."""
    source: str
    """Repository on the hub, or the copy that was read."""
    config: str | None
    """Configuration of the data set."""
    split: str
    """Split of the data set."""
    task: str
    """Kind of its questions."""
    n_questions: int
    """Questions written."""
    available: int
    """Questions to draw from."""
    left_out: int
    """Rows that cannot be asked."""
    seed: int
    """Seed of the draw."""
    out: Path
    """The workload."""


@dataclass(frozen=True)
class ImportedRun:
    """What was recorded elsewhere, as a run."""

    run: Path
    """The run directory."""
    source: Path
    """The file that was read."""
    n_questions: int
    """Different questions."""
    n_graded: int
    """Answers graded by gold, because no label was recorded."""
    n_ungraded: int
    """Lines with neither labels nor gold."""


@dataclass(frozen=True)
class ImportedProbes(ImportedRun):
    """`import probes --json`."""

    n_traces: int
    """Traces, one a line; a question may have several."""
    n_truncated: int
    """Traces whose thinking was cut."""
    n_probes: int
    """Forced answers."""
    budgets: tuple[int, ...] | None
    """Thinking tokens at each checkpoint; null if each question has its own positions."""
    entropy_source: str
    """`full`, or `none` if neither log-probability nor entropy was recorded."""
    max_think: int
    """Cap on thinking tokens; the longest trace if none was given."""
    suffix_tokens: int
    """Tokens of closer and cue before each forced answer."""
    model: str | None
    """Model that its policies are bound to; null for none."""


@dataclass(frozen=True)
class ImportedReplies(ImportedRun):
    """`import replies --json`."""

    rungs: tuple[RungReplies, ...]
    """In the order of climbing, the reference last."""


def write_dataset(
    name: str, converted: Converted, out: Path, *, copy: Path | None, seed: int
) -> ImportedDataset:
    """Write questions drawn from a benchmark as a workload, and read it back.

    `copy` is the local copy they were drawn from; None for the hub.

    Raises
    ------
    OutputError
        The file cannot be written.
    """
    workload, benchmark = _written(converted.lines, out), BENCHMARKS[name]
    return ImportedDataset(
        benchmark=name,
        source=benchmark.repository if copy is None else str(copy),
        config=benchmark.config,
        split=benchmark.split,
        task=benchmark.task,
        n_questions=len(workload.questions),
        available=converted.available,
        left_out=len(converted.left_out),
        seed=seed,
        out=out,
    )


def write_log(kind: str, sources: Sequence[Path], gathered: Gathered, out: Path) -> ImportedLog:
    """Write the questions of a log as a workload, and read it back; raises as `write_dataset`."""
    workload = _written(gathered.lines, out)
    return ImportedLog(
        out=out,
        format=kind,
        sources=tuple(sources),
        n_questions=len(workload.questions),
        n_gold=gathered.n_gold,
        tasks=dict(Counter(question.task for question in workload.questions)),
        n_traces=gathered.n_traces,
        n_cut=gathered.n_cut,
        n_without_thinking=len(gathered.without_thinking),
        n_untraced=gathered.n_untraced,
        n_left_out=len(gathered.left_out),
    )


def _written(lines: Sequence[Mapping[str, Any]], out: Path) -> Workload:
    replace_file(out, json_lines(lines))
    return read_workload(out)


def write_recording(
    out: Path,
    recording: Recording,
    *,
    cap: int | None,
    suffix_tokens: int,
    model: str | None,
    seed: int,
    fractions: Sequence[float],
) -> ImportedProbes:
    """Write recorded probes as a run directory, in a folder that does not exist yet.

    `cap` is the cap on thinking at recording, None for the longest trace; policies are bound to
    `model`, or to none; `seed` and `fractions` draw the split.

    Raises
    ------
    OutputError
        The folder already exists or cannot be written.
    """
    probes = [c for record in recording.records for c in record.checkpoints]
    in_open = bool(probes) and all(c.closed_by_itself is not None for c in probes)
    plan = ProbePlan(
        recording.budgets,
        cue=plan_cue("", is_open=in_open),  # its words were not recorded
        max_think=max(cap or recording.longest, 1),
        entropy=recording.entropy_source,
        seed=seed,
    )
    return ImportedProbes(
        **_run_of(out, recording, plan, fractions, model=model),
        n_traces=len(recording.records),
        n_truncated=sum(record.finish == "length" for record in recording.records),
        n_probes=len(probes),
        budgets=recording.budgets or None,
        entropy_source=recording.entropy_source,
        max_think=plan.max_think,
        suffix_tokens=suffix_tokens,
        model=model,
    )


def write_replies(
    out: Path,
    recorded: Recorded[ReplyRecord],
    ladder: Ladder,
    *,
    seed: int,
    fractions: Sequence[float],
) -> ImportedReplies:
    """Write recorded replies of a ladder as a run directory; see `write_recording`."""
    longest = max(r.completion_tokens for record in recorded.records for r in record.rungs)
    plan = ProbePlan((), cue="", max_think=max(longest, 1), seed=seed)
    return ImportedReplies(
        **_run_of(out, recorded, plan, fractions, ladder=ladder),
        rungs=replies_by_rung(recorded.records, ladder, graded=True),
    )


def _run_of(
    out: Path,
    recorded: Recorded[ProbeRecord] | Recorded[ReplyRecord],
    plan: ProbePlan,
    fractions: Sequence[float],
    *,
    model: str | None = None,
    ladder: Ladder | None = None,
) -> dict[str, Any]:
    """Write a run; return the fields of an `ImportedRun`."""
    if out.exists():
        raise OutputError(f"{out}: already exists; choose another --out")
    questions = {
        r.key: Question(r.id, r.key, (), r.gold or None, r.task, r.category, r.group)
        for r in recorded.records
    }
    manifest = build_manifest(
        {"engine": IMPORTED, "engine_version": __version__, "model": model},
        plan,
        Workload(recorded.path, tuple(questions.values()), recorded.sha256, {}),
        fractions=fractions,
        grading=recorded.grading,
        ladder=ladder,
    )
    make_folder(out)
    run = RunDirectory.create(out, manifest)
    run.rewrite(recorded.records)  # as a whole: no import goes on in a folder that exists
    return {
        "run": out,
        "source": recorded.path,
        "n_questions": len(questions),
        "n_graded": recorded.n_graded,
        "n_ungraded": recorded.n_ungraded,
    }
