"""Declaring options, options that many commands share, and printing a command's result."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stopadvisor.report.progress import progress_on

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from stopadvisor.report.sheet import Sheet

__all__ = [
    "COUNT", "FILE", "OUTPUT", "PATH", "SHARE", "SIGNATURE", "VERBOSE", "WORKLOAD", "Decorator",
    "Parsed", "Printed", "SectionOption", "declare", "grader_option", "is_default", "is_given",
    "option", "pop_settings", "printed", "show",
]  # fmt: skip

Decorator = Callable[[Any], Any]
"""Adds an option to the function of a command."""
_Value = TypeVar("_Value")

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
COUNT = click.IntRange(min=1)
SHARE = click.FloatRange(0, 1, min_open=True, max_open=True)
WORKLOAD = "WORKLOAD: JSONL, one question per line: `question`, and `gold` where it is known."
"""What commands read, in their help."""


class SectionOption(click.Option):
    """An option with its section of `--help-all`."""

    def __init__(self, *args: Any, section: str, **more: Any) -> None:
        super().__init__(*args, **more)
        self.section = section


def option(section: str) -> Callable[..., Decorator]:
    """Return `click.option` for options of a section."""
    return partial(click.option, cls=SectionOption, section=section)


def declare(*options: Decorator) -> Decorator:
    """Combine several options, in this order."""

    def add(function: Any) -> Any:
        for one in reversed(options):
            function = one(function)
        return function

    return add


def pop_settings(kind: type[_Value], params: dict[str, Any], **more: Any) -> _Value:
    """Build `kind` from click's parameters and remove those it used."""
    names = [f.name for f in fields(kind) if f.name in params]  # type: ignore[arg-type]
    return kind(**{name: params.pop(name) for name in names}, **more)


class Parsed(click.ParamType[Any]):
    """A parameter type; `parse` raises ValueError with what it expected."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a text; defaults may be parsed already."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(f"{error}, got {value!r}", param, ctx)


def grader_option(declared: Callable[..., Decorator]) -> Decorator:
    """Declare `--grader` by `click.option`, or by the option of a section."""
    return declared(
        "--grader",
        metavar="MODULE:FUNCTION|gold",
        show_default="gold",
        help="How to tell whether an answer is right: a function of (question, gold, answer), or "
        "comparison with gold.",
    )


OUTPUT = (
    click.option("--json", is_flag=True, help="Print the result as one JSON object."),
    click.option("--quiet", is_flag=True, help="Print no progress and no remarks on stderr."),
)

VERBOSE = option("Analysis")(
    "--verbose", is_flag=True, help="Also print the figures that support the result."
)

SIGNATURE = click.option(
    "--require-signature",
    metavar="KEY.pub",
    type=PATH,
    multiple=True,
    help="Refuse a policy that none of these public keys (PEM) has signed.  [repeatable]",
)


def is_given(name: str) -> bool:
    """Whether an option was typed on the command line."""
    source = click.get_current_context().get_parameter_source(name)
    return source == click.core.ParameterSource.COMMANDLINE


def is_default(name: str) -> bool:
    """Whether an option has its default."""
    source = click.get_current_context().get_parameter_source(name)
    return source == click.core.ParameterSource.DEFAULT


@dataclass(frozen=True)
class Printed:
    """What a command prints: its result, as JSON or as a sheet."""

    result: DataclassInstance
    sheet: Sheet
    exit_code: int = 0
    then: str = ""
    """The command to run next, shown on stderr unless `--json` or `--quiet`."""


def printed(function: Callable[..., Printed]) -> Any:
    """Declare `--json` and `--quiet`, give the command a `Progress`, and print what it returns."""

    @wraps(function)
    def run(*, json: bool, quiet: bool, **params: Any) -> int:
        with progress_on(sys.stderr, quiet=quiet) as progress:
            answer = function(progress, **params)
        show(answer.result, answer.sheet, json=json)
        if answer.then and not (json or quiet):
            click.echo(f"next: stopadvisor {answer.then}", err=True)
        return answer.exit_code

    return declare(*OUTPUT)(run)


def show(result: DataclassInstance, sheet: Sheet, *, json: bool) -> None:
    """Print a result on standard output, as JSON or as its sheet."""
    # Imported here, so that `--help` does not pay for them.
    from stopadvisor.ground.results import to_json
    from stopadvisor.report.screen import draw

    if json:
        click.echo(to_json(result))
    else:
        draw(sheet, sys.stdout)
