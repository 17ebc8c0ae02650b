"""What tests of studies share: sources, results that are computed once, and reading tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from stopadvisor.answers.grading import GRADING, Grader
from stopadvisor.collection.collect import collect
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.manifest import build_manifest
from stopadvisor.runs.sources import Source
from stopadvisor.studies.registry import run_study
from stopadvisor.studies.tables import Cell, StudyOptions, StudyReport
from stopadvisor.workload.questions import read_workload
from tests.material import PLAN
from tests.scripted import ScriptedEngine, write_sums

NAMES = ["mixed", "early"]
QUICK = StudyOptions(resamples=400)


Archive = Callable[[str], Source]
"""The paper's archive of this name."""
Sums = Callable[[int], Source]
"""A run of N sums, which no test may change or open."""
Study = Callable[[Sequence[Source], StudyOptions], StudyReport]
_RESULTS: dict[tuple[Study, tuple[Path, ...], str], StudyReport] = {}


@cache
def study(name: str) -> Study:
    """A study by its name, as the command runs it."""
    return partial(run_study, name)


def studied(study: Study, sources: Sequence[Source], options: StudyOptions) -> StudyReport:
    """What a study says of sources that no test changes; asked again, it is not computed again."""
    key = (study, tuple(source.folder for source in sources), repr(options))
    if key not in _RESULTS:
        _RESULTS[key] = study(sources, options)
    return _RESULTS[key]


def rows_of(result: StudyReport, name: str) -> list[dict[str, Cell]]:
    """Rows of a table, by column."""
    table = next(table for table in result.tables if table.name == name)
    names = [column.name for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def row_of(result: StudyReport, name: str, **where: Any) -> dict[str, Any]:
    """The one row of a table with these cells."""
    found = [r for r in rows_of(result, name) if all(r[k] == v for k, v in where.items())]
    assert len(found) == 1, found
    return found[0]


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
        collect(engine, workload, run, batch_size=64, grader=grader, samples=samples)
    return path
