"""`stopadvisor inspect`: a frozen policy in words, or what changed between two.

Loading checks everything about the file; what is refused is an error in one line.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import click

from stopadvisor.cli.options import OUTPUT, PATH, VERBOSE, OutputOptions, declare, emit, take
from stopadvisor.cli.page import Command
from stopadvisor.cli.progress import progress_on
from stopadvisor.policy.folder import newest_policy
from stopadvisor.policy.frozen import load_policy, sign_policy
from stopadvisor.policy.signature import signing_key
from stopadvisor.report.documents.diff import diff_document
from stopadvisor.report.documents.inspect import policy_document
from stopadvisor.report.text.inspect import show_policy
from stopadvisor.report.text.policies import show_diff

__all__ = ["InspectOptions", "command", "run"]


@dataclass(frozen=True)
class InspectOptions:
    """Which policy to show."""

    path: Path | None = None
    """None for the policy in use that was written last."""
    keys: tuple[Path, ...] = ()
    """Public keys, of which one must have signed it."""
    sign: Path | None = None
    """Private key that signs what is shown."""
    other: Path | None = None
    """The policy to compare it with."""
    output: OutputOptions = field(default_factory=OutputOptions)


@click.command(
    "inspect",
    cls=Command,
    reads="POLICY: a file that `calibrate` wrote; with --key also POLICY.sig beside it.",
    writes="With --sign, its signature: POLICY.sig.",
    examples=[
        "stopadvisor inspect",
        "stopadvisor inspect policies/arithmetic.joblib",
        "stopadvisor inspect policy.joblib --json",
        "stopadvisor inspect policies/arithmetic.joblib policies/choice.joblib",
        "stopadvisor inspect policy.joblib --key release.pub",
    ],
)
@click.argument("path", metavar="[POLICY]", required=False, type=PATH)
@click.argument("other", metavar="[OTHER]", required=False, type=PATH)
@click.option(
    "--key",
    "keys",
    metavar="KEY.pub",
    type=PATH,
    multiple=True,
    help="Refuse a policy that this public key (PEM) has not signed, and say who did; several: one "
    "of them must have.",
)
@click.option(
    "--sign",
    metavar="KEY",
    type=PATH,
    help="Sign the policy that is shown with this private key (PEM).",
)
@declare(*OUTPUT, VERBOSE)
def command(path: Path | None, **params: Any) -> int:
    """Show what a frozen POLICY does, what was shown about it, and what it is bound to.

    With OTHER: what changes from POLICY to OTHER, in words; what is equal is not shown.
    Without POLICY: the policy in use of the run calibrated last under runs/.  Nothing in the file
    is executed; one that does not pass every check is refused.
    """
    output = take(OutputOptions, params)
    if path is None and params["sign"] is not None:
        raise click.UsageError("--sign signs a POLICY that you name")
    if params["other"] is not None and params["sign"]:
        raise click.UsageError("--sign takes one POLICY, got two")
    return run(InspectOptions(path, output=output, **params), sys.stdout, sys.stderr)


def run(options: InspectOptions, out: TextIO, err: TextIO) -> int:
    """Load and show; sign it, where that is asked for."""
    path = options.path or newest_policy()
    with progress_on(err, quiet=options.output.quiet) as progress:
        if options.path is None:
            progress.remark(f"inspecting {path}, the policy written last")
    key = None if options.sign is None else signing_key(options.sign)
    policy = load_policy(path, require_signature=options.keys or None)
    if options.other is not None:
        other = load_policy(options.other, require_signature=options.keys or None)
        emit(diff_document(policy, path, other, options.other), options.output, out, show_diff)
        return 0
    if key is not None:
        sign_policy(path, key, digest=policy.digest)
    signed_by = policy.signed_by if key is None else key.public.fingerprint
    document = policy_document(policy, path, signed_by=signed_by)
    emit(document, options.output, out, partial(show_policy, verbose=options.output.verbose))
    return 0
