"""Answer a workload's questions, each thinking only as long as a policy lets it.

The use case of `run`: policy and questions are read and compared with the engine, what is missing
is answered into a file, each answer written at once, and the result summarises all its answers.
Compared with full thinking, both take turns in groups, so that whatever else the machine does slows
both alike.  Knows no command line, no JSON document and no screen.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from stopadvisor.answers.grading import Grades, described, open_graders
from stopadvisor.answers.normal_form import extract_natural
from stopadvisor.engines import OutOfMemory
from stopadvisor.ground.errors import EngineError, PolicyError
from stopadvisor.ground.progress import Progress, report_remarks
from stopadvisor.policy.frozen import MIXED_TASKS, Policy, load_policy
from stopadvisor.policy.requests import OnStop, Reply, Request, make_requests, policy_plan
from stopadvisor.policy.session import Rule
from stopadvisor.probes.asking import Engine, ProbePlan
from stopadvisor.serving.answer_file import AnswerFile, AnswerRecord, FullAnswer, normal_form
from stopadvisor.serving.answer_summary import (
    AnswerSummary,
    ClimbSummary,
    FullComparison,
    MeanTokens,
    RungShare,
    TimedComparison,
)
from stopadvisor.stats.intervals import exact_interval
from stopadvisor.workload.questions import Question, read_workload

__all__ = ["AnswerSettings", "Answering", "AnsweringEngine", "answer_workload"]

_WHOLE_REPLIES = ProbePlan((), cue="", cap=1, max_think=1)
"""Of a ladder, which forces no answer."""
_GROUP_BATCHES = 4
"""Batches of questions between two turns of stopping and not stopping."""


class Answering(Protocol):
    """What answers requests under a rule: an engine, or the servers of a ladder."""

    @property
    def name(self) -> str:
        """The model's name, as a reader should see it."""
        ...

    @property
    def remarks(self) -> list[str]:
        """What the user should know, one line each; grows."""
        ...

    def identity(self) -> dict[str, Any]:
        """What decides the outcome, as plain values."""
        ...

    def questions_at_once(self, plan: ProbePlan) -> int:
        """Requests that `serve` should be working on, where the user does not say."""
        ...

    def serve(
        self,
        requests: Sequence[Request],
        plan: ProbePlan,
        rule: Rule | None,
        *,
        batch_size: int | None = None,
        on_stop: OnStop = "probe",
    ) -> Iterator[tuple[int, Reply]]:
        """Answer requests and yield each with its position as soon as it is over.

        `plan` and `batch_size` are those of `policy_plan` and `questions_at_once`; a `rule` is a
        policy, or None to think to the end without any probe.

        Raises
        ------
        OutOfMemory
            Too many at once; those that were yielded are done.
        EngineError
            The engine failed; what was over before is yielded first.
        """
        ...


class AnsweringEngine(Engine, Answering, Protocol):
    """An engine that answers requests, each thinking only as long as a rule lets it."""

    def policy_plan(self, policy: Policy, *, answer_cap: int | None = None) -> ProbePlan:
        """Plan of a policy at this engine; see `policy.requests.policy_plan`."""
        ...

    def entropy_for(self, policy: Policy) -> str:
        """Entropy source that this engine gives a policy."""
        ...


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
        for name in ("on_stop", "answer_cap"):
            if getattr(settings, name) is not None:
                raise PolicyError(
                    f"--{name.replace('_', '-')}: this policy climbs a ladder, and stops no trace"
                )
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
            remarks = policy.check_source(of_trace.identity(), of_trace.entropy_for(policy))
            if settings.on_stop not in (None, policy.on_stop) and policy.kind == "stop":
                remarks.append(
                    f"--on-stop {settings.on_stop}: the certificate does not cover these answers, "
                    f"it was shown for on-stop {policy.on_stop}"
                )
        on_stop, grader = settings.on_stop or policy.on_stop, graders.right
        graded, mine = policy.terms.grading, dict(grader.identity)
        by_function = any("grader_sha256" in identity for identity in (graded, mine))
        if by_function and mine != graded and any(q.gold is not None for q in workload.questions):
            remarks.append(
                f"these answers are graded by {described(mine)}, the calibration questions were by "
                f"{described(graded)} (--grader)"
            )
        # All that decides the answers, their grades and costs.
        decides = [policy.digest, engine.identity(), plan.answer_cap, on_stop]
        decides += [mine] if grader.reads_questions else []
        setting = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:8]
        path = settings.out or Path("runs") / f"{workload.name}-{policy.digest[:8]}.jsonl"
        with AnswerFile.open(path, setting) as file:
            questions = workload.questions[: settings.limit]
            answer_pass = _AnswerPass(
                policy, plan, engine, on_stop, file, grader, progress, settings
            )
            alone = file.uncompared(questions)
            if settings.compare_full and alone:
                remarks.append(
                    f"{alone} questions were answered before, without full thinking to compare: "
                    "--compare-full leaves them out, another --out asks them again"
                )
            for remark in remarks:
                progress.remark(f"note: {remark}")
            try:
                answer_pass.go(questions)
            except (KeyboardInterrupt, EngineError) as error:
                why = "interrupted: " if isinstance(error, KeyboardInterrupt) else ""
                progress.remark(
                    f"{why}what was answered is kept in {file.path}; the same command goes on from "
                    "there"
                )
                raise
            for remark in grader.remarks():
                remarks.append(remark)
                progress.remark(f"note: {remark}")
            wanted = {question.id for question in questions}
            lines = [line for line in file.lines if line.id in wanted]
            return _summed_up(answer_pass, lines, remarks)


