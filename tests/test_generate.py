"""Pages repeat the code word for word, and the tool that writes them reports bad blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.generate import ROOT, fill, load_blocks, pages, table
from tests.goldens import Goldens

PAGES = pages()


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_page_is_up_to_date(page: Path, goldens: Goldens) -> None:
    goldens.check(page, fill(page.read_text(encoding="utf-8"), load_blocks(), str(page)))


def test_a_block_is_written_between_its_marks() -> None:
    page = "before\n<!-- generated: a -->\nold\n<!-- end -->\nafter\n"
    once = fill(page, {"a": lambda: "new\n"})
    assert once == "before\n<!-- generated: a -->\nnew\n<!-- end -->\nafter\n"
    assert fill(once, {"a": lambda: "new\n"}) == once


@pytest.mark.parametrize(
    ("page", "said"),
    [
        pytest.param("<!-- generated: b -->\n<!-- end -->", "no block is named 'b'", id="unknown"),
        pytest.param("<!-- generated: a -->\ntext", "needs a line", id="no end"),
        pytest.param(
            "<!-- generated: a -->\n<!-- generated: a -->\n<!-- end -->", "no end", id="nested"
        ),
    ],
)
def test_a_wrong_mark_is_named(page: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fill(page, {"a": lambda: "new"})


def test_a_table_escapes_bars() -> None:
    assert table(("a", "b"), [("x|y", "z")]) == "| a | b |\n| --- | --- |\n| x\\|y | z |"
