"""Blocks about the command line: its commands and its exit codes."""

from __future__ import annotations

from stopadvisor.cli.main import COMMANDS
from stopadvisor.cli.page import EXIT_CODES
from tests.generate import Block, table

__all__ = ["BLOCKS"]


def _commands() -> str:
    rows = [(f"`stopadvisor {name}`", entry.help) for name, entry in COMMANDS.items()]
    return table(("command", "what it does"), rows)


def _exit_codes() -> str:
    rows = [(str(code), meaning) for code, meaning in EXIT_CODES.items()]
    return table(("exit code", "meaning"), rows)


BLOCKS: dict[str, Block] = {"commands": _commands, "exit-codes": _exit_codes}
