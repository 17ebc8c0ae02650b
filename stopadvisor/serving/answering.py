"""The use case of `run`: answer a workload under a policy, save each answer, sum them all up."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, cast

from stopadvisor.answers.grading import Grades, described, open_graders
from stopadvisor.engines import OutOfMemory
from stopadvisor.ground.errors import EngineError, PolicyError
from stopadvisor.ground.progress import Progress, report_remarks
from stopadvisor.policy.frozen import MIXED_TASKS, Policy, load_policy
from stopadvisor.policy.requests import OnStop, Reply, Request, make_requests, policy_plan
from stopadvisor.policy.session import Rule
from stopadvisor.probes.asking import Engine, ProbePlan
from stopadvisor.serving.answer_file import AnswerFile, AnswerRecord, FullAnswer, graded_text
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
"""Plan of a ladder, which forces no answers."""
_GROUP_BATCHES = 4
"""With ``--compare-full``: batches per group of questions.  Each group is asked once with stopping
and once without, in alternating order, so that other load slows both alike."""


class Answering(Protocol):
    """An engine, or the servers of a ladder, that answers requests under a rule."""

    @property
    def name(self) -> str:
        """The model's name for readers."""
        ...

    @property
    def remarks(self) -> list[str]:
        """Notes for the user; the list grows while requests are answered."""
        ...

    def identity(self) -> dict[str, Any]:
        """All settings that determine the answers, as plain values."""
        ...

    def auto_batch_size(self, plan: ProbePlan) -> int:
        """Batch size for `serve` if the user sets none."""
        ...

    def serve(
        self,
        requests: Sequence[Request],
        plan: ProbePlan,
        rule: Rule | None,
        *,
        batch_size: int | None = None,
    ) -> Iterator[tuple[int, Reply]]:
        """Answer requests; yield each reply with its request's index as soon as it is complete.

        `plan` and `batch_size` come from `policy_plan` and `auto_batch_size`.  The `rule` is a
        policy, or None to think to the end without probes.

        Raises
        ------
        OutOfMemory
            The batch is too large; replies already yielded are final.
        EngineError
            The engine failed; complete replies are yielded first.
        """
        ...


class AnsweringEngine(Engine, Answering, Protocol):
    """An engine that stops thinking where a rule says so."""

    def policy_plan(self, policy: Policy, *, answer_cap: int | None = None) -> ProbePlan:
        """A policy's plan at this engine; see `policy.requests.policy_plan`."""
        ...

    def entropy_for(self, policy: Policy) -> str:
        """The entropy source that this engine provides for a policy."""
        ...


@dataclass(frozen=True)
class AnswerSettings:
    """Settings of `run`."""

    policy: Path
    workload: Path
    out: Path | None = None
    """File of the answers; by default one under ``runs/``."""
    compare_full: bool = False
    """Also answer every question with full thinking."""
    on_stop: OnStop | None = None
    """Defaults to the policy's."""
    batch_size: int | None = None
    """Defaults to what fits, halved when memory runs out."""
    limit: int | None = None
    """Answer only this many questions, from the start of the workload."""
    answer_cap: int | None = None
    """Defaults to the certified one, if any."""
    grader: str | None = None
    """``MODULE:FUNCTION`` that grades answers; by default they are compared with gold."""
    require_signature: tuple[Path, ...] = ()
    """Public keys, one of which must have signed the policy; with none, it may be unsigned."""


def answer_workload(
    settings: AnswerSettings,
    open_engine: Callable[[Policy], AbstractContextManager[Answering]],
    progress: Progress,
) -> AnswerSummary:
    """Answer the questions that the output file does not have yet, and sum up all its answers.

    Parameters
    ----------
    open_engine : callable
        Loads a policy's model: an `AnsweringEngine`, or the servers of a ladder for a policy that
        climbs.  Called only after policy and workload have been accepted.

    Raises
    ------
    PolicyError
        The policy is refused, or is bound to another model.
    WorkloadError
        The workload is invalid.
    ModelError, EngineError
        The model cannot be used, or fails; earlier answers are in the file.
    OutputError
        The file cannot be written, or holds answers under other settings.
    GraderError
        The grader cannot be loaded, or misbehaves.
    """
    policy = load_policy(settings.policy, require_signature=settings.require_signature or None)
    _check_options(policy, settings)
    task = policy.terms.task
    workload = read_workload(
        settings.workload, default_task=None if task == MIXED_TASKS else task, assumed=None
    )
    make_requests(workload.questions, policy)
    with open_graders(settings.grader) as graders, open_engine(policy) as engine:
        plan, remarks = _plan(policy, engine, settings)
        grader = graders.right
        calibrated, now = policy.terms.grading, dict(grader.identity)
        by_function = any("grader_sha256" in identity for identity in (calibrated, now))
        if (
            by_function
            and now != calibrated
            and any(q.gold is not None for q in workload.questions)
        ):
            remarks.append(
                f"these answers are graded by {described(now)}, the calibration questions were by "
                f"{described(calibrated)} (--grader)"
            )
        questions = workload.questions[: settings.limit]
        if settings.compare_full:
            remarks += _on_comparison(policy, engine, plan, questions)
        # Everything that determines the answers, their grades and their costs.
        identity = [policy.digest, engine.identity(), plan.answer_cap, plan.on_stop]
        identity += [now] if grader.reads_questions else []
        setting = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
        path = settings.out or Path("runs") / f"{workload.name}-{policy.digest[:8]}.jsonl"
        with AnswerFile.open(path, setting) as file:
            wanted = {question.id for question in questions}
            answer_pass = _AnswerPass(policy, plan, engine, file, grader, progress, settings)
            uncompared = sum(line.full is None for line in file.lines if line.id in wanted)
            if settings.compare_full and uncompared:
                remarks.append(
                    f"{uncompared} questions were answered before, without full thinking to "
                    "compare: --compare-full leaves them out, another --out asks them again"
                )
            for remark in remarks:
                progress.remark(f"note: {remark}")
            try:
                answer_pass.go(questions)
            except (KeyboardInterrupt, EngineError) as error:
                why = "interrupted: " if isinstance(error, KeyboardInterrupt) else ""
                how = " both ways" if settings.compare_full else ""
                progress.remark(
                    f"{why}what was answered{how} is kept in {file.path}; the same command goes on "
                    "from there"
                )
                raise
            for remark in grader.remarks():
                remarks.append(remark)
                progress.remark(f"note: {remark}")
            lines = [line for line in file.lines if line.id in wanted]
            return _summary(answer_pass, lines, remarks)


