"""A sheet as a piece of HTML, for notebooks: escaped, without script, in the notebook's own style.

Draws what the screen and the page draw, and knows no result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from stopadvisor.ground.printable import printable
from stopadvisor.report.sheet import Fact, Section, Sheet

__all__ = ["sheet_html"]


def sheet_html(sheet: Sheet) -> str:
    """Return a sheet: headline, facts, next command, sections, footnote."""
    parts = [f"<p><strong>{_text(sheet.headline)}</strong></p>", *_facts(sheet.facts)]
    if sheet.command is not None:
        name, command = _text(sheet.command_name), _text(sheet.command)
        parts.append(f"<p>{name}: <code>{command}</code></p>")
    for section in sheet.sections:
        parts.extend(_section(section))
    if sheet.footnote:
        parts.append(f"<p><small>{_text(sheet.footnote)}</small></p>")
    return f"<div>{''.join(parts)}</div>"


def _section(section: Section) -> Iterator[str]:
    if section.title:
        yield f"<p><strong>{_text(section.title)}</strong></p>"
    if section.header:
        head = "".join(f'<th scope="col">{_text(name)}</th>' for name in section.header)
        rows = "".join(f"<tr>{_cells(row)}</tr>" for row in section.rows)
        yield f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    else:
        yield from _facts([(name, value) for name, value in section.rows])
    for text in section.texts:
        yield f"<p>{_text(text)}</p>"


def _facts(facts: Sequence[Fact]) -> Iterator[str]:
    if facts:
        rows = "".join(
            f'<tr><th scope="row">{_text(name)}</th>{_cells((value,))}</tr>'
            for name, value in facts
        )
        yield f"<table><tbody>{rows}</tbody></table>"


def _cells(row: Sequence[str]) -> str:
    return "".join(f"<td>{_text(value)}</td>" for value in row)


def _text(text: str) -> str:
    return escape(printable(text))
