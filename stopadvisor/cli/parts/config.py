"""`stopadvisor.toml`: values of options in a file, and the effective ones in the same form.

A key is an option's name without its dashes.  At the top it is for every command that has such an
option, in a table for the command of that name.  The command line and environment variables go
before the file.  Knows click, and no command.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from stopadvisor.cli.parts.declare import SectionOption

__all__ = ["CONFIG", "CONFIG_OPTIONS", "TYPED", "defaults_from", "effective_config", "typed_again"]

CONFIG = Path("stopadvisor.toml")
"""Read from the working directory where `--config` names no other file."""


TYPED = f"{__name__}.typed"
"""Where a context keeps what the command line names, by parameter."""

CONFIG_OPTIONS = (
    SectionOption(
        ["--config"],
        section="Configuration",
        metavar="FILE",
        type=click.Path(path_type=Path),
        expose_value=False,
        show_default=f"{CONFIG}, where there is one",
        help="Take values of options from this file: TOML, a key an option, a table a command.",
    ),
    SectionOption(
        ["--show-config"],
        section="Configuration",
        is_flag=True,
        expose_value=False,
        help="Print the values of all options as such a file, and exit.",
    ),
)
"""Options that every command takes."""


def defaults_from(path: Path, ctx: click.Context) -> dict[str, Any]:
    """Read a configuration file: the defaults of a command, by parameter, as click takes them.

    Raises
    ------
    UsageError
        The file is no TOML, or names an option or a command that there is not.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"{path}: expected TOML: {error}") from error
    name, ours, group = ctx.info_name or "", _options(ctx.command), ctx.parent
    tables = {key: value for key, value in content.items() if isinstance(value, dict)}
    shared = {key: value for key, value in content.items() if key not in tables}
    if group is not None and (tables or shared.keys() - ours):
        _check_names(path, group, tables.keys(), shared.keys() - ours)
    own = tables.get(name, {})
    _refuse_unknown(path, own.keys() - ours, ours, f"{name}.")
    named = {key: value for key, value in shared.items() if key in ours} | own
    return {ours[key].name or "": _as_typed(path, key, named[key], ours[key]) for key in named}


def _check_names(path: Path, group: click.Context, tables: Any, others: set[str]) -> None:
    """Refuse a table of no command, and a key at the top that is no command's option."""
    assert isinstance(group.command, click.Group)
    commands = group.command.list_commands(group)
    _refuse_unknown(path, set(tables) - set(commands), commands, "")
    if others:
        found = (group.command.get_command(group, name) for name in commands)
        known = {key for command in found if command for key in _options(command)}
        _refuse_unknown(path, others - known, known, "")


def _refuse_unknown(path: Path, unknown: set[str], known: Any, prefix: str) -> None:
    for key in sorted(unknown):
        near = get_close_matches(key, list(known), n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise click.UsageError(f"{path}: field '{prefix}{key}': no such option or command{meant}")


def _options(command: click.Command) -> dict[str, click.Option]:
    """Give a command's options by their long names, without dashes."""
    return {
        max(param.opts, key=len).removeprefix("--"): param
        for param in command.params
        if isinstance(param, click.Option)
    }


def _as_typed(path: Path, key: str, value: Any, option: click.Option) -> Any:
    """Give a value as it would be typed, so that the option's own type reads and checks it."""
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
    """Repeat the options that the command line names, but for some, for a command that follows."""
    ctx = click.get_current_context()
    typed, words = ctx.meta[TYPED], []
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


def effective_config(ctx: click.Context) -> str:
    """Give every option of a command that has a value, as the table of a configuration file."""
    return "".join([f"[{ctx.info_name}]\n", *_lines(ctx, ctx.meta[TYPED])])


def _lines(ctx: click.Context, typed: Mapping[str, Any]) -> Iterator[str]:
    for key, option in _options(ctx.command).items():
        value, source = option.consume_value(ctx, typed)
        if option.hidden or value is None or value == () or not _is_plain(value):
            continue
        if option.is_flag:
            value = option.type_cast_value(ctx, value)  # a variable says 0 or 1
            if source == ParameterSource.DEFAULT and not value:
                continue
        yield f"{key} = {_toml(value)}\n"


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | Path | list | tuple)


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return json.dumps(value)
    text = str(value)
    is_number = re.fullmatch(r"-?\d+(\.\d+)?", text) and str(float(text)) in (text, f"{text}.0")
    return text if is_number else json.dumps(text)  # a JSON string is a TOML string too
