"""Recorded probes as a run directory: a run like any other, about no model unless one is named.

Knows the files, and nothing of the lines that the probes were read from.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stopadvisor._version import __version__
from stopadvisor.probes.plan import ProbePlan, plan_cue
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.manifest import build_manifest
from stopadvisor.runs.recording import Recording
from stopadvisor.runs.storage import check_free, make_folder
from stopadvisor.workload.questions import Question, Workload

__all__ = ["IMPORTED", "write_recording"]

IMPORTED = "imported"
"""Name of the engine in the manifest of such a run."""


def write_recording(
    out: Path,
    recording: Recording,
    *,
    cap: int | None,
    model: str | None,
    seed: int,
    fractions: Sequence[float],
) -> RunDirectory:
    """Write recorded probes as a run directory.

    Parameters
    ----------
    out : Path
        A folder that does not exist yet.
    cap : int, optional
        The cap on thinking under which they were recorded; the longest trace where it is None.
    model : str, optional
        What a policy made of them is bound to; None for no model.
    seed, fractions
        Of the split.

    Raises
    ------
    OutputError
        The folder exists already or cannot be written.
    """
    check_free(out)
    probes = [c for record in recording.records for c in record.checkpoints]
    in_open = bool(probes) and all(c.closed_by_itself is not None for c in probes)
    plan = ProbePlan(
        recording.budgets,
        cue=plan_cue("", is_open=in_open),  # its words were not recorded
        max_think=max(cap or recording.longest, 1),
        entropy=recording.entropy_source,
        seed=seed,
    )
    questions = {
        r.key: Question(r.id, r.key, (), r.gold or None, r.task, r.category, r.group)
        for r in recording.records
    }
    manifest = build_manifest(
        {"engine": IMPORTED, "engine_version": __version__, "model": model},
        plan,
        Workload(recording.path, tuple(questions.values()), recording.sha256, {}),
        fractions=fractions,
        grading=recording.grading,
    )
    make_folder(out)
    run = RunDirectory.create(out, manifest)
    run.append(recording.records)
    return run
