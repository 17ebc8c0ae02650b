"""Answer a workload's questions, each thinking only as long as a policy lets it.

The use case of `run`: policy and questions are read and compared with the engine, what is
missing is answered into a file, and the result summarises all its answers.  Knows no command line,
no JSON document and no screen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from stopadvisor.answers.grading import Grades, described, open_graders
from stopadvisor.ground.errors import EngineError, PolicyError
from stopadvisor.ground.progress import Progress
from stopadvisor.policy.frozen import MIXED_TASKS, Policy, load_policy
from stopadvisor.policy.requests import make_requests, policy_plan
from stopadvisor.probes.asking import OnStop, ProbePlan
from stopadvisor.serving.answer_file import AnswerFile
from stopadvisor.serving.answer_pass import Answering, AnsweringEngine, AnswerPass
from stopadvisor.serving.answer_summary import AnswerSummary, summed_up
from stopadvisor.workload.questions import Workload, read_workload

__all__ = ["AnswerSettings", "answer_workload"]

_WHOLE_REPLIES = ProbePlan((), cue="", cap=1, max_think=1)
"""Of a ladder, which forces no answer."""


@dataclass(frozen=True)
class AnswerSettings:
    """Which policy, over which questions, and how."""

    policy: Path
    workload: Path
    out: Path | None = None
    """The answers' file; None for one under ``runs/``."""
    compare_full: bool = False
    """Ask every question without stopping too."""
    on_stop: OnStop | None = None
    """None: the policy's own."""
    batch_size: int | None = None
    """None: what fits, halved when memory runs out."""
    limit: int | None = None
    """Only the first questions, this many."""
    answer_cap: int | None = None
    """None: the one that was certified, else the default."""
    grader: str | None = None
    """``MODULE:FUNCTION`` that says what is right; None: compare with gold."""
    require_signature: tuple[Path, ...] = ()
    """Public keys, of which one must have signed the policy; without any it may be unsigned."""


def answer_workload(
    settings: AnswerSettings,
    open_engine: Callable[[Policy], AbstractContextManager[Answering]],
    progress: Progress,
) -> AnswerSummary:
    """Answer what the file of answers lacks, and sum up all of it.

    Parameters
    ----------
    open_engine : callable
        Loads the model that a policy is for: an `AnsweringEngine`, or the servers of a ladder for a
        policy that climbs.  Called when policy and questions were not refused.

    Raises
    ------
    PolicyError
        The file is refused, or the policy is bound to something else than what is opened.
    WorkloadError
        The questions cannot be used.
    ModelError, EngineError
        The model cannot be used, or fails; answers up to then are in the file.
    OutputError
        The file cannot be written, or holds answers under other settings.
    GraderError
        The grader cannot be had, or does what none may do.
    """
    policy = load_policy(settings.policy, require_signature=settings.require_signature or None)
    if policy.ladder:
        _check_climbing(settings)
    else:
        policy_plan(policy, answer_cap=settings.answer_cap)  # refused before a model is loaded
    task = policy.terms.task
    workload = read_workload(
        settings.workload, default_task=None if task == MIXED_TASKS else task, assumed=None
    )
    make_requests(workload.questions, policy)
    with open_graders(settings.grader) as graders, open_engine(policy) as engine:
        plan, remarks = _WHOLE_REPLIES, list[str]()
        if not policy.ladder:
            of_trace = cast("AnsweringEngine", engine)
            plan = of_trace.policy_plan(policy, answer_cap=settings.answer_cap)
            remarks = _check_engine(of_trace, policy, settings)
        on_stop, grader = settings.on_stop or policy.on_stop, graders.right
        if any(question.gold is not None for question in workload.questions):
            remarks += _graded_otherwise(policy, grader)
        # All that decides the answers, their grades and costs.
        decides = [policy.digest, engine.identity(), plan.answer_cap, on_stop]
        decides += [dict(grader.identity)] if grader.reads_questions else []
        setting = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:8]
        path = settings.out or Path("runs") / f"{workload.name}-{policy.digest[:8]}.jsonl"
        with AnswerFile.open(path, setting) as file:
            answer_pass = AnswerPass(
                policy,
                plan,
                engine,
                on_stop,
                file,
                grader,
                progress,
                compare_full=settings.compare_full,
                asked_size=settings.batch_size,
            )
            _answer(answer_pass, workload, settings, remarks)
            for remark in grader.remarks():
                remarks.append(remark)
                progress.remark(f"note: {remark}")
            wanted = {question.id for question in workload.questions[: settings.limit]}
            lines = [line for line in file.lines if line.id in wanted]
            files = (str(settings.policy), str(settings.workload))
            return summed_up(answer_pass, lines, files, tuple(remarks))


def _answer(
    answer_pass: AnswerPass, workload: Workload, settings: AnswerSettings, remarks: list[str]
) -> None:
    """Answer what is missing; an interruption says what is kept."""
    questions, file = workload.questions[: settings.limit], answer_pass.file
    alone = file.uncompared(questions)
    if settings.compare_full and alone:
        remarks.append(
            f"{alone} questions were answered before, without full thinking to compare: "
            "--compare-full leaves them out, another --out asks them again"
        )
    for remark in remarks:
        answer_pass.progress.remark(f"note: {remark}")
    try:
        answer_pass.go(questions)
    except (KeyboardInterrupt, EngineError) as error:
        why = "interrupted: " if isinstance(error, KeyboardInterrupt) else ""
        answer_pass.progress.remark(
            f"{why}what was answered is kept in {file.path}; the same command goes on from there"
        )
        raise


def _check_climbing(settings: AnswerSettings) -> None:
    """Refuse what stops a trace, where whole replies are asked."""
    for name in ("on_stop", "answer_cap"):
        if getattr(settings, name) is not None:
            raise PolicyError(
                f"--{name.replace('_', '-')}: this policy climbs a ladder, and stops no trace"
            )


def _check_engine(engine: AnsweringEngine, policy: Policy, settings: AnswerSettings) -> list[str]:
    """Compare the policy with the engine; differences that are allowed become remarks."""
    remarks = policy.check_source(engine.identity(), engine.entropy_for(policy))
    if settings.on_stop not in (None, policy.on_stop) and policy.kind == "stop":
        remarks.append(
            f"--on-stop {settings.on_stop}: the certificate does not cover these answers, it was "
            f"shown for on-stop {policy.on_stop}"
        )
    return remarks


def _graded_otherwise(policy: Policy, grader: Grades) -> list[str]:
    """Remark on answers that another function grades than graded the policy's questions."""
    ours, mine = policy.terms.grading, dict(grader.identity)
    if mine == ours or not any("grader_sha256" in identity for identity in (ours, mine)):
        return []
    return [
        f"these answers are graded by {described(mine)}, the calibration questions were by "
        f"{described(ours)} (--grader)"
    ]
