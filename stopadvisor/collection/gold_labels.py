"""Gold that people gave to recorded answers: merge it, and grade answers by it.

Knows no rule and no threshold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stopadvisor.answers.grading import Grader
from stopadvisor.answers.normal_form import extract_forced, extract_natural, normalize
from stopadvisor.collection.labels import grade_records
from stopadvisor.probes.records import ProbeRecord

__all__ = ["GoldGrade", "SettledLabels", "answers_at", "as_graded", "grade_by", "settle"]


@dataclass(frozen=True)
class GoldGrade:
    """Which answers to one question are right."""

    natural: bool
    replies: Mapping[int, bool]
    """Replies of a stop, by the thinking tokens before it."""


@dataclass(frozen=True)
class SettledLabels:
    """The labels of all labellers together."""

    gold: Mapping[str, str | None]
    """By id of the question; None if some labeller could not tell, or two disagree."""
    cannot_tell: frozenset[str] = frozenset()
    disagreeing: frozenset[str] = frozenset()
    by_labeller: Mapping[str, int] = field(default_factory=dict)
    """Number of questions that each labeller labelled."""


def settle(
    labels: Mapping[str, Mapping[str, str | None]], tasks: Mapping[str, str], grader: Grader
) -> SettledLabels:
    """Put the labels of several people together: gold by id, of each labeller; tasks by id."""
    given: dict[str, list[str | None]] = {}
    for by_id in labels.values():
        for name, gold in by_id.items():
            given.setdefault(name, []).append(gold)
    cannot_tell = frozenset(name for name, golds in given.items() if None in golds)
    disagreeing = frozenset(
        name
        for name, (first, *others) in given.items()
        if name not in cannot_tell
        and not all(
            grader.grade(tasks[name], str(first), other)
            or grader.grade(tasks[name], str(other), first)
            for other in others
        )
    )
    unsettled = cannot_tell | disagreeing
    return SettledLabels(
        {name: None if name in unsettled else golds[0] for name, golds in given.items()},
        cannot_tell,
        disagreeing,
        {labeller: len(by_id) for labeller, by_id in labels.items()},
    )


def grade_by(
    records: Sequence[ProbeRecord], golds: Iterable[str], grader: Grader
) -> list[GoldGrade]:
    """Grade recorded answers by gold that came later, one for each record."""
    pairs = zip(records, golds, strict=True)
    graded = grade_records([replace(record, gold=gold) for record, gold in pairs], grader)
    return [as_graded(record) for record in graded]


def as_graded(record: ProbeRecord) -> GoldGrade:
    """The grades that a record holds."""
    replies = {
        c.budget: bool(c.correct if c.visible_answer is None else c.visible_correct)
        for c in record.checkpoints
    }
    return GoldGrade(bool(record.natural_correct), replies)


def answers_at(record: ProbeRecord, budgets: Iterable[int]) -> dict[str, str]:
    """Distinct answers to a question: the natural one, and the replies of stops at `budgets`.

    By normal form, each as it was written; empty answers are left out.
    """
    wanted = set(budgets)
    written = [extract_natural(record.task, record.natural_answer or "")]
    for c in record.checkpoints:
        if c.budget in wanted and c.visible_answer is not None:
            written.append(extract_natural(record.task, c.visible_answer))
        elif c.budget in wanted:
            written.append(extract_forced(record.task, c.answer))
    answers: dict[str, str] = {}
    for answer in written:
        form = normalize(record.task, answer or "")
        if answer and form:
            answers.setdefault(form, answer)
    return answers
