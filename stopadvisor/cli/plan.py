"""`stopadvisor plan`: how many labels a certificate takes, before anything is labelled.

Computes nothing itself: `risk.labels_needed`, which also sizes the advice of a failed calibration,
gives the number.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, field
from typing import Any, TextIO, get_args

import click

from stopadvisor.assessment.recommendation import chance_words
from stopadvisor.cli.options import OUTPUT, SHARE, OutputOptions, Parsed, declare, take
from stopadvisor.cli.page import Command
from stopadvisor.cli.settings import ALPHA, DELTA
from stopadvisor.constants import DEFAULT_ALPHA, DEFAULT_DELTA
from stopadvisor.report.text.screen import Screen, plural, share
from stopadvisor.stats.bounds import Bound, labels_needed, power
from stopadvisor.workload.questions import parse_split

__all__ = ["PlanOptions", "command", "plan", "run"]


@dataclass(frozen=True)
class PlanOptions:
    """What certificate is wanted, and what risk is expected."""

    alpha: float = DEFAULT_ALPHA
    delta: float = DEFAULT_DELTA
    expected_risk: float = 0.01
    power: float = 0.8
    bound: Bound = "exact"
    chains: int = 2
    """Chains that share delta: learned and scalar."""
    split: tuple[float, float, float] = (0.4, 0.4, 0.2)
    output: OutputOptions = field(default_factory=OutputOptions)


@click.command(
    "plan",
    cls=Command,
    examples=[
        "stopadvisor plan --alpha 0.05 --expected-risk 0.01",
        "stopadvisor plan --alpha 0.15 --power 0.95 --split 40/60/0",
    ],
)
@declare(ALPHA, DELTA)
@click.option(
    "--expected-risk",
    type=click.FloatRange(0, 1, max_open=True),
    default=PlanOptions.expected_risk,
    help="Risk that the most careful useful threshold is expected to have.",
)
@click.option("--power", type=SHARE, default=PlanOptions.power, help="Chance of success wanted.")
@click.option(
    "--bound", type=click.Choice(get_args(Bound)), default="exact", help="Test of the risk."
)
@click.option(
    "--chains",
    type=click.IntRange(1, 2),
    default=PlanOptions.chains,
    help="2: learned and scalar rules share delta, as in calibrate; 1: one side has it all.",
)
@click.option(
    "--split",
    type=Parsed("fit/cal/test", parse_split),
    default="40/40/20",
    help="Shares of fit, calibration and test.",
)
@declare(*OUTPUT)
def command(**params: Any) -> int:
    """Say how many labelled questions a certificate takes.

    The answer is the smallest number such that it and every larger one reach the power: power is
    a sawtooth in the number of questions.
    """
    output = take(OutputOptions, params)
    options = PlanOptions(output=output, **params)
    return run(options, sys.stdout, sys.stderr)


def plan(options: PlanOptions) -> dict[str, Any]:
    """Sizes as `plan --json` prints them; null where no number of labels suffices."""
    chain_delta = options.delta / options.chains
    needed = _needed(options, chain_delta)
    return {
        "schema": 1,
        "alpha": options.alpha,
        "delta": options.delta,
        "bound": options.bound,
        "expected_risk": options.expected_risk,
        "power": options.power,
        "chains": options.chains,
        "chain_delta": chain_delta,
        "split": list(options.split),
        "calibration_labels": needed,
        "total_labels": None if needed is None else _in_all(needed, options.split[1]),
        "power_reached": None
        if needed is None
        else power(needed, options.alpha, chain_delta, options.expected_risk, options.bound),
        "one_chain_calibration_labels": _needed(options, options.delta),
    }


def _needed(options: PlanOptions, delta: float) -> int | None:
    return labels_needed(
        options.alpha,
        delta,
        expected_risk=options.expected_risk,
        power_wanted=options.power,
        bound=options.bound,
    )


def _in_all(labels: int, part: float) -> int:
    """Questions of which the calibration part is expected to hold that many."""
    return math.ceil(round(labels / part, 6))  # 286 / 0.4 is 715, whatever binary makes of it


def run(options: PlanOptions, out: TextIO, err: TextIO) -> int:
    """Print the plan."""
    sizes = plan(options)
    if options.output.json:
        print(json.dumps(sizes, allow_nan=False), file=out)
        return 0
    screen = Screen(out)
    promise = f"alpha = {options.alpha:g} at confidence {1 - options.delta:g}"
    if sizes["calibration_labels"] is None:
        screen.headline(f"No number of labels is planned for {promise}.")
        screen.text(
            f"The expected risk, {options.expected_risk:g}, must lie below alpha."
            if options.expected_risk >= options.alpha
            else f"An expected risk of {options.expected_risk:g} is so close to alpha that it "
            "would take more than a million."
        )
        return 0
    screen.headline(f"{plural(sizes['calibration_labels'], 'calibration label')} for {promise}.")
    shares = "/".join(f"{100 * part:g}" for part in options.split)
    rows = [
        ("in all", f"about {sizes['total_labels']} labelled questions (split {shares})"),
        (
            "chance",
            f"{chance_words(sizes['power_reached'])} to certify, if the risk is "
            f"{options.expected_risk:g}; with more labels never below {share(options.power)}",
        ),
    ]
    if options.chains > 1:
        rows.append(
            (
                "one rule",
                f"{sizes['one_chain_calibration_labels']} where learned or scalar rules are "
                "tested alone (calibrate --families)",
            )
        )
    rows.append(("counted", "one label per independent question: groups and copies count once"))
    screen.facts(rows)
    return 0
