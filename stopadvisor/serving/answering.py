"""Answer a workload's questions, each thinking only as long as a policy lets it.

The use case behind `run`: policy and questions are read and compared with the engine, what is
missing is answered into a file, and the result says what all answers in it came to.  Knows no
command line, no JSON document and no screen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stopadvisor.answers.function_grader import Grades, described, open_graders
from stopadvisor.errors import EngineError
from stopadvisor.policy.budgets import check_budgets
from stopadvisor.policy.frozen import MIXED_TASKS, Policy, load_policy
from stopadvisor.policy.requests import OnStop, ThinkingMode, make_requests, policy_plan
from stopadvisor.probes.plan import ProbePlan
from stopadvisor.progress import Progress
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.sources import open_source
from stopadvisor.serving.answer_file import AnswerFile, AnswerRecord
from stopadvisor.serving.answer_pass import AnswerPass
from stopadvisor.serving.engine import AnsweringEngine
from stopadvisor.serving.recorded_stops import Agreement, compare_stops
from stopadvisor.serving.totals import AnswerTotals, FullComparison, compare, total
from stopadvisor.workload.questions import Workload, read_workload

__all__ = ["AnswerSettings", "AnsweredWorkload", "OpenEngineOf", "answer_workload"]

OpenEngineOf = Callable[[Policy], AbstractContextManager[AnsweringEngine]]
"""Loads the model that a policy is for, when it is entered, and closes it at the end."""


@dataclass(frozen=True)
class AnswerSettings:
    """Which policy, over which questions, and how."""

    policy: Path
    workload: Path
    out: Path | None = None
    """The answers' file; None for one under ``runs/``."""
    compare_full: bool = False
    """Ask every question without stopping too."""
    against: Path | None = None
    """A run with recorded probes of the same questions."""
    on_stop: OnStop | None = None
    """None: the policy's own."""
    batch_size: int | None = None
    """None: what fits, halved when memory runs out."""
    limit: int | None = None
    """Only so many questions, the first ones."""
    answer_cap: int | None = None
    """None: the one that was certified, else the default."""
    serving: ThinkingMode | None = None
    """None: overlap at a server where the policy was chosen for it."""
    grader: str | None = None
    """``MODULE:FUNCTION`` that says what is right; None: compare with gold."""
    require_signature: tuple[Path, ...] = ()
    """Public keys, of which one must have signed the policy; without any it may be unsigned."""


@dataclass(frozen=True)
class AnsweredWorkload:
    """What was answered, now and earlier, and what it came to."""

    settings: AnswerSettings
    policy: Policy
    workload: Path
    model: str
    out: Path
    """The answers' file."""
    setting: str
    """Short hash over all that decides an answer and what it costs."""
    on_stop: OnStop
    serving: ThinkingMode | None
    """How a server thought; None where the model ran here."""
    lines: tuple[AnswerRecord, ...]
    """Answers to the questions that were asked for, in the order of the file."""
    new: int
    """Questions answered by this call."""
    seconds: float
    """Wall time of the engine for these, with stopping."""
    full_seconds: float
    """The same without stopping; 0 without `compare_full`."""
    agreement: Agreement | None
    """With the recorded probes of `settings.against`."""
    remarks: tuple[str, ...]

    @property
    def certified(self) -> bool:
        """Whether the policy's certificate covers these answers."""
        terms = self.policy.terms
        return terms.certificate is not None and self.on_stop == terms.on_stop

    @property
    def alpha(self) -> float | None:
        """The certificate's; None where there is none."""
        certificate = self.policy.terms.certificate
        return None if certificate is None else certificate.alpha

    @property
    def totals(self) -> AnswerTotals:
        """Sums and means over all lines."""
        return total(self.lines)

    @property
    def timed_questions(self) -> int:
        """Questions that this call answered both ways, one after the other."""
        return self.new if self.settings.compare_full else 0

    @property
    def time_saving_pct(self) -> float | None:
        """Time saved by stopping; None where nothing was timed."""
        if not self.timed_questions or not self.full_seconds:
            return None
        return 100 * (1 - self.seconds / self.full_seconds)

    @property
    def full(self) -> FullComparison | None:
        """Stopping against full thinking; None if no question was answered both ways."""
        return compare(self.lines) if any(line.full for line in self.lines) else None

    @property
    def full_of_unseen(self) -> FullComparison:
        """The same over the questions that neither fitted nor calibrated the policy."""
        split = self.policy.terms.split
        seen = set() if split is None else {*split.fit, *split.calibration}
        return compare([line for line in self.lines if line.key not in seen])


