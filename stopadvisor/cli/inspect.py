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
from stopadvisor.policy.frozen import load_policy
from stopadvisor.report.documents.inspect import policy_document
from stopadvisor.report.text.inspect import show_policy

__all__ = ["InspectOptions", "command", "run"]


@dataclass(frozen=True)
class InspectOptions:
    """Which policy to show."""

    path: Path
    output: OutputOptions = field(default_factory=OutputOptions)


@click.command(
    "inspect",
    cls=Command,
    reads="POLICY: a file that `calibrate` wrote.",
    examples=[
        "stopadvisor inspect policies/arithmetic.joblib",
        "stopadvisor inspect policy.joblib --json",
    ],
)
@click.argument("path", metavar="POLICY", type=PATH)
@declare(*OUTPUT)
def command(path: Path, **params: Any) -> int:
    """Show what a frozen POLICY does, what was shown about it, and what it is bound to.

    Nothing in the file is executed; one that does not pass every check is refused.
    """
    return run(InspectOptions(path, take(OutputOptions, params)), sys.stdout, sys.stderr)


def run(options: InspectOptions, out: TextIO, err: TextIO) -> int:
    """Load and show."""
    document = policy_document(load_policy(options.path), options.path)
    emit(document, options.output, out, show_policy)
    return 0
