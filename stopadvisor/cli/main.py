"""The `stopadvisor` command: the table of commands, and the one place that makes exit codes.

A command's module is imported when the command is called, so that help costs nothing.  This module
knows no command's options and computes nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

import click

from stopadvisor import __version__
from stopadvisor.errors import StopAdvisorError

__all__ = ["COMMANDS", "Entry", "cli", "main"]

INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""


@dataclass(frozen=True)
class Entry:
    """One line of the command table."""

    module: str
    """Module that holds the click command under the name `command`."""
    help: str


COMMANDS = {
    "assess": Entry(
        "stopadvisor.cli.assess",
        "Advise whether to stop early, with which rule, and what it saves.",
    ),
    "calibrate": Entry(
        "stopadvisor.cli.calibrate", "Certify the lost-correct risk and write the frozen policy."
    ),
    "probe": Entry(
        "stopadvisor.cli.probe", "Collect forced answers along each question's thinking."
    ),
    "preflight": Entry(
        "stopadvisor.cli.preflight", "Prove that the model obeys budgets, markers and answer cue."
    ),
    "inspect": Entry("stopadvisor.cli.inspect", "Show what a frozen policy does and promises."),
    "verify": Entry(
        "stopadvisor.cli.verify", "Hold a frozen policy against fresh labelled probes."
    ),
    "run": Entry(
        "stopadvisor.cli.run", "Answer questions, stopping early as a frozen policy says."
    ),
    "profile-serving": Entry(
        "stopadvisor.cli.profile_serving", "Measure what probing and tokens cost in seconds here."
    ),
    "plan": Entry("stopadvisor.cli.plan", "Say how many labelled questions a certificate takes."),
    "simulate": Entry(
        "stopadvisor.cli.simulate", "Draw probes of a made-up model, to plan or to try."
    ),
    "study": Entry("stopadvisor.cli.study", "Repeat the paper's studies on finished runs."),
}
"""The commands, in the order in which one needs them."""


class _Table(click.Group):
    """A group that lists its commands from the table and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = import_module(entry.module).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


@click.group(
    cls=_Table,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog="Exit codes: 0 ok, 1 failed, 2 usage or bad input, 3 nothing certified, 4 certificate "
    "contradicted, 5 preflight failed, 130 interrupted.",
)
@click.version_option(__version__, prog_name="stopadvisor", message="%(prog)s %(version)s")
def cli() -> None:
    """Find out whether your reasoning model may stop thinking early on your workload.

    Measure it, certify the risk, export the policy.
    """


def main(args: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Parameters
    ----------
    args
        Arguments without the program's name; None for those of this process.

    Returns
    -------
    int
        0, or the code of what went wrong; see the group's help.
    """
    # Before numpy is imported: its matrices are small here, and threads would wait for each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    words = list(sys.argv[1:] if args is None else args)
    as_json = "--json" in words
    try:
        result = cli.main(args=words, prog_name="stopadvisor", standalone_mode=False)
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        return _fail("Interrupted", "interrupted", INTERRUPTED, as_json)
    except StopAdvisorError as error:
        return _fail(type(error).__name__, str(error), error.exit_code, as_json)
    except click.ClickException as error:
        if as_json:
            return _fail(type(error).__name__, error.format_message(), error.exit_code, as_json)
        error.show(sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        return _hang_up()
    except SystemExit as error:  # click's own answer to a closed pipe
        return error.code if isinstance(error.code, int) else 1
    except Exception as error:  # noqa: BLE001  a bug: one line for users, the traceback on demand
        if os.environ.get("STOPADVISOR_DEBUG"):
            import traceback

            traceback.print_exc()
        text = " ".join(f"internal error: {type(error).__name__}: {error}".split())
        hint = "set STOPADVISOR_DEBUG=1 for the traceback"
        return _fail(type(error).__name__, f"{text} ({hint})", 1, as_json)
    return result if isinstance(result, int) else 0


def _fail(kind: str, message: str, exit_code: int, as_json: bool) -> int:
    try:
        if as_json:
            error = {"type": kind, "message": message, "exit_code": exit_code}
            click.echo(json.dumps({"error": error}, ensure_ascii=False))
        else:
            click.echo(f"stopadvisor: {message}", err=True)
    except BrokenPipeError:
        _hang_up()
    return exit_code


def _hang_up() -> int:
    """Whoever read our output has gone: end without a second error when Python flushes it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
