"""`stopadvisor monitor`: check by audit logs whether the traffic keeps a certified promise."""

from __future__ import annotations

from pathlib import Path

import click

from stopadvisor.cli.parts.command import Command
from stopadvisor.cli.parts.declare import PATH, Printed, printed
from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.printable import short_repr
from stopadvisor.ground.progress import Progress
from stopadvisor.policy.frozen import load_policy
from stopadvisor.report.sheets.monitor import monitor_sheet
from stopadvisor.serving.audit_log import find_series, replay
from stopadvisor.serving.audit_log import reset as write_reset
from stopadvisor.serving.monitored import monitored
from stopadvisor.serving.monitoring import drift_reference, exit_code
from stopadvisor.workload.lines import read_rows

__all__ = ["command"]


@click.command(
    "monitor",
    cls=Command,
    reads="POLICY, and audit logs that `serve --audit` wrote: files or folders, of any number of "
    "replicas.",
    writes="With --reset a line in each log.",
    examples=[
        "stopadvisor monitor policy.joblib audits",
        "stopadvisor monitor policy.joblib audits --gold gold.jsonl",
        "stopadvisor monitor policy.joblib audits --reset 'A. Smith'",
    ],
    exit_codes=(0, 2, 6, 8),
)
@click.argument("policy", metavar="POLICY", type=PATH)
@click.argument("logs", metavar="LOG...", type=PATH, nargs=-1, required=True)
@click.option(
    "--gold",
    type=PATH,
    help="JSONL: `id` of a request, `served_correct` and `full_correct`, for promises about right "
    "answers.",
)
@click.option(
    "--reset", metavar="NAME", help="End an alarm; NAME is the person who looked into it."
)
@printed
def command(
    _: Progress, policy: Path, logs: tuple[Path, ...], gold: Path | None, reset: str | None
) -> Printed:
    """Tell from audits whether POLICY keeps its promise, and how soon a breach would show.

    There are three alarms.  Promise (exit code 6): the loss that the certificate limits is above
    its limit; if that loss needs gold, only audits with gold count.  Early warning (8): more
    replies differ from full thinking than calibration saw; the promise may still hold.  While
    every request's risk is within its limit, the probability that either of these two ever rings
    is at most delta.  Change (8): a loss seems to have risen above its limit recently.  It rings
    sooner than the others after a quiet time, and falsely once in a million requests or less often.

    Each server raises alarms from its own log; here the logs of several servers are merged by
    time.
    """
    loaded = load_policy(policy)
    series = find_series(logs, loaded.digest)
    if not series:
        raise PolicyError(f"no audit log of this policy in {', '.join(map(str, logs))}")
    grades = {} if gold is None else _read_gold(gold)
    if reset is not None:
        # A server's own log may ring where the merged ones do not, and the other way round.
        merged_or_alone = (series, *((one,) for one in series))
        if not any(replay(some, gold=grades, policy=loaded)[0].alarms for some in merged_or_alone):
            raise PolicyError("no alarm is on: --reset would only discard the evidence so far")
        write_reset(series, reset)
    monitor, remarks = replay(series, drift_reference(loaded), gold=grades, policy=loaded)
    if grades and not monitor.settings.needs_gold:
        remarks += ("this policy promises equal replies: gold changes nothing",)
    terms = loaded.terms.certificate
    if terms is not None and terms.group_claim is not None:
        remarks += (
            "the promise is about groups, one question of each; here every request counts, so "
            "requests of few groups can raise or hide an alarm",
        )
    result = monitored(monitor, loaded, remarks, replicas=len(series))
    return Printed(result, monitor_sheet(result), exit_code(monitor.alarms))


def _read_gold(path: Path) -> dict[str, tuple[bool, bool]]:
    """Read late gold: by request, whether the served reply and full thinking were right."""
    gold: dict[str, tuple[bool, bool]] = {}
    for where, row in read_rows(path)[1]:
        key, served, full = (row.get(name) for name in ("id", "served_correct", "full_correct"))
        if not isinstance(key, str) or type(served) is not bool or type(full) is not bool:
            raise PolicyError(
                f"{where}: expected 'id', a text, and 'served_correct' and 'full_correct', true or "
                "false"
            )
        if key in gold:
            raise PolicyError(f"{where}: request {short_repr(key)} is named twice")
        gold[key] = served, full
    return gold
