"""Blocks about the tests themselves: markers that sort them into tiers, and the benchmarks."""

from __future__ import annotations

import ast
import tomllib

from tests.generate import ROOT, Block, table

__all__ = ["BLOCKS"]


def _markers() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    markers = project["tool"]["pytest"]["ini_options"]["markers"]
    lines = [line.partition(":") for line in markers]
    rows = [(f"`{name}`", meaning.strip()) for name, _, meaning in lines]
    return table(("marker", "tests that carry it"), rows)


def _benchmarks() -> str:
    rows = []
    for path in sorted((ROOT / "tests" / "benchmarks").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if 'if __name__ == "__main__"' not in text:
            continue  # a part of another
        said = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
        rows.append((f"`python -m tests.benchmarks.{path.stem}`", said))
    return table(("command", "what it measures"), rows)


BLOCKS: dict[str, Block] = {"benchmarks": _benchmarks, "test-markers": _markers}
