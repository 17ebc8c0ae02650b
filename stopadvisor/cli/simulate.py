"""`stopadvisor simulate`: probes of a made-up model, to plan a study or to try the tool.

What is written says of itself, everywhere, that it is simulated: nothing of it was measured.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import click

from stopadvisor.cli.options import COUNT, OUTPUT, PATH, OutputOptions, declare, emit, take
from stopadvisor.cli.page import Command
from stopadvisor.constants import PAPER_BUDGETS
from stopadvisor.report.text.written import show_simulation

__all__ = ["SimulateOptions", "command", "run"]


@dataclass(frozen=True)
class SimulateOptions:
    """What to draw, and where to put it."""

    out: Path
    """A run directory, or an archive where the name ends in ``.npz``."""
    profile: str = "free-form"
    questions: int = 1000
    checkpoints: int = len(PAPER_BUDGETS)
    signal: float | None = None
    """None: the profile's own."""
    seed: int = 0
    output: OutputOptions = field(default_factory=OutputOptions)


@click.command(
    "simulate",
    cls=Command,
    writes="A run directory, or an archive: --out.",
    examples=[
        "stopadvisor simulate --profile early-solved -n 400 -o /tmp/plan",
        "stopadvisor simulate --profile unsolved --seed 1 -o /tmp/raw.npz",
    ],
)
@click.option(
    "--profile",
    metavar="NAME|KIND=SHARE,...",
    default=SimulateOptions.profile,
    help="free-form, early-solved, unsolved; or shares of early_solved, beneficial, harmful, "
    "unsolved, oscillating, trap, relapse that add up to 1.",
)
@click.option(
    "--questions",
    "-n",
    type=COUNT,
    default=SimulateOptions.questions,
    help="Independent questions to draw.",
)
@click.option(
    "--checkpoints",
    type=click.IntRange(min=2),
    default=SimulateOptions.checkpoints,
    help="Probed budgets, in the shape of the paper's grid.",
)
@click.option(
    "--signal",
    type=click.FloatRange(min=0),
    show_default="the profile's, 1.6 or 2.2",
    help="How well the confidence separates right from wrong, in log-odds (1.6: AUROC 0.85).",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of all random draws.")
@click.option(
    "--out",
    "-o",
    type=PATH,
    required=True,
    help="Run directory to make, or an archive where the name ends in .npz.",
)
@declare(*OUTPUT)
def command(**params: Any) -> int:
    """Draw probes of a made-up model, marked as simulated everywhere.

    To see what a study of such a profile, at such a size, could certify before anything is
    labelled; to try `assess` and `calibrate` without a model; or, with another --seed, to hold a
    policy against fresh questions (`verify`).
    """
    output = take(OutputOptions, params)
    return run(SimulateOptions(output=output, **params), sys.stdout, sys.stderr)


def run(options: SimulateOptions, out: TextIO, err: TextIO) -> int:
    """Draw, write, and say what was written."""
    from stopadvisor.probes.simulation import checkpoint_grid, parse_profile
    from stopadvisor.report.documents.written import simulation_document
    from stopadvisor.runs.simulated import write_archive, write_run

    population = parse_profile(options.profile)
    population = replace(
        population,
        budgets=checkpoint_grid(options.checkpoints),
        signal=population.signal if options.signal is None else options.signal,
    )
    archive = options.out.suffix == ".npz"
    write = write_archive if archive else write_run
    write(options.out, population, options.questions, options.seed)
    document = simulation_document(
        options.out, population, options.questions, options.seed, archive=archive
    )
    emit(document, options.output, out, show_simulation, indent=None)
    return 0
