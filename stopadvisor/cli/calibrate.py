"""`stopadvisor calibrate`: certify the lost-correct risk and write the frozen policy.

A policy is always written; one that never stops where nothing was certified, or where the advice
is full thinking.  Each has a file of its own; ``policy.joblib`` is a copy of the last certified.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TextIO

import click

from stopadvisor.assessment.settings import alpha_meanings
from stopadvisor.certification.certify import Certification, CertifyRequest
from stopadvisor.certification.certify_transfer import TransferCertification
from stopadvisor.certification.issue import PolicyFiles, PolicyTarget, issue
from stopadvisor.certification.looks import show_fit
from stopadvisor.cli.options import (
    COUNT,
    OUTPUT,
    PATH,
    VERBOSE,
    OutputOptions,
    declare,
    emit,
    option,
    take,
)
from stopadvisor.cli.page import Command
from stopadvisor.cli.progress import progress_on
from stopadvisor.cli.settings import ALLOW_TRUNCATED, GUARANTEES, overrides, setting_options
from stopadvisor.errors import CalibrationError
from stopadvisor.policy.frozen import load_policy
from stopadvisor.policy.signature import signing_key
from stopadvisor.report.documents.calibrate import (
    CalibrateDocument,
    calibration_document,
    transfer_calibration_document,
)
from stopadvisor.report.rewrite import refresh_report
from stopadvisor.report.text.calibrate import show_calibration
from stopadvisor.report.text.transfer import show_transfer
from stopadvisor.report.words import advised_point, percent, share
from stopadvisor.runs.server_regime import read_regime
from stopadvisor.runs.sources import Source, newest_source, open_source, read_assessment
from stopadvisor.runs.storage import lock_directory

__all__ = ["NOT_CERTIFIED", "CalibrateOptions", "command", "run"]

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
    format: Literal["joblib", "json"] = "joblib"
    out: Path | None = None
    sign: Path | None = None
    """Private key that signs the policy."""
    output: OutputOptions = field(default_factory=OutputOptions)


_certificate = option("Certificate")


@click.command(
    "calibrate",
    cls=Command,
    reads="A run directory or a raw.npz archive; settings that are not given come from "
    "its assessment.json.",
    writes="The policy: policy-aALPHA-DIGEST.joblib in the run directory, or the file that is "
    "named; its calibration beside it, and the look in the run's looks.jsonl. policy.joblib and "
    "calibration.json there become copies of the last certified one and its calibration; with a "
    "key to sign, POLICY.sig beside each policy.",
    examples=[
        "stopadvisor calibrate --alpha 0.15",
        "stopadvisor calibrate runs/my-Qwen3-8B-1a2b3c4d --alpha 0.05 --conditional",
        "stopadvisor calibrate runs/new-Qwen3-8B-5e6f7a8b --alpha 0.05 --from p.joblib",
    ],
    exit_codes=(0, 2, 3),
)
@click.argument("path", metavar="[RUN|RAW.NPZ]", required=False, type=PATH)
@setting_options(otherwise="as assessed", asked=("alpha",))
@GUARANTEES
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
    "--labels",
    type=COUNT,
    help="Without gold: how many labels you plan to give with `label`; fixed with the first look.",
)
@_certificate(
    "--fresh",
    is_flag=True,
    help="Only calibration questions that no look has used yet; used ones join the fit questions.",
)
@ALLOW_TRUNCATED
@_certificate(
    "--allow-large-alpha",
    is_flag=True,
    help="Certify although alpha is more than 20 % of the full-thinking accuracy.",
)
@_certificate(
    "--despite-advice", is_flag=True, help="Certify although the advice is full thinking."
)
@click.option(
    "--from",
    "source_policy",
    metavar="POLICY",
    type=PATH,
    help="Keep this policy's rule, and certify its threshold on all but the test questions.",
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
    show_default="one named for alpha and digest in RUN",
    help="File of the policy.",
)
@click.option(
    "--sign",
    metavar="KEY",
    type=PATH,
    help="Sign the policy with this private key (PEM, elliptic curve); nothing is sent anywhere.",
)
@declare(*OUTPUT, VERBOSE)
def command(path: Path | None, **params: Any) -> int:
    """Certify a threshold on calibration questions of RUN and write the frozen policy.

    Without RUN: the run assessed last under runs/.  Each new setting is one look at the
    calibration questions, and is recorded; repeating a call is not.  After a failed look another
    setting may be tried, with less confidence.  Exit code 3: nothing was certified, and the policy
    never stops.  If the advice is full thinking, no look is taken.
    """
    request = take(CertifyRequest, params, overrides=overrides(params))
    output = take(OutputOptions, params)
    options = CalibrateOptions(path, request, output=output, **params)
    if options.source_policy is not None and request.overrides.families:
        raise click.UsageError("--families means nothing with --from: the policy brings its rule")
    return run(options, sys.stdout, sys.stderr)


def run(options: CalibrateOptions, out: TextIO, err: TextIO) -> int:
    """Calibrate, write policy and calibration, and print what came of it."""
    key = None if options.sign is None else signing_key(options.sign)
    source = newest_source() if options.path is None else open_source(options.path)
    with progress_on(err, quiet=options.output.quiet) as progress:
        if options.path is None:
            progress.remark(f"calibrating {source.folder}, the run assessed last")
        if options.request.overrides.alpha is None:
            raise CalibrationError(_which_alpha(source, options.source_policy))
        issued = issue(
            source,
            options.request,
            PolicyTarget(options.format, options.out, key),
            partial(_describe, source, options.source_policy),
            source_policy=options.source_policy,
        )
        document = issued.document
        for remark in document["remarks"]:
            progress.remark(f"note: {remark}")
        # A report shows the calibration that lies in its folder.
        if issued.files.promoted is not None:
            for remark in refresh_report(source.folder, issued.assessment):
                progress.remark(f"note: {remark}")
    emit(document, options.output, out, partial(_show, verbose=options.output.verbose))
    return 0 if document["certified"] else NOT_CERTIFIED


def _describe(
    source: Source,
    source_policy: Path | None,
    found: Certification | TransferCertification,
    files: PolicyFiles,
) -> CalibrateDocument:
    """Build the calibration's document, its headline for the server that was measured."""
    server = None if source.is_archive else read_regime(source.folder)
    measured = None if server is None else server.regime
    if isinstance(found, Certification):
        return calibration_document(found, files, measured)
    assert source_policy is not None  # where the rule comes from
    return transfer_calibration_document(source.folder, found, source_policy, files, measured)


