"""Write what READMEs repeat from the code: `python -m tests.generate` fills their marked blocks.

A block may be in any README.md of the repository, between two comments on lines of their own:

    <!-- generated: exit-codes -->
    (written by this module)
    <!-- end -->

A function in a module of `tests/blocks` gives its text.  To add a block, add a function to `BLOCKS`
of such a module, put the two comments where the text belongs, and run the command;
`tests/test_generate.py` fails while a page is out of date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

__all__ = ["ROOT", "Block", "fill", "load_blocks", "main", "pages", "table"]

ROOT = Path(__file__).resolve().parent.parent

Block = Callable[[], str]
"""Returns markdown, without the comments around it."""

_MARKED = re.compile(
    r"^<!-- generated: (?P<name>[\w-]+) -->\n(?P<body>.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL
)
_OPENING = re.compile(r"^<!-- generated:", re.MULTILINE)
_ELSEWHERE = {"runs", "build", "dist", "venv", "node_modules"}
"""Folders that git ignores, whose files are not ours to write."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a markdown table; a bar inside a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    cells = [[cell.replace("|", r"\|").replace("\n", " ") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def load_blocks() -> dict[str, Block]:
    """Return every block of `tests/blocks` by its name, which must be unique."""
    found: dict[str, Block] = {}
    for module in iter_modules([str(Path(__file__).parent / "blocks")]):
        blocks: dict[str, Block] = import_module(f"tests.blocks.{module.name}").BLOCKS
        if twice := found.keys() & blocks.keys():
            raise ValueError(f"tests/blocks/{module.name}.py repeats {', '.join(sorted(twice))}")
        found |= blocks
    return found


def pages(root: Path = ROOT) -> list[Path]:
    """Return every README.md of the repository."""
    return sorted(
        path
        for path in root.rglob("README.md")
        if not any(
            part in _ELSEWHERE or part.startswith(".") for part in path.relative_to(root).parts
        )
    )


def fill(text: str, blocks: dict[str, Block], page: str = "README.md") -> str:
    """Return a page with all its marked blocks rewritten.

    Raises
    ------
    ValueError
        A mark names no block, or has no end.
    """

    def write(found: re.Match[str]) -> str:
        name = found["name"]
        if name not in blocks:
            raise ValueError(f"{page}: no block is named {name!r}: {', '.join(sorted(blocks))}")
        if _OPENING.search(found["body"]):
            raise ValueError(f"{page}: block {name!r} has no end of its own")
        return f"<!-- generated: {name} -->\n{blocks[name]().strip()}\n<!-- end -->"

    written = _MARKED.sub(write, text)
    if len(_OPENING.findall(text)) != len(_MARKED.findall(text)):
        raise ValueError(f"{page}: '<!-- generated: NAME -->' needs a line '<!-- end -->'")
    return written


def main() -> int:
    """Write every block of every page, and name the pages that changed."""
    blocks = load_blocks()
    for path in pages():
        before = path.read_text(encoding="utf-8")
        after = fill(before, blocks, str(path.relative_to(ROOT)))
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
