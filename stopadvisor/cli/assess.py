"""`stopadvisor assess`: whether to stop early, with which rule, and what it saves.

Probes a workload where needed, assesses, writes ``assessment.json`` and prints it.  Under the
deploy protocol nothing of a calibration question is shown; the paper's protocol shows them, so
that for a run it needs a look in the log.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click

from stopadvisor.assessment.assess import FitAssessment, assess
from stopadvisor.assessment.choice import Settings
from stopadvisor.assessment.measured import LoadSaving, remark_on_serving, savings_by_load
from stopadvisor.assessment.remarks import remarks_on_promise, remarks_on_sample
from stopadvisor.assessment.settings import SettingsOverrides
from stopadvisor.certification.looks import open_for_paper, show_fit
from stopadvisor.cli.parts.config import CONFIG, effective_config
from stopadvisor.cli.parts.declare import PATH, VERBOSE, is_given, option, show, take
from stopadvisor.cli.parts.help_page import Command
from stopadvisor.cli.parts.ladder import RECORDED_LADDER, check_recording, recorded
from stopadvisor.cli.parts.model import EngineSettings, open_engine
from stopadvisor.cli.parts.pricing import PRICING, price_request
from stopadvisor.cli.parts.probing import probe_options, take_probing
from stopadvisor.cli.parts.progress import progress_on
from stopadvisor.cli.parts.settings import GUARANTEES, overrides, setting_options
from stopadvisor.collection.grader_check import remarks_on_grader
from stopadvisor.collection.labels import check_graded_by, regrade_run
from stopadvisor.collection.probe_settings import ProbeSettings
from stopadvisor.collection.probing import probe
from stopadvisor.ground.errors import CalibrationError, StopAdvisorError, WorkloadError
from stopadvisor.ground.progress import Progress
from stopadvisor.paper.assess import PaperAssessment, assess_paper
from stopadvisor.report.assessed import Assessed
from stopadvisor.report.from_assessment import assessed
from stopadvisor.report.saved import save_assessment
from stopadvisor.report.sheets.assess import PAPER_FLAW, assess_sheet
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.prices import (
    PriceRequest,
    computed_weights,
    default_settings,
    is_served,
    keep_model_files,
    measured_regime,
)
from stopadvisor.runs.server_regime import read_regime
from stopadvisor.runs.sources import REPORT, Source, open_source
from stopadvisor.runs.storage import lock_directory, replace_file

__all__ = ["AssessmentRequest", "assess_target", "command"]

_ANALYSIS = option("Analysis")


@click.command(
    "assess",
    cls=Command,
    reads="WORKLOAD: JSONL with `question`, a question a line; `gold` where there is any. "
    "Or a run directory, or a published raw.npz archive.",
    writes="assessment.json, stopadvisor.toml (the options used) and, with the extra `report`, "
    "report.html, into the run directory: --out, else one under runs/ named for workload, model "
    "and settings.",
    examples=[
        "stopadvisor assess samples/arithmetic.jsonl --model samples/tiny-reasoner",
        "stopadvisor assess my.jsonl --model Qwen/Qwen3-8B --max-think 8192",
        "stopadvisor assess runs/my-Qwen3-8B-1a2b3c4d --gpu h100",
    ],
    exit_codes=(0, 1, 2, 5, 130),
)
@click.argument("target", metavar="WORKLOAD|RUN|RAW.NPZ", type=PATH)
@_ANALYSIS(
    "--protocol",
    type=click.Choice(["deploy", "paper"]),
    default="deploy",
    help="What to act on, or the published analysis number for number.",
)
@setting_options(asked=("alpha",))
@PRICING
@GUARANTEES
@_ANALYSIS(
    "--open-calibration",
    is_flag=True,
    help="Let --protocol paper show outcomes of calibration questions, recorded as a look.",
)
@_ANALYSIS(
    "--no-report",
    is_flag=True,
    help="Do not write report.html (extra `report`); STOPADVISOR_REPORT=0 says the same.",
)
@RECORDED_LADDER
@probe_options
@VERBOSE
def command(
    target: Path,
    protocol: Literal["deploy", "paper"],
    *,
    ladder: Path | None,
    open_calibration: bool,
    no_report: bool,
    json: bool,
    quiet: bool,
    verbose: bool,
    **params: Any,
) -> int:
    """Advise whether the model may stop thinking early on WORKLOAD, and what that saves.

    Probes what is missing first, with the options of `probe`; a run directory or a published
    raw.npz archive is assessed as it is.  Without --alpha a table says what promises of 1 to 15 %
    would buy.  The advice is provisional: `calibrate` decides.
    """
    given = {f.name for f in (*fields(ProbeSettings), *fields(EngineSettings)) if is_given(f.name)}
    if protocol == "paper" and not is_given("schedule"):
        params["schedule"] = "grid"
    wanted = overrides(params)
    pricing = price_request(params)
    is_paper = protocol == "paper"
    if pricing is not None and (wanted.weights is not None or is_paper):
        raise click.UsageError(
            "--gpu, --in-flight, --tensor-parallel and --model-config compute prices: they exclude "
            "--price and --protocol paper"
        )
    if is_paper and (wanted.loss or wanted.also):
        raise click.UsageError("--protocol paper counts lost answers alone: leave --loss out")
    if open_calibration and not is_paper:
        raise click.UsageError("--open-calibration belongs to --protocol paper")
    if ladder is not None:
        check_recording()
        if is_paper:
            raise click.UsageError("--protocol paper takes probes of one trace: leave --ladder out")
    probing = take_probing(params, target, ladder=ladder is not None)
    engine = take(EngineSettings, params)
    if not _is_workload(target):
        if ladder is not None:
            raise click.UsageError(f"--ladder: {target} is recorded already")
        known = {"seed", "split", "out"} if target.suffix == ".npz" else {"regrade", "grader"}
        if useless := sorted(given - known):
            names = ", ".join("--" + name.replace("_", "-") for name in useless)
            raise click.UsageError(f"{target} is probed already, so these mean nothing: {names}")
    asked = AssessmentRequest(
        probing, engine, wanted, pricing, protocol, open_calibration, ladder=ladder
    )
    with progress_on(sys.stderr, quiet=quiet) as progress:
        source, result = assess_target(asked, progress, given=given)
        config = effective_config(click.get_current_context())
        replace_file(source.folder / CONFIG.name, config.encode())
        report = not no_report and os.environ.get("STOPADVISOR_REPORT") != "0"
        if report:
            progress.remark(_write_report(source.folder))
    show(result, assess_sheet(result, verbose=verbose), json=json)
    return 0


@dataclass(frozen=True)
class AssessmentRequest:
    """What to assess, and how."""

    probing: ProbeSettings
    """Its workload may also be a run or an archive, which is assessed as it is."""
    engine: EngineSettings
    """Asked where probes are missing."""
    wanted: SettingsOverrides
    pricing: PriceRequest | None = None
    """Compute prices for this machine and model; None for what `default_settings` finds."""
    protocol: Literal["deploy", "paper"] = "deploy"
    open_calibration: bool = False
    """Let the paper's protocol show outcomes of calibration questions."""
    ladder: Path | None = None
    """``ladder.toml``: its rungs are asked, and not `engine`; None to probe one trace."""


