"""The page beside the engines names modules that exist; `tests.test_snippets` runs its snippets."""

from __future__ import annotations

import re
from pathlib import Path

ENGINES = Path(__file__).parents[2] / "stopadvisor" / "engines"


def test_every_module_named_there_exists() -> None:
    page = (ENGINES / "README.md").read_text(encoding="utf-8")
    _, _, table = page.partition("## Where is what\n")
    rows = re.findall(r"^\| `?([\w ]+)/?`? \|(.*)\|$", table, re.MULTILINE)
    assert [folder for folder, _ in rows] == ["hf", "openai", "http", "shared"]
    for folder, named in rows:
        here = ENGINES / folder if folder != "shared" else ENGINES
        for module in re.findall(r"`(\w+)`", named):
            assert (here / f"{module}.py").is_file(), f"{folder}: {module}"
