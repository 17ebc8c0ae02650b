"""`stopadvisor plan`: how many labels a certificate takes, before anything is labelled.

Computes nothing itself: `assessment.label_plan` gives the numbers, by the function that also sizes
the advice of a failed calibration.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, TextIO, get_args

import click

from stopadvisor.assessment.label_plan import CertificateWish, plan_labels
from stopadvisor.cli.options import OUTPUT, SHARE, OutputOptions, Parsed, declare, emit, take
from stopadvisor.cli.page import Command
from stopadvisor.cli.settings import ALPHA, DELTA
from stopadvisor.report.documents.plan import plan_document
from stopadvisor.report.text.plan import show_plan
from stopadvisor.stats.bounds import Bound
from stopadvisor.workload.questions import parse_split

__all__ = ["PlanOptions", "command", "run"]


@dataclass(frozen=True)
class PlanOptions:
    """What certificate is wanted, and what risk is expected."""

    wish: CertificateWish
    output: OutputOptions = field(default_factory=OutputOptions)


@click.command(
    "plan",
    cls=Command,
    examples=[
        "stopadvisor plan --alpha 0.05 --expected-risk 0.01",
        "stopadvisor plan --alpha 0.15 --power 0.95 --split 40/40/20",
    ],
)
@declare(ALPHA, DELTA)
@click.option(
    "--expected-risk",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.01,
    help="Risk that the most careful useful threshold is expected to have.",
)
@click.option(
    "--power", type=SHARE, default=0.8, help="Wanted probability that calibration certifies."
)
@click.option(
    "--bound", type=click.Choice(get_args(Bound)), default="exact", help="Test of the risk."
)
@click.option(
    "--chains",
    type=click.IntRange(1, 2),
    default=1,
    help="1: one rule is tested with all of delta, as in calibrate; 2: two share it equally.",
)
@click.option(
    "--split",
    type=Parsed("fit/cal/test", parse_split),
    default="40/60/0",
    help="Shares of fit, calibration and test.",
)
@declare(*OUTPUT)
def command(**params: Any) -> int:
    """Compute how many labelled questions a certificate needs.

    The answer is the smallest number such that it and every larger one reach the power: power is
    a sawtooth in the number of questions.
    """
    output = take(OutputOptions, params)
    return run(PlanOptions(CertificateWish(**params), output), sys.stdout, sys.stderr)


def run(options: PlanOptions, out: TextIO, err: TextIO) -> int:
    """Print the plan."""
    document = plan_document(options.wish, plan_labels(options.wish))
    emit(document, options.output, out, show_plan, indent=None)
    return 0