def _which_alpha(source: Source, source_policy: Path | None) -> str:
    """What to say to those who name no alpha: what common values would mean here."""
    text = "say --alpha, the largest share of all questions that may lose a right answer"
    if source_policy is not None:
        # No question here may be looked at for it: all of them will certify.
        certificate = load_policy(source_policy).content["certificate"]
        had = f" ({source_policy} has {certificate['alpha']:g})" if certificate else ""
        return f"{text}{had}"
    if source.graded_by == "agreement":
        return (
            "say --alpha, the largest share of replies that may differ from what full thinking "
            "answers; in production begin with 0.01 to 0.05"
        )
    with lock_directory(source.folder):
        show_fit(source, "calibrate")
    accuracy = float(source.part("fit").full_correct.mean())
    text += (
        f"; full thinking gets {share(accuracy)} of the fit questions right, so that "
        f"{alpha_meanings(accuracy)}"
    )
    document = read_assessment(source.folder)
    if document is not None and document["protocol"] == "deploy":
        point = advised_point(document)
        expected = "full thinking" if point is None else percent(point["expected_saving_pct"])
        verb = "advises" if point is None else "expects a certified saving of"
        text += f"; assess {verb} {expected} at {document['alpha']:g}"
    return f"{text}; in production begin with 0.01 to 0.05"


def _show(document: CalibrateDocument, out: TextIO, *, verbose: bool) -> None:
    show_calibration(document, out, verbose=verbose)
    if "transfer" in document:
        show_transfer(document["transfer"], out)
