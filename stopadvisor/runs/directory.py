"""Run directories: a manifest and the graded probes that belong to it.

A run is one model, one plan and one split; questions may be added.  Probing only appends to
``probes.jsonl``, so that finished work survives an interrupt, a kill and a full disk; regrading
replaces the file as a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from stopadvisor.ground.errors import ProbeError
from stopadvisor.ground.json_text import read_object
from stopadvisor.probes.asking import ProbePlan, RawTrace
from stopadvisor.probes.outcomes import SealedQuestions
from stopadvisor.probes.records import ProbeRecord, graded_table
from stopadvisor.runs.ladder import Ladder, recorded_ladder
from stopadvisor.runs.manifest import (
    SCHEMA,
    differences,
    has_its_id,
    identity_of,
    run_id,
    short,
    split_of,
    with_versions,
)
from stopadvisor.runs.replies import ReplyRecord, reply_table
from stopadvisor.runs.storage import (
    append,
    encode,
    finished_lines,
    finished_objects,
    json_lines,
    replace_file,
    set_aside_tail,
    write_json_atomically,
)
from stopadvisor.workload.questions import Question, assign_parts

__all__ = [
    "ARCHIVE", "CALIBRATION", "MANIFEST", "PROBES", "REPLIES",
    "KeptThinking", "RunDirectory",
    "archived_line", "digest_of", "keep_thinking", "line_of", "read_thinking",
]  # fmt: skip

_Record = TypeVar("_Record", ProbeRecord, ReplyRecord)

MANIFEST = "manifest.json"
CALIBRATION = "calibration.json"
"""The calibration of the policy in use."""
ARCHIVE = "archive.json"
"""In the results folder of an archive: its file and its split."""
PROBES = "probes.jsonl"
REPLIES = "replies.jsonl"
"""Replaces `PROBES` in a ladder's run."""
PARTIAL = "probes.partial"
"""Half-written last lines of probes and thinking, after a kill; nothing reads it."""
THINKING = "thinking.jsonl"
"""What the model thought, for people to read."""


def digest_of(data: str | bytes) -> str:
    """Sixteen hex digits that identify a question's key, or a line of ``probes.jsonl``."""
    data = data.encode() if isinstance(data, str) else data
    return hashlib.sha256(data).hexdigest()[:16]


def archived_line(archive_sha256: str, question: str) -> str:
    """The digest of a question in an archive, which has no line in ``probes.jsonl``."""
    return digest_of(f"{archive_sha256} {question}")


def line_of(record: ProbeRecord | ReplyRecord) -> bytes:
    """A record as a line of ``probes.jsonl`` or ``replies.jsonl``, without line feed."""
    return encode(record.to_json())


