"""Options of `stopadvisor serve`: the gateway before servers that already run, and audits.

Makes settings of what was parsed; starting is `serving.gateway.server`'s.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from stopadvisor.cli.parts.declare import (
    COUNT,
    PATH,
    Parsed,
    SectionOption,
    is_given,
    option,
    pop_settings,
)
from stopadvisor.engines.errors import require_packages
from stopadvisor.runs.ladder import read_ladder
from stopadvisor.serving.serve_settings import (
    ALARM_ACTIONS,
    AuditSettings,
    GatewaySettings,
    Timeouts,
)

__all__ = ["AUDITING", "GATEWAY", "audit_settings", "gateway_settings", "require_gateway"]

_PACKAGES = (
    *("aiohttp", "anyio", "httptools", "httpx2", "jinja2", "prometheus_client", "starlette"),
    *("transformers", "uvicorn"),
)

_OF_RUNGS = ("upstreams", "api_key_env", "model", "tokenizer")
"""Options that a ladder's file answers, or that have no use for it."""
_gateway = option("Gateway")
_seconds = partial(_gateway, metavar="SECONDS", type=click.FloatRange(min=0, min_open=True))
_OWN = GatewaySettings(Path(), upstreams=())


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not (host and port.isdecimal() and int(port) <= 65_535):
        raise ValueError("expected HOST:PORT such as 127.0.0.1:8080")
    return host.removeprefix("[").removesuffix("]"), int(port)


GATEWAY = (
    _gateway(
        "--upstream",
        "upstreams",
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
    _seconds("--grace", default=_OWN.grace, help="Time for open requests to finish after SIGTERM."),
    _seconds(
        "--patience",
        "retry_timeout",
        default=_OWN.retry_timeout,
        help="Time to wait for an upstream at the start.",
    ),
    _seconds(
        "--request-timeout", default=_OWN.timeouts.total, help="Longest time for a whole request."
    ),
)


def gateway_settings(policy: Path, params: dict[str, Any]) -> GatewaySettings | None:
    """Take the gateway's settings out of click's parameters; None without an upstream."""
    options = click.get_current_context().command.params
    gateway = [o for o in options if isinstance(o, SectionOption) and o.section == "Gateway"]
    given = {option.name: option.opts[0] for option in gateway if is_given(option.name or "")}
    if not params["upstreams"] and params["ladder"] is None:
        for name in given.values():
            raise click.UsageError(f"{name} belongs to --upstream, got no --upstream")
        return None
    if (path := params["ladder"]) is not None:
        for name in filter(given.get, _OF_RUNGS):
            raise click.UsageError(f"{given[name]}: expected it in the --ladder file")
        ladder = params["ladder"] = read_ladder(path)
        for rung in ladder.rungs:
            if rung.base_url is None or rung.model is None:
                raise click.UsageError(
                    f"{path}: rung {rung.name!r}: expected model and base_url, got none: the "
                    "gateway asks servers alone"
                )
        params["upstreams"] = (ladder.reference.base_url,)
        params["api_key_env"] = ladder.reference.api_key_env
    host, port = params["listen"]
    timeouts = Timeouts(total=params["request_timeout"])
    return pop_settings(
        GatewaySettings, params, policy=policy, host=host, port=port, timeouts=timeouts
    )


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