# --- One pass -------------------------------------------------------------------------------------


@dataclass
class _AnswerPass:
    """Answers what the file does not answer yet; counts and times what it did."""

    policy: Policy
    plan: ProbePlan
    engine: Answering
    on_stop: OnStop
    file: AnswerFile
    grader: Grades
    progress: Progress
    settings: AnswerSettings
    new: int = 0
    seconds: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})
    """Wall time of the engine for the new questions: with stopping, and without."""
    _size: int = 1

    def go(self, questions: Sequence[Question]) -> None:
        """Answer what the file does not answer yet."""
        done, reported = self.file.done(questions), set[str]()
        left = [question for question in questions if question.id not in done]
        if left:
            self._size = self.settings.batch_size or self.engine.questions_at_once(self.plan)
        report_remarks(self.engine.remarks, self.progress, reported)
        self.progress.begin("answering", len(questions), len(questions) - len(left))
        if self.settings.compare_full:
            size = _GROUP_BATCHES * self._size
            for turn, start in enumerate(range(0, len(left), size)):
                self._both(left[start : start + size], stopping_first=turn % 2 == 0)
        else:
            for question, reply in self._serve(left, stopping=True):
                self._keep(question, reply, None)
        report_remarks(self.engine.remarks, self.progress, reported)

    def _both(self, group: Sequence[Question], *, stopping_first: bool) -> None:
        """Ask a group twice; each question is written once it has both answers."""
        asked = self._serve(group, stopping=stopping_first)
        first = {question.id: reply for question, reply in asked}
        for question, second in self._serve(group, stopping=not stopping_first):
            replies = (first[question.id], second)
            stopped, full = replies if stopping_first else replies[::-1]
            self._keep(question, stopped, full)

    def _serve(
        self, questions: Sequence[Question], *, stopping: bool
    ) -> Iterator[tuple[Question, Reply]]:
        """Ask questions and yield each as it is over; batches halve when memory runs out."""
        left = list(questions)
        while left:
            began, over = time.perf_counter(), set[str]()
            replies = self.engine.serve(
                make_requests(left, self.policy),
                self.plan,
                self.policy if stopping else None,
                batch_size=self._size,
                on_stop=self.on_stop,
            )
            try:
                for index, reply in replies:
                    self.seconds[stopping] += time.perf_counter() - began
                    over.add(left[index].id)
                    yield left[index], reply
                    began = time.perf_counter()  # what is done with a reply is not the engine's
                self.seconds[stopping] += time.perf_counter() - began
            except OutOfMemory:
                if self._size == 1 or self.settings.batch_size is not None:
                    raise
                self._size //= 2
                self.progress.remark(f"out of memory; going on with {self._size} questions at once")
            left = [question for question in left if question.id not in over]

    def _keep(self, question: Question, reply: Reply, full: Reply | None) -> None:
        """Grade, where there is gold, and write the line."""
        replies = [reply] if full is None else [reply, full]
        correct: list[bool | None] = [None, None]
        if question.gold is not None:
            items = [(question.task, question.gold, _gradable(question, r)) for r in replies]
            verdicts = self.grader.grade_many(items, [question.text] * len(items))
            correct = [verdict is True for verdict in verdicts]
        whole = None
        if full is not None:
            whole = FullAnswer(
                answer=full.text,
                normalized=normal_form(question, full),
                finish=full.finish,
                think_tokens=full.think_tokens,
                visible_tokens=full.visible_tokens,
                seconds=round(full.seconds, 6),
                correct=correct[1],
                price=None if full.climbed is None else full.climbed.price,
            )
        self.file.add(AnswerRecord.of(question, self.file.setting, reply, correct[0], whole))
        self.new += 1
        self.progress.advance(1, sum(r.decoded_tokens for r in replies))


def _gradable(question: Question, reply: Reply) -> str | None:
    """What the grader sees: a forced answer's whole text, or a visible answer's short one."""
    if reply.text is None or (reply.finish == "stopped" and not reply.visible_tokens):
        return reply.text
    return extract_natural(question.task, reply.text)


# --- Sums over lines ------------------------------------------------------------------------------


