"""Commands with help like a manual page and defaults from `stopadvisor.toml`.

A key of that file is an option's name without its dashes.  At the top level it applies to every
command with such an option, in a table to the command of that name.  The command line and
environment variables take precedence over the file.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Collection, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from stopadvisor.cli.main import EXIT_CODES
from stopadvisor.cli.parts.declare import SectionOption

__all__ = ["CONFIG", "SECTIONS", "Command", "effective_config", "typed_again"]

SECTIONS = (
    *("Options", "Analysis", "Certificate", "Serving costs", "Model", "Probing", "Gateway"),
    *("Audits", "Configuration"),
)
"""Sections of `--help-all`, in this order; an option without a section is in the first."""
_LONG = 20
"""With more options than this, `--help` shows the usual ones, and `--help-all` all of them."""
_MOST_NAMED = {
    *("--model", "--engine", "--base-url", "--upstream", "--max-think", "--prompt-template"),
    *("--alpha", "--loss", "--grader", "--serving", "--limit", "--out", "--json", "--quiet"),
    *("--audit", "--audit-log", "--on-alarm"),
}
"""Options outside the first section that `--help` shows."""
_RENAMED = {
    "allow-large-alpha": "--despite large-alpha",
    "allow-truncated": "--despite truncated",
    "batch": "--concurrency",
    "batch-size": "--concurrency",
    "despite-advice": "--despite advice",
    "greedy": "--temperature 0",
    "guarantee": "--alpha lost=LIMIT,category=NAME:LOSS=LIMIT",
    "host": "--listen HOST:PORT",
    "key": "--require-signature",
    "model-name": "--model",
    "most": "--limit",
    "policies": "--looks",
    "port": "--listen HOST:PORT",
    "resamples": "--set resamples=N",
    "serving-profile": "--price FILE",
    "think-close": "--think-tags OPEN CLOSE",
    "think-open": "--think-tags OPEN CLOSE",
    "upstream-key-env": "--api-key-env",
}
"""Options of release 0.1, without dashes, and what replaces each."""
_ALL = f"{__name__}.all"
"""Key of a context whose help shows every option."""


def _show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


_HELP_ALL = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all,
    help="Show every option and exit.",
)


class Command(click.Command):
    """A command whose help ends with files, examples and exit codes.

    `reads` and `writes` describe files; `examples` are whole command lines that work.
    """

    def __init__(
        self,
        *args: Any,
        reads: str = "",
        writes: str = "",
        examples: Sequence[str],
        exit_codes: Sequence[int] = (0, 2),
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self.reads = reads
        self.writes = writes
        self.examples = tuple(examples)
        self.exit_codes = tuple(exit_codes)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters of this command and those of every command."""
        more = [*_CONFIG_OPTIONS, *([_HELP_ALL] if self.is_long else [])]
        return [*super().get_params(ctx), *more]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line, with defaults from a configuration file."""
        if not ctx.resilient_parsing:
            try:
                typed, _, _ = self.make_parser(ctx).parse_args(list(args))
            except click.NoSuchOption as error:
                new = _RENAMED.get(error.option_name.removeprefix("--"))
                if new is None:
                    raise
                ctx.fail(f"{error.option_name} is now {new}")
            path = typed.get("config")
            if path or CONFIG.is_file():
                ctx.default_map = _defaults_from(Path(path or CONFIG), ctx)
            ctx.meta[_TYPED] = typed
            if typed.get("show_config"):
                click.echo(effective_config(ctx), nl=False)
                ctx.exit()
        return super().parse_args(ctx, args)

    @property
    def is_long(self) -> bool:
        """Whether `--help-all` shows more than `--help`."""
        return len(self.params) > _LONG

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write all options in sections, or the usual ones."""
        in_sections = _ALL in ctx.meta
        shows_all = in_sections or not self.is_long
        rows: dict[str, list[tuple[str, str]]] = {title: [] for title in SECTIONS}
        for param in self.get_params(ctx):
            section = param.section if isinstance(param, SectionOption) else SECTIONS[0]
            if not (shows_all or section == SECTIONS[0] or _MOST_NAMED & {*param.opts}):
                continue
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
                rows[section if in_sections else SECTIONS[0]].append(record)
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections below the options."""
        for title, text in (("Reads", self.reads), ("Writes", self.writes)):
            if text:
                with formatter.section(title):
                    formatter.write_text(text)
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")  # without breaks
        if self.is_long and _ALL not in ctx.meta:
            codes = ", ".join(map(str, self.exit_codes))
            formatter.write_paragraph()
            formatter.write_text(f"Exit codes: {codes}; --help-all says what they mean.")
            return
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), EXIT_CODES[code]) for code in self.exit_codes])


# --- The configuration file -----------------------------------------------------------------------

CONFIG = Path("stopadvisor.toml")
"""Read from the working directory unless `--config` names another file."""

_TYPED = f"{__name__}.typed"
"""Key of a context for the values typed on the command line, by parameter."""

_CONFIG_OPTIONS = (
    SectionOption(
        ["--config"],
        section="Configuration",
        metavar="FILE",
        type=click.Path(path_type=Path),
        expose_value=False,
        show_default=f"{CONFIG}, where there is one",
        help="Read option values from this TOML file: a key for each option, a table for each "
        "command.",
    ),
    SectionOption(
        ["--show-config"],
        section="Configuration",
        is_flag=True,
        expose_value=False,
        help="Print all option values as such a file, and exit.",
    ),
)
"""Options that every command takes."""


def _defaults_from(path: Path, ctx: click.Context) -> dict[str, Any]:
    """Read a configuration file as click's defaults of a command, by parameter.

    Raises
    ------
    UsageError
        The file is not TOML, or has an unknown option or command.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
        raise click.UsageError(f"{path}: expected TOML: {error}") from error
    name, ours, group = ctx.info_name or "", _options(ctx.command), ctx.parent
    tables = {key: value for key, value in content.items() if isinstance(value, dict)}
    shared = {key: value for key, value in content.items() if key not in tables}
    if group is not None:
        assert isinstance(group.command, click.Group)
        commands = group.command.list_commands(group)
        _refuse_unknown(path, tables.keys() - commands, commands, "")
        if others := shared.keys() - ours:  # options of other commands
            loaded = (group.command.get_command(group, other) for other in commands)
            known = {key for command in loaded if command for key in _options(command)}
            _refuse_unknown(path, others - known, known, "")
    table = tables.get(name, {})
    _refuse_unknown(path, table.keys() - ours, ours, f"{name}.")
    values = {key: value for key, value in shared.items() if key in ours} | table
    return {ours[key].name or "": _as_typed(path, key, values[key], ours[key]) for key in values}