def assess_target(
    request: AssessmentRequest, progress: Progress, *, given: Collection[str] = ()
) -> tuple[Source, Assessed]:
    """Probe what is missing, assess, and write the assessment into the run.

    `given` names the fields of probing that the caller set, for an archive that has a split.
    """
    probing, wanted, is_paper = request.probing, request.wanted, request.protocol == "paper"
    target = probing.workload
    if not target.exists():
        raise WorkloadError(
            f"{target}: no such file or directory; expected a JSONL workload, a run directory "
            "or a raw.npz archive"
        )
    is_workload = _is_workload(target)
    if is_workload:
        engine = replace(request.engine, remark=progress.remark)
        source = _probed(probing, engine, request.ladder, progress)
    else:
        source = _opened(probing, given, progress)
    server = None if source.is_archive else read_regime(source.folder)
    if is_paper:
        source.require_one_trace("the paper's protocol")
        settings = wanted.settings(defaults=measured_regime(source))
    else:
        settings = _settings(wanted, source, request.pricing)
    with lock_directory(source.folder):
        show_fit(source, "assess")
    assessment: FitAssessment | PaperAssessment
    loads: Sequence[LoadSaving] = ()
    if is_paper:
        open_for_paper(source, settings, allowed=request.open_calibration)
        assessment = assess_paper(
            source, alpha=settings.alpha, delta=settings.delta, serving=settings.serving
        )
    else:
        assessment = assess(source, settings, propose=wanted.alpha is None)
        if settings.weights.gpu is not None:
            loads = savings_by_load(
                assessment.choice, computed_weights(request.pricing, source)[1:]
            )
    of_sample, of_promise = remarks_on_sample(assessment), remarks_on_promise(assessment)
    if not source.is_archive:
        of_sample += remarks_on_grader(RunDirectory.load(source.folder))
    if is_served(source):
        of_promise.append(remark_on_serving(server, settings))
    flaws = [PAPER_FLAW] if is_paper else []  # on the screen in any case
    result = assessed(assessment, [*flaws, *of_sample, *of_promise], server, loads=loads)
    save_assessment(assessment, result)
    # Probing has reported its own on the sample just now.
    for remark in of_promise if is_workload else of_sample + of_promise:
        progress.remark(f"note: {remark}")
    return source, result


