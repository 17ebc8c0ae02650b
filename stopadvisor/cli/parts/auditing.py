"""The options of `serve` about audits, for the plugin and the gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from stopadvisor.cli.parts.declare import PATH, option, pop_settings
from stopadvisor.serving.audits import ALARM_ACTIONS, AuditSettings

__all__ = ["AUDITING", "audit_settings"]

_option = option("Audits")

AUDITING = (
    _option(
        "--audit",
        "share",
        type=click.FloatRange(0, 1, min_open=True),
        metavar="SHARE",
        help="Share of stopped requests that finish thinking in the background, to compare, "
        "such as 0.02.",
    ),
    _option(
        "--audit-log",
        "folder",
        type=PATH,
        default=Path("audits"),
        help="Folder of this server's log, which `monitor` reads; it holds no text.",
    ),
    _option(
        "--on-alarm",
        type=click.Choice(ALARM_ACTIONS),
        default="log",
        help="What an alarm does: log it, stop no further requests (shadow), or exit with code 6 "
        "(promise) or 8 (early warning, change).",
    ),
)
"""For `declare`."""


def audit_settings(params: dict[str, Any]) -> AuditSettings | None:
    """Take the options out of what click parsed; None without ``--audit``."""
    share = params["share"]
    settings = pop_settings(AuditSettings, params)
    return None if share is None else settings