def _check_options(policy: Policy, settings: AnswerSettings) -> None:
    """Refuse what the policy cannot follow, before a model is loaded."""
    if not policy.ladder:
        policy_plan(policy, answer_cap=settings.answer_cap)
        return
    for name in ("on_stop", "answer_cap"):
        if getattr(settings, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise PolicyError(f"{option}: this policy climbs a ladder, and stops no trace")


def _plan(
    policy: Policy, engine: Answering, settings: AnswerSettings
) -> tuple[ProbePlan, list[str]]:
    """The engine's plan for a policy, and remarks on how it differs from calibration's."""
    if policy.ladder:
        return replace(_WHOLE_REPLIES, on_stop=policy.on_stop), []
    stopping = cast("AnsweringEngine", engine)
    remarks = policy.check_source(engine.identity(), stopping.entropy_for(policy))
    if settings.on_stop not in (None, policy.on_stop) and policy.kind == "stop":
        remarks.append(
            f"--on-stop {settings.on_stop}: the certificate does not cover these answers, "
            f"it was shown for on-stop {policy.on_stop}"
        )
    plan = stopping.policy_plan(policy, answer_cap=settings.answer_cap)
    return replace(plan, on_stop=settings.on_stop or plan.on_stop), remarks


def _on_comparison(
    policy: Policy, engine: Answering, plan: ProbePlan, questions: Sequence[Question]
) -> Iterator[str]:
    """Say what ``--compare-full`` measures besides stopping, and what its intervals assume."""
    at_server = engine.identity()["engine"] == "openai"
    votes = bool(policy.ladder) and policy.ladder[-1].repeat > 1
    if votes or (at_server and cast("AnsweringEngine", engine).temperature(plan) != 0):
        yield (
            "the server samples: full thinking is drawn again here, not continued as at "
            "calibration, so replies also differ by chance, and more count as lost or different"
        )
    groups = len({question.group_key for question in questions})
    if groups < len(questions):
        yield (
            f"{len(questions)} questions are of {groups} groups (copies are one): the intervals "
            "in brackets take questions as independent, and may be too narrow"
        )


# --- One pass -------------------------------------------------------------------------------------


@dataclass
class _AnswerPass:
    """One call: answers questions, counts them and times the engine."""

    policy: Policy
    plan: ProbePlan
    engine: Answering
    file: AnswerFile
    grader: Grades
    progress: Progress
    settings: AnswerSettings
    new: int = 0
    seconds: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})
    """Wall time of the engine, with stopping (True) and without (False)."""
    _size: int = 1

    def go(self, questions: Sequence[Question]) -> None:
        """Answer the questions that are not in the file yet."""
        done, reported = self.file.done(questions), set[str]()
        left = [question for question in questions if question.id not in done]
        if left:
            self._size = self.settings.batch_size or self.engine.auto_batch_size(self.plan)
        report_remarks(self.engine.remarks, self.progress, reported)
        self.progress.begin("answering", len(questions), len(questions) - len(left))
        if self.settings.compare_full:
            size = _GROUP_BATCHES * self._size
            for turn, start in enumerate(range(0, len(left), size)):
                self._serve_both_ways(left[start : start + size], stopping_first=turn % 2 == 0)
        else:
            for question, reply in self._serve(left, stopping=True):
                self._save(question, reply)
        report_remarks(self.engine.remarks, self.progress, reported)

    def _serve_both_ways(self, group: Sequence[Question], *, stopping_first: bool) -> None:
        """Answer a group with and without stopping; save each question once it has both."""
        answered = self._serve(group, stopping=stopping_first)
        first = {question.id: reply for question, reply in answered}
        for question, second in self._serve(group, stopping=not stopping_first):
            replies = (first[question.id], second)
            stopped, full = replies if stopping_first else replies[::-1]
            self._save(question, stopped, full)

    def _serve(
        self, questions: Sequence[Question], *, stopping: bool
    ) -> Iterator[tuple[Question, Reply]]:
        """Yield each question with its reply; batches halve when memory runs out."""
        left = list(questions)
        while left:
            began, done = time.perf_counter(), set[str]()
            replies = self.engine.serve(
                make_requests(left, self.policy),
                self.plan,
                self.policy if stopping else None,
                batch_size=self._size,
            )
            try:
                for index, reply in replies:
                    self.seconds[stopping] += time.perf_counter() - began
                    done.add(left[index].id)
                    yield left[index], reply
                    began = time.perf_counter()  # the engine does not grade or write
                self.seconds[stopping] += time.perf_counter() - began
            except OutOfMemory:
                if self._size == 1 or self.settings.batch_size is not None:
                    raise
                self._size //= 2
                self.progress.remark(f"out of memory; going on with {self._size} questions at once")
            left = [question for question in left if question.id not in done]

    def _save(self, question: Question, *replies: Reply) -> None:
        """Grade a reply, and that of full thinking if there is one, and save their line."""
        correct: list[bool | None] = [None] * len(replies)
        if question.gold is not None:
            items = [(question.task, question.gold, graded_text(reply)) for reply in replies]
            verdicts = self.grader.grade_many(items, [question.text] * len(items))
            correct = [verdict is True for verdict in verdicts]
        full = FullAnswer.of(question, replies[1], correct[1]) if len(replies) == 2 else None
        self.file.add(question, replies[0], correct[0], full)
        self.new += 1
        self.progress.advance(1, sum(r.decoded_tokens for r in replies))


