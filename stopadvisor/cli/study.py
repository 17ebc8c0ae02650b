"""`stopadvisor study`: the paper's studies on finished runs, as tables, JSON and CSV."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from stopadvisor.assessment.settings import asked_alpha
from stopadvisor.certification.looks import open_calibration as open_calibration_part
from stopadvisor.certification.looks import show_fit
from stopadvisor.cli.parts.command import Command
from stopadvisor.cli.parts.declare import OUTPUT, PATH, SHARE, Parsed, declare, show
from stopadvisor.cli.parts.settings import DELTA, setting_options
from stopadvisor.ground.constants import (
    DEFAULT_ALPHA,
    PAPER_BOOTSTRAP_RESAMPLES,
    PAPER_BOOTSTRAP_SEED,
)
from stopadvisor.ground.errors import StopAdvisorError, StudyError
from stopadvisor.ground.progress import Progress, tracked
from stopadvisor.report.progress import progress_on
from stopadvisor.report.sheets.study import skipped_sheet, study_list_sheet, study_sheet
from stopadvisor.runs.sources import Source, newest_source, open_source, read_assessment
from stopadvisor.runs.storage import lock_directory
from stopadvisor.studies.registry import ALONE, STUDIES, StudyList, check_request, run_study
from stopadvisor.studies.tables import (
    SkippedStudy,
    StudyOptions,
    StudyReport,
    StudyReports,
    require_gold,
    write_study,
)

__all__ = ["command"]

ALL, LIST = "all", "list"
_RESAMPLES, _FEWEST_RESAMPLES = "resamples", 100


def _extra(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ValueError("expected an option such as paper=1")
    if key == _RESAMPLES and not (value.isdecimal() and int(value) >= _FEWEST_RESAMPLES):
        raise ValueError(f"expected {_RESAMPLES}=N with N >= {_FEWEST_RESAMPLES}")
    return key, value


@click.command(
    "study",
    cls=Command,
    reads="Run directories and raw.npz archives; never a model.",
    writes="studies/NAME.json and its tables as CSV, in the first run's directory.",
    examples=[
        "stopadvisor study list",
        "stopadvisor study frontier runs/my-Qwen3-8B-1a2b3c4d",
        "stopadvisor study all raw.npz",
    ],
    exit_codes=(0, 1, 2, 130),
)
@click.argument("name", metavar="NAME", type=click.Choice([*STUDIES, ALL, LIST]))
@click.argument("runs", metavar="[RUN|RAW.NPZ]...", nargs=-1, type=PATH)
@click.option(
    "--alpha",
    type=SHARE,
    show_default=f"{DEFAULT_ALPHA}; for rivals as the run was assessed",
    help="Risk to certify.",
)
@DELTA
@setting_options(["serving"], otherwise=StudyOptions.serving)
@click.option("--seed", type=int, default=PAPER_BOOTSTRAP_SEED, help="Seed of the resamples.")
@click.option(
    "--set",
    "extra",
    multiple=True,
    type=Parsed("name=value", _extra),
    help="An option of a study, as `study list` names it; all take resamples=N.  [repeatable]",
)
@click.option(
    "--open-calibration",
    is_flag=True,
    help="Let studies show outcomes of calibration questions, recorded as a look.",
)
@declare(*OUTPUT)
def command(
    name: str,
    runs: tuple[Path, ...],
    extra: Sequence[tuple[str, str]],
    *,
    open_calibration: bool,
    json: bool,
    quiet: bool,
    **params: Any,
) -> int:
    """Repeat one of the paper's studies, or compare simple rules (`rivals`), on finished runs.

    NAME is a study, `all` for those that the runs allow (`rivals`, which takes minutes, is left
    out), or `list` for their names.  Without a RUN the one assessed last under runs/ is taken.
    Tables go to the screen, and as JSON and CSV into studies/ of the first run.

    Until `calibrate` has opened the calibration questions of a run, its studies read only fit
    questions and say so.
    """
    if name == LIST:
        listed = StudyList(tuple(STUDIES.values()))
        show(listed, study_list_sheet(listed), json=json)
        return 0
    study_options = dict(extra)
    resamples = int(study_options.pop(_RESAMPLES, PAPER_BOOTSTRAP_RESAMPLES))
    if name != ALL:
        check_request(name, max(1, len(runs)), study_options)  # before a look is spent on it
    with progress_on(sys.stderr, quiet=quiet) as progress:
        delta = params["delta"]
        sources = _sources(runs, name, progress, opening=open_calibration, delta=delta)
        if name == "rivals":  # the others repeat the paper's settings
            params["alpha"] = asked_alpha(params["alpha"], read_assessment(sources[0].folder))
        else:
            params["alpha"] = params["alpha"] or DEFAULT_ALPHA
        params["serving"] = params["serving"] or StudyOptions.serving
        options = StudyOptions(**params, resamples=resamples, extra=study_options)
        if name == ALL:
            reports, broken = _all(sources, options, progress)
        else:
            report = run_study(name, sources, options)
            write_study(report, sources[0].folder)
    if name != ALL:
        show(report, study_sheet(report), json=json)
        return 0
    if not json:
        for report in reports.studies:
            show(report, study_sheet(report), json=False)
            click.echo()
    if json or reports.skipped:
        show(reports, skipped_sheet(reports.skipped), json=json)
    return 1 if broken else 0


def _sources(
    runs: Sequence[Path], name: str, progress: Progress, *, opening: bool, delta: float
) -> list[Source]:
    """Open the runs, with their calibration questions if `opening`."""
    sources = [open_source(path) for path in runs]
    for source in sources:
        source.require_one_trace("a study")
    if not sources:
        sources = [newest_source()]
        progress.remark(f"studying {sources[0].folder}")
    for source in sources:
        with lock_directory(source.folder):
            show_fit(source, "study")
        # A study shows all of an archive; the recorded look charges later certificates for it.
        if opening or source.is_archive:
            if name != ALONE:  # the others refuse what the paper's reference does not fit
                source.table.with_reference("last-checkpoint")
                if name != "temperature":  # which counts by agreement, too
                    require_gold(source.folder.name, source.table)
            open_calibration_part(source, {"study": name}, delta=delta)
    return sources


def _all(
    sources: Sequence[Source], options: StudyOptions, progress: Progress
) -> tuple[StudyReports, bool]:
    """Run every study that accepts the runs; also return whether one failed by a bug."""
    known = {key for line in STUDIES.values() for key in line.options}
    if unknown := sorted(set(options.extra) - known):
        raise StudyError(f"no study has an option {unknown[0]!r}; see `stopadvisor study list`")
    reports: dict[str, StudyReport] = {}
    reasons: dict[str, str] = {}
    broken = False
    for name in tracked("studies", [name for name in STUDIES if name != ALONE]):
        study_options = {k: v for k, v in options.extra.items() if k in STUDIES[name].options}
        try:
            reports[name] = run_study(name, sources, replace(options, extra=study_options))
        except StopAdvisorError as error:
            reasons[name] = str(error)
        except Exception as error:  # noqa: BLE001  the other studies still run
            broken = True
            reasons[name] = f"internal error: {type(error).__name__}: {error}"
            progress.remark(f"study {name}: {reasons[name]}")
        else:
            write_study(reports[name], sources[0].folder)
    if not reports and not broken:
        first, reason = next(iter(reasons.items()))
        raise StudyError(f"these runs allow no study; {first}: {reason}")
    skipped = tuple(SkippedStudy(name, reason) for name, reason in reasons.items())
    return StudyReports(tuple(reports.values()), skipped), broken
