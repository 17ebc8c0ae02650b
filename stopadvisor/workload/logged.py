"""Turn a log's replies into workload lines; read logs in CSV.

Readers of other log formats share the checked fields.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from stopadvisor.answers.normal_form import TASKS, guess_task
from stopadvisor.ground.errors import WorkloadError
from stopadvisor.ground.printable import short_repr
from stopadvisor.ground.progress import tracked
from stopadvisor.workload.lines import check_text, decoded, free_name, open_file, refuse
from stopadvisor.workload.questions import content_key, require_usable_gold
from stopadvisor.workload.traces import Markers, split_thinking

__all__ = [
    "COLUMNS", "MOST_BYTES", "Gathered", "LogContent", "Logged", "gather", "gold_text",
    "plain_text", "read_csv", "read_table",
]  # fmt: skip

MOST_BYTES = 2**28
"""Limit on a JSON document, and on the text of a log held in memory."""


@dataclass(frozen=True)
class Logged:
    """A question as it was asked, and one reply to it."""

    where: str
    """``FILE:LINE``, or the file and the sample in it."""
    messages: tuple[Mapping[str, str], ...]
    """The conversation before the reply."""
    gold: str | None = None
    name: str | None = None
    """The log's own id of the question."""
    category: str | None = None
    thinking: str | None = None
    """None if it was not recorded or cannot be told from the reply."""
    reply: str | None = None
    """Text after the thinking; None if there is none."""
    ended: bool = False
    """Whether the log says that the model ended by itself; otherwise it may have been cut."""
    group: str | None = None
    task: str | None = None
    """Kind of answer; None to guess it from gold."""
    epoch: int = 1
    """The reply's number among those to its question, if the log numbers them."""
    usage: Mapping[str, Any] | None = None
    """The log's own token counts of the reply."""


@dataclass(frozen=True)
class LogContent:
    """Replies read from log files."""

    entries: tuple[Logged, ...]
    """In the order of the files; a question with several replies has several entries."""
    left_out: tuple[str, ...] = ()
    """One sentence for each reply or gold that was left out."""


# --- Fields ---------------------------------------------------------------------------------------


def plain_text(value: Any, where: str, name: str) -> str | None:
    """Text of an optional field that may hold a number; None if it is absent or blank."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not hasattr(value, "__int__"):
        refuse(where, name, "text or a number", value)
    return str(value)


def gold_text(value: Any, where: str, name: str, left_out: list[str]) -> str | None:
    """Text of gold; None for a list of several answers, which is noted in `left_out`."""
    if isinstance(value, list):
        different = list(dict.fromkeys(map(str, value)))
        if len(different) > 1:
            left_out.append(
                f"{where}: gold: {name} holds {len(different)} right answers, expected one"
            )
            return None
        value = different[0] if different else None
    return plain_text(value, where, name)


# --- CSV ------------------------------------------------------------------------------------------

COLUMNS = ("question", "gold", "thinking", "answer", "id", "category", "group", "task")
"""What a column may contain; the user says which column contains what."""


def read_csv(paths: Sequence[Path], markers: Markers, columns: Mapping[str, str]) -> LogContent:
    """Read CSV files with a header; `columns` are names by what they contain, of `COLUMNS`."""
    wanted = sorted(set(columns.values()))
    rows = (row for path in paths for row in read_table(path, wanted))
    return LogContent(tuple(_row_logged(where, row, markers, columns) for where, row in rows))


def _row_logged(
    where: str, row: Mapping[str, str], markers: Markers, names: Mapping[str, str]
) -> Logged:
    cells = {kind: plain_text(row[name], where, name) for kind, name in names.items()}
    question, task = cells["question"], cells.get("task")
    if task not in (None, *TASKS):
        refuse(where, names["task"], f"one of {', '.join(TASKS)}", task)
    if question is None:
        refuse(where, names["question"], "text that is not empty", row[names["question"]])
    thinking, reply = cells.get("thinking"), cells.get("answer")
    if thinking is None and reply is not None:
        thinking, reply = split_thinking(reply, markers)
    return Logged(
        where,
        ({"role": "user", "content": question},),
        gold=cells.get("gold"),
        thinking=thinking,
        reply=reply,
        name=cells.get("id"),
        category=cells.get("category"),
        group=cells.get("group"),
        task=task,
    )


def read_table(path: Path, wanted: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Read the rows of a CSV file with a header, each with its ``FILE:LINE``.

    Raises
    ------
    WorkloadError
        The file cannot be read, lacks one of the `wanted` columns, or a row has too few or too many
        cells.
    """
    with open_file(path) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise WorkloadError(f"{path}: expected at most {MOST_BYTES >> 20} MB of CSV, got more")
    text = decoded(data, path)
    usual = csv.field_size_limit(MOST_BYTES)  # thinking exceeds the default limit on a cell
    try:
        count = text.count("\n") + (not text.endswith("\n"))
        lines = tracked(f"reading {path.name}", StringIO(text, newline=""), count)
        rows = csv.DictReader(lines, strict=True)
        header = list(rows.fieldnames or ())
        for name in wanted:
            if (n_columns := header.count(name)) != 1:
                got = f"{n_columns} columns" if n_columns else "no column"
                raise WorkloadError(f"{path}:1: {got} {name!r} in {short_repr(header)}")
        for row in rows:
            where = f"{path}:{rows.line_num}"
            if None in row or None in row.values():
                got = "more" if None in row else "fewer"
                raise WorkloadError(f"{where}: expected {len(header)} cells, got {got}")
            yield where, row
    except csv.Error as error:
        raise WorkloadError(f"{path}:{rows.reader.line_num}: expected CSV, got: {error}") from None
    finally:
        csv.field_size_limit(usual)