# --- Sums over lines ------------------------------------------------------------------------------


def _summary(
    answered: _AnswerPass, lines: Sequence[AnswerRecord], remarks: Sequence[str]
) -> AnswerSummary:
    """Sum up all answers in the file, and those that this call added."""
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
        on_stop=answered.plan.on_stop,
        serving="resume" if answered.engine.identity()["engine"] == "openai" else None,
        server_saving_pct=saving,
        certified=certificate is not None and answered.plan.on_stop == terms.on_stop,
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
        full=_timed_comparison(answered, lines) if any(line.full for line in lines) else None,
        climbed=_climb_summary(lines, tuple(dict.fromkeys(rung.name for rung in policy.ladder))),
        remarks=tuple(remarks),
    )


def _timed_comparison(answered: _AnswerPass, lines: Sequence[AnswerRecord]) -> TimedComparison:
    """Compare with full thinking; time only the questions that this call answered both ways."""
    split = answered.policy.terms.split
    seen = set() if split is None else {*split.fit, *split.calibration}
    seconds, full_seconds = answered.seconds[True], answered.seconds[False]
    timed = answered.new if answered.settings.compare_full else 0
    return TimedComparison(
        **vars(_compare(lines)),
        timed_questions=timed,
        seconds=round(seconds, 3) if timed else None,
        full_seconds=round(full_seconds, 3) if timed else None,
        time_saving_pct=_saving(seconds, full_seconds) if timed and full_seconds else None,
        unmet=_compare([line for line in lines if line.key not in seen]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _saving(spent: float, full: float) -> float:
    return 100 * (1 - spent / full) if full else 0.0


def _climb_summary(lines: Sequence[AnswerRecord], names: Sequence[str]) -> ClimbSummary | None:
    """Sum up what each rung answered; None without a ladder."""
    climbs = [(line.climbed, line.full) for line in lines if line.climbed is not None]
    if not climbs:
        return None
    rungs = []
    for name in names:
        asked = [[reply for reply in climb.asked if reply.name == name] for climb, _ in climbs]
        served = sum(climb.rung == name for climb, _ in climbs)
        down = sum(any(reply.down is not None for reply in replies) for replies in asked)
        rungs.append(RungShare(name, sum(map(bool, asked)), served, served / len(climbs), down))
    prices = [
        (climb.price, full.price) for climb, full in climbs if full and full.price is not None
    ]
    spent, full = sum(price for price, _ in prices), sum(price for _, price in prices)
    return ClimbSummary(
        tuple(rungs),
        sum(climb.price for climb, _ in climbs) / len(climbs),
        full / len(prices) if prices else None,
        _saving(spent, full) if full else None,
        sum(climb.gave_up is True for climb, _ in climbs),
    )


def _compare(lines: Sequence[AnswerRecord]) -> FullComparison:
    """Compare with full thinking, over the lines that have both answers."""
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
    # Never stopped, a question cannot be lost; sampled again, it may still be wrong this time.
    lost = sum(
        line.stopped and line.correct is False and full.correct is True for line, full in pairs
    )
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
