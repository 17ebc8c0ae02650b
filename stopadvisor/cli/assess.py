"""`stopadvisor assess`: advise whether to stop early, with which rule, and what it saves."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import click

from stopadvisor.api import assess_target, is_workload_file
from stopadvisor.cli.parts.command import CONFIG, Command, effective_config
from stopadvisor.cli.parts.declare import (
    PATH,
    VERBOSE,
    WORKLOAD,
    Printed,
    is_given,
    option,
    pop_settings,
)
from stopadvisor.cli.parts.probing import probe_options, take_probing
from stopadvisor.cli.parts.settings import (
    GUARANTEES,
    PRICING,
    overrides,
    price_request,
    setting_options,
)
from stopadvisor.collection.probe_settings import ProbeSettings
from stopadvisor.engines.engine_settings import EngineSettings
from stopadvisor.ground.progress import Progress
from stopadvisor.report.html.page import refresh_report
from stopadvisor.report.sheets.assess import assess_sheet
from stopadvisor.runs.storage import replace_file

__all__ = ["command"]

_ANALYSIS = option("Analysis")


@click.command(
    "assess",
    cls=Command,
    reads=f"{WORKLOAD} Or a run directory, or a published raw.npz archive.",
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
    help="Advice to act on (deploy), or the published analysis number for number (paper).",
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
    "--no-report",
    is_flag=True,
    help="Do not write report.html (extra `report`); STOPADVISOR_REPORT=0 does the same.",
)
@probe_options
@VERBOSE
def command(
    progress: Progress,
    target: Path,
    protocol: Literal["deploy", "paper"],
    *,
    open_calibration: bool,
    no_report: bool,
    verbose: bool,
    **params: Any,
) -> Printed:
    """Advise whether the model may stop thinking early on WORKLOAD, and what that saves.

    Probes what is missing first, with the options of `probe`; a run directory or a published
    raw.npz archive is assessed as it is.  Without --alpha a table shows what promises of 1 to 15 %
    would buy.  The advice is provisional: `calibrate` decides.
    """
    probing_names = {f.name for f in (*fields(ProbeSettings), *fields(EngineSettings))}
    given = {name for name in probing_names if is_given(name)}
    is_paper = protocol == "paper"
    if is_paper and not is_given("schedule"):
        params["schedule"] = "grid"
    wanted = overrides(params)
    pricing = price_request(params)
    if pricing is not None and (wanted.weights is not None or is_paper):
        raise click.UsageError(
            "--gpu, --in-flight, --tensor-parallel and --model-config compute prices: leave out "
            "--price and --protocol paper"
        )
    if is_paper and (wanted.loss or wanted.also):
        raise click.UsageError("--protocol paper counts only lost answers: leave --loss out")
    if open_calibration and not is_paper:
        raise click.UsageError("--open-calibration belongs to --protocol paper")
    if is_paper and params["ladder"] is not None:
        raise click.UsageError("--protocol paper takes probes of one trace: leave --ladder out")
    probing = take_probing(params, target)
    engine = pop_settings(EngineSettings, params)
    unused = set[str]()
    if not is_workload_file(target):
        known = {"seed", "split", "out"} if target.suffix == ".npz" else {"regrade", "grader"}
        unused = probing_names - known
        if useless := sorted(given & unused):
            names = ", ".join("--" + name.replace("_", "-") for name in useless)
            raise click.UsageError(f"{target} is already probed: leave out {names}")
    source, result = assess_target(
        probing,
        engine,
        wanted,
        progress,
        pricing=pricing,
        protocol=protocol,
        open_calibration=open_calibration,
        given=given,
    )
    file = source.folder / CONFIG.name
    replace_file(file, effective_config(click.get_current_context(), unused, file).encode())
    if not (is_paper or no_report) and os.environ.get("STOPADVISOR_REPORT") != "0":
        progress.notes(refresh_report(source.folder, begin=True))
    return Printed(result, assess_sheet(result, verbose=verbose))
