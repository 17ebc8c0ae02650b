"""`stopadvisor inspect`: show a frozen policy in words, or what changed between two."""

from __future__ import annotations

from pathlib import Path

import click

from stopadvisor.cli.parts.command import Command
from stopadvisor.cli.parts.declare import PATH, SIGNATURE, VERBOSE, Printed, printed
from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.progress import Progress
from stopadvisor.policy.frozen import load_policy
from stopadvisor.policy.run_policies import current_policy, newest_policy
from stopadvisor.policy.shown import inspected
from stopadvisor.report.comparison import compared
from stopadvisor.report.sheets.inspect import comparison_sheet, inspect_sheet
from stopadvisor.runs.directory import MANIFEST, RunDirectory
from stopadvisor.runs.sources import model_as_given

__all__ = ["command"]


@click.command(
    "inspect",
    cls=Command,
    reads="POLICY: a file that `calibrate` wrote; with --require-signature POLICY.sig too.",
    examples=[
        "stopadvisor inspect",
        "stopadvisor inspect policies/arithmetic.joblib",
        "stopadvisor inspect policy.joblib --json",
        "stopadvisor inspect policies/arithmetic.joblib policies/choice.joblib",
        "stopadvisor inspect policy.joblib --require-signature release.pub",
    ],
)
@click.argument("path", metavar="[POLICY]", required=False, type=PATH)
@click.argument("other", metavar="[OTHER]", required=False, type=PATH)
@SIGNATURE
@printed
@VERBOSE
def command(
    progress: Progress,
    path: Path | None,
    other: Path | None,
    require_signature: tuple[Path, ...],
    *,
    verbose: bool,
) -> Printed:
    """Show what a frozen POLICY does, the evidence for it, and what it is bound to.

    With OTHER: the differences between POLICY and OTHER, in words.  Without POLICY: the policy in
    use of the run calibrated last under runs/.  Nothing in the file is executed; a file that fails
    a check is refused.
    """
    if path is None:
        path = newest_policy()
        progress.remark(f"inspecting {path}, the policy written last")
    if path.is_dir():
        file = current_policy(path)
        found = "without one: `stopadvisor calibrate` writes it" if file is None else f"with {file}"
        raise PolicyError(f"{path}: expected a policy's file, got a folder {found}")
    policy = load_policy(path, require_signature=require_signature or None)
    if other is not None:
        second = load_policy(other, require_signature=require_signature or None)
        comparison = compared(policy, path, second, other)
        return Printed(comparison, comparison_sheet(comparison))
    model = None if policy.terms.model is None else policy.terms.model.name
    given = None if model is None else model_as_given(path.parent, model)
    workload = None  # the policy's, if its run was probed with a model loaded here
    if (path.parent / MANIFEST).is_file():
        manifest = RunDirectory.load(path.parent).manifest
        file = Path(manifest["workload"]["path"])
        if manifest["engine"]["engine"] == "hf" and file.is_file():
            workload = file
    shown = inspected(policy, path, signed_by=policy.signed_by, model=given)
    sheet = inspect_sheet(
        shown, verbose=verbose, workload=workload, model=None if given == model else given
    )
    return Printed(shown, sheet)
