"""The example pipeline: its commands are ours, with options that exist."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path

import click

from stopadvisor.cli.main import module_of

FILE = Path(__file__).resolve().parents[2] / "samples" / "deploy" / "model-upgrade.yml"


def test_each_command_parses() -> None:
    text = re.sub(r"\$\{\{[^}]*\}\}", "x", FILE.read_text(encoding="utf-8"))
    folded = re.sub(r">-\n\s+", "", text).replace("\n          --", " --")
    found = re.findall(r"(?:- run: |#   )(stopadvisor .*)", folded)
    assert [line.split()[1] for line in found] == ["probe", "verify", "inspect", "promote"]
    for line in found:
        _, name, *words = shlex.split(line)
        command = import_module(module_of(name)).command
        assert isinstance(command, click.Command)
        command.make_context(name, words)  # exits on what it does not know