def _refuse_unknown(path: Path, unknown: set[str], known: Any, prefix: str) -> None:
    for key in sorted(unknown):
        near = get_close_matches(key, list(known), n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise click.UsageError(f"{path}: field '{prefix}{key}': no such option or command{meant}")


def _options(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a command by their long names, without dashes."""
    return {
        max(param.opts, key=len).removeprefix("--"): param
        for param in command.params
        if isinstance(param, click.Option)
    }


def _as_typed(path: Path, key: str, value: Any, option: click.Option) -> Any:
    """Write a value as one would type it, so that the option's type parses and checks it."""
    if option.is_flag:
        if not isinstance(value, bool):
            raise click.UsageError(f"{path}: field '{key}': expected true or false, got {value!r}")
        return value
    if option.multiple or option.nargs > 1:
        return [_text(part) for part in (value if isinstance(value, list) else [value])]
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return _text(value)


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool | dict) else str(value)


def typed_again(*but: str) -> str:
    """Repeat the typed options, except some, for the next command."""
    ctx = click.get_current_context()
    typed, words = ctx.meta[_TYPED], []
    for option in _options(ctx.command).values():
        value = typed.get(option.name)
        if option.name in ("json", "quiet", *but) or value in (None, False):
            continue
        name = max(option.opts, key=len)
        if option.is_flag:
            words.append(name)
        else:
            for one in value if option.multiple else [value]:
                words += [name, *map(str, one if option.nargs > 1 else [one])]
    return shlex.join(words)


def effective_config(
    ctx: click.Context, unused: Collection[str] = (), before: Path = CONFIG
) -> str:
    """Write the options of a command that have a value as a table of a configuration file.

    Those that the command did not use are as in the file `before`, if they are there.
    """
    lines, earlier = [f"[{ctx.info_name}]\n"], dict[str, Any]()
    if unused:
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            # None yet, or it was edited.
            earlier = dict(tomllib.loads(before.read_text(encoding="utf-8"))[ctx.info_name or ""])
    for key, option in _options(ctx.command).items():
        value, source = option.consume_value(ctx, ctx.meta[_TYPED])
        if option.name in unused:
            value = earlier.get(key, ())
        plain = isinstance(value, bool | int | float | str | Path | list | tuple)
        if option.hidden or value == () or not plain:
            continue
        if option.is_flag:
            value = option.type_cast_value(ctx, value)  # an environment variable says 0 or 1
            if source == ParameterSource.DEFAULT and not value:
                continue
        lines.append(f"{key} = {_toml(value)}\n")
    return "".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return json.dumps(value)
    text = str(value)
    is_number = re.fullmatch(r"-?\d+(\.\d+)?", text) and str(float(text)) in (text, f"{text}.0")
    return text if is_number else json.dumps(text)  # a JSON string is a TOML string too
