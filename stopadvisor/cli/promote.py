"""`stopadvisor promote`: choose which of a run's certified policies is in use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from stopadvisor.cli.parts.command import Command
from stopadvisor.cli.parts.declare import PATH, Printed, printed
from stopadvisor.ground.progress import Progress
from stopadvisor.policy.run_policies import check_promotion, promote
from stopadvisor.report.html.page import refresh_report
from stopadvisor.report.sheets.files import promote_sheet
from stopadvisor.runs.storage import lock_directory

__all__ = ["command"]


@click.command(
    "promote",
    cls=Command,
    reads="POLICY: a file that `calibrate` wrote, with its calibration next to it.",
    writes="policy.joblib and calibration.json in the same folder, as copies; report.html "
    "where there is one.",
    examples=["stopadvisor promote runs/my-Qwen3-8B-1a2b3c4d/policy-a05-5e6f7a8b.joblib"],
)
@click.argument("policy", metavar="POLICY", type=PATH)
@printed
def command(progress: Progress, policy: Path) -> Printed:
    """Make POLICY the one in use: policy.joblib in its folder becomes a copy of it.

    `calibrate` does this with the last policy that it certified.  Nothing is lost: the policy that
    was in use keeps its own file and can be promoted again.
    """
    check_promotion(policy)  # refuse before leaving a lock in a folder that is not a run
    with lock_directory(policy.parent):
        promotion = promote(policy)
    remarks = refresh_report(policy.parent)
    progress.notes(remarks)
    promotion = replace(promotion, remarks=tuple(remarks))
    return Printed(promotion, promote_sheet(promotion))
