"""`stopadvisor completion SHELL`: the script that makes a shell complete our command lines.

click writes the script, and answers the shell when a key is pressed; which modules that imports is
`cli.main`'s care.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import Any, TextIO

import click

from stopadvisor.cli.options import OUTPUT, OutputOptions, declare, take
from stopadvisor.cli.page import Command
from stopadvisor.report.documents.program import completion_document

__all__ = ["CompletionOptions", "command", "run"]

_VARIABLE = "_STOPADVISOR_COMPLETE"
"""By which a shell asks; click derives it from the program's name."""
_SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class CompletionOptions:
    """For which shell."""

    shell: str
    output: OutputOptions = field(default_factory=OutputOptions)


@click.command(
    "completion",
    cls=Command,
    examples=[
        'eval "$(stopadvisor completion bash)"  # in ~/.bashrc',
        'eval "$(stopadvisor completion zsh)"  # in ~/.zshrc, after compinit',
        "stopadvisor completion fish > ~/.config/fish/completions/stopadvisor.fish",
    ],
)
@click.argument("shell", type=click.Choice(_SHELLS))
@declare(*OUTPUT)
def command(shell: str, **params: Any) -> int:
    """Print the script by which SHELL completes our command lines.

    Commands, options and their values are completed, and paths where a file or a run directory is
    wanted.
    """
    return run(CompletionOptions(shell, take(OutputOptions, params)), sys.stdout, sys.stderr)


def run(options: CompletionOptions, out: TextIO, err: TextIO) -> int:
    """Print the script."""
    from click.shell_completion import get_completion_class

    from stopadvisor.cli.main import cli

    kind = get_completion_class(options.shell)
    assert kind is not None  # click knows these three
    script = kind(cli, {}, "stopadvisor", _VARIABLE).source()
    if options.output.json:
        document = completion_document(options.shell, script)
        print(json.dumps(document, allow_nan=False), file=out)
    else:
        print(script, file=out)
    return 0
