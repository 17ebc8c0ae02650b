"""`stopadvisor serve`: start vLLM with a policy inside, or a gateway in front of running servers.

For vLLM it checks policy, signature and version first, because vLLM takes long to start, and then
becomes the vLLM process.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import entry_points
from itertools import chain
from json import dumps
from pathlib import Path
from typing import Any, NoReturn

import click

from stopadvisor.cli.parts.command import Command
from stopadvisor.cli.parts.declare import (
    COUNT,
    PATH,
    SIGNATURE,
    Parsed,
    SectionOption,
    declare,
    is_given,
    option,
    pop_settings,
)
from stopadvisor.engines.errors import require_packages
from stopadvisor.ground.errors import ModelError
from stopadvisor.policy.requests import prompt_templates
from stopadvisor.policy.rung_policies import read_rungs
from stopadvisor.serving.serve_settings import (
    ALARM_ACTIONS,
    AuditSettings,
    GatewaySettings,
    ServeSettings,
    Timeouts,
    load_policies,
)
from stopadvisor.serving.vllm.plugin_settings import NAME, check_vllm, variables_of

__all__ = ["become_vllm", "command"]

_SCHEDULING = "--scheduling-policy"
_AUDITED = 0.05
"""Share of audited requests in the suggested next command."""
_LOADED_UNASKED = (
    "vllm.general_plugins",
    "vllm.io_processor_plugins",
    "vllm.platform_plugins",
    "vllm.stat_logger_plugins",
)
"""Entry-point groups of which vLLM loads every plugin while ``VLLM_PLUGINS`` is unset."""

_PACKAGES = (
    *("aiohttp", "anyio", "httptools", "httpx2", "jinja2", "prometheus_client", "starlette"),
    *("transformers", "uvicorn"),
)

_LADDER_OPTIONS = ("upstreams", "api_key_env", "model", "tokenizer")
"""Options that a ladder's file replaces."""
_gateway = option("Gateway")
_seconds = partial(_gateway, metavar="SECONDS", type=click.FloatRange(min=0, min_open=True))
_DEFAULTS = GatewaySettings(Path(), upstreams=())


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not (host and port.isdecimal() and int(port) <= 65_535):
        raise ValueError("expected HOST:PORT such as 127.0.0.1:8080")
    return host.removeprefix("[").removesuffix("]"), int(port)


_GATEWAY = (
    _gateway(
        "--upstream",
        "upstreams",
        metavar="URL",
        multiple=True,
        help="Run a gateway to this server, such as http://host:8000/v1; repeat for equal servers.",
    ),
    _gateway(
        "--ladder",
        metavar="LADDER.TOML",
        type=PATH,
        help="For a policy that climbs, instead of --upstream: the rungs with their servers.",
    ),
    _gateway(
        "--listen",
        type=Parsed("host:port", _address),
        default=f"{_DEFAULTS.host}:{_DEFAULTS.port}",
        help="Address to listen on; port 0 takes any.",
    ),
    _gateway(
        "--api-key-env",
        metavar="NAME",
        show_default="each client's own is passed on",
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
        "--concurrency",
        type=COUNT,
        default=_DEFAULTS.concurrency,
        help="Requests answered at once.",
    ),
    _seconds(
        "--grace", default=_DEFAULTS.grace, help="Time for open requests to finish after SIGTERM."
    ),
    _seconds(
        "--patience",
        "retry_timeout",
        default=_DEFAULTS.retry_timeout,
        help="Time to wait for an upstream at the start.",
    ),
    _seconds(
        "--request-timeout",
        default=_DEFAULTS.timeouts.total,
        help="Longest time for a whole request.",
    ),
)
_audit = option("Audits")

