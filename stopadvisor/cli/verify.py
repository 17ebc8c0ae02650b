"""`stopadvisor verify`: check a frozen policy on fresh labelled probes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from stopadvisor.certification.check_policy import CheckRequest, check_policy
from stopadvisor.cli.parts.command import Command
from stopadvisor.cli.parts.declare import COUNT, PATH, VERBOSE, Printed, printed
from stopadvisor.cli.parts.settings import setting_options
from stopadvisor.ground.progress import Progress
from stopadvisor.policy.frozen import load_policy
from stopadvisor.policy.run_policies import newest_policy
from stopadvisor.report.sheets.verify import verify_sheet
from stopadvisor.runs.sources import newest_run, open_source

__all__ = ["CONTRADICTED", "UNDECIDED", "command"]

CONTRADICTED = 4
"""Exit code: fresh probes contradict the certificate."""
UNDECIDED = 7
"""Exit code of `--gate`: fresh probes neither confirm nor contradict."""


@click.command(
    "verify",
    cls=Command,
    reads="POLICY, and a run directory or raw.npz archive with probes at the policy's "
    "budgets (`probe --like POLICY` makes them).",
    writes="In the run's looks.jsonl: the policy that was checked, and a look where "
    "calibration questions are shown.",
    examples=[
        "stopadvisor verify",
        "stopadvisor verify policy.joblib runs/fresh-Qwen3-8B-1a2b3c4d",
        "stopadvisor verify policy.joblib runs/my-Qwen3-8B-5e6f7a8b --test-only",
    ],
    exit_codes=(0, 2, 4, 7),
)
@click.argument("files", metavar="[POLICY] [RUN|RAW.NPZ]", nargs=-1, type=PATH)
@setting_options(("serving", "price"), otherwise="the policy's")
@click.option(
    "--transfer",
    is_flag=True,
    help="Zero-shot transfer: allow probes of another model, template or engine.",
)
@click.option(
    "--test-only",
    is_flag=True,
    help="Only the test part of RUN: its calibration questions stay closed.",
)
@click.option(
    "--looks", "policies", type=COUNT, help="Checks you plan on these questions; they share delta."
)
@click.option(
    "--gate",
    is_flag=True,
    help="For a pipeline: exit with 0 only if the probes confirm the certificate, with 7 if they "
    "are too few to tell.",
)
@printed
@VERBOSE
def command(
    progress: Progress, files: tuple[Path, ...], *, gate: bool, verbose: bool, **params: Any
) -> Printed:
    """Check POLICY on fresh labelled probes in RUN.

    Without POLICY: the policy in use of the run calibrated last under runs/; without RUN: the run
    probed last under runs/.  Questions that fitted or calibrated the policy are left out, and
    their number is printed.  Exit code 4: the probes contradict the certificate.  The best of
    several policies checked on the same questions may be best by luck, and so may the best of
    several checks of one policy while questions are added: with --looks on the first check they
    share delta.
    """
    request = CheckRequest(**params)
    if len(files) > 2:
        raise click.UsageError(f"expected [POLICY] [RUN|RAW.NPZ], got {len(files)} files")
    # A single file is recognised by its kind.
    is_run = len(files) == 1 and (files[0].is_dir() or files[0].suffix == ".npz")
    file = files[0] if files and not is_run else newest_policy()
    probes = files[-1] if is_run or len(files) == 2 else newest_run()
    policy, source = load_policy(file), open_source(probes)
    if len(files) < 2:
        progress.remark(f"checking {file} on {probes}")
    checked = check_policy(policy, str(file), source, str(probes), request)
    progress.notes(checked.remarks)
    exit_code = UNDECIDED if gate and checked.verdict != "confirmed" else 0
    if checked.verdict == "contradicted":
        exit_code = CONTRADICTED
    sheet = verify_sheet(checked, verbose=verbose)
    return Printed(replace(checked, headline=sheet.headline), sheet, exit_code)
