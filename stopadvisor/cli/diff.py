"""`stopadvisor diff`: what changed between two policies, in words."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import click

from stopadvisor.cli.options import OUTPUT, PATH, OutputOptions, declare, emit, take
from stopadvisor.cli.page import Command
from stopadvisor.policy.frozen import load_policy
from stopadvisor.report.documents.diff import diff_document
from stopadvisor.report.text.policies import show_diff

__all__ = ["DiffOptions", "command", "run"]


@dataclass(frozen=True)
class DiffOptions:
    """Which policies to compare."""

    a: Path
    b: Path
    output: OutputOptions = field(default_factory=OutputOptions)


@click.command(
    "diff",
    cls=Command,
    reads="A and B: files that `calibrate` wrote.",
    examples=[
        "stopadvisor diff policies/arithmetic.joblib policies/choice.joblib",
        "stopadvisor diff policy-a05-1a2b3c4d.joblib policy-a02-5e6f7a8b.joblib --json",
    ],
)
@click.argument("a", metavar="A", type=PATH)
@click.argument("b", metavar="B", type=PATH)
@declare(*OUTPUT)
def command(a: Path, b: Path, **params: Any) -> int:
    """Say what changed from policy A to policy B.

    Rule, places of probes, threshold, promise, expected saving, model, engine, prompts, sampling
    and caps, in words; what does not differ is not shown.
    """
    return run(DiffOptions(a, b, take(OutputOptions, params)), sys.stdout, sys.stderr)


def run(options: DiffOptions, out: TextIO, err: TextIO) -> int:
    """Compare and show."""
    a, b = load_policy(options.a), load_policy(options.b)
    document = diff_document(a, options.a, b, options.b)
    emit(document, options.output, out, show_diff)
    return 0