def _summed_up(
    answered: _AnswerPass, lines: Sequence[AnswerRecord], remarks: Sequence[str]
) -> AnswerSummary:
    """Sum up a pass, and the lines that are there now."""
    settings = answered.settings
    policy, terms = answered.policy, answered.policy.terms
    certificate, saving = terms.certificate, None
    if terms.serving == "kv-fork" and terms.expected is not None:
        saving = (terms.expected.saving_by_serving or {}).get("prefix-cache")
    graded = [line.correct for line in lines if line.correct is not None]
    stopped = sum(line.stopped for line in lines)
    return AnswerSummary(
        policy=str(settings.policy),
        digest=policy.digest,
        kind=policy.kind,
        family=policy.family,
        workload=str(settings.workload),
        model=answered.engine.name,
        out=str(answered.file.path),
        setting=answered.file.setting,
        on_stop=answered.on_stop,
        serving="resume" if answered.engine.identity()["engine"] == "openai" else None,
        server_saving_pct=saving,
        certified=certificate is not None and answered.on_stop == terms.on_stop,
        alpha=None if certificate is None else certificate.alpha,
        loss=None if certificate is None else certificate.loss,
        questions=len(lines),
        new=answered.new,
        seconds=round(answered.seconds[True], 3),
        stopped=stopped,
        stopped_share=stopped / len(lines) if lines else None,
        mean_tokens=MeanTokens(
            _mean([line.think_tokens for line in lines]),
            _mean([line.probe_tokens for line in lines]),
            _mean([line.visible_tokens for line in lines]),
        ),
        labelled=len(graded),
        accuracy=_mean(graded),
        full=_timed(answered, lines) if any(line.full for line in lines) else None,
        climbed=_climbs(lines, tuple(dict.fromkeys(rung.name for rung in policy.ladder))),
        remarks=tuple(remarks),
    )


def _timed(answered: _AnswerPass, lines: Sequence[AnswerRecord]) -> TimedComparison:
    """Compare with full thinking, and the times where this call answered both ways."""
    split = answered.policy.terms.split
    seen = set() if split is None else {*split.fit, *split.calibration}
    seconds, full_seconds = answered.seconds[True], answered.seconds[False]
    timed = answered.new if answered.settings.compare_full else 0
    return TimedComparison(
        **vars(_compared(lines)),
        timed_questions=timed,
        seconds=round(seconds, 3) if timed else None,
        full_seconds=round(full_seconds, 3) if timed else None,
        time_saving_pct=_saving(seconds, full_seconds) if timed and full_seconds else None,
        unmet=_compared([line for line in lines if line.key not in seen]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _saving(spent: float, full: float) -> float:
    return 100 * (1 - spent / full) if full else 0.0


def _climbs(lines: Sequence[AnswerRecord], names: Sequence[str]) -> ClimbSummary | None:
    """Sum up how questions were climbed; None where none was."""
    found = [(line.climbed, line.full) for line in lines if line.climbed is not None]
    if not found:
        return None
    rungs = []
    for name in names:
        asked = [[each for each in way.asked if each.name == name] for way, _ in found]
        served = sum(way.rung == name for way, _ in found)
        down = sum(any(each.down is not None for each in row) for row in asked)
        rungs.append(RungShare(name, sum(map(bool, asked)), served, served / len(found), down))
    compared = [(way.price, full.price) for way, full in found if full and full.price is not None]
    spent, full = sum(price for price, _ in compared), sum(price for _, price in compared)
    return ClimbSummary(
        tuple(rungs),
        sum(way.price for way, _ in found) / len(found),
        full / len(compared) if compared else None,
        _saving(spent, full) if full else None,
        sum(way.gave_up is True for way, _ in found),
    )


def _compared(lines: Sequence[AnswerRecord]) -> FullComparison:
    """Compare those lines that hold the full answer too."""
    pairs = [(line, line.full) for line in lines if line.full is not None]
    graded = [
        (line.correct, full.correct)
        for line, full in pairs
        if line.correct is not None and full.correct is not None
    ]
    n, labelled = len(pairs), len(graded)
    decoded = sum(line.decoded_tokens for line, _ in pairs)
    full_decoded = sum(full.decoded_tokens for _, full in pairs)
    think = sum(line.think_tokens for line, _ in pairs)
    full_think = sum(full.think_tokens for _, full in pairs)
    differing = sum(
        line.stopped
        and (line.normalized != full.normalized or not full.normalized or full.finish == "length")
        for line, full in pairs
    )
    correct = sum(right for right, _ in graded)
    full_correct = sum(full for _, full in graded)
    lost = sum(full and not right for right, full in graded)
    return FullComparison(
        questions=n,
        decoded_tokens=decoded,
        full_decoded_tokens=full_decoded,
        think_tokens=think,
        full_think_tokens=full_think,
        differing=differing,
        differing_share=differing / n if n else None,
        differing_ci95=exact_interval(differing, n) if n else None,
        labelled=labelled,
        correct=correct,
        full_correct=full_correct,
        lost=lost,
        token_saving_pct=_saving(decoded, full_decoded) if n else None,
        think_saving_pct=_saving(think, full_think) if n else None,
        accuracy=correct / labelled if labelled else None,
        full_accuracy=full_correct / labelled if labelled else None,
        risk=lost / labelled if labelled else None,
        risk_ci95=exact_interval(lost, labelled) if labelled else None,
    )
