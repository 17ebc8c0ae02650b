"""`stopadvisor schema`: the JSON Schema of what `--json` prints, from files in the package."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, TextIO

import click

from stopadvisor.cli.options import OUTPUT, OutputOptions, declare, emit, take
from stopadvisor.cli.page import Command
from stopadvisor.json_text import parse_json
from stopadvisor.report.documents.program import schema_list_document
from stopadvisor.report.text.schema import show_schemas

__all__ = ["SchemaOptions", "command", "run"]

_FOLDER = files("stopadvisor.report").joinpath("schemas")


@dataclass(frozen=True)
class SchemaOptions:
    """Which schema to show."""

    name: str | None = None
    """None: the list of them."""
    output: OutputOptions = field(default_factory=OutputOptions)


class _Name(click.ParamType[str]):
    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in _names():
            self.fail(f"there is no schema {value!r}; there are {', '.join(_names())}", param, ctx)
        return str(value)


def _names() -> list[str]:
    return sorted(file.name.removesuffix(".json") for file in _FOLDER.iterdir())


def _read(name: str) -> str:
    return _FOLDER.joinpath(f"{name}.json").read_text(encoding="utf-8")


@click.command(
    "schema",
    cls=Command,
    examples=["stopadvisor schema", "stopadvisor schema assess > assess.schema.json"],
)
@click.argument("name", required=False, type=_Name())
@declare(*OUTPUT)
def command(name: str | None, **params: Any) -> int:
    """Print the JSON Schema of the documents that `--json` prints, by NAME; without one, a list.

    A document is named for the command that prints it.
    """
    return run(SchemaOptions(name, take(OutputOptions, params)), sys.stdout, sys.stderr)


def run(options: SchemaOptions, out: TextIO, err: TextIO) -> int:
    """Print one schema, or what there is."""
    if options.name is not None:
        print(_read(options.name), end="", file=out)
        return 0
    described = {name: str(parse_json(_read(name))["description"]) for name in _names()}
    emit(schema_list_document(described), options.output, out, show_schemas)
    return 0
