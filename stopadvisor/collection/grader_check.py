"""How far a grader of the user's agrees with the plain comparison with gold, on fit questions.

Counts answers; reads no outcome of a calibration question, and changes no grade.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stopadvisor.answers.grading import Grader
from stopadvisor.answers.normal_form import extract_forced, extract_natural, normalize
from stopadvisor.probes.records import ProbeRecord
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.workload.questions import PARTS

__all__ = ["GraderAgreement", "compare_with_gold", "remarks_on_grader"]


@dataclass(frozen=True)
class GraderAgreement:
    """How often a grader differs from the comparison with gold."""

    n: int
    """Different answers of which both say something."""
    differ: int


def compare_with_gold(records: Sequence[ProbeRecord], grader: Grader) -> GraderAgreement:
    """Compare recorded grades with the comparison with gold.

    Equal answers to a question count once.  The comparison says something where gold and answer
    both have a normal form; a question of which the recorded grader could not tell an answer is
    left out.
    """
    found: dict[tuple[str, str, str, str], bool] = {}
    for record in records:
        if record.gold and record.is_graded and not record.cannot_tell:
            for answer, correct in _answers(record):
                if normalize(record.task, answer) and normalize(record.task, record.gold):
                    found[record.key, record.task, record.gold, answer] = correct
    exact = grader.grade_many([item[1:] for item in found])
    differ = sum(a != b for a, b in zip(exact, found.values(), strict=True))
    return GraderAgreement(len(found), differ)


def _answers(record: ProbeRecord) -> Iterator[tuple[str, bool]]:
    """What was graded of a question, as it stands in the text, with its grade."""
    if record.natural_answer is not None:
        natural = extract_natural(record.task, record.natural_answer)
        yield natural or "", bool(record.natural_correct)
    for c in record.checkpoints:
        yield extract_forced(record.task, c.answer), bool(c.correct)
        if c.visible_answer is not None:
            visible = extract_natural(record.task, c.visible_answer)
            yield visible or "", bool(c.visible_correct)


def remarks_on_grader(run: RunDirectory) -> list[str]:
    """What the reader should know of who graded a run; nothing where gold was compared with."""
    grading = run.manifest["grading"]
    if "grader_sha256" not in grading:
        return []
    name = grading["grader"]
    records = run.records()
    if not any(record.is_graded for record in records):
        return [f"no question has gold, so that {name} was not asked"]
    parts = run.parts(run.table())
    fit = [r for r, part in zip(records, parts, strict=True) if PARTS[part] == "fit"]
    with Grader() as grader:
        found = compare_with_gold(fit, grader)
    remarks = [
        f"answers are graded by {name} (SHA-256 {grading['grader_sha256'][:12]}); on fit questions "
        f"it differs from comparison with gold on {found.differ} of {found.n} different answers "
        "where both can say"
    ]
    if untold := sum(record.cannot_tell for record in records):
        remarks.append(
            f"{name} could not tell of {untold} recorded answers whether they are right: they "
            "count as wrong"
        )
    return remarks
