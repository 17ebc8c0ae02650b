"""Blocks about the tests themselves: the markers that sort them into tiers."""

from __future__ import annotations

import tomllib

from tests.generate import ROOT, Block, table

__all__ = ["BLOCKS"]


def _markers() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    markers = project["tool"]["pytest"]["ini_options"]["markers"]
    lines = [line.partition(":") for line in markers]
    rows = [(f"`{name}`", meaning.strip()) for name, _, meaning in lines]
    return table(("marker", "tests that carry it"), rows)


BLOCKS: dict[str, Block] = {"test-markers": _markers}
