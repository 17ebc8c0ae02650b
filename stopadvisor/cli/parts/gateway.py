"""Options of `stopadvisor serve --upstream`: the gateway before servers that already run.

Makes settings of what was parsed; starting is `serving.gateway.server`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from stopadvisor.cli.parts.declare import COUNT, is_given, option
from stopadvisor.engines.errors import require_packages
from stopadvisor.policy.requests import THINKING_MODES
from stopadvisor.serving.gateway.gateway_settings import GatewaySettings, Timeouts

__all__ = ["GATEWAY", "gateway_settings", "require_gateway"]

_TIMEOUTS = {
    "connect_timeout": "connect",
    "first_timeout": "first",
    "between_timeout": "between",
    "request_timeout": "total",
    "probe_timeout": "probe",
}
"""Options, and the fields that they fill."""
_SECONDS = click.FloatRange(min=0, min_open=True)
_PORT = click.IntRange(0, 65535)
_PACKAGES = (
    *("aiohttp", "anyio", "httptools", "httpx2", "jinja2", "prometheus_client", "starlette"),
    *("tenacity", "transformers", "uvicorn"),
)

_NAMES = (
    *("upstream", "host", "port", "admin_host", "admin_port", "admin_token_env"),
    *("upstream_key_env", "model", "tokenizer", "serving", "concurrency", "queue", "grace"),
    *("patience", *_TIMEOUTS),
)
_gateway = option("Gateway")
_OWN = GatewaySettings(Path(), ())


def _seconds(name: str, default: float, text: str) -> Any:
    return _gateway(name, metavar="SECONDS", type=_SECONDS, default=default, help=text)


GATEWAY = (
    _gateway(
        "--upstream",
        metavar="URL",
        multiple=True,
        help="Serve before this server instead, such as http://host:8000/v1; several: equal ones.",
    ),
    _gateway("--host", default=_OWN.host, help="Address to listen on."),
    _gateway("--port", type=_PORT, default=_OWN.port, help="Port to listen on; 0 takes any."),
    _gateway("--admin-host", default=_OWN.admin_host, help="Address of the admin port."),
    _gateway(
        "--admin-port",
        type=_PORT,
        default=_OWN.admin_port,
        help="Port of POST /reload, which reads the policies again.",
    ),
    _gateway(
        "--admin-token-env",
        metavar="NAME",
        help="Environment variable with the token that /reload asks for; needed beyond loopback.",
    ),
    _gateway(
        "--upstream-key-env",
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
        "--serving",
        type=click.Choice(THINKING_MODES),
        show_default="overlap if the policy was chosen for vllm",
        help="Resume thinking after each probe, or let it stream on while one runs.",
    ),
    _gateway(
        "--concurrency", type=COUNT, default=_OWN.concurrency, help="Requests answered at once."
    ),
    _gateway(
        "--queue",
        type=click.IntRange(min=0),
        default=_OWN.queue,
        help="Requests that may wait; further ones get 429.",
    ),
    _seconds("--grace", _OWN.grace, "Time that open requests have to finish after SIGTERM."),
    _seconds("--patience", _OWN.retry_timeout, "Time to wait for an upstream at the start."),
    _seconds("--connect-timeout", _OWN.timeouts.connect, "Longest time to connect to an upstream."),
    _seconds("--first-timeout", _OWN.timeouts.first, "Longest wait for a stream's first token."),
    _seconds(
        "--between-timeout", _OWN.timeouts.between, "Longest wait between two tokens of a stream."
    ),
    _seconds("--request-timeout", _OWN.timeouts.total, "Longest time for a whole request."),
    _seconds(
        "--probe-timeout",
        _OWN.timeouts.probe,
        "Longest time for a probe; after that the model thinks on.",
    ),
)


def gateway_settings(policy: Path, params: Mapping[str, Any]) -> GatewaySettings | None:
    """Take the gateway's settings out of click's parameters; None without an upstream."""
    if not params["upstream"]:
        for name in _NAMES:
            if is_given(name):
                raise click.UsageError(
                    f"--{name.replace('_', '-')} belongs to --upstream, got no --upstream"
                )
        return None
    found = {name: params[name] for name in _NAMES}
    limits = {field: found.pop(name) for name, field in _TIMEOUTS.items()}
    found["retry_timeout"] = found.pop("patience")
    return GatewaySettings(
        policies=policy,
        upstreams=found.pop("upstream"),
        shadow=params["shadow"],
        any_text=params["any_text"],
        audit=params["audit"],
        require_signature=params["require_signature"],
        timeouts=Timeouts(**limits),
        **found,
    )


def require_gateway() -> None:
    """Refuse to start without the packages of the extra."""
    require_packages("serve", *_PACKAGES, what="the gateway")
