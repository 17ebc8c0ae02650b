"""The `stopadvisor` command: the table of its commands, and the exit code of each error.

A command's module is imported when the command is called, so that `--help`, `--version` and
completion of command names stay fast.
"""

from __future__ import annotations

import codecs
import errno
import os
import re
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from io import StringIO, TextIOWrapper
from typing import TYPE_CHECKING

import click

from stopadvisor._version import __version__
from stopadvisor.ground.errors import StopAdvisorError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["COMMANDS", "EXIT_CODES", "cli", "main", "module_of"]

EXIT_CODES = {
    0: "ok",
    1: "failed in the middle of the job",
    2: "wrong usage or unusable input: one line on stderr says what is wrong",
    3: "nothing was certified; the policy that was written never stops",
    4: "fresh probes contradict the certificate",
    5: "preflight failed: measuring would mislead",
    6: "audits show that the promise is broken",
    7: "fresh probes neither confirm nor contradict: the gate stays shut",
    8: "audits give an early warning, or show a change",
    130: "interrupted; finished probes, replies and labels are kept, and the same command goes on",
}
"""Meaning of each exit code."""
INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""

COMMAND_GROUPS = {
    "Decide": {
        "assess": "Advise whether to stop early, with which rule, and what it saves.",
        "calibrate": "Certify a limit on lost answers and write the frozen policy.",
        "plan": "Compute how many labelled questions a certificate needs.",
        "label": "Give gold to the few questions for which it matters.",
        "report": "Write a run's results as one page with pictures.",
    },
    "Serve": {
        "inspect": "Show what a frozen policy does, or what changed between two.",
        "run": "Answer questions, stopping early as a frozen policy says.",
        "serve": "Serve chat under a policy: inside vLLM, or by a gateway.",
        "verify": "Check a frozen policy on fresh labelled probes.",
        "monitor": "Tell from audits whether the promise holds on the traffic.",
        "promote": "Choose which certified policy is in use.",
    },
    "Data": {
        "import": "Make a workload from a benchmark or a log, or a run from recorded answers.",
        "samples": "Write the bundled model and workloads, to try things out.",
    },
    "More": {
        "preflight": "Check that the model closes its thinking and obeys the answer cue.",
        "probe": "Collect forced answers along each question's thinking.",
        "profile-serving": "Measure what requests and tokens cost in seconds at a server.",
        "study": "Repeat the paper's studies, or compare simple rules.",
        "schema": "Print the JSON Schema of what --json prints.",
    },
}
"""Help line of each command, by group."""
COMMANDS = {name: text for texts in COMMAND_GROUPS.values() for name, text in texts.items()}
"""Help line of each command."""

_EXAMPLES = (
    "stopadvisor samples",
    "stopadvisor assess samples/arithmetic.jsonl --model samples/tiny-reasoner",
    "stopadvisor calibrate --alpha 0.15",
    "stopadvisor assess --help",
)
_ENVIRONMENT = {
    "STOPADVISOR_MODEL": "the model, if --model names none",
    "STOPADVISOR_REPORT": "0 keeps assess from writing report.html",
    "STOPADVISOR_DEBUG": "1 shows the traceback of an internal error",
    "NO_COLOR": "no colour, even on a terminal",
    "COLUMNS": "width of the output; without a terminal it is 80",
}

_RENAMED = {
    "diff": "stopadvisor inspect A B",
    "workload": "stopadvisor import dataset NAME -o FILE",
    "completion": 'eval "$(_STOPADVISOR_COMPLETE=bash_source stopadvisor)"',
}
"""Replacements of commands that were removed."""


def module_of(name: str) -> str:
    """Name the module that holds a command, as `command`."""
    return f"stopadvisor.cli.{'imports' if name == 'import' else name.replace('-', '_')}"


class _LazyGroup(click.Group):
    """A group that lists its commands from the table and imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(module_of(cmd_name)).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, is_typed = args[0], not ctx.resilient_parsing
        if name in _RENAMED and is_typed:
            ctx.fail(f"{name!r} is now: {_RENAMED[name]}")
        if name not in COMMANDS and is_typed and not name.startswith("-"):
            raise click.exceptions.NoSuchCommand(name, possibilities=COMMANDS, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, texts in COMMAND_GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:15}", text) for name, text in texts.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            for example in _EXAMPLES:
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")
        with formatter.section("Files"):
            text = "option values, in the working directory; --show-config prints them"
            formatter.write_dl([("stopadvisor.toml", text)])
        with formatter.section("Environment"):
            formatter.write_dl(list(_ENVIRONMENT.items()))
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in EXIT_CODES.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names from the table; click itself would import every command for its help."""
        from click.shell_completion import CompletionItem

        names = [name for name in COMMANDS if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=COMMANDS[name]) for name in names), *options]