def answer_workload(
    settings: AnswerSettings, open_engine: OpenEngineOf, progress: Progress
) -> AnsweredWorkload:
    """Answer what the file of answers lacks, and sum up all of it.

    `open_engine` is called when policy, questions and recorded probes were not refused.

    Raises
    ------
    PolicyError
        The file is refused, or the policy is bound to something else than what is opened.
    WorkloadError
        The questions cannot be used.
    ProbeError
        The run of `against` cannot be compared with.
    ModelError, EngineError
        The model cannot be used, or fails; answers up to then are in the file.
    OutputError
        The file cannot be written, or holds answers under other settings.
    GraderError
        The grader cannot be had, or does what none may do.
    """
    policy = load_policy(settings.policy, require_signature=settings.require_signature or None)
    policy_plan(policy, answer_cap=settings.answer_cap)  # refused before a model is loaded
    task = policy.terms.task
    workload = read_workload(
        settings.workload, default_task=None if task == MIXED_TASKS else task, assumed=None
    )
    make_requests(workload.questions, policy)
    recorded = RunDirectory.load(settings.against) if settings.against else None
    if settings.against is not None:
        check_budgets(policy, str(settings.policy), open_source(settings.against))
    with open_graders(settings.grader) as graders, open_engine(policy) as engine:
        plan = engine.policy_plan(policy, answer_cap=settings.answer_cap)
        remarks = _check_engine(engine, policy, settings)
        serving = engine.thinking_mode(policy, settings.serving, remarks)
        on_stop = settings.on_stop or policy.on_stop
        path = settings.out or Path("runs") / f"{workload.name}-{policy.digest[:8]}.jsonl"
        if any(question.gold is not None for question in workload.questions):
            remarks += _graded_otherwise(policy, graders.right)
        setting = _setting(policy, engine.identity(), plan, on_stop, serving, graders.right)
        with AnswerFile.open(path, setting) as file:
            answer_pass = AnswerPass(
                policy,
                plan,
                engine,
                on_stop,
                serving,
                file,
                graders.right,
                progress,
                compare_full=settings.compare_full,
                asked_size=settings.batch_size,
            )
            _answer(answer_pass, workload, settings, remarks, progress)
            for remark in graders.right.remarks():
                remarks.append(remark)
                progress.remark(f"note: {remark}")
            wanted = {question.id for question in workload.questions[: settings.limit]}
            lines = tuple(line for line in file.lines if line.id in wanted)
            return AnsweredWorkload(
                settings=settings,
                policy=policy,
                workload=workload.path,
                model=engine.name,
                out=path,
                setting=setting,
                on_stop=on_stop,
                serving=serving,
                lines=lines,
                new=answer_pass.new,
                seconds=answer_pass.seconds,
                full_seconds=answer_pass.full_seconds,
                agreement=(
                    None if recorded is None else compare_stops(policy, lines, recorded, on_stop)
                ),
                remarks=tuple(remarks),
            )


def _answer(
    answer_pass: AnswerPass,
    workload: Workload,
    settings: AnswerSettings,
    remarks: list[str],
    progress: Progress,
) -> None:
    """Answer what is missing; an interruption says what is kept."""
    questions, path = workload.questions[: settings.limit], answer_pass.file.path
    alone = answer_pass.file.uncompared(questions)
    if settings.compare_full and alone:
        remarks.append(
            f"{alone} questions were answered before without full thinking beside them: "
            "--compare-full leaves them out, another --out asks them again"
        )
    for remark in remarks:
        progress.remark(f"note: {remark}")
    try:
        answer_pass.go(questions)
    except (KeyboardInterrupt, EngineError) as error:
        why = "interrupted: " if isinstance(error, KeyboardInterrupt) else ""
        progress.remark(
            f"{why}what was answered is kept in {path}; the same command goes on from there"
        )
        raise


# --- Before the first question --------------------------------------------------------------------


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


def _setting(
    policy: Policy,
    identity: Mapping[str, Any],
    plan: ProbePlan,
    on_stop: OnStop,
    serving: ThinkingMode | None,
    grader: Grades,
) -> str:
    """Name everything that decides the answers, their grades and costs, in eight digits."""
    decides = [policy.digest, identity, plan.answer_cap, on_stop]
    if grader.reads_questions:
        decides.append(dict(grader.identity))
    if serving == "overlap":
        decides.append(serving)
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:8]
