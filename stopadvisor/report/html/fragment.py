"""A sheet as HTML, escaped: whole for notebooks, its sections for the page.

Draws what the screen draws, without script or style of its own, and knows no result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from stopadvisor.ground.printable import printable
from stopadvisor.report.sheet import Section, Sheet

__all__ = ["section_html", "sheet_html", "words_html"]

_NUMBER = ' class="number"'


def sheet_html(sheet: Sheet) -> str:
    """Return a sheet: headline, facts, next command, sections, footnote."""
    parts = [f"<p><strong>{_text(sheet.headline)}</strong></p>", *_facts(sheet.facts)]
    if sheet.command is not None:
        name, command = _text(sheet.command_name), _text(sheet.command)
        parts.append(f"<p>{name}: <code>{command}</code></p>")
    for section in sheet.sections:
        if section.title:
            parts.append(f"<p><strong>{_text(section.title)}</strong></p>")
        parts.append(section_html(section))
    if sheet.footnote:
        parts.append(f"<p><small>{_text(sheet.footnote)}</small></p>")
    return f"<div>{''.join(parts)}</div>"


def section_html(section: Section) -> str:
    """Return a section without its title: a table or facts, then paragraphs."""
    return "".join((*_rows(section), *(f"<p>{words_html(text)}</p>" for text in section.texts)))


def words_html(text: str) -> str:
    """Our own texts: commands between backticks as code, no sign torn from its number."""
    parts = _text(text.replace(" %", "%")).replace("&gt; ", "&gt;\u00a0").split("`")
    return "".join(f"<code>{p}</code>" if k % 2 else p for k, p in enumerate(parts))


def _rows(section: Section) -> Iterator[str]:
    if not section.header:
        yield from _facts([(name, value) for name, value in section.rows])
        return
    # As on the screen: the first columns to the left, and a last one without a name.
    numeric = [k >= section.left and bool(name) for k, name in enumerate(section.header)]
    head = _cells(section.header, numeric, 'th scope="col"')
    rows = "".join(f"<tr>{_cells(row, numeric)}</tr>" for row in section.rows)
    yield f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cells(row: Sequence[str], numeric: Sequence[bool], tag: str = "td") -> str:
    return "".join(
        f"<{tag}{_NUMBER * n}>{words_html(value)}</{tag[:2]}>"
        for value, n in zip(row, numeric, strict=True)
    )


def _facts(facts: Sequence[tuple[str, str]]) -> Iterator[str]:
    if facts:
        rows = "".join(
            f'<tr><th scope="row">{_text(name)}</th><td>{words_html(value)}</td></tr>'
            for name, value in facts
        )
        yield f"<table><tbody>{rows}</tbody></table>"


def _text(text: str) -> str:
    return escape(printable(text))
