"""Tables, CSV or Parquet, whose columns the user names.

Knows no program: what a column holds, ``--map`` says.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from stopadvisor.answers.normal_form import TASKS
from stopadvisor.ground.errors import WorkloadError
from stopadvisor.ground.progress import tracked
from stopadvisor.workload.imports.logged import (
    MOST_BYTES,
    LogContent,
    Logged,
    LogOptions,
    chat_messages,
    gold_text,
    open_log,
    plain_text,
)
from stopadvisor.workload.lines import is_reply, refuse
from stopadvisor.workload.traces import split_thinking

__all__ = ["COLUMNS", "read_csv", "read_parquet_table"]

COLUMNS = ("question", "gold", "thinking", "answer", "id", "category", "group", "task")
"""What a column may hold."""

_ROWS_AT_ONCE = 64
_MOST_UNPACKED = 2**28
"""Bytes: what a hundred kilobytes of one repeated row unpack to has no end otherwise."""
_OF_A_ROW = 1024
"""Bytes that a row takes in addition to its text."""

_Rows = Iterator[tuple[str, Mapping[str, Any]]]


def read_csv(paths: Sequence[Path], log_options: LogOptions) -> LogContent:
    """Read CSV files with a header."""
    return _read(paths, log_options, _csv_rows)


def read_parquet_table(paths: Sequence[Path], log_options: LogOptions) -> LogContent:
    """Read Parquet files; raises as `read_csv`."""
    return _read(paths, log_options, _parquet_rows)


def _read(paths: Sequence[Path], log_options: LogOptions, rows: Any) -> LogContent:
    wanted = sorted(set(log_options.columns.values()))
    entries: list[Logged] = []
    left_out: list[str] = []
    for path in paths:
        for where, row in rows(path, wanted):
            entries.append(_logged(where, row, log_options, left_out))
    return LogContent(tuple(entries), tuple(left_out))


def _logged(
    where: str, row: Mapping[str, Any], log_options: LogOptions, left_out: list[str]
) -> Logged:
    names = log_options.columns

    def value(kind: str) -> Any:
        return row[names[kind]] if kind in names else None

    def text(kind: str) -> str | None:
        return plain_text(value(kind), where, names.get(kind, kind))

    question, task = row[names["question"]], text("task")
    if task not in (None, *TASKS):
        refuse(where, names["task"], f"one of {', '.join(TASKS)}", task)
    thinking, reply = text("thinking"), text("answer")
    if isinstance(question, list):
        if "answer" not in names and len(question) > 1 and is_reply(question[-1]):
            reply = plain_text(question[-1].get("content"), where, names["question"])
            question = question[:-1]
        messages = chat_messages(question, where, names["question"])
    else:
        shown = plain_text(question, where, names["question"])
        if shown is None:
            refuse(where, names["question"], "text that is not empty", question)
        messages = ({"role": "user", "content": shown},)
    if thinking is None and reply is not None:
        thinking, reply = split_thinking(reply, log_options.markers)
    return Logged(
        where,
        messages,
        gold=gold_text(value("gold"), where, names.get("gold", "gold"), left_out),
        thinking=thinking,
        reply=reply,
        name=text("id"),
        category=text("category"),
        group=text("group"),
        task=task,
    )


def _check_columns(where: str, wanted: Sequence[str], header: Sequence[str]) -> None:
    """Refuse a table that lacks a wanted column, or has several of its name."""
    for name in wanted:
        if (count := header.count(name)) != 1:
            found = f"{count} columns" if count else "no column"
            raise WorkloadError(
                f"{where}: {found} {name!r}; there are {', '.join(header) or 'none'}"
            )


def _csv_rows(path: Path, wanted: Sequence[str]) -> _Rows:
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
        _check_columns(f"{path}:1", wanted, header)
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


def _parquet_rows(path: Path, wanted: Sequence[str]) -> _Rows:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise WorkloadError(
            "Parquet files are read by pyarrow: pip install 'stopadvisor[import]'"
        ) from error
    with open_log(path) as file:
        try:
            table = ParquetFile(file)
            _check_columns(str(path), wanted, table.schema_arrow.names)
            rows = _unpacked(path, table.iter_batches(_ROWS_AT_ONCE, columns=list(wanted)))
            yield from tracked(f"reading {path.name}", rows, table.metadata.num_rows)
        except (ArrowException, OSError) as error:
            reason = " ".join(str(error).split())[:200]
            raise WorkloadError(f"{path}: expected a Parquet file, got: {reason}") from None


def _unpacked(path: Path, batches: Iterator[Any]) -> _Rows:
    """The rows of record batches, as long as they are not too large together."""
    number = unpacked = 0
    for batch in batches:
        unpacked += batch.nbytes + _OF_A_ROW * batch.num_rows
        if unpacked > _MOST_UNPACKED:
            raise WorkloadError(
                f"{path}: expected rows of at most {_MOST_UNPACKED >> 20} MB in all when "
                f"unpacked, got more by row {number + 1}; import it in parts"
            )
        for row in batch.to_pylist():
            number += 1
            yield f"{path}: row {number}", row
