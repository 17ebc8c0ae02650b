"""Grade recorded answers: fill in the grades that are missing, or take all of them away.

A record is a `ProbeRecord`, or a `ReplyRecord` of a ladder's run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from stopadvisor.answers.grading import Grades
from stopadvisor.answers.normal_form import extract_natural, normalize
from stopadvisor.ground.errors import GraderError
from stopadvisor.probes.records import Graded, ProbeRecord

__all__ = ["answers_of", "grade_records", "ungraded"]

_Record = TypeVar("_Record", bound=Graded)


def answers_of(record: Graded) -> list[tuple[str | None, bool | None]]:
    """The answers of a record, None for a missing one, each with its grade."""
    found: list[tuple[str | None, bool | None]] = []

    def note(answer: str | None, grade: bool | None) -> bool | None:
        found.append((answer, grade))
        return grade

    _judged(record, note)
    return found


def ungraded(record: _Record) -> _Record:
    """The record without grades, and with its answers in their present normal form."""
    bare: _Record = _judged(record, lambda answer, grade: None)
    return bare


def grade_records(
    records: Sequence[_Record], grader: Grades, questions: Mapping[str, str] | None = None
) -> tuple[list[_Record], int]:
    """Grade the answers that have no grade, of records with gold; also return their number.

    `questions` are their texts by key, for a grader that reads them.
    """
    rows: Sequence[Any] = records
    items: list[tuple[str, str, str | None]] = []
    asked: list[str] = []
    for row in rows:
        if row.gold:
            missing = [answer for answer, grade in answers_of(row) if grade is None]
            items += [(row.task, row.gold, answer) for answer in missing]
            if grader.reads_questions:
                asked += [_text_of(row, questions or {}, grader)] * len(missing)
    verdicts = iter(grader.grade_many(items, asked))

    def graded(row: Any) -> Any:
        told: list[bool | None] = []

        def settle(answer: str | None, grade: bool | None) -> bool:
            if grade is None:
                told.append(next(verdicts))
                return told[-1] is True
            return grade

        made = _judged(row, settle)
        is_probes = isinstance(made, ProbeRecord)
        return replace(made, cannot_tell=told.count(None)) if is_probes else made

    return [graded(row) if row.gold else row for row in rows], len(items)


def _judged(record: Any, judge: Callable[[str | None, bool | None], bool | None]) -> Any:
    """The record with every grade as `judge` makes it of the answer and its present grade."""

    def natural(text: str | None, grade: bool | None) -> bool | None:
        return judge(None if text is None else extract_natural(record.task, text), grade)

    def forced(each: Any, **more: Any) -> Any:
        form = normalize(record.task, each.answer)
        return replace(each, normalized=form, correct=judge(each.answer, each.correct), **more)

    if not isinstance(record, ProbeRecord):
        return replace(record, rungs=tuple(map(forced, record.rungs)))
    right = natural(record.natural_answer, record.natural_correct)
    checkpoints = [
        forced(c)
        if c.visible_answer is None
        else forced(c, visible_correct=natural(c.visible_answer, c.visible_correct))
        for c in record.checkpoints
    ]
    return replace(record, natural_correct=right, checkpoints=tuple(checkpoints))


def _text_of(record: Any, questions: Mapping[str, str], grader: Grades) -> str:
    if record.key not in questions:
        raise GraderError(
            f"{grader.identity['grader']} reads the question, and that of {record.id!r} is "
            "not in the workload's file"
        )
    return questions[record.key]