def _show_versions(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Print the versions that a bug report needs, without importing the packages."""
    if not value or ctx.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, requires, version

    python = ".".join(map(str, sys.version_info[:3]))
    click.echo(f"stopadvisor {__version__}\npython {python}")
    try:
        requirements = requires("stopadvisor") or []
    except PackageNotFoundError:  # run from a source tree
        requirements = []
    shown = set()
    for requirement in requirements:
        name, extra = requirement, ""
        if match := re.fullmatch(r"([\w-]+)[^;]*(?:;.*extra == '(\w+)')?.*", requirement):
            name, extra = match[1], match[2]
        if name in shown or extra == "dev":
            continue
        shown.add(name)
        try:
            state = version(name)
        except PackageNotFoundError:
            state = f"not installed (extra {extra})" if extra else "not installed"
        click.echo(f"{name} {state}")
    ctx.exit()


@click.group(
    cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_versions,
    help="Show the versions of stopadvisor and its dependencies, and exit.",
)
def cli() -> None:
    """Find out whether your reasoning model may stop thinking early on your workload.

    Measure it, certify the risk, export the policy. Results go to stdout, progress and remarks to
    stderr; every command takes --json and --quiet. Probes, results and policies are kept in run
    directories under runs/.
    """


def main(args: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    # Set before numpy is imported: our matrices are small, and more threads only wait.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if _open_closed_streams():
        return _fail("OutputError", "cannot write the output: it is closed", 1, False)
    _escape_unencodable()
    words = list(sys.argv[1:] if args is None else args)
    as_json = "--json" in words
    try:
        result = cli.main(args=words, prog_name="stopadvisor", standalone_mode=False)
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        if args is None:  # a second one while Python exits would print a traceback
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        return _fail("Interrupted", "interrupted", INTERRUPTED, as_json)
    except StopAdvisorError as error:
        return _fail(type(error).__name__, str(error), error.exit_code, as_json)
    except click.ClickException as error:
        if as_json:
            return _fail(type(error).__name__, error.format_message(), error.exit_code, as_json)
        from stopadvisor.ground.printable import printable

        shown = StringIO()
        error.show(shown)
        sys.stderr.write(printable(shown.getvalue()))
        return error.exit_code
    except BrokenPipeError:
        return _hang_up()
    except OSError as error:
        if error.filename is not None or error.errno not in _FULL:
            return _bug(error, as_json)
        return _fail("OutputError", f"cannot write the output: {error.strerror}", 1, False)
    except SystemExit as error:  # click's own answer to a closed pipe
        return error.code if isinstance(error.code, int) else 1
    except Exception as error:  # noqa: BLE001  a bug: one line for users, the traceback on demand
        return _bug(error, as_json)
    return result if isinstance(result, int) else 0


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""Errors of writing to a full or closed stream."""


def _bug(error: Exception, as_json: bool) -> int:
    if os.environ.get("STOPADVISOR_DEBUG"):
        import traceback

        traceback.print_exception(error)
    text = " ".join(f"internal error: {type(error).__name__}: {error}".split())
    hint = "set STOPADVISOR_DEBUG=1 for the traceback"
    return _fail(type(error).__name__, f"{text} ({hint})", 1, as_json)


def _open_closed_streams() -> bool:
    """Replace closed streams by the null device; return whether standard output was closed."""
    closed = sys.stdout is None
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    return closed


def _escape_unencodable() -> None:
    """Print characters that the encoding of stdout lacks as JSON escapes instead of failing."""
    if isinstance(sys.stdout, TextIOWrapper):
        codecs.register_error("stopadvisor", _as_json_escapes)
        sys.stdout.reconfigure(errors="stopadvisor")


def _as_json_escapes(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)  # stdout is only written to
    text = error.object[error.start : error.end]
    units = text.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[k : k + 4]}" for k in range(0, len(units), 4)), error.end


def _fail(kind: str, message: str, exit_code: int, as_json: bool) -> int:
    from stopadvisor.ground.printable import printable

    try:
        text, stream = f"stopadvisor: {printable(message)}", sys.stderr
        if as_json:
            from stopadvisor.cli.failed import CommandError, FailedCommand
            from stopadvisor.ground.results import to_json

            failed = FailedCommand(CommandError(kind, message, exit_code))
            text, stream = to_json(failed, indent=None), sys.stdout
        print(text, file=stream, flush=True)
        sys.stdout.flush()
    except OSError:  # the reader has gone, or the disk is full
        _hang_up()
    return exit_code


def _hang_up() -> int:
    """End without a second error when Python flushes output that nobody reads any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
