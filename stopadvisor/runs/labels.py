"""Gold that people typed: ``labels.jsonl`` in a run, a line for each answer, only ever appended to.

Reads and writes labels; does not compare them, and knows no rule.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from stopadvisor.ground.errors import OutputError, ProbeError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.ground.printable import csv_cell, short_repr
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.look_log import timestamp
from stopadvisor.runs.storage import append, encode, finished_objects, replace_file, set_aside_tail

__all__ = ["LABELS", "Label", "LabelFile", "LabelSheet", "read_sheet", "write_sheet"]

LABELS = "labels.jsonl"
PARTIAL = "labels.partial"
"""Takes the half-written last line of a killed session; nothing reads it."""
_SHEET = ("id", "question", "answers", "gold", "run")
_FORMATS = (".jsonl", ".csv")


@dataclass(frozen=True)
class Label:
    """The gold that one person gave to one question."""

    id: str
    gold: str | None
    """The right answer; None where the labeller could not tell."""
    labeller: str = ""


class LabelFile:
    """The labels of one run; `keys` holds the key of each of its questions, by id."""

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
            A half-written last line, as a kill leaves it, does not count.
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
                    f"{short_repr(row['gold'])}; take one of the two lines out"
                )
            else:
                mine[name] = row["gold"]
                lines[labeller, name] = where.rpartition(":")[2]
        return {labeller: mine for labeller, mine in labels.items() if mine}

    def add(self, labels: Sequence[Label]) -> None:
        """Append labels; all of them are on disk when this returns.

        Raises
        ------
        ProbeError
            A question is not in the run, or its labeller gave it another gold.
        """
        known, new = self.read(), []
        for label in labels:
            if label.id not in self._keys:
                raise ProbeError(
                    f"gold for question {short_repr(label.id)}, which is not in the run"
                )
            mine = known.setdefault(label.labeller, {})
            if label.id not in mine:
                new.append(label)
            if mine.setdefault(label.id, label.gold) != label.gold:
                raise ProbeError(
                    f"question {short_repr(label.id)} is labelled {short_repr(mine[label.id])} "
                    f"already, got {short_repr(label.gold)}; withdraw the first with undo, or say "
                    "--labeller"
                )
        self._append(self._named(label) | {"gold": label.gold} for label in new)

    def withdraw(self, label: Label) -> None:
        """Take one label back; its line stays."""
        self._append([self._named(label) | {"withdrawn": True}])

    def repair(self) -> str | None:
        """Set a half-written last line aside before anything is appended; a remark if it did."""
        if not set_aside_tail(self.path, self.path.with_name(PARTIAL)):
            return None
        return (
            f"{self.path}: the last line was half-written; moved to {PARTIAL}, its question is "
            "asked again"
        )

    def _named(self, label: Label) -> dict[str, Any]:
        return {
            "run": self._run,
            "id": label.id,
            "key": self._keys[label.id],
            "labeller": label.labeller,
            "created": timestamp(),
        }

    def _append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        if text:
            append(self.path, encode(text))

    def _check(self, row: Mapping[str, Any], where: str) -> None:
        for field in ("run", "id", "key", "labeller"):
            if not isinstance(row.get(field), str):
                value = short_repr(row.get(field))
                raise ProbeError(f"{where}: field {field!r}: expected text, got {value}")
        _check_gold(row.get("gold", "" if row.get("withdrawn") else 0), where)
        if row["run"] != self._run or self._keys.get(row["id"]) != row["key"]:
            raise ProbeError(
                f"{where}: question {short_repr(row['id'])} of run {short_repr(row['run'])}: "
                f"these are the labels of another run, and this one is {self._run!r}"
            )


# --- Sheets to label elsewhere --------------------------------------------------------------------


@dataclass(frozen=True)
class LabelSheet:
    """A question to be labelled elsewhere."""

    id: str
    question: str
    answers: tuple[str, ...]
    """In an order that does not give away which of them a stop would give."""


def write_sheet(path: Path, sheets: Sequence[LabelSheet], run: RunDirectory) -> None:
    """Write questions with their answers, and an empty `gold` to be filled in, as JSONL or CSV."""
    _check_format(path)
    if path.exists():
        raise OutputError(f"{path}: exists already, and may hold labels; choose another --export")
    rows = [
        {
            "id": sheet.id,
            "question": sheet.question,
            "answers": list(sheet.answers),
            "gold": "",
            "run": run.manifest["id"],
        }
        for sheet in sheets
    ]
    if path.suffix == ".jsonl":
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    else:
        out = StringIO()
        writer = csv.DictWriter(out, _SHEET, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            row["answers"] = " | ".join(row["answers"])
            writer.writerow({name: csv_cell(value) for name, value in row.items()})
        text = out.getvalue()
    replace_file(path, encode(text))


def read_sheet(path: Path, run: RunDirectory, labeller: str) -> list[Label]:
    """Read a sheet that was filled in; questions whose gold is empty are left out.

    `gold` is null in JSONL and ``null`` in CSV where the labeller could not tell.

    Raises
    ------
    ProbeError
        A field is missing or malformed, the file belongs to another run, or it labels a question
        twice.
    OutputError
        The file is neither .jsonl nor .csv.
    """
    _check_format(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ProbeError(f"{path}: cannot read: {error}") from error
    rows = _json_rows(path, text) if path.suffix == ".jsonl" else _csv_rows(path, text)
    lines: dict[str, tuple[int, str | None]] = {}
    for number, row in rows:
        where = f"{path}:{number}"
        name = row.get("id")
        if not isinstance(name, str) or "gold" not in row:
            field = "gold" if isinstance(name, str) else "id"
            raise ProbeError(f"{where}: field {field!r} is missing")
        if row.get("run") not in (None, "", run.manifest["id"]):
            raise ProbeError(
                f"{where}: field 'run': the labels of another run, {short_repr(row['run'])}; this "
                f"one is {run.manifest['id']!r}"
            )
        gold = row["gold"]
        if isinstance(gold, int | float) and not isinstance(gold, bool):
            gold = str(gold)
        _check_gold(gold, where)
        if gold is not None and not gold.strip():
            continue
        gold = None if gold is None else gold.strip()
        line, earlier = lines.setdefault(name, (number, gold))
        if earlier != gold:
            raise ProbeError(
                f"{where}: question {short_repr(name)} has gold {short_repr(earlier)} in line "
                f"{line}, got {short_repr(gold)}"
            )
    return [Label(name, gold, labeller) for name, (_, gold) in lines.items()]


def _check_gold(gold: Any, where: str) -> None:
    if not (gold is None or isinstance(gold, str)):
        raise ProbeError(f"{where}: field 'gold': expected text or null, got {short_repr(gold)}")


def _check_format(path: Path) -> None:
    if path.suffix not in _FORMATS:
        raise OutputError(f"{path}: expected a name ending in {' or '.join(_FORMATS)}")


def _json_rows(path: Path, text: str) -> Iterable[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            raise ProbeError(f"{path}:{number}: not a line of JSON: {error}") from error
        if not isinstance(row, dict):
            raise ProbeError(f"{path}:{number}: expected an object, got {short_repr(row)}")
        yield number, row


def _csv_rows(path: Path, text: str) -> Iterable[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(StringIO(text, newline=""))
    try:
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise ProbeError(f"{path}:{reader.line_num}: not a row of CSV: {error}") from error
    for number, row in rows:
        gold = row.get("gold")
        # Our sheets quote cells that a spreadsheet would take for a formula.
        if gold is not None and gold[:1] == "'":
            row["gold"] = gold[1:]
        yield number, {**row, "gold": None} if gold == "null" else row
