"""`stopadvisor monitor`: whether the traffic still keeps a certified promise, by the audit log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import click

from stopadvisor.cli.options import OUTPUT, PATH, OutputOptions, declare, emit, take
from stopadvisor.cli.page import Command
from stopadvisor.errors import PolicyError
from stopadvisor.json_text import parse_json
from stopadvisor.policy.frozen import load_policy
from stopadvisor.printable import short_repr
from stopadvisor.report.documents.monitor import monitor_document
from stopadvisor.report.text.monitor import show_monitoring
from stopadvisor.serving.audit_log import find_series, replay, reset
from stopadvisor.serving.monitoring import DRIFT_DELTA
from stopadvisor.serving.watch_settings import drift_reference

__all__ = ["ALARMED", "MonitorOptions", "command", "run"]

ALARMED = 6
"""Exit code: audits speak against the promise."""


@dataclass(frozen=True)
class MonitorOptions:
    """Whose promise, and what to read."""

    policy: Path
    logs: tuple[Path, ...]
    gold: Path | None = None
    report: Path | None = None
    reset: str | None = None
    output: OutputOptions = field(default_factory=OutputOptions)


@click.command(
    "monitor",
    cls=Command,
    reads="POLICY, and audit logs that `serve --audit` wrote: files or folders, of any number of "
    "replicas.",
    writes="With --reset a line in each log; with --report a page.",
    examples=[
        "stopadvisor monitor policy.joblib audits",
        "stopadvisor monitor policy.joblib audits --gold gold.jsonl --report page.html",
        "stopadvisor monitor policy.joblib audits --reset 'A. Smith'",
    ],
    exit_codes=(0, 2, 6),
)
@click.argument("policy", metavar="POLICY", type=PATH)
@click.argument("logs", metavar="LOG...", type=PATH, nargs=-1, required=True)
@click.option(
    "--gold",
    type=PATH,
    help="JSONL: `id` of a request, `served_correct` and `full_correct`, for promises about right "
    "answers.",
)
@click.option("--report", type=PATH, help="Draw the course on a page of its own.")
@click.option(
    "--reset", metavar="NAME", help="End an alarm, by the name of whoever looked into it."
)
@declare(*OUTPUT)
def command(policy: Path, logs: tuple[Path, ...], **params: Any) -> int:
    """Say from audits whether the promise of POLICY is kept, and how soon a breach would show.

    The logs of several replicas are merged by time.  Ends with 6 while there is an alarm: either
    the e-value has reached 1 / delta, which happens with probability delta at most, ever, while
    every request's risk is within the limit; or the change detector has reached its own limit.
    """
    output = take(OutputOptions, params)
    return run(MonitorOptions(policy, logs, output=output, **params), sys.stdout, sys.stderr)


def run(options: MonitorOptions, out: TextIO, err: TextIO) -> int:
    """Read the logs, and say what they come to."""
    policy = load_policy(options.policy)
    series = find_series(options.logs, policy.digest)
    if not series:
        raise PolicyError(f"no audit log of this policy in {', '.join(map(str, options.logs))}")
    if options.reset is not None:
        reset(series, options.reset)
    gold = () if options.gold is None else read_gold(options.gold)
    course, remarks = replay(series, drift_reference(policy), gold=gold, policy=policy)
    if options.gold is not None and not course.settings.needs_gold:
        remarks += ("this policy promises equal replies: gold decides nothing",)
    document = monitor_document(course, policy, remarks, drift_delta=DRIFT_DELTA)
    if options.report is not None:
        from stopadvisor.report.html.course import write_course

        write_course(document, options.report)
    emit(document, options.output, out, show_monitoring)
    return ALARMED if document["alarm"] else 0


def read_gold(path: Path) -> Iterator[dict[str, Any]]:
    """Gold that came later, as records of a log."""
    seen: set[str] = set()
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"{path}: cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        here = f"{path}, line {number}"
        try:
            found = parse_json(line)
            key = found["id"]
            served, full = found["served_correct"], found["full_correct"]
        except (ValueError, TypeError, KeyError) as error:
            raise PolicyError(
                f"{here}: expected an object with 'id', 'served_correct' and 'full_correct'"
            ) from error
        if type(key) is not str or type(served) is not bool or type(full) is not bool:
            raise PolicyError(f"{here}: expected a string and two booleans")
        if key in seen:
            raise PolicyError(f"{here}: request {short_repr(key)} is named twice")
        seen.add(key)
        yield {"kind": "gold", "id": key, "served": served, "full": full}
