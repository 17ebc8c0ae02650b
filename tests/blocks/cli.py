"""Blocks about the command line: its commands, their options as click knows them, exit codes."""

from __future__ import annotations

from collections import defaultdict
from importlib import import_module
from inspect import cleandoc

import click

from stopadvisor.cli.main import COMMANDS, EXIT_CODES, module_of
from stopadvisor.cli.parts.command import SECTIONS, Command
from stopadvisor.cli.parts.declare import SectionOption
from tests.generate import Block, table

__all__ = ["BLOCKS"]

_EVERYWHERE = "Every command"
_SHARED = "Several commands"
_HEAD = ("option", "value", "default", "meaning")


def _command(name: str) -> Command:
    command = import_module(module_of(name)).command
    assert isinstance(command, Command)
    return command


def _commands() -> str:
    rows = [(f"`stopadvisor {name}`", line) for name, line in COMMANDS.items()]
    return table(("command", "what it does"), rows)


def _exit_codes() -> str:
    rows = [(str(code), meaning) for code, meaning in EXIT_CODES.items()]
    return table(("exit code", "meaning"), rows)


# --- Options --------------------------------------------------------------------------------------


def _options(name: str) -> list[click.Option]:
    """Every option that a command offers; what `preflight` takes without effect is not offered."""
    return [p for p in _command(name).params if isinstance(p, click.Option) and not p.hidden]


def _names(option: click.Option) -> str:
    both = [*option.secondary_opts, *option.opts] if option.secondary_opts else option.opts
    return ", ".join(f"`{name}`" for name in sorted(both, key=len, reverse=True))


def _default(name: str, option: click.Option) -> str:
    context = click.Context(_command(name), show_default=True)
    extra = option.get_help_extra(context)
    if "required" in extra:
        return "required"
    found = extra.get("default", "").removeprefix("(").removesuffix(")")
    said = isinstance(option.show_default, str)
    parts = [found if said or not found else f"`{found}`"]
    parts += [f"environment `{variable}`" for variable in extra.get("envvars", ())]
    return "; ".join(filter(None, parts))


def _value(option: click.Option) -> str:
    if option.is_flag:
        return ""
    context = click.Context(click.Command("any"))
    limits = option.get_help_extra(context).get("range", "")
    shown = option.make_metavar(context).replace(" RANGE", "")
    return f"`{shown}`" + (f" `{limits}`" if limits else "")


def _row(name: str, option: click.Option) -> tuple[str, str, str, str]:
    return _names(option), _value(option), _default(name, option), option.help or ""


def _takers() -> dict[tuple[str, str], dict[str, click.Option]]:
    """Every option, by its name and help, with the commands that take it."""
    takers: dict[tuple[str, str], dict[str, click.Option]] = defaultdict(dict)
    for name in COMMANDS:
        for option in _options(name):
            takers[option.opts[0], option.help or ""][name] = option
    return takers


def _all_options() -> str:
    """Shared options once, by section, then each command with what it alone takes."""
    sections: dict[str, list[tuple[str, ...]]] = {
        title: [] for title in (_EVERYWHERE, *SECTIONS[1:], _SHARED)
    }
    own: dict[str, list[tuple[str, ...]]] = {name: [] for name in COMMANDS}
    for by in _takers().values():
        first, option = next(iter(by.items()))
        if len(by) == 1:
            own[first].append(_row(first, option))
            continue
        title = option.section if isinstance(option, SectionOption) else _SHARED
        title = _EVERYWHERE if len(by) == len(COMMANDS) else title
        names, value, _, text = _row(first, option)
        defaults: dict[str, list[str]] = defaultdict(list)
        for name, same in by.items():
            defaults[_default(name, same)].append(name)
        shown = next(iter(defaults))
        if len(defaults) > 1:
            parts = [f"{', '.join(of)}: {default}" for default, of in defaults.items() if default]
            shown = "; ".join(parts)
        takers = "" if title == _EVERYWHERE else f" *({', '.join(by)})*"
        sections[title].append((names, value, shown, text + takers))
    lines = []
    for name, rows in own.items():
        command = _command(name)
        usage = " ".join(command.collect_usage_pieces(click.Context(command)))
        lines += [f"### {name}", f"`stopadvisor {name} {usage}`", cleandoc(command.help or "")]
        for title, text in (("Reads", command.reads), ("Writes", command.writes)):
            lines += [f"{title}: {text}"] if text else []
        codes = ", ".join(map(str, command.exit_codes))
        lines += [f"Exit codes: {codes}.", table(_HEAD, rows) if rows else ""]
    for title, rows in sections.items():
        if rows:
            lines += [f"### Options: {title.lower()}", table(_HEAD, rows)]
    return "\n\n".join(filter(None, lines))


BLOCKS: dict[str, Block] = {
    "commands": _commands,
    "exit-codes": _exit_codes,
    "options": _all_options,
}
