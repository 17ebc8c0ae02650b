"""Blocks about the tests themselves: markers that sort them into tiers, and the benchmarks."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

from tests.generate import ROOT, Block, table

__all__ = ["BLOCKS", "benchmarks"]


def _markers() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    markers = project["tool"]["pytest"]["ini_options"]["markers"]
    lines = [line.partition(":") for line in markers]
    rows = [(f"`{name}`", meaning.strip()) for name, _, meaning in lines]
    return table(("marker", "tests that carry it"), rows)


def benchmarks() -> list[Path]:
    """Modules of `tests/benchmarks` that can be run; the others are parts of them."""
    files = sorted((ROOT / "tests" / "benchmarks").glob("*.py"))
    return [file for file in files if 'if __name__ == "__main__"' in file.read_text("utf-8")]


def _benchmarks() -> str:
    rows = []
    for path in benchmarks():
        purpose = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        rows.append((f"`python -m tests.benchmarks.{path.stem}`", purpose.split("\n\n")[0]))
    return table(("command", "what it measures"), rows)


BLOCKS: dict[str, Block] = {"benchmarks": _benchmarks, "test-markers": _markers}
