"""`stopadvisor calibrate`: certify a limit on lost answers and write the frozen policy.

If nothing was certified, or the advice is full thinking, the written policy never stops.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from stopadvisor.assessment.settings import asked_alpha
from stopadvisor.certification.certify import CertifyRequest
from stopadvisor.certification.issue import PolicyTarget, issue
from stopadvisor.cli.parts.command import Command
from stopadvisor.cli.parts.declare import (
    COUNT,
    PATH,
    VERBOSE,
    Printed,
    option,
    pop_settings,
    printed,
)
from stopadvisor.cli.parts.settings import DESPITE, GUARANTEES, overrides, setting_options
from stopadvisor.ground.progress import Progress
from stopadvisor.policy.signature import signing_key
from stopadvisor.report.headline import calibrated_headline
from stopadvisor.report.html.page import refresh_report
from stopadvisor.report.sheets.calibrate import calibrate_sheet
from stopadvisor.runs.sources import newest_source, open_source

__all__ = ["NOT_CERTIFIED", "command"]

NOT_CERTIFIED = 3
"""Exit code: calibration ran and certified nothing."""

_certificate = option("Certificate")


@click.command(
    "calibrate",
    cls=Command,
    reads="A run directory or a raw.npz archive; settings that are not given come from "
    "its assessment.json.",
    writes="The policy: --out, else policy-aALPHA-DIGEST.joblib in the run directory; its "
    "calibration next to it, and the look in the run's looks.jsonl. policy.joblib and "
    "calibration.json there become copies of the last certified one and its calibration; with a "
    "key to sign, POLICY.sig next to each policy.",
    examples=[
        "stopadvisor calibrate --alpha 0.15",
        "stopadvisor calibrate runs/my-Qwen3-8B-1a2b3c4d --alpha 0.05 --loss drop",
        "stopadvisor calibrate runs/new-Qwen3-8B-5e6f7a8b --alpha 0.05 --from p.joblib",
    ],
    exit_codes=(0, 2, 3),
)
@click.argument("path", metavar="[RUN|RAW.NPZ]", required=False, type=PATH)
@setting_options(otherwise="as assessed", asked=("alpha",))
@GUARANTEES
@_certificate(
    "--looks",
    type=COUNT,
    help="Looks you plan to take at these calibration questions; they share delta.",
)
@_certificate(
    "--labels",
    type=COUNT,
    help="Without gold: how many labels you plan to give with `label`; fixed by the first look.",
)
@_certificate(
    "--fresh",
    is_flag=True,
    help="Use only calibration questions that no look has used; used ones join the fit questions.",
)
@DESPITE
@click.option(
    "--from",
    "source_policy",
    metavar="POLICY",
    type=PATH,
    help="Keep this policy's rule, and certify its threshold on all but the test questions.",
)
@click.option(
    "--out",
    type=PATH,
    show_default="one named for alpha and digest in RUN",
    help="The policy's file; JSON if the name ends in .json.",
)
@click.option(
    "--sign",
    metavar="KEY",
    type=PATH,
    help="Sign the policy with this private key (PEM, elliptic curve); nothing is sent anywhere.",
)
@printed
@VERBOSE
def command(
    progress: Progress,
    path: Path | None,
    source_policy: Path | None,
    out: Path | None,
    sign: Path | None,
    *,
    verbose: bool,
    **params: Any,
) -> Printed:
    """Certify a threshold on calibration questions of RUN and write the frozen policy.

    Without RUN: the run assessed last under runs/.  Each new setting counts as one
    recorded look at the calibration questions; repeating a call does not.  After a failed look you
    may try another setting, with less confidence.  Exit code 3: nothing was certified, and the
    policy never stops.  If the advice is full thinking, no look is taken.
    """
    request = pop_settings(CertifyRequest, params, overrides=overrides(params))
    asked = request.overrides
    for name, value in (("--families", asked.families), ("--on-give-up", asked.on_give_up)):
        if source_policy is not None and value:
            raise click.UsageError(f"{name} cannot be combined with --from, which keeps the rule")
    target = PolicyTarget(out, None if sign is None else signing_key(sign))
    source = newest_source() if path is None else open_source(path)
    if path is None:
        progress.remark(f"calibrating {source.folder}, the run assessed last")
    asked_alpha(asked.alpha, None)  # refuses to take it from the assessment
    result = issue(source, request, target, calibrated_headline, source_policy=source_policy)
    progress.notes(result.remarks)
    if result.promoted is not None:
        progress.notes(refresh_report(source.folder))
    code = 0 if result.certified else NOT_CERTIFIED
    return Printed(result, calibrate_sheet(result, verbose=verbose), code)
