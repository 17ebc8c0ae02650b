"""`stopadvisor promote`: make one of a run's policies the one in use; also the way back."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import click

from stopadvisor.cli.options import OUTPUT, PATH, OutputOptions, declare, emit, take
from stopadvisor.cli.page import Command
from stopadvisor.cli.progress import progress_on
from stopadvisor.policy.folder import check_promotion, promote
from stopadvisor.report.documents.promote import promote_document
from stopadvisor.report.rewrite import refresh_report
from stopadvisor.report.text.policies import show_promotion
from stopadvisor.runs.storage import lock_directory

__all__ = ["PromoteOptions", "command", "run"]


@dataclass(frozen=True)
class PromoteOptions:
    """Which policy to put in use."""

    policy: Path
    output: OutputOptions = field(default_factory=OutputOptions)


@click.command(
    "promote",
    cls=Command,
    reads="POLICY: a file that `calibrate` wrote, with its calibration beside it.",
    writes="policy.joblib and calibration.json in the same folder, as copies; report.html "
    "where there is one.",
    examples=["stopadvisor promote runs/my-Qwen3-8B-1a2b3c4d/policy-a05-5e6f7a8b.joblib"],
)
@click.argument("policy", metavar="POLICY", type=PATH)
@declare(*OUTPUT)
def command(policy: Path, **params: Any) -> int:
    """Make POLICY the one in use: policy.joblib in its folder becomes a copy of it.

    `calibrate` does this with the last policy that it certified.  Nothing is lost: the policy that
    was in use keeps a file of its own, which can be promoted again.
    """
    return run(PromoteOptions(policy, take(OutputOptions, params)), sys.stdout, sys.stderr)


def run(options: PromoteOptions, out: TextIO, err: TextIO) -> int:
    """Promote, and say what is in use now."""
    original = options.policy
    check_promotion(original)  # refused before a lock is left in a folder that is no run
    with progress_on(err, quiet=options.output.quiet) as progress:
        with lock_directory(original.parent):
            found = promote(original)
        remarks = refresh_report(original.parent)
        for remark in remarks:
            progress.remark(f"note: {remark}")
    document = promote_document(found, original, remarks)
    emit(document, options.output, out, show_promotion)
    return 0
