"""Runs over the same sums that differ in cue, temperature or number of samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from stopadvisor.answers.grading import GRADING, Grader
from stopadvisor.collection.collect import collect
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.manifest import build_manifest
from stopadvisor.workload.questions import read_workload
from tests.material import PLAN
from tests.scripted import ScriptedEngine, write_sums


def probe(
    path: Path, n: int = 200, *, samples: int = 1, faults: frozenset[str] = frozenset(), **plan: Any
) -> Path:
    """A run of `n` sums; `plan` are fields of the probing plan that differ from the usual one."""
    path.mkdir(parents=True)
    workload = read_workload(write_sums(path.parent / f"{path.name}-sums.jsonl", n))
    engine, asked = ScriptedEngine(faults=faults), replace(PLAN, **plan)
    manifest = build_manifest(
        engine.identity(), asked, workload, fractions=(0.4, 0.4, 0.2), grading=GRADING
    )
    run = RunDirectory.create(path, manifest)
    with Grader() as grader:
        collect(engine, workload, asked, run, batch_size=64, grader=grader, samples=samples)
    return path
