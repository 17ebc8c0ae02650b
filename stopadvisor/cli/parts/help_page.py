"""Help in the manner of a manual page: what a command reads and writes, examples, exit codes.

Knows click, the names of options that several commands share, and no command: each brings its own
words.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from stopadvisor.cli.parts.config import (
    CONFIG,
    CONFIG_OPTIONS,
    TYPED,
    defaults_from,
    effective_config,
)
from stopadvisor.cli.parts.declare import SectionOption
from stopadvisor.cli.parts.exit_codes import EXIT_CODES

__all__ = ["SECTIONS", "Command"]

SECTIONS = (
    *("Options", "Analysis", "Certificate", "Serving costs", "Model", "Probing", "Gateway"),
    *("Audits", "Configuration"),
)
"""Sections of a long list of options, in this order; an option that names none is in the first."""
_LONG = 20
"""Of more options `--help` shows those that most people name, and `--help-all` all, in sections."""
_MOST_NAMED = {
    *("--model", "--engine", "--base-url", "--upstream", "--max-think", "--prompt-template"),
    *("--alpha", "--loss", "--grader", "--serving", "--limit", "--out", "--json", "--quiet"),
    *("--audit", "--audit-log", "--on-alarm"),
}
"""Of options in sections, those that `--help` shows."""
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
"""Old options without their dashes, and what the refusal says to use now."""
_ALL = f"{__name__}.all"
"""Set in a context whose help shows every option."""


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

    `reads` and `writes` name files, in words, none where empty; `examples` are whole command lines
    that work, `exit_codes` those that this command ends with.  The others are `click.Command`'s.
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
        """Return the parameters, and what every command takes."""
        more = [*CONFIG_OPTIONS, *([_HELP_ALL] if self.is_long else [])]
        return [*super().get_params(ctx), *more]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line over the values of a configuration file."""
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
                ctx.default_map = defaults_from(Path(path or CONFIG), ctx)
            ctx.meta[TYPED] = typed
            if typed.get("show_config"):
                click.echo(effective_config(ctx), nl=False)
                ctx.exit()
        return super().parse_args(ctx, args)

    @property
    def is_long(self) -> bool:
        """Whether `--help-all` shows more than `--help`."""
        return len(self.params) > _LONG

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options: all in sections, or those that most people name."""
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
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")  # to copy: one line
        if self.is_long and _ALL not in ctx.meta:
            codes = ", ".join(map(str, self.exit_codes))
            formatter.write_paragraph()
            formatter.write_text(f"Exit codes: {codes}; --help-all says what they mean.")
            return
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), EXIT_CODES[code]) for code in self.exit_codes])
