"""`stopadvisor assess`: whether to stop early, with which rule, and what it saves.

Probes a workload where needed, assesses, writes ``assessment.json`` and prints it.  Under the
deploy protocol nothing of a calibration question is shown; the paper's protocol shows them, so
that for a run it needs a look in the log.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TextIO

import click

from stopadvisor.assessment.assess import FitAssessment, assess
from stopadvisor.assessment.choice import Settings
from stopadvisor.assessment.measured import measured_settings, remark_on_serving, savings_by_load
from stopadvisor.assessment.remarks import remarks_on_promise, remarks_on_sample
from stopadvisor.assessment.settings import SettingsOverrides
from stopadvisor.certification.looks import open_for_paper, show_fit
from stopadvisor.cli.parts.config import CONFIG, effective_config
from stopadvisor.cli.parts.declare import PATH, VERBOSE, is_given, option, show
from stopadvisor.cli.parts.help_page import Command
from stopadvisor.cli.parts.model import ModelOptions, open_engine
from stopadvisor.cli.parts.pricing import (
    PRICING,
    PricingOptions,
    computed_weights,
    keep_profile,
    measured_weights,
    pricing_options,
)
from stopadvisor.cli.parts.probing import ProbeOptions, probe_options
from stopadvisor.cli.parts.progress import progress_on
from stopadvisor.cli.parts.settings import GUARANTEES, overrides, setting_options
from stopadvisor.collection.grader_check import remarks_on_grader
from stopadvisor.collection.labels import check_graded_by, regrade_run
from stopadvisor.collection.probe_settings import ProbeSettings
from stopadvisor.collection.probing import probe
from stopadvisor.errors import CalibrationError, StopAdvisorError, WorkloadError
from stopadvisor.paper.assess import PaperAssessment, assess_paper
from stopadvisor.progress import Progress
from stopadvisor.report.from_assessment import assessed
from stopadvisor.report.saved import save_assessment
from stopadvisor.report.sheets.assess import PAPER_FLAW, assess_sheet
from stopadvisor.rules.costs import Weights
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.server_regime import read_regime
from stopadvisor.runs.sources import REPORT, Source, open_source
from stopadvisor.runs.storage import lock_directory, replace_file

__all__ = ["AssessOptions", "command", "run"]

_ANALYSIS = option("Analysis")


@dataclass(frozen=True)
class AssessOptions:
    """What to assess, and for which promise."""

    probing: ProbeOptions
    """What is assessed (its `workload`), and how to probe it if it is a workload."""
    wanted: SettingsOverrides = field(default_factory=SettingsOverrides)
    protocol: Literal["deploy", "paper"] = "deploy"
    open_calibration: bool = False
    given: frozenset[str] = frozenset()
    """Options of probing that were named; an archive keeps its split and seed otherwise."""
    serving_is_open: bool = False
    """Cost as the server was measured, where it was; else as the settings say."""
    pricing: PricingOptions | None = None
    """For which machine to compute prices; None: they are given, measured, or the paper's."""
    report: bool = True
    """Write ``report.html`` too, where its extra is installed."""

    @property
    def target(self) -> Path:
        """A workload, a run directory or an archive."""
        return self.probing.settings.workload

    @property
    def is_workload(self) -> bool:
        """Whether the target has to be probed."""
        return not self.target.is_dir() and self.target.suffix != ".npz"


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
@setting_options()
@PRICING
@GUARANTEES
@_ANALYSIS(
    "--open-calibration",
    is_flag=True,
    help="Let --protocol paper show outcomes of calibration questions, recorded as a look.",
)
@_ANALYSIS(
    "--report/--no-report",
    default=True,
    envvar="STOPADVISOR_REPORT",
    show_envvar=True,
    help="Write report.html too (extra `report`).",
)
@probe_options
@VERBOSE
def command(target: Path, protocol: str, **params: Any) -> int:
    """Advise whether the model may stop thinking early on WORKLOAD, and what that saves.

    Probes what is missing first, with the options of `probe`; a run directory or a published
    raw.npz archive is assessed as it is.  The advice is provisional: `calibrate` decides.
    """
    given = {f.name for f in (*fields(ProbeSettings), *fields(ModelOptions)) if is_given(f.name)}
    wanted = overrides(params)
    pricing = pricing_options(params)
    if pricing is not None and (wanted.weights is not None or protocol == "paper"):
        raise click.UsageError(
            "--gpu, --in-flight, --tensor-parallel and --model-config compute prices: they exclude "
            "--price, --serving-profile and --protocol paper"
        )
    open_calibration, report = params.pop("open_calibration"), params.pop("report")
    if protocol == "paper" and (wanted.loss or wanted.also):
        raise click.UsageError("--protocol paper counts lost answers alone: leave --loss out")
    if open_calibration and protocol != "paper":
        raise click.UsageError("--open-calibration belongs to --protocol paper")
    options = AssessOptions(
        ProbeOptions.of(params, target),
        wanted,
        "paper" if protocol == "paper" else "deploy",
        open_calibration,
        frozenset(given),
        not is_given("serving"),
        pricing,
        report,
    )
    if not options.is_workload:
        known = {"seed", "split", "out"} if target.suffix == ".npz" else {"regrade", "grader"}
        if useless := sorted(given - known):
            names = ", ".join("--" + name.replace("_", "-") for name in useless)
            raise click.UsageError(f"{target} is probed already, so these mean nothing: {names}")
    return run(options, sys.stderr, effective_config(click.get_current_context()))


