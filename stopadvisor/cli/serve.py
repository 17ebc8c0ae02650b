"""`stopadvisor serve`: start vLLM with a policy in it.

Parses options, checks policy, signature and version while it is still cheap, and becomes vLLM.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import click

from stopadvisor.cli.options import PATH, OutputOptions, take
from stopadvisor.cli.page import Command
from stopadvisor.serving.vllm.settings import NAME, PluginSettings, check_vllm, load_policies

__all__ = ["ServeOptions", "command", "run"]

_SCHEDULING = "--scheduling-policy"


@dataclass(frozen=True)
class ServeOptions:
    """Which policy to serve under, and how vLLM is started."""

    settings: PluginSettings
    words: tuple[str, ...]
    """Of vLLM's own command line, the model first."""
    output: OutputOptions = field(default_factory=OutputOptions)


@click.command(
    "serve",
    cls=Command,
    reads="POLICY, or a folder with a policy for each model.",
    writes="What vLLM prints; metrics stand beside its own.",
    examples=[
        "stopadvisor serve policy.joblib -- Qwen/Qwen3-8B --max-model-len 16384",
        "stopadvisor serve policy.joblib --shadow -- Qwen/Qwen3-8B",
    ],
    exit_codes=(0, 1, 2),
)
@click.argument("policy", type=PATH)
@click.argument("words", metavar="-- MODEL [VLLM OPTION]...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--shadow",
    is_flag=True,
    help="Probe and judge, but stop nothing, and count what would have been stopped.",
)
@click.option(
    "--any-text",
    is_flag=True,
    help="Cover requests without the policy's prompt template around the question: for policies "
    "whose workload held messages.",
)
@click.option(
    "--require-signature",
    metavar="KEY.pub",
    type=PATH,
    multiple=True,
    help="Refuse a policy that this key has not signed (PEM); several: one of them must have.",
)
@click.option("--json", is_flag=True, help="Print a refusal as one JSON object.")
@click.option("--quiet", is_flag=True, help="Do not say on stderr what is started.")
def command(policy: Path, words: tuple[str, ...], **params: Any) -> int:
    """Start `vllm serve MODEL` with POLICY in it, in this environment.

    Chat requests that the policy covers are answered under it, all others as without it; the header
    X-StopAdvisor of each reply says which.
    """
    if not words or words[0].startswith("-"):
        raise click.UsageError("expected POLICY -- MODEL [VLLM OPTION]..., got no MODEL")
    output = take(OutputOptions, params)
    options = ServeOptions(PluginSettings(policy, **params), words, output)
    return run(options, sys.stdout, sys.stderr)


def run(options: ServeOptions, out: TextIO, err: TextIO) -> int:
    """Check what can be checked in a moment, and become vLLM.

    Raises
    ------
    PolicyError
        A policy is refused; vLLM would find out minutes later.
    ModelError
        There is no vLLM here, or none that was tried.
    """
    version = check_vllm()
    policies = load_policies(options.settings)
    argv, environment = _process(options, os.environ)
    if not options.output.quiet:
        how = "in the shadow of" if options.settings.shadow else "under"
        digests = ", ".join(policy.digest[:8] for _, policy in policies)
        print(f"vLLM {version} {how} {digests}: {' '.join(argv[4:])}", file=err)
    out.flush()
    err.flush()
    os.execve(argv[0], argv, environment)


def _process(
    options: ServeOptions, environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the words and the environment of the process to become."""
    words = list(options.words)
    if not any(word.partition("=")[0] == _SCHEDULING for word in words):
        words += [_SCHEDULING, "priority"]  # probes first; all others are of one priority
    plugins = [name for name in environment.get("VLLM_PLUGINS", "").split(",") if name]
    if NAME not in plugins:
        plugins.append(NAME)
    changed = {"VLLM_PLUGINS": ",".join(plugins), **options.settings.environment()}
    argv = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", *words]
    return argv, {**environment, **changed}
