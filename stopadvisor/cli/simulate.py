"""`stopadvisor simulate`: probes of a made-up model, to plan a study or to try the tool.

What is written says of itself, everywhere, that it is simulated: nothing of it was measured.
"""

from __future__ import annotations

from pathlib import Path

import click

from stopadvisor.cli.parts.declare import COUNT, OUTPUT, PATH, declare, show
from stopadvisor.cli.parts.help_page import Command
from stopadvisor.report.sheets.files import simulate_sheet

__all__ = ["command"]


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
    default="free-form",
    help="free-form, early-solved, unsolved; or shares of early_solved, beneficial, harmful, "
    "unsolved, oscillating, trap, relapse that add up to 1.",
)
@click.option(
    "--limit", "-n", "questions", type=COUNT, default=1000, help="Independent questions to draw."
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
def command(profile: str, questions: int, seed: int, out: Path, *, json: bool, quiet: bool) -> int:
    """Draw probes of a made-up model, marked as simulated everywhere.

    To see what a study of such a profile, at such a size, could certify before anything is
    labelled; to try `assess` and `calibrate` without a model; or, with another --seed, to hold a
    policy against fresh questions (`verify`).
    """
    from stopadvisor.probes.simulation import parse_profile
    from stopadvisor.runs.simulated import simulate

    simulated = simulate(out, parse_profile(profile), questions, seed)
    show(simulated, simulate_sheet(simulated), json=json)
    return 0