def run(options: AssessOptions, err: TextIO, config: str) -> int:
    """Assess, write the assessment down, and the options that made it, and print it."""
    with progress_on(err, quiet=options.probing.output.quiet) as progress:
        source = _source(options, progress)
        server = None if source.is_archive else read_regime(source.folder)
        served = server is not None or (source.engine or "").startswith("openai")
        is_paper, weights = options.protocol == "paper", _weights(options, source)
        settings = _settings(options, source, weights)
        if served and options.serving_is_open and not weights:
            settings = measured_settings(settings, server)
        assessment = _assess(source, settings, options)
        of_sample, of_promise = remarks_on_sample(assessment), remarks_on_promise(assessment)
        if not source.is_archive:
            of_sample += remarks_on_grader(RunDirectory.load(source.folder))
        if served:
            of_promise.append(remark_on_serving(server, settings))
        flaws = [PAPER_FLAW] if is_paper else []  # on the screen in any case
        loads = (
            savings_by_load(assessment.choice, weights[1:])
            if isinstance(assessment, FitAssessment)
            else ()
        )
        result = assessed(assessment, [*flaws, *of_sample, *of_promise], server, loads=loads)
        save_assessment(assessment, result)
        replace_file(source.folder / CONFIG.name, config.encode())
        # Probing has reported its own on the sample just now.
        for remark in of_promise if options.is_workload else of_sample + of_promise:
            progress.remark(f"note: {remark}")
        if options.report:
            progress.remark(_write_report(source.folder))
    output = options.probing.output
    show(result, assess_sheet(result, verbose=output.verbose), json=output.json)
    return 0


def _weights(options: AssessOptions, source: Source) -> Sequence[Weights]:
    """Prices that no option gives: computed or measured, the first is counted with."""
    if options.pricing is not None:
        return computed_weights(options.pricing, source)
    if options.protocol == "paper" or options.wanted.weights is not None:
        return ()
    return measured_weights(source)


def _settings(options: AssessOptions, source: Source, weights: Sequence[Weights]) -> Settings:
    """Settings as asked for, at the first of computed weights.

    Differing replies are the only loss that takes no gold.
    """
    if options.protocol == "paper":
        return options.wanted.settings()
    settings = options.wanted.settings(graded_by=source.graded_by)
    if weights:
        settings = replace(settings, weights=weights[0])
        if options.serving_is_open:
            settings = replace(settings, serving="vllm")
    needy = [limit for limit in settings.guarantees if limit.counted.needs_gold]
    if needy and source.graded_by == "agreement":
        raise CalibrationError(
            f"{source.folder}: a limit on {needy[0].loss} takes gold to assess, and the questions "
            "have none: leave --loss out, and `stopadvisor label` asks for the gold that matters"
        )
    return settings


def _assess(
    source: Source, settings: Settings, options: AssessOptions
) -> FitAssessment | PaperAssessment:
    """Assess under the protocol that was asked for, once the log says what is shown."""
    with lock_directory(source.folder):
        show_fit(source, "assess")
    if options.protocol == "deploy":
        return assess(source, settings)
    open_for_paper(source, settings, allowed=options.open_calibration)
    return assess_paper(
        source, alpha=settings.alpha, delta=settings.delta, serving=settings.serving
    )


def _source(options: AssessOptions, progress: Progress) -> Source:
    """Open what is assessed; probe it first if it is a workload."""
    target, settings = options.target, options.probing.settings
    if not target.exists():
        raise WorkloadError(
            f"{target}: no such file or directory; expected a JSONL workload, a run directory or "
            "a raw.npz archive"
        )
    if options.is_workload:
        model = partial(open_engine, replace(options.probing.model, remark=progress.remark))
        run = probe(settings, model, progress, whole=True).run
        keep_profile(options.probing.model.model, run)
        return open_source(run)
    if settings.regrade:
        regrade_run(target, progress, settings.grader)
    elif settings.grader is not None and target.is_dir():
        check_graded_by(target, settings.grader)
    seed = settings.seed if "seed" in options.given else None
    split = settings.split if "split" in options.given else None
    return open_source(target, seed=seed, fractions=split, folder=settings.out)


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
