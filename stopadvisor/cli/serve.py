"""`stopadvisor serve`: start vLLM with a policy in it, or a gateway before servers that run.

Parses options.  For vLLM it checks policy, signature and version while it is still cheap, and
becomes vLLM; with ``--upstream`` it hands over to `serving.gateway`.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from json import dumps
from pathlib import Path
from typing import Any, NoReturn

import click

from stopadvisor.cli.parts.declare import PATH, SIGNATURE, declare, pop_settings
from stopadvisor.cli.parts.gateway import (
    AUDITING,
    GATEWAY,
    audit_settings,
    gateway_settings,
    require_gateway,
)
from stopadvisor.cli.parts.help_page import Command
from stopadvisor.engines.errors import require_packages
from stopadvisor.ground.errors import ModelError
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import prompt_templates
from stopadvisor.serving.serve_settings import ServeSettings, load_policies
from stopadvisor.serving.vllm.plugin_settings import NAME, check_vllm, variables_of

__all__ = ["become_vllm", "command"]

_SCHEDULING = "--scheduling-policy"
_AUDITED = 0.05
"""Share of stopped requests that the next command audits."""
_LOADED_UNASKED = (
    "vllm.general_plugins",
    "vllm.io_processor_plugins",
    "vllm.platform_plugins",
    "vllm.stat_logger_plugins",
)
"""Entry-point groups that vLLM loads in whole where ``VLLM_PLUGINS`` is unset."""


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
@click.option("--quiet", is_flag=True, help="Do not report on stderr what is started.")
@declare(*GATEWAY, *AUDITING)
def command(policy: Path, words: tuple[str, ...], *, json: bool, quiet: bool, **params: Any) -> int:
    """Start `vllm serve MODEL` with POLICY in it, or a gateway in front of servers.

    Chat requests that the policy covers are answered under it, all others pass unchanged; the
    X-StopAdvisor header of each reply says which.
    """
    params["audit"] = audit_settings(params)
    settings = gateway_settings(policy, params)
    if settings is not None:
        if words:
            raise click.UsageError(f"expected --upstream or a model, got both: {words[0]!r}")
        require_gateway()
        from stopadvisor.serving.gateway.server import serve

        return serve(settings, sys.stderr)
    if not words or words[0].startswith("-"):
        raise click.UsageError(
            "expected POLICY -- MODEL [VLLM OPTION]... or POLICY --upstream URL, got no MODEL"
        )
    become_vllm(pop_settings(ServeSettings, params, policy=policy), words, quiet=quiet)


def become_vllm(settings: ServeSettings, words: Sequence[str], *, quiet: bool) -> NoReturn:
    """Check what can be checked in a moment, and become vLLM, `words` its own, the model first."""
    version = check_vllm()
    require_packages("vllm", "prometheus_client", what="serve")
    policies = load_policies(settings)
    argv, environment = _process(settings, words, os.environ)
    if not quiet:
        how = "in the shadow of" if settings.shadow else "under"
        digests = ", ".join(policy.digest[:8] for _, policy in policies)
        click.echo(f"vLLM {version} {how} {digests}: {' '.join(argv[5:])}", err=True)
        for text in () if settings.any_text else _templates(policies):
            click.echo(f"covers questions asked as {dumps(text, ensure_ascii=False)}", err=True)
        click.echo(f"next: {_next(settings, words)}", err=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(argv[0], argv, environment)


def _templates(policies: Iterable[tuple[Path, Policy]]) -> dict[str, None]:
    """Text that stands around the question in requests that a policy covers, each once."""
    return dict.fromkeys(
        text for _, policy in policies for text in prompt_templates(policy.terms).values()
    )


def _next(settings: ServeSettings, words: Sequence[str]) -> str:
    """Stop requests and audit some, once the shadow's counts are right; then watch the promise."""
    policy = shlex.quote(str(settings.policy))
    if settings.audit is not None:
        return f"stopadvisor monitor {policy} {shlex.quote(str(settings.audit.folder))}"
    return f"stopadvisor serve {policy} --audit {_AUDITED} -- {shlex.join(words)}"


def _plugins(environment: Mapping[str, str]) -> list[str]:
    """Name the plugins that vLLM loads by itself, and ours.

    Where ``VLLM_PLUGINS`` is unset vLLM loads every plugin but those of endpoints; once it is set,
    those alone that it names.

    Raises
    ------
    ModelError
        Ours is not declared where vLLM looks, or another shares its name with an endpoint's, which
        the name would load too.
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
    """Return the words and the environment of the process to become."""
    words = list(words)
    if not any(word.partition("=")[0] == _SCHEDULING for word in words):
        words += [_SCHEDULING, "priority"]  # probes first; all others are of one priority
    plugins = _plugins(environment)
    changed = {"VLLM_PLUGINS": ",".join(plugins), **variables_of(settings)}
    # -P: a module in the current directory must not stand in for one of vLLM's.
    argv = [sys.executable, "-P", "-m", "vllm.entrypoints.cli.main", "serve", *words]
    return argv, {**environment, **changed}