def _is_workload(target: Path) -> bool:
    return not target.is_dir() and target.suffix != ".npz"


def _settings(wanted: SettingsOverrides, source: Source, pricing: PriceRequest | None) -> Settings:
    """Settings as asked for; differing replies are the only loss that takes no gold."""
    if source.ladder is not None and (wanted.weights is not None or pricing is not None):
        raise CalibrationError(f"{source.folder}: the prices of its rungs stand in ladder.toml")
    defaults = default_settings(source)
    if pricing is not None:
        defaults |= {"serving": "vllm", "weights": computed_weights(pricing, source)[0]}
    settings = wanted.settings(defaults=defaults)
    needy = [limit for limit in settings.guarantees if limit.counted.needs_gold]
    if needy and source.graded_by == "agreement":
        raise CalibrationError(
            f"{source.folder}: a limit on {needy[0].loss} takes gold to assess, and the questions "
            "have none: leave --loss out, and `stopadvisor label` asks for the gold that matters"
        )
    return settings


def _probed(
    probing: ProbeSettings, engine: EngineSettings, ladder: Path | None, progress: Progress
) -> Source:
    """Probe a workload, or ask all rungs, as far as that is not done."""
    if ladder is not None:
        return open_source(recorded(probing, engine, ladder, progress, whole=True).run)
    run = probe(probing, partial(open_engine, engine), progress, whole=True).run
    keep_model_files(engine.model, run)
    return open_source(run)


def _opened(probing: ProbeSettings, given: Collection[str], progress: Progress) -> Source:
    """Open a run, graded again if asked for, or an archive, which keeps its split otherwise."""
    target = probing.workload
    if probing.regrade:
        regrade_run(target, progress, probing.grader)
    elif probing.grader is not None and target.is_dir():
        check_graded_by(target, probing.grader)
    seed = probing.seed if "seed" in given else None
    split = probing.split if "split" in given else None
    return open_source(target, seed=seed, fractions=split, folder=probing.out)


def _write_report(folder: Path) -> str:
    """Write the page with pictures, and say where; the assessment stands without it."""
    from stopadvisor.report.html.page import missing_packages, write_report

    if missing_packages():
        return "note: pip install 'stopadvisor[report]' for report.html"
    try:
        return f"wrote {write_report(folder).report}"
    except StopAdvisorError as error:
        old = folder / REPORT
        return f"note: no report.html: {error}" + (f"; {old} is from before" * old.exists())
