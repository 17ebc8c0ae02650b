"""`stopadvisor inspect`: a frozen policy in words.

Loading checks everything about the file; what is refused is an error in one line.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import click

from stopadvisor.cli.options import OUTPUT, PATH, OutputOptions, declare, emit, take
from stopadvisor.cli.page import Command
from stopadvisor.cli.progress import progress_on
from stopadvisor.errors import PolicyError
from stopadvisor.policy.frozen import Policy, load_policy, save_policy
from stopadvisor.policy.shelf import newest_policy
from stopadvisor.policy.upgrade import upgraded
from stopadvisor.report.documents.inspect import policy_document
from stopadvisor.report.text.inspect import show_policy

__all__ = ["InspectOptions", "command", "run"]


@dataclass(frozen=True)
class InspectOptions:
    """Which policy to show."""

    path: Path | None = None
    """None for the policy in use that was written last."""
    upgrade: Path | None = None
    """Where to write it anew under the present schema."""
    output: OutputOptions = field(default_factory=OutputOptions)


@click.command(
    "inspect",
    cls=Command,
    reads="POLICY: a file that `calibrate` wrote.",
    writes="With --upgrade, OUT: the same policy under the present schema.",
    examples=[
        "stopadvisor inspect",
        "stopadvisor inspect policies/arithmetic.joblib",
        "stopadvisor inspect policy.joblib --json",
        "stopadvisor inspect policy.joblib --upgrade policy-2.joblib",
    ],
)
@click.argument("path", metavar="[POLICY]", required=False, type=PATH)
@click.option(
    "--upgrade",
    metavar="OUT",
    type=PATH,
    help="Write a policy of an older schema anew: same stops and certificate, another digest. "
    "JSON where OUT ends in .json.",
)
@declare(*OUTPUT)
def command(path: Path | None, upgrade: Path | None, **params: Any) -> int:
    """Show what a frozen POLICY does, what was shown about it, and what it is bound to.

    Without POLICY: the policy in use of the run that was calibrated last.  Nothing in the file is
    executed; one that does not pass every check is refused.
    """
    options = InspectOptions(path, upgrade, take(OutputOptions, params))
    return run(options, sys.stdout, sys.stderr)


def run(options: InspectOptions, out: TextIO, err: TextIO) -> int:
    """Load and show; first write it anew where that is asked for."""
    path = options.path or newest_policy()
    with progress_on(err, quiet=options.output.quiet) as progress:
        if options.path is None:
            progress.remark(f"inspecting {path}, the policy written last")
    policy = load_policy(path)
    if options.upgrade is None:
        document = policy_document(policy, path)
    else:
        new = _upgrade(policy, path, options.upgrade)
        document = policy_document(new, options.upgrade, upgraded_from=(policy, path))
    emit(document, options.output, out, show_policy)
    return 0


def _upgrade(policy: Policy, path: Path, target: Path) -> Policy:
    try:
        content = upgraded(policy)
    except PolicyError as error:
        raise PolicyError(f"{path}: {error}") from error
    save_policy(content, target, format="json" if target.suffix == ".json" else "joblib")
    return Policy(content)
