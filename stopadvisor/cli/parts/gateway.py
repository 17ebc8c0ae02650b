"""Options of `stopadvisor serve`: the gateway before servers that already run, and audits.

Makes settings of what was parsed; starting is `serving.gateway.server`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from stopadvisor.cli.parts.declare import COUNT, PATH, Parsed, is_given, option, pop_settings
from stopadvisor.engines.errors import require_packages
from stopadvisor.runs.ladder import Ladder, read_ladder
from stopadvisor.serving.audits import ALARM_ACTIONS, AuditSettings
from stopadvisor.serving.gateway.gateway_settings import GatewaySettings, Timeouts

__all__ = ["AUDITING", "GATEWAY", "audit_settings", "gateway_settings", "require_gateway"]

_SECONDS = click.FloatRange(min=0, min_open=True)
_PACKAGES = (
    *("aiohttp", "anyio", "httptools", "httpx2", "jinja2", "prometheus_client", "starlette"),
    *("transformers", "uvicorn"),
)

_NAMES = (
    *("upstream", "ladder", "listen", "api_key_env", "model", "tokenizer"),
    *("concurrency", "grace", "patience", "request_timeout"),
)
_OF_RUNGS = ("upstream", "api_key_env", "model", "tokenizer")
"""Options that a ladder's file answers, or that have no use for it."""
_gateway = option("Gateway")
_OWN = GatewaySettings(Path(), upstreams=())


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not (host and port.isdecimal() and int(port) <= 65_535):
        raise ValueError("expected HOST:PORT such as 127.0.0.1:8080")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _seconds(name: str, default: float, text: str) -> Any:
    return _gateway(name, metavar="SECONDS", type=_SECONDS, default=default, help=text)


GATEWAY = (
    _gateway(
        "--upstream",
        metavar="URL",
        multiple=True,
        help="Run a gateway to this server, such as http://host:8000/v1; repeat it for equal ones.",
    ),
    _gateway(
        "--ladder",
        metavar="LADDER.TOML",
        type=PATH,
        help="Of a policy that climbs, in place of --upstream: the rungs with their servers.",
    ),
    _gateway(
        "--listen",
        type=Parsed("host:port", _address),
        default=f"{_OWN.host}:{_OWN.port}",
        help="Address to listen on; port 0 takes any.",
    ),
    _gateway(
        "--api-key-env",
        metavar="NAME",
        show_default="each client's own is sent on",
        help="Environment variable with the upstreams' key.",
    ),
    _gateway(
        "--model", show_default="as the policy names it", help="The model's name at the upstreams."
    ),
    _gateway(
        "--tokenizer",
        metavar="PATH",
        show_default="that of the model",
        help="Folder or name of the tokenizer.",
    ),
    _gateway(
        "--concurrency", type=COUNT, default=_OWN.concurrency, help="Requests answered at once."
    ),
    _seconds("--grace", _OWN.grace, "Time for open requests to finish after SIGTERM."),
    _seconds("--patience", _OWN.retry_timeout, "Time to wait for an upstream at the start."),
    _seconds("--request-timeout", _OWN.timeouts.total, "Longest time for a whole request."),
)


def gateway_settings(policy: Path, params: Mapping[str, Any]) -> GatewaySettings | None:
    """Take the gateway's settings out of click's parameters; None without an upstream."""
    ladder = None if params["ladder"] is None else _ladder(params["ladder"])
    if not params["upstream"] and ladder is None:
        for name in _NAMES:
            if is_given(name):
                raise click.UsageError(
                    f"--{name.replace('_', '-')} belongs to --upstream, got no --upstream"
                )
        return None
    found = {name: params[name] for name in _NAMES}
    if ladder is not None:
        for name in filter(is_given, _OF_RUNGS):
            raise click.UsageError(f"--{name.replace('_', '-')}: expected it in the --ladder file")
        found["upstream"] = (ladder.reference.base_url,)
        found["api_key_env"] = ladder.reference.api_key_env
    found["ladder"] = ladder
    found["host"], found["port"] = found.pop("listen")
    limits = Timeouts(total=found.pop("request_timeout"))
    found["retry_timeout"] = found.pop("patience")
    return GatewaySettings(
        policy=policy,
        upstreams=found.pop("upstream"),
        shadow=params["shadow"],
        any_text=params["any_text"],
        audit=params["audit"],
        require_signature=params["require_signature"],
        timeouts=limits,
        **found,
    )


def _ladder(path: Path) -> Ladder:
    ladder = read_ladder(path)
    for rung in ladder.rungs:
        if rung.base_url is None or rung.model is None:
            raise click.UsageError(
                f"{path}: rung {rung.name!r}: expected model and base_url, got none: the gateway "
                "asks servers alone"
            )
    return ladder


def require_gateway() -> None:
    """Refuse to start without the packages of the extra."""
    require_packages("serve", *_PACKAGES, what="the gateway")


# --- Audits ---------------------------------------------------------------------------------------

_audit = option("Audits")

AUDITING = (
    _audit(
        "--audit",
        "share",
        type=click.FloatRange(0, 1, min_open=True),
        metavar="SHARE",
        help="Share of stopped requests that finish thinking in the background, to compare, "
        "such as 0.02.",
    ),
    _audit(
        "--audit-log",
        "folder",
        type=PATH,
        default=Path("audits"),
        help="Folder of this server's log, which `monitor` reads; it holds no text.",
    ),
    _audit(
        "--on-alarm",
        type=click.Choice(ALARM_ACTIONS),
        default="log",
        help="What an alarm does: log it, stop no further requests (shadow), or exit with code 6 "
        "(promise) or 8 (early warning, change).",
    ),
)


def audit_settings(params: dict[str, Any]) -> AuditSettings | None:
    """Take the options out of what click parsed; None without ``--audit``."""
    share = params["share"]
    settings = pop_settings(AuditSettings, params)
    return None if share is None else settings
