"""Gold that people typed: ``labels.jsonl`` in a run, and sheets to fill in elsewhere."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

from stopadvisor.ground.errors import OutputError, ProbeError
from stopadvisor.ground.printable import csv_cell, short_repr
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.look_log import timestamp
from stopadvisor.runs.storage import (
    append,
    encode,
    finished_objects,
    json_lines,
    replace_file,
    set_aside_tail,
)
from stopadvisor.workload.lines import read_rows, refuse, text_field
from stopadvisor.workload.logged import read_table
from stopadvisor.workload.questions import require_usable_gold

__all__ = ["LABELS", "LabelFile", "LabelSheet", "read_sheet", "write_sheet"]

LABELS = "labels.jsonl"
PARTIAL = "labels.partial"
"""Half-written last lines of killed sessions; nothing reads it."""
_SHEET = ("id", "question", "answers", "gold", "run")
_FORMATS = (".jsonl", ".csv")


class LabelFile:
    """The labels of one run, a line each; lines are only ever appended.

    `keys` maps the ids of the run's questions to their keys.  The gold of a label is None if the
    labeller could not tell.
    """

    def __init__(self, run: RunDirectory, keys: Mapping[str, str]) -> None:
        self.path = run.path / LABELS
        self._run = str(run.manifest["id"])
        self._keys = keys

    def read(self) -> dict[str, dict[str, str | None]]:
        """Gold by labeller and id, without withdrawn labels.

        Raises
        ------
        ProbeError
            A line is broken or belongs to another run, or a labeller gave a question two golds.
            A half-written last line does not count.
        """
        labels: dict[str, dict[str, str | None]] = {}
        lines: dict[tuple[str, str], str] = {}
        for where, row in finished_objects(self.path):
            self._check(row, where)
            labeller, name = row["labeller"], row["id"]
            mine = labels.setdefault(labeller, {})
            if row.get("withdrawn"):
                mine.pop(name, None)
            elif name in mine and mine[name] != row["gold"]:
                raise ProbeError(
                    f"{where}: field 'gold': question {short_repr(name)} has "
                    f"{short_repr(mine[name])} in line {lines[labeller, name]}, got "
                    f"{short_repr(row['gold'])}; remove one of the two lines"
                )
            else:
                mine[name] = row["gold"]
                lines[labeller, name] = where.rpartition(":")[2]
        return {labeller: mine for labeller, mine in labels.items() if mine}

    def add(self, golds: Mapping[str, str | None], labeller: str = "") -> None:
        """Append a labeller's gold by question id; all is on disk when this returns.

        Raises
        ------
        ProbeError
            A question is not in the run, or its labeller gave it another gold before.
        """
        mine = self.read().get(labeller, {})
        for name, gold in golds.items():
            if name not in self._keys:
                raise ProbeError(f"question {short_repr(name)} is not in the run, got gold for it")
            if mine.get(name, gold) != gold:
                raise ProbeError(
                    f"question {short_repr(name)} is already labelled {short_repr(mine[name])}, "
                    f"got {short_repr(gold)}; undo the first label, or name another --labeller"
                )
        self._append(
            self._named(name, labeller) | {"gold": gold}
            for name, gold in golds.items()
            if name not in mine
        )

    def withdraw(self, name: str, labeller: str = "") -> None:
        """Take back a label of question `name`: its line stays, and a new one withdraws it."""
        self._append([self._named(name, labeller) | {"withdrawn": True}])

    def repair(self) -> str | None:
        """Move a half-written last line aside; returns a remark if there was one."""
        return set_aside_tail(self.path, PARTIAL)

    def _named(self, name: str, labeller: str) -> dict[str, Any]:
        about = {"run": self._run, "id": name, "key": self._keys[name]}
        return {**about, "labeller": labeller, "created": timestamp()}

    def _append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        if lines := json_lines(rows):
            append(self.path, lines)

    def _check(self, row: Mapping[str, Any], where: str) -> None:
        for field in ("run", "id", "key", "labeller"):
            if not isinstance(row.get(field), str):
                value = short_repr(row.get(field))
                raise ProbeError(f"{where}: field {field!r}: expected text, got {value}")
        _check_gold(row.get("gold", "" if row.get("withdrawn") else 0), where)
        if row["run"] != self._run or self._keys.get(row["id"]) != row["key"]:
            raise ProbeError(
                f"{where}: question {short_repr(row['id'])} of run {short_repr(row['run'])}: "
                f"these labels belong to another run; this one is {self._run!r}"
            )


# --- Sheets to label elsewhere --------------------------------------------------------------------


@dataclass(frozen=True)
class LabelSheet:
    """A question to label elsewhere."""

    id: str
    question: str
    answers: tuple[str, ...]
    """In an order that does not reveal which one an early stop would give."""


def write_sheet(path: Path, sheets: Sequence[LabelSheet], run: RunDirectory) -> None:
    """Write questions and answers with an empty `gold` to fill in, as JSONL or CSV."""
    _check_format(path)
    if path.exists():
        raise OutputError(f"{path}: already exists and may hold labels; choose another --export")
    rows = [{**asdict(sheet), "gold": "", "run": run.manifest["id"]} for sheet in sheets]
    if path.suffix == ".jsonl":
        replace_file(path, json_lines(rows))
        return
    out = StringIO()
    writer = csv.DictWriter(out, _SHEET, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        row["answers"] = " | ".join(row["answers"])
        writer.writerow({name: csv_cell(value) for name, value in row.items()})
    replace_file(path, encode(out.getvalue()))


def read_sheet(
    path: Path, run: RunDirectory, tasks: Mapping[str, str] | None = None
) -> dict[str, str | None]:
    """Read the gold of a filled-in sheet by question id, without questions whose gold is empty.

    Where the labeller could not tell, `gold` is null in JSONL and ``null`` in CSV.  `tasks` are
    those of the run's questions: gold that no answer could equal would hide a lost one.

    Raises
    ------
    WorkloadError
        The file cannot be read, or a field is missing, malformed or no answer of its task.
    ProbeError
        The labels belong to another run, or a question is labelled twice.
    OutputError
        The file is neither .jsonl nor .csv.
    """
    _check_format(path)
    rows = _table_rows(path) if path.suffix == ".csv" else read_rows(path)[1]
    golds: dict[str, str | None] = {}
    lines: dict[str, str] = {}
    for where, row in rows:
        if row.get("run") not in (None, "", run.manifest["id"]):
            raise ProbeError(
                f"{where}: field 'run': expected this run, {run.manifest['id']!r}, got labels of "
                f"{short_repr(row['run'])}"
            )
        if "gold" not in row:
            refuse(where, "gold", "a value in every row", None)
        gold = row["gold"]
        if isinstance(gold, int | Decimal) and not isinstance(gold, bool):
            gold = str(gold)
        _check_gold(gold, where)
        if gold is not None and not gold.strip():
            continue  # also the empty rows that spreadsheets append
        name = text_field(row, "id", where)
        if name is None:
            refuse(where, "id", "a value in every row", None)
        gold = None if gold is None else gold.strip()
        if gold is not None and tasks and name in tasks:
            require_usable_gold(tasks[name], gold, where)
        line = lines.setdefault(name, where.rpartition(":")[2])
        if golds.setdefault(name, gold) != gold:
            raise ProbeError(
                f"{where}: question {short_repr(name)} has gold {short_repr(golds[name])} in line "
                f"{line}, got {short_repr(gold)}"
            )
    return golds


def _check_gold(gold: Any, where: str) -> None:
    if not (gold is None or isinstance(gold, str)):
        raise ProbeError(f"{where}: field 'gold': expected text or null, got {short_repr(gold)}")


def _check_format(path: Path) -> None:
    if path.suffix not in _FORMATS:
        raise OutputError(f"{path}: expected a name ending in {' or '.join(_FORMATS)}")


def _table_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of a CSV sheet, with `id` and `gold` as they were before `csv_cell` quoted them."""
    for where, row in read_table(path, ("id", "gold")):
        name, gold = row["id"], row["gold"].removeprefix("'")
        if csv_cell(name[1:]) == name:
            name = name[1:]
        yield where, {**row, "id": name, "gold": None if gold == "null" else gold}
