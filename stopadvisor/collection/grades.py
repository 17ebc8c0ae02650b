"""Turn raw traces into graded records, and grade records again.

Grades depend only on the raw texts and on versioned rules, so a run can be regraded when rules or
gold change.  Questions without gold get no grade.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stopadvisor.answers.grading import BY_GOLD, Grader, Grades, open_graders
from stopadvisor.answers.normal_form import normalize
from stopadvisor.ground.errors import GraderError, ProbeError, WorkloadError
from stopadvisor.ground.progress import Progress
from stopadvisor.probes.asking import RawTrace
from stopadvisor.probes.records import Checkpoint, ProbeRecord
from stopadvisor.runs.directory import RunDirectory, digest_of, line_of
from stopadvisor.runs.look_log import record_regraded
from stopadvisor.runs.storage import lock_directory
from stopadvisor.runs.verdicts import answers_of, grade_records, ungraded
from stopadvisor.workload.questions import PARTS, Question, Workload, read_workload

__all__ = ["check_grader", "grade_traces", "regrade", "regrade_run", "remarks_on_grader"]


def grade_traces(
    questions: Sequence[Question],
    traces: Sequence[RawTrace],
    grader: Grades,
    *,
    entropy: str,
    sample: int = 0,
) -> list[ProbeRecord]:
    """Turn raw traces into records of ``probes.jsonl``, graded where there is gold."""
    records = [
        ProbeRecord(
            id=question.id,
            key=question.key,
            group=question.group,
            sample=sample,
            task=question.task,
            category=question.category,
            gold=question.gold,
            prompt_tokens=trace.prompt_tokens,
            suffix_tokens=trace.suffix_tokens,
            trace_tokens=trace.trace_tokens,
            finish=trace.finish,
            natural_answer=trace.natural_text,
            natural_correct=None,
            natural_answer_tokens=trace.natural_tokens,
            checkpoints=tuple(
                Checkpoint(
                    budget=p.budget,
                    answer=p.text,
                    normalized=normalize(question.task, p.text),
                    correct=None,
                    mean_logprob=p.mean_logprob,
                    mean_entropy=p.mean_entropy,
                    entropy_source=entropy,
                    probe_tokens=p.probe_tokens,
                    markers=p.markers,
                    ended=p.ended,
                    visible_answer=p.visible_text,
                    visible_tokens=None if p.visible_text is None else p.visible_tokens,
                    tail_mass=p.tail_mass,
                    closed_by_itself=p.closed_by_itself,
                )
                for p in trace.probes
            ),
            marker_positions=trace.marker_positions,
        )
        for question, trace in zip(questions, traces, strict=True)
    ]
    return grade_records(records, grader, {q.key: q.text for q in questions})[0]


def regrade(run: RunDirectory, grader: Grades, workload: Workload | None = None) -> int:
    """Grade the recorded answers again; the caller holds the run's lock.

    Gold and task come from `workload`; None keeps the recorded ones.  Returns the number of changed
    records.
    """
    run.repair()
    old = run.all_records()
    no_gold = next((record.id for record in old if record.is_graded and not record.gold), None)
    if no_gold is not None:
        raise ProbeError(
            f"{run.path}: question {no_gold!r} was imported with its labels and has no gold: its "
            "answers cannot be graded again"
        )
    asked = {q.key: q for q in workload.questions} if workload else {}
    again = []
    for record in old:
        question = asked.get(record.key)
        if question is not None and question.gold is not None:
            record = replace(record, gold=question.gold, task=question.task)
        again.append(ungraded(record))
    new, _ = grade_records(again, grader, {key: q.text for key, q in asked.items()})
    record_regraded(run.path, run.line_digests(), [digest_of(line_of(record)) for record in new])
    run.rewrite(new)
    run.annotate(grading=dict(grader.identity))
    return sum(a != b for a, b in zip(old, new, strict=True))


def check_grader(run: RunDirectory, name: str | None) -> None:
    """Refuse to compare a run with gold if a function graded it, unless `name` says so."""
    grading = run.manifest["grading"]
    if name is None and "grader_sha256" in grading:
        raise GraderError(
            f"{run.path} was graded by {grading['grader']}: name it with --grader to grade with it "
            f"again, or --grader {BY_GOLD} to compare with gold from now on"
        )


def regrade_run(path: Path, progress: Progress, grader_name: str | None = None) -> None:
    """Grade a run's answers again, without showing which grades changed: those are outcomes."""
    run = RunDirectory.load(path)
    check_grader(run, grader_name)
    with lock_directory(path), open_graders(grader_name) as graders:
        try:
            workload = read_workload(Path(run.manifest["workload"]["path"]))
        except WorkloadError as error:
            progress.remark(
                f"note: graded against the recorded gold, because the file cannot be read: {error}"
            )
            workload = None
        regrade(run, graders.right, workload)
        progress.notes(graders.right.remarks())
    progress.remark(f"graded {path} again")


def remarks_on_grader(run: RunDirectory) -> list[str]:
    """Remarks on the user's function that graded a run; none for a comparison with gold."""
    grading = run.manifest["grading"]
    if "grader_sha256" not in grading:
        return []
    name = grading["grader"]
    records = run.all_records()
    if not any(record.is_graded for record in records):
        return [f"no question has gold, so {name} was never called"]
    parts = run.parts(run.table().groups)
    fit = [r for r, part in zip(records, parts, strict=True) if PARTS[part] == "fit"]
    judged = [
        r for r in fit if r.gold and normalize(r.task, r.gold) and r.is_graded and not r.cannot_tell
    ]
    with Grader() as by_gold:
        compared, _ = grade_records(list(map(ungraded, judged)), by_gold)
    # Equal answers to a question count once, unreadable ones not at all.
    differ = {
        (record.key, form): mine != theirs
        for record, other in zip(compared, judged, strict=True)
        for (answer, mine), (_, theirs) in zip(answers_of(record), answers_of(other), strict=True)
        if (form := normalize(record.task, answer or ""))
    }
    remarks = [
        f"answers are graded by {name} (SHA-256 {grading['grader_sha256'][:12]}); on fit questions "
        f"it differs from comparison with gold on {sum(differ.values())} of {len(differ)} "
        "distinct answers that both can judge"
    ]
    if unjudged := sum(r.cannot_tell for r in records):
        remarks.append(f"{name} could not judge {unjudged} recorded answers: they count as wrong")
    return remarks
