"""Grade recorded answers: fill in missing grades, or remove all of them.

A record is a `ProbeRecord`, or a `ReplyRecord` in a ladder's run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, TypeVar

from stopadvisor.answers.grading import Grades
from stopadvisor.answers.normal_form import extract_natural, normalize
from stopadvisor.ground.errors import GraderError
from stopadvisor.probes.records import Graded, ProbeRecord

__all__ = ["answers_of", "grade_records", "ungraded"]

_Record = TypeVar("_Record", bound=Graded)


def answers_of(record: Any) -> list[tuple[str | None, bool | None]]:
    """The answers of a record, None for a missing one, each with its grade."""
    if not isinstance(record, ProbeRecord):
        return [(each.answer, each.correct) for each in record.rungs]
    seen = [c for c in record.checkpoints if c.visible_answer is not None]
    written = [(record.natural_answer, record.natural_correct)]
    written += [(c.visible_answer, c.visible_correct) for c in seen]
    return [
        *((None if t is None else extract_natural(record.task, t), grade) for t, grade in written),
        *((c.answer, c.correct) for c in record.checkpoints),
    ]


def _with_grades(record: Any, grades: Iterator[bool | None]) -> Any:
    """The record with these grades, in the order of `answers_of`."""

    def graded(each: Any, **more: Any) -> Any:
        form = normalize(record.task, each.answer)
        return replace(each, normalized=form, correct=next(grades), **more)

    if not isinstance(record, ProbeRecord):
        return replace(record, rungs=tuple(map(graded, record.rungs)))
    natural, checkpoints = next(grades), record.checkpoints
    visible = [None if c.visible_answer is None else next(grades) for c in checkpoints]
    forced = [graded(c, visible_correct=v) for c, v in zip(checkpoints, visible, strict=True)]
    return replace(record, natural_correct=natural, checkpoints=tuple(forced))


def ungraded(record: _Record) -> _Record:
    """The record without grades, and with its answers in their present normal form."""
    bare: _Record = _with_grades(record, repeat(None))
    return bare


def grade_records(
    records: Sequence[_Record], grader: Grades, questions: Mapping[str, str] | None = None
) -> tuple[list[_Record], int]:
    """Grade the answers that have no grade, of records with gold; also return their number.

    `questions` are their texts by key, for a grader that reads them.
    """
    rows: Sequence[Any] = records
    found = [answers_of(row) if row.gold else [] for row in rows]
    items: list[tuple[str, str, str | None]] = []
    asked: list[str] = []
    for row, answers in zip(rows, found, strict=True):
        missing = [answer for answer, grade in answers if grade is None]
        items += [(row.task, row.gold, answer) for answer in missing]
        if missing and grader.reads_questions:
            asked += [_text_of(row, questions or {}, grader)] * len(missing)
    verdicts = iter(grader.grade_many(items, asked))

    def graded(row: Any, answers: Sequence[tuple[str | None, bool | None]]) -> Any:
        told = [next(verdicts) if grade is None else grade for _, grade in answers]
        made = _with_grades(row, (grade is True for grade in told))
        return replace(made, cannot_tell=told.count(None))

    pairs = zip(rows, found, strict=True)
    return [graded(row, answers) if row.gold else row for row, answers in pairs], len(items)


def _text_of(record: Any, questions: Mapping[str, str], grader: Grades) -> str:
    if record.key not in questions:
        raise GraderError(
            f"{grader.identity['grader']} reads the question, and {record.id!r} is not in the "
            "workload's file"
        )
    return questions[record.key]
