"""`stopadvisor study`: the paper's constructions over finished runs, as tables, JSON and CSV.

Opens runs and archives, hands them to studies and writes what they found.  Knows no study;
`studies.registry` does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import click

from stopadvisor.certification.looks import open_calibration, show_fit
from stopadvisor.cli.options import COUNT, OUTPUT, PATH, OutputOptions, Parsed, declare, emit, take
from stopadvisor.cli.page import Command
from stopadvisor.cli.progress import progress_on, time_left
from stopadvisor.cli.settings import ALPHA, DELTA, setting_options
from stopadvisor.constants import PAPER_BOOTSTRAP_RESAMPLES, PAPER_BOOTSTRAP_SEED
from stopadvisor.errors import StopAdvisorError, StudyError
from stopadvisor.report.documents.study import (
    SkippedStudy,
    StudyAllDocument,
    StudyDocument,
    study_all_document,
    study_document,
    study_list_document,
)
from stopadvisor.report.text.study import show_list, show_skipped, show_study
from stopadvisor.runs.sources import Source, newest_source, open_source
from stopadvisor.runs.storage import lock_directory
from stopadvisor.studies.batch import own_options, run_studies, together
from stopadvisor.studies.registry import STUDIES, run_study
from stopadvisor.studies.study import StudyOptions, StudyResult
from stopadvisor.studies.write import write_csv, write_study

__all__ = ["StudyCommandOptions", "command", "run"]

ALL, LIST = "all", "list"


@dataclass(frozen=True)
class StudyCommandOptions:
    """Which study of which runs, and where its tables go."""

    name: str
    """A study, ``all`` or ``list``."""
    runs: tuple[Path, ...] = ()
    """Run directories and archives; empty for the run assessed last."""
    study: StudyOptions = field(default_factory=StudyOptions)
    open_calibration: bool = False
    csv: Path | None = None
    jobs: int | None = None
    """Processes for ``all``; None for one a core."""
    output: OutputOptions = field(default_factory=OutputOptions)


def _extra(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ValueError("expected an option such as paper=1")
    return key, value


@click.command(
    "study",
    cls=Command,
    reads="Run directories and raw.npz archives; never a model.",
    writes="studies/NAME.json and its tables as CSV, in the first run's directory.",
    examples=[
        "stopadvisor study list",
        "stopadvisor study frontier runs/my-Qwen3-8B-1a2b3c4d",
        "stopadvisor study all raw.npz --jobs 4",
    ],
    exit_codes=(0, 1, 2, 130),
)
@click.argument("name", metavar="NAME", type=click.Choice([*STUDIES, ALL, LIST]))
@click.argument("runs", metavar="[RUN|RAW.NPZ]...", nargs=-1, type=PATH)
@declare(ALPHA, DELTA)
@setting_options(["serving"])
@click.option(
    "--resamples",
    type=click.IntRange(min=100),
    default=PAPER_BOOTSTRAP_RESAMPLES,
    help="Bootstrap resamples of the questions.",
)
@click.option("--seed", type=int, default=PAPER_BOOTSTRAP_SEED, help="Seed of the resamples.")
@click.option(
    "--set",
    "extra",
    multiple=True,
    type=Parsed("name=value", _extra),
    help="An option of one study, as `study list` names it.  [repeatable]",
)
@click.option(
    "--open-calibration",
    is_flag=True,
    help="Let studies show outcomes of calibration questions, recorded as a look.",
)
@click.option(
    "--csv", type=click.Path(path_type=Path, file_okay=False), help="Write the tables here too."
)
@click.option("--jobs", type=COUNT, show_default="one a core", help="Processes for `all`.")
@declare(*OUTPUT)
def command(name: str, runs: tuple[Path, ...], extra: Sequence[Any], **params: Any) -> int:
    """Repeat one of the paper's studies, or compare simple rules (`rivals`), on finished runs.

    NAME is a study, `all` for those that the runs allow (`rivals`, which takes minutes, is left
    out), or `list` for their names.  Without a RUN the one assessed last under runs/ is taken.
    Tables go to the screen, and as JSON and CSV into studies/ of the first run.

    Until `calibrate` has opened the calibration questions of a run, its studies read fit questions
    alone and say so.
    """
    output = take(OutputOptions, params)
    names = ("alpha", "delta", "serving", "resamples", "seed")
    study = StudyOptions(**{key: params.pop(key) for key in names}, extra=dict(extra))
    return run(
        StudyCommandOptions(name, runs, study, output=output, **params), sys.stdout, sys.stderr
    )


def run(options: StudyCommandOptions, out: TextIO, err: TextIO) -> int:
    """Run one study or all, write and print what was found."""
    output = options.output
    if options.name == LIST:
        listed = study_list_document(STUDIES)
        emit(listed, output, out, lambda document, out: show_list(document["studies"], out))
        return 0
    sources = _sources(options, err)
    if options.name != ALL:
        result = run_study(options.name, sources, options.study)
        emit(_written(result, sources, options), output, out, show_study)
        return 0
    documents, skipped, broken = _all(options, sources, err)
    ordered = [documents[name] for name in STUDIES if name in documents]
    emit(study_all_document(ordered, skipped), output, out, _show_all)
    return 1 if broken else 0


def _show_all(document: StudyAllDocument, out: TextIO) -> None:
    for study in document["studies"]:
        show_study(study, out)
        print(file=out)
    show_skipped(document["skipped"], out)


def _sources(options: StudyCommandOptions, err: TextIO) -> list[Source]:
    """Open the runs, and their calibration questions where that is asked for."""
    sources = [open_source(path) for path in options.runs]
    if not sources:
        sources = [newest_source()]
        with progress_on(err, quiet=options.output.quiet) as progress:
            progress.remark(f"studying {sources[0].folder}")
    for source in sources:
        with lock_directory(source.folder):
            show_fit(source, "study")
        # Studies show all of an archive; a certificate that comes later pays for it.
        if options.open_calibration or source.is_archive:
            open_calibration(source, {"study": options.name}, delta=options.study.delta)
    return sources


def _written(
    result: StudyResult, sources: Sequence[Source], options: StudyCommandOptions
) -> StudyDocument:
    if options.csv is not None:
        write_csv(result, options.csv)
    document = study_document(result, sources, own_options(result.study, options.study))
    write_study(result, document, sources[0].folder)
    return document


# --- All of them ----------------------------------------------------------------------------------


def _all(
    options: StudyCommandOptions, sources: Sequence[Source], err: TextIO
) -> tuple[dict[str, StudyDocument], list[SkippedStudy], bool]:
    """Run every study; what a study refuses is skipped with its reason."""
    known = {key for entry in STUDIES.values() for key in entry.options}
    if strange := sorted(set(options.study.extra) - known):
        raise StudyError(f"no study has an option {strange[0]!r}; see `stopadvisor study list`")
    documents: dict[str, StudyDocument] = {}
    reasons: dict[str, str] = {}
    broken, n_studies = False, len(together())
    began = time.monotonic()
    with progress_on(err, quiet=options.output.quiet) as progress:
        for done, (name, found) in enumerate(
            run_studies(sources, options.study, options.jobs), start=1
        ):
            state = "done"
            if isinstance(found, StudyResult):
                documents[name] = _written(found, sources, options)
            else:
                state = "skipped"
                reasons[name] = str(found)
                if not isinstance(found, StopAdvisorError):
                    broken, state = True, "failed"
                    reasons[name] = f"internal error: {type(found).__name__}: {found}"
            left = n_studies - done
            line = f"study {name}: {state} ({done}/{n_studies}"
            if left:
                line += f", about {time_left((time.monotonic() - began) / done * left)} left"
            progress.remark(line + ")")
    if not documents and not broken:
        first = next(name for name in STUDIES if name in reasons)
        raise StudyError(f"these runs allow no study; {first}: {reasons[first]}")
    skipped: list[SkippedStudy] = [
        {"study": name, "reason": reasons[name]} for name in STUDIES if name in reasons
    ]
    return documents, skipped, broken
