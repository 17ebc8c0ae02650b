"""Tables, CSV, whose columns the user names.

Knows no program: what a column holds, ``--map`` says.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path

from stopadvisor.answers.normal_form import TASKS
from stopadvisor.ground.errors import WorkloadError
from stopadvisor.ground.progress import tracked
from stopadvisor.workload.imports.logged import (
    MOST_BYTES,
    LogContent,
    Logged,
    LogOptions,
    open_log,
    plain_text,
)
from stopadvisor.workload.lines import refuse
from stopadvisor.workload.traces import split_thinking

__all__ = ["COLUMNS", "read_csv"]

COLUMNS = ("question", "gold", "thinking", "answer", "id", "category", "group", "task")
"""What a column may hold."""


def read_csv(paths: Sequence[Path], log_options: LogOptions) -> LogContent:
    """Read CSV files with a header."""
    wanted = sorted(set(log_options.columns.values()))
    rows = (row for path in paths for row in _rows(path, wanted))
    return LogContent(tuple(_logged(where, row, log_options) for where, row in rows))


def _logged(where: str, row: Mapping[str, str], log_options: LogOptions) -> Logged:
    names = log_options.columns
    found = {kind: plain_text(row[name], where, name) for kind, name in names.items()}
    question, task = found["question"], found.get("task")
    if task not in (None, *TASKS):
        refuse(where, names["task"], f"one of {', '.join(TASKS)}", task)
    if question is None:
        refuse(where, names["question"], "text that is not empty", row[names["question"]])
    thinking, reply = found.get("thinking"), found.get("answer")
    if thinking is None and reply is not None:
        thinking, reply = split_thinking(reply, log_options.markers)
    return Logged(
        where,
        ({"role": "user", "content": question},),
        gold=found.get("gold"),
        thinking=thinking,
        reply=reply,
        name=found.get("id"),
        category=found.get("category"),
        group=found.get("group"),
        task=task,
    )


def _rows(path: Path, wanted: Sequence[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Rows of a file, each with its place; refuses a table that lacks a wanted column."""
    with open_log(path) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise WorkloadError(f"{path}: expected at most {MOST_BYTES >> 20} MB of CSV, got more")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise WorkloadError(f"{path}:{number}: expected UTF-8 text, got: {error.reason}") from None
    usual = csv.field_size_limit(MOST_BYTES)  # thinking is longer than the usual cell
    try:
        count = text.count("\n") + (not text.endswith("\n"))
        lines = tracked(f"reading {path.name}", StringIO(text, newline=""), count)
        rows = csv.DictReader(lines, strict=True)
        header = list(rows.fieldnames or ())
        for name in wanted:
            if (n_columns := header.count(name)) != 1:
                found = f"{n_columns} columns" if n_columns else "no column"
                raise WorkloadError(
                    f"{path}:1: {found} {name!r}; there are {', '.join(header) or 'none'}"
                )
        for row in rows:
            where = f"{path}:{rows.line_num}"
            if None in row or None in row.values():
                found = "more" if None in row else "fewer"
                raise WorkloadError(f"{where}: expected {len(header)} cells, got {found}")
            yield where, row
    except csv.Error as error:
        raise WorkloadError(f"{path}:{rows.reader.line_num}: expected CSV, got: {error}") from None
    finally:
        csv.field_size_limit(usual)