_AUDITING = (
    _audit(
        "--audit",
        "share",
        type=click.FloatRange(0, 1, min_open=True),
        metavar="SHARE",
        help="Share of stopped requests that finish thinking in the background, for comparison, "
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


@click.command(
    "serve",
    cls=Command,
    reads="POLICY, or a folder with a policy for each model and task.",
    writes="What vLLM prints; metrics join its own.  The gateway's log, JSON lines on stderr.",
    examples=[
        "stopadvisor serve policy.joblib -- Qwen/Qwen3-8B --reasoning-parser qwen3",
        "stopadvisor serve policy.joblib --shadow -- MODEL --reasoning-parser NAME",
        "stopadvisor serve policy.joblib --upstream http://127.0.0.1:8000/v1",
        "stopadvisor serve policy.joblib --ladder ladder.toml",
    ],
    exit_codes=(0, 1, 2, 6, 8),
)
@click.argument("policy", type=PATH)
@click.argument("words", metavar="[-- MODEL [VLLM OPTION]...]", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--shadow",
    is_flag=True,
    help="Probe and judge, but stop nothing, and count what would have been stopped.",
)
@click.option(
    "--any-text",
    is_flag=True,
    help="Also cover requests without the policy's prompt template; for policies whose workload "
    "held messages.",
)
@SIGNATURE
@click.option("--json", is_flag=True, help="Print a refusal as one JSON object.")
@click.option("--quiet", is_flag=True, help="Do not report on stderr what starts.")
@declare(*_GATEWAY, *_AUDITING)
def command(policy: Path, words: tuple[str, ...], *, json: bool, quiet: bool, **params: Any) -> int:
    """Start `vllm serve MODEL` with POLICY in it, or a gateway in front of servers.

    Chat requests that the policy covers are answered under it, all others pass unchanged; the
    X-StopAdvisor header of each reply says which.
    """
    is_audited = params["share"] is not None
    for name, typed in (("on_alarm", "--on-alarm"), ("folder", "--audit-log")):
        if is_given(name) and not is_audited:  # else nothing is audited, and no alarm can ring
            raise click.UsageError(f"{typed} belongs to --audit, got no --audit")
    audit = pop_settings(AuditSettings, params)
    params["audit"] = audit if is_audited else None
    settings = _gateway_settings(policy, params)
    if settings is not None:
        if words:
            raise click.UsageError(f"expected --upstream or a model, got both: {words[0]!r}")
        require_packages("serve", *_PACKAGES, what="the gateway")
        from stopadvisor.serving.gateway.server import serve

        return serve(settings, sys.stderr)
    if not words or words[0].startswith("-"):
        raise click.UsageError(
            "expected POLICY -- MODEL [VLLM OPTION]... or POLICY --upstream URL, got no MODEL"
        )
    become_vllm(pop_settings(ServeSettings, params, policy=policy), words, quiet=quiet)


def _gateway_settings(policy: Path, params: dict[str, Any]) -> GatewaySettings | None:
    """Take the gateway's settings out of click's parameters; None without an upstream."""
    options = click.get_current_context().command.params
    gateway = [o for o in options if isinstance(o, SectionOption) and o.section == "Gateway"]
    given = {option.name: option.opts[0] for option in gateway if is_given(option.name or "")}
    if not params["upstreams"] and params["ladder"] is None:
        for name in given.values():
            raise click.UsageError(f"{name} belongs to --upstream, got no --upstream")
        return None
    if (path := params["ladder"]) is not None:
        for name in filter(given.get, _LADDER_OPTIONS):
            raise click.UsageError(f"{given[name]}: expected it in the --ladder file")
        ladder = params["ladder"] = read_rungs(path)
        for rung in ladder.rungs:
            if rung.base_url is None or rung.model is None:
                raise click.UsageError(
                    f"{path}: rung {rung.name!r}: expected model and base_url, got none: the "
                    "gateway asks only servers"
                )
        params["upstreams"] = (ladder.reference.base_url,)
        params["api_key_env"] = ladder.reference.api_key_env
    host, port = params["listen"]
    timeouts = Timeouts(total=params["request_timeout"])
    return pop_settings(
        GatewaySettings, params, policy=policy, host=host, port=port, timeouts=timeouts
    )


# --- Inside vLLM ----------------------------------------------------------------------------------


def become_vllm(settings: ServeSettings, words: Sequence[str], *, quiet: bool) -> NoReturn:
    """Run the quick checks, then become vLLM; `words` are its arguments, model first."""
    version = check_vllm()
    require_packages("vllm", "prometheus_client", what="serve")
    policies = load_policies(settings)
    argv, environment = _process(settings, words, os.environ)
    if not quiet:
        how = "in the shadow of" if settings.shadow else "under"
        digests = ", ".join(policy.digest[:8] for _, policy in policies)
        click.echo(f"vLLM {version} {how} {digests}: {' '.join(argv[5:])}", err=True)
        texts = (prompt_templates(each.terms).values() for _, each in policies)
        for text in dict.fromkeys(chain(*texts)) if not settings.any_text else ():
            click.echo(f"covers questions asked as {dumps(text, ensure_ascii=False)}", err=True)
        # A file may name one, and vLLM itself does for gpt-oss: the plugin decides, minutes later.
        if not any("reason" in word or word.startswith("--config") for word in words):
            click.echo(
                "note: without --reasoning-parser NAME vLLM loads the model, and then refuses the "
                "policy, unless it knows the model's parser",
                err=True,
            )
        # After the shadow comes stopping with audits, and after that watching the promise.
        policy = shlex.quote(str(settings.policy))
        step = f"serve {policy} --audit {_AUDITED} -- {shlex.join(words)}"
        if settings.audit is not None:
            step = f"monitor {policy} {shlex.quote(str(settings.audit.folder))}"
        click.echo(f"next: stopadvisor {step}", err=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(argv[0], argv, environment)


def _plugins(environment: Mapping[str, str]) -> list[str]:
    """Name the plugins that vLLM would load anyway, and ours.

    While ``VLLM_PLUGINS`` is unset, vLLM loads every plugin except those of endpoints; otherwise it
    loads exactly the plugins named there.

    Raises
    ------
    ModelError
        No installed package declares our plugin, or naming another plugin would also load an
        endpoint plugin of the same name.
    """
    endpoints = {plugin.name for plugin in entry_points(group="vllm.endpoint_plugins")}
    if NAME not in endpoints:
        raise ModelError(
            "vLLM would serve without the policy: no installed package declares the plugin "
            f"{NAME!r}: pip install 'stopadvisor[vllm]'"
        )
    listed = environment.get("VLLM_PLUGINS")
    if listed is not None:
        plugins = [name for name in listed.split(",") if name]
    else:
        plugins = sorted({p.name for group in _LOADED_UNASKED for p in entry_points(group=group)})
        if shared := sorted(endpoints.intersection(plugins) - {NAME}):
            raise ModelError(
                f"the plugin {shared[0]!r} also adds endpoints, which vLLM loads only where they "
                f"are named: set VLLM_PLUGINS to the plugins to load, with or without {shared[0]}"
            )
    return plugins if NAME in plugins else [*plugins, NAME]


def _process(
    settings: ServeSettings, words: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and the environment of the vLLM process."""
    # -P: no module of the current directory may replace one of vLLM's.
    argv = [sys.executable, "-P", "-m", "vllm.entrypoints.cli.main", "serve", *words]
    if not any(word.partition("=")[0] == _SCHEDULING for word in words):
        argv += [_SCHEDULING, "priority"]  # probes before all other requests
    plugins = ",".join(_plugins(environment))
    return argv, {**environment, "VLLM_PLUGINS": plugins, **variables_of(settings)}