class RunDirectory:
    """One run on disk.

    Readers need no lock; a caller that appends or rewrites holds `lock_directory(run.path)`.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self.path = path
        self.manifest = manifest

    @classmethod
    def create(cls, path: Path, manifest: Mapping[str, Any]) -> RunDirectory:
        """Begin a run in a folder without one."""
        if (path / PROBES).exists():
            raise ProbeError(f"{path}: holds {PROBES} but no {MANIFEST}; choose another --out")
        write_json_atomically(path / MANIFEST, manifest)
        return cls(path, manifest)

    @classmethod
    def load(cls, path: Path) -> RunDirectory:
        """Open a run for reading.

        Raises
        ------
        ProbeError
            `path` holds no run, or its manifest is damaged or was edited.
        """
        file = path / MANIFEST
        try:
            manifest = read_object(file, ProbeError)
        except ProbeError as error:
            if isinstance(error.__cause__, (FileNotFoundError, NotADirectoryError)):
                no_run = f"{path}: not a run directory, it holds no {MANIFEST}"
                raise ProbeError(no_run) from error
            raise
        if (schema := manifest.get("schema")) != SCHEMA:
            raise ProbeError(f"{file}: field 'schema' must be {SCHEMA}, got {short(schema)}")
        try:
            for name in ("workload", "engine", "grading"):
                if not isinstance(manifest[name], dict):
                    raise KeyError(name)
            manifest["workload"]["sha256"], manifest["created"], manifest["prompt_template"]
            if not isinstance(manifest["workload"]["path"], str):
                raise KeyError("workload.path")
            if type(manifest["plan"]["max_think"]) is not int:  # may differ under the same id
                raise KeyError("plan.max_think")
            is_unchanged = has_its_id(manifest)
            cls(path, manifest).plan  # noqa: B018  the constructor checks every field
        except (KeyError, TypeError) as error:
            raise ProbeError(f"{file}: field {error} is missing or malformed") from error
        if not is_unchanged:
            raise ProbeError(
                f"{file}: its content gives the id {run_id(manifest)!r}, got "
                f"{manifest.get('id')!r}; it was changed after probing started, so "
                "its split is no longer valid"
            )
        return cls(path, manifest)

    @classmethod
    def resume(cls, path: Path, manifest: Mapping[str, Any]) -> RunDirectory | None:
        """Open the run at `path` to add probes; None if there is none yet.

        Raises
        ------
        ProbeError
            The folder holds a run with another manifest; the message names the fields.
        """
        if not (path / MANIFEST).exists():
            return None
        run = cls.load(path)
        changed = list(differences(identity_of(manifest), identity_of(run.manifest)))
        if changed:
            more = f" (and {len(changed) - 3} more)" if len(changed) > 3 else ""
            raise ProbeError(
                f"{path} holds another run: {'; '.join(changed[:3])}{more}; choose another --out"
            )
        return run

    @property
    def plan(self) -> ProbePlan:
        """The plan with its frozen budgets."""
        return ProbePlan.from_dict(self.manifest["plan"])

    @property
    def probes_path(self) -> Path:
        """The file of the records."""
        return self.path / (PROBES if self.ladder is None else REPLIES)

    @property
    def ladder(self) -> Ladder | None:
        """The ladder whose replies the run holds; None if it holds probes of one model."""
        return recorded_ladder(self.manifest, self.path / MANIFEST)

    def annotate(self, **fields: Any) -> None:
        """Change manifest fields that are not part of the id."""
        manifest = {**self.manifest, **fields}
        if manifest == self.manifest:
            return
        if not has_its_id(manifest):
            raise ValueError(f"{sorted(fields)} would change the identity of {self.path}")
        write_json_atomically(self.path / MANIFEST, manifest)
        self.manifest = manifest

    def note_versions(self, engine: Mapping[str, Any]) -> str | None:
        """Record the versions of the engine that continues this run; return a remark if new."""
        manifest = with_versions(self.manifest, engine)
        if manifest == self.manifest:
            return None
        self.annotate(**manifest)
        return (
            f"{self.path} began with {self.manifest['engine']['engine']} "
            f"{self.manifest['engine'].get('engine_version')} and continues with "
            f"{engine.get('engine_version')}: both are recorded, and a policy names both"
        )

    # --- probes.jsonl ---

    def torn(self) -> str | None:
        """A remark on a half-written last line; None if all lines are whole."""
        lines, is_torn = finished_lines(self.probes_path)
        if not is_torn:
            return None
        does = "asks" if self.ladder is None else "grades"
        return (
            f"{self.probes_path}: line {len(lines) + 1} is half-written and does not count; "
            f"repeating `probe` {does} its question again"
        )

    def records(self) -> list[ProbeRecord]:
        """Every finished trace, in the order of the file; a half-written last line is ignored.

        Raises
        ------
        ProbeError
            Any other line is broken, or a trace occurs twice.
        """
        return self._read(ProbeRecord)

    def replies(self) -> list[ReplyRecord]:
        """Every finished question of a ladder; reads and raises as `records`."""
        return self._read(ReplyRecord)

    def _read(self, kind: type[_Record]) -> list[_Record]:
        records: dict[tuple[str, int], _Record] = {}
        for where, data in finished_objects(self.probes_path, "reading probes"):
            record = kind.from_dict(data, where)
            name = record.id, record.sample
            if name in records:
                raise ProbeError(
                    f"{where}: question {record.id!r} (sample {record.sample}) "
                    f"is already on line {[*records].index(name) + 1}"
                )
            records[name] = record
        return list(records.values())

    def all_records(self) -> Sequence[ProbeRecord | ReplyRecord]:
        """Every finished trace, or every finished question of a ladder."""
        return self.records() if self.ladder is None else self.replies()

    def line_digests(self) -> list[str]:
        """Digest of each finished line, in the order of the file."""
        return list(map(digest_of, finished_lines(self.probes_path)[0]))

    def repair(self) -> str | None:
        """Move half-written last lines aside before appending; return a remark on that."""
        set_aside_tail(self.path / THINKING, PARTIAL)
        # A ladder's replies are in a file of their own before they are graded.
        again = "asked" if self.ladder is None else "graded"
        return set_aside_tail(self.probes_path, PARTIAL, again)

    def append(self, records: Sequence[ProbeRecord | ReplyRecord]) -> None:
        """Append records: all are on disk when this returns, none if it raises OutputError."""
        if records:
            append(self.probes_path, b"".join(line_of(record) + b"\n" for record in records))

    def rewrite(self, records: Sequence[ProbeRecord | ReplyRecord]) -> None:
        """Replace the file as a whole, for regrading; probing only appends."""
        replace_file(self.probes_path, b"".join(line_of(record) + b"\n" for record in records))

    # --- What analyses read ---

    def table(self) -> SealedQuestions:
        """All finished traces as a table, in the order of the file, with outcomes sealed."""
        try:
            if (ladder := self.ladder) is not None:
                replies = self.replies()
                parts = self.parts([record.group or record.key for record in replies])
                return reply_table(replies, ladder, parts.tolist()).sealed()
            records = self.records()
            parts = self.parts([record.group or record.key for record in records])
            return graded_table(records, "natural", self.plan.on_stop, parts.tolist()).sealed()
        except ProbeError as error:
            raise ProbeError(f"{self.path}: {error}") from error
        except (TypeError, ValueError, OverflowError) as error:  # by hand: we write no such values
            what = "a field has a value that no probe can have"
            raise ProbeError(f"{self.probes_path}: {what}: {error}") from error

    def parts(self, groups: Sequence[str]) -> NDArray[np.int8]:
        """Part of each group, as an index into `PARTS`."""
        seed, fractions = split_of(self.manifest)
        return assign_parts(groups, seed=seed, fractions=fractions)


# --- What the model thought -----------------------------------------------------------------------


@dataclass(frozen=True)
class KeptThinking:
    """The thinking of a question's first trace, for people to read; no figure uses it."""

    text: str
    characters: Mapping[int, int]
    """Characters before each probe, by its position in thinking tokens."""


def keep_thinking(folder: Path, questions: Sequence[Question], traces: Sequence[RawTrace]) -> None:
    """Append the thinking of questions; where one was asked again, its last line counts."""
    rows = (
        {
            "id": question.id,
            "thinking": trace.thinking,
            "characters": {p.budget: p.characters for p in trace.probes if not p.ended},
        }
        for question, trace in zip(questions, traces, strict=True)
    )
    append(folder / THINKING, json_lines(rows))


def read_thinking(folder: Path, wanted: Container[str]) -> dict[str, KeptThinking]:
    """The kept thinking of the wanted questions, by id.

    Raises
    ------
    ProbeError
        A whole line does not hold thinking.
    """
    kept = {}
    for where, row in finished_objects(folder / THINKING):
        try:
            name, text, at = row["id"], str(row["thinking"]), row["characters"]
            if name in wanted:
                characters = {int(k): int(v) for k, v in at.items() if v is not None}
                kept[name] = KeptThinking(text, characters)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ProbeError(f"{where}: not a line of thinking") from error
    return kept