# --- From replies to lines of a workload ----------------------------------------------------------


@dataclass(frozen=True)
class Gathered:
    """Workload lines made from a log."""

    lines: tuple[dict[str, Any], ...]
    """In the order of the questions' first occurrences."""
    n_gold: int
    """Questions with gold."""
    n_traces: int
    """Replies with their thinking."""
    n_cut: int
    """Traces whose thinking was cut."""
    without_thinking: tuple[str, ...]
    """Where replies without their thinking are."""
    n_untraced: int
    """Questions none of whose replies has its thinking."""
    renamed: tuple[str, ...]
    """One sentence for each id that stood for several questions."""
    left_out: tuple[str, ...]
    """One sentence for each reply, question or gold that was left out."""


def gather(log: LogContent, *, task: str | None = None, traces_only: bool = False) -> Gathered:
    """Make workload lines from a log: each question once, with all its recorded traces.

    Parameters
    ----------
    task : str, optional
        Task of all questions; None takes the log's, or guesses it from gold.
    traces_only : bool
        Leave out replies without their thinking, and questions that have no other.

    Raises
    ------
    WorkloadError
        There is no question; or one has two different golds, groups or tasks, or gold that no
        answer could equal.
    """
    questions: dict[str, dict[str, Any]] = {}
    places: dict[str, str] = {}
    names: dict[str, str] = {}
    counts: Counter[str] = Counter()
    left_out = list(log.left_out)
    without: list[str] = []
    renamed: list[str] = []
    for entry in log.entries:
        _check(entry, task)
        key = content_key(entry.messages)
        line = questions.setdefault(key, {"messages": entry.messages})
        first = places.setdefault(key, entry.where)
        if first != entry.where and entry.thinking is None and entry.reply is None:
            left_out.append(
                f"{entry.where}: question: expected a new one, got that of {first} again"
            )
        if entry.name is not None and "id" not in line:
            line["id"] = free_name(entry.name, names, counts)
            names[line["id"]] = entry.where
            if line["id"] != entry.name:
                other = names[entry.name]
                renamed.append(
                    f"{entry.where}: id {entry.name!r} already names another question "
                    f"({other}), got {line['id']!r}"
                )
        for name in ("gold", "category", "group", "task"):
            value = task if name == "task" and task else getattr(entry, name)
            if value is None or line.setdefault(name, value) == value:
                continue
            if name != "category":
                expected = f"{line[name]!r} as for the same question in {first}"
                refuse(entry.where, name, expected, value)
        if entry.thinking is None and entry.reply is not None:
            if traces_only:
                left_out.append(f"{entry.where}: reply: expected its thinking, got none")
            else:
                without.append(entry.where)
        if entry.thinking is None and (traces_only or entry.reply is None):
            continue
        trace = {"thinking": entry.thinking, "reply": entry.reply}
        trace["finish"] = "stop" if entry.reply is None and entry.ended else None
        line.setdefault("traces", []).append({k: v for k, v in trace.items() if v is not None})
    untraced = [
        key
        for key, line in questions.items()
        if not any("thinking" in trace for trace in line.get("traces", ()))
    ]
    if traces_only:
        for key in untraced:
            del questions[key]
            left_out.append(f"{places[key]}: question: expected a recorded trace, got none")
        untraced = []
    if not questions:
        wanted = "question with a recorded trace" if traces_only else "question"
        raise WorkloadError(f"expected at least one {wanted}, got none")
    lines = tuple(_ordered(line) for line in questions.values())
    traces = [t for line in lines for t in line.get("traces", ()) if "thinking" in t]
    return Gathered(
        lines,
        n_gold=sum("gold" in line for line in lines),
        n_traces=len(traces),
        n_cut=sum(trace.keys() == {"thinking"} for trace in traces),
        without_thinking=tuple(without),
        n_untraced=len(untraced),
        renamed=tuple(renamed),
        left_out=tuple(left_out),
    )


def _check(entry: Logged, task: str | None) -> None:
    """Refuse text and gold that no workload can contain, while their place is known."""
    fields = ("gold", "name", "category", "group", "thinking", "reply")
    texts = [getattr(entry, name) for name in fields]
    for text in (*texts, *(value for m in entry.messages for value in m.values())):
        if text is not None:
            check_text(text, entry.where, "text")
    if entry.gold is not None:
        require_usable_gold(task or entry.task or guess_task(entry.gold), entry.gold, entry.where)


def _ordered(line: Mapping[str, Any]) -> dict[str, Any]:
    """Fields in a fixed order; a single user message without traces becomes a `question`."""
    fields, messages = dict(line), line["messages"]
    if len(messages) == 1 and messages[0]["role"] == "user" and "traces" not in line:
        fields["question"] = fields.pop("messages")[0]["content"]
    names = ("id", "question", "messages", "gold", "task", "category", "group", "traces")
    return {name: fields[name] for name in names if name in fields}
