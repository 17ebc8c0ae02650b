"""`stopadvisor calibrate`: certify the lost-correct risk and write the frozen policy.

A policy is always written; one that never stops where nothing was certified.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO

import click

from stopadvisor.certification.certify import CertifyRequest, certify
from stopadvisor.certification.certify_transfer import certify_transfer
from stopadvisor.cli.options import COUNT, OUTPUT, PATH, OutputOptions, declare, emit, option, take
from stopadvisor.cli.page import Command
from stopadvisor.cli.progress import progress_on
from stopadvisor.cli.settings import overrides, setting_options
from stopadvisor.errors import OutputError
from stopadvisor.policy.frozen import load_policy, save_policy
from stopadvisor.report.documents.calibrate import (
    CalibrateDocument,
    calibration_document,
    transfer_calibration_document,
)
from stopadvisor.report.text.calibrate import show_calibration
from stopadvisor.report.text.transfer import show_transfer
from stopadvisor.report.words import shell_quote
from stopadvisor.runs.ledger import CALIBRATION
from stopadvisor.runs.sources import REPORT, Source, newest_source, open_source
from stopadvisor.runs.storage import lock_directory, write_json_atomically

__all__ = ["CALIBRATION", "NOT_CERTIFIED", "CalibrateOptions", "command", "run"]

NOT_CERTIFIED = 3
"""Exit code: calibration ran and certified nothing."""


@dataclass(frozen=True)
class CalibrateOptions:
    """What to certify, and where to put the policy."""

    path: Path | None = None
    """Run directory or archive; None for the one assessed last."""
    request: CertifyRequest = field(default_factory=CertifyRequest)
    source_policy: Path | None = None
    """Policy of another run, to calibrate here instead of choosing a rule here."""
    compare: bool = False
    format: Literal["joblib", "json"] = "joblib"
    out: Path | None = None
    output: OutputOptions = field(default_factory=OutputOptions)


_certificate = option("Certificate")


@click.command(
    "calibrate",
    cls=Command,
    reads="A run directory or a raw.npz archive; settings that are not given come from "
    "its assessment.json.",
    writes="The policy (--out, else policy.joblib in the run directory), calibration.json "
    "beside it, and the look in the run's ledger.json.",
    examples=[
        "stopadvisor calibrate --alpha 0.15",
        "stopadvisor calibrate runs/my-Qwen3-8B-1a2b3c4d --alpha 0.05 --conditional",
        "stopadvisor calibrate runs/other-Qwen3-8B-5e6f7a8b --from policy.joblib",
    ],
    exit_codes=(0, 2, 3),
)
@click.argument("path", metavar="[RUN|RAW.NPZ]", required=False, type=PATH)
@setting_options(otherwise="as assessed")
@_certificate(
    "--conditional",
    is_flag=True,
    help="Certify the lost share of those questions that full thinking gets right.",
)
@_certificate(
    "--looks",
    type=COUNT,
    help="Looks you plan to take at these calibration questions; they share delta.",
)
@_certificate(
    "--later-alpha",
    "later_alphas",
    type=float,
    multiple=True,
    help="Alpha of a further look, declared now: all share delta, and each shows its figures.",
)
@_certificate(
    "--fresh",
    is_flag=True,
    help="Only calibration questions that no look has used yet; used ones join the fit questions.",
)
@_certificate(
    "--allow-truncated",
    is_flag=True,
    help="Certify although more than 10 % of the traces were cut off.",
)
@click.option(
    "--from",
    "source_policy",
    metavar="POLICY",
    type=PATH,
    help="Keep this policy's rule, and certify its threshold on all but the test questions.",
)
@click.option(
    "--compare",
    is_flag=True,
    help="With --from: compare with that policy unchanged and one trained here; one more look.",
)
@click.option(
    "--format",
    type=click.Choice(["joblib", "json"]),
    default="joblib",
    help="File format of the policy.",
)
@click.option(
    "--out",
    type=PATH,
    show_default="policy.joblib or policy.json in RUN",
    help="File of the policy.",
)
@declare(*OUTPUT)
def command(path: Path | None, **params: Any) -> int:
    """Certify a threshold on calibration questions of RUN and write the frozen policy.

    Without RUN: the run assessed last.  Every call is a look at the calibration questions and is
    recorded; a second, different one is for after a failure, and leaves less confidence.  Exit
    code 3: nothing was certified, and the policy written never stops.
    """
    request = take(CertifyRequest, params, overrides=overrides(params))
    output = take(OutputOptions, params)
    options = CalibrateOptions(path, request, output=output, **params)
    if request.later_alphas and request.looks is not None:
        raise click.UsageError("--later-alpha counts the looks, so --looks beside it means nothing")
    if options.compare and options.source_policy is None:
        raise click.UsageError("--compare belongs to --from POLICY")
    if options.source_policy is not None and request.overrides.families and not options.compare:
        raise click.UsageError("--families means nothing with --from: the policy brings its rule")
    return run(options, sys.stdout, sys.stderr)


def run(options: CalibrateOptions, out: TextIO, err: TextIO) -> int:
    """Calibrate, write policy and calibration, and print what came of it."""
    # What no run could make right is refused before one is looked for.
    options.request.overrides.settings()
    source = newest_source() if options.path is None else open_source(options.path)
    target = options.out or source.folder / f"policy.{options.format}"
    with progress_on(err, quiet=options.output.quiet) as progress:
        if options.path is None:
            progress.remark(f"calibrating {source.folder}, the run assessed last")
        _check_target(target)
        with lock_directory(source.folder):
            content, document = _certify(source, options, target)
            save_policy(content, target, format=options.format)
            write_json_atomically(target.with_name(CALIBRATION), document)
        for remark in document["remarks"]:
            progress.remark(f"note: {remark}")
        # A report shows the calibration that lies in its folder.
        if (source.folder / REPORT).exists() and target.parent.resolve() == source.folder.resolve():
            progress.remark(
                f"note: {REPORT} is from before this calibration; `stopadvisor report "
                f"{shell_quote(source.folder)}` writes it again"
            )
    emit(document, options.output, out, _show)
    return 0 if document["certified"] else NOT_CERTIFIED


def _check_target(target: Path) -> None:
    """Refuse a file that cannot be written before a look is spent on it."""
    if target.is_dir():
        raise OutputError(f"cannot write the policy to {target}: it is a folder")
    if not target.parent.is_dir():
        raise OutputError(f"cannot write the policy to {target}: there is no such folder")


def _certify(
    source: Source, options: CalibrateOptions, target: Path
) -> tuple[Mapping[str, Any], CalibrateDocument]:
    """Content of the policy, and the document."""
    request, file = options.request, options.source_policy
    if file is None:
        own = certify(source, request)
        return own.content, calibration_document(own, target)
    policy = load_policy(file)
    found = certify_transfer(policy, str(file), source, request, comparing=options.compare)
    return found.content, transfer_calibration_document(
        source.folder, found, policy.content, file, target
    )


def _show(document: CalibrateDocument, out: TextIO) -> None:
    show_calibration(document, out)
    if "transfer" in document:
        show_transfer(document["transfer"], out)
