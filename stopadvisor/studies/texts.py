"""What a source knows in words of its questions: answers, gold and the questions themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stopadvisor.ground.errors import WorkloadError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.runs.archives import read_answers
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.sources import ARCHIVE, Source
from stopadvisor.workload.questions import read_workload

__all__ = ["SourceTexts", "source_texts"]


@dataclass(frozen=True)
class SourceTexts:
    """Texts by question."""

    answers: Mapping[tuple[str, int], Sequence[str]]
    """Forced answers, by id and sample."""
    questions: Mapping[str, tuple[str | None, str | None, str | None]]
    """By id: question, gold, natural answer of the first sample."""


def source_texts(source: Source) -> SourceTexts:
    """Read the texts of a source; an archive has answers alone."""
    if source.manifest is None:
        path = parse_json((source.folder / ARCHIVE).read_text(encoding="utf-8"))["path"]
        rows = zip(source.table.ids, read_answers(Path(path)), strict=True)
        return SourceTexts({(name, 0): answers for name, answers in rows}, {})
    records = RunDirectory.load(source.folder).records()
    try:
        workload = read_workload(Path(source.manifest["workload"]["path"]))
        asked = {q.key: q.messages[-1]["content"] for q in workload.questions}
    except WorkloadError:
        asked = {}  # the file is gone or has changed: answers stand without their questions
    return SourceTexts(
        {(r.id, r.sample): [c.answer for c in r.checkpoints] for r in records},
        {
            r.id: (asked.get(r.key), r.gold, r.natural_answer and r.natural_answer.strip())
            for r in records
            if r.sample == 0
        },
    )
