"""`stopadvisor plan`: compute how many labelled questions a certificate needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from stopadvisor.assessment.promises import plan_labels
from stopadvisor.assessment.settings import SettingsOverrides, asked_alpha
from stopadvisor.cli.parts.command import Command
from stopadvisor.cli.parts.declare import PATH, SHARE, Parsed, Printed, is_default, printed
from stopadvisor.cli.parts.settings import DELTA
from stopadvisor.ground.progress import Progress
from stopadvisor.report.sheets.plan import plan_sheet
from stopadvisor.rules.losses import LOSSES
from stopadvisor.workload.questions import parse_split

__all__ = ["command"]


@click.command(
    "plan",
    cls=Command,
    examples=[
        "stopadvisor plan --alpha 0.05 --expected-risk 0.01",
        "stopadvisor plan runs/my-run --alpha 0.05",
        "stopadvisor plan --alpha 0.02 --loss drop",
        "stopadvisor plan --alpha 0.15 --power 0.95 --split 40/40/20",
    ],
)
@click.argument("source", metavar="[RUN|RAW.NPZ]", type=PATH, required=False)
@click.option(
    "--alpha", type=SHARE, show_default="as the run was assessed", help="Risk to certify."
)
@DELTA
@click.option(
    "--expected-risk",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.01,
    show_default="0.01, or as a RUN measured it",
    help="Expected risk of the most careful threshold that is still useful.",
)
@click.option(
    "--loss",
    type=click.Choice(list(LOSSES)),
    show_default="lost, or differs for a run without gold",
    help="What alpha limits: lost answers, replies that differ, or the drop in accuracy.",
)
@click.option(
    "--power", type=SHARE, default=0.8, help="Probability with which calibration should certify."
)
@click.option(
    "--split",
    type=Parsed("fit/cal/test", parse_split),
    default="40/60/0",
    help="Shares of fit, calibration and test.",
)
@printed
def command(_: Progress, source: Path | None, **params: Any) -> Printed:
    """Compute how many labelled questions a certificate needs.

    Power does not rise steadily, so this is the smallest number from which all larger ones reach
    it; for a drop, some slightly larger ones may just miss it.  With a run, a table shows what its
    advised rule should save for each number of labels.
    """
    measured: dict[str, Any] = {}
    if source is not None:
        from stopadvisor.assessment.fit_assessment import assess
        from stopadvisor.runs.prices import default_settings
        from stopadvisor.runs.sources import open_source, read_assessment

        opened = open_source(source, keep=False)
        recorded = read_assessment(opened.folder)
        params["alpha"] = asked_alpha(params["alpha"], recorded)
        asked = SettingsOverrides(**{name: params[name] for name in ("alpha", "delta", "loss")})
        assessment = assess(opened, asked.settings(recorded, defaults=default_settings(opened)))
        if is_default("expected_risk"):
            params["expected_risk"] = assessment.choice.risk_to_expect
            first = assessment.choice.shares_to_expect[:1]
            params["gained"] = sum(min(each.lost, each.gained) for each in first)
            params["saves_nothing"] = assessment.choice.saves_nothing
        params["loss"] = assessment.choice.settings.loss
        measured = {
            "label_savings": assessment.label_savings,
            "label_needs": assessment.label_needs,
        }
    params["alpha"] = asked_alpha(params["alpha"], None)
    plan = plan_labels(**params, **measured)
    return Printed(plan, plan_sheet(plan, saves_nothing=params.get("saves_nothing", False)))
