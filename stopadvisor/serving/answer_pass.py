"""One pass over a workload's questions: answer what is missing, and write each answer at once.

Compared with full thinking, both take turns in groups, so that whatever else the machine does
slows both alike.  Batches halve when memory runs out.  Knows no command line and no document.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stopadvisor.answers.grading import Grades
from stopadvisor.answers.normal_form import extract_natural
from stopadvisor.engines import OutOfMemory
from stopadvisor.ground.progress import Progress, report_remarks
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import OnStop, Reply, Request, make_requests
from stopadvisor.policy.session import Rule
from stopadvisor.probes.asking import Engine, ProbePlan
from stopadvisor.serving.answer_file import AnswerFile, AnswerRecord, FullAnswer, normal_form
from stopadvisor.workload.questions import Question

__all__ = ["AnswerPass", "Answering", "AnsweringEngine"]

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


@dataclass
class AnswerPass:
    """Answers what the file does not answer yet; counts and times what it did."""

    policy: Policy
    plan: ProbePlan
    engine: Answering
    on_stop: OnStop
    file: AnswerFile
    grader: Grades
    progress: Progress
    compare_full: bool
    asked_size: int | None
    """Batch size that was asked for; None: what fits, halved when memory runs out."""
    new: int = 0
    seconds: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})
    """Wall time of the engine for the new questions: with stopping, and without."""
    _size: int = 1

    def go(self, questions: Sequence[Question]) -> None:
        """Answer what the file does not answer yet."""
        done, reported = self.file.done(questions), set[str]()
        left = [question for question in questions if question.id not in done]
        if left:
            self._size = self.asked_size or self.engine.questions_at_once(self.plan)
        report_remarks(self.engine.remarks, self.progress, reported)
        self.progress.begin("answering", len(questions), len(questions) - len(left))
        if self.compare_full:
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
            replies = self.engine.serve(
                make_requests(left, self.policy),
                self.plan,
                self.policy if stopping else None,
                batch_size=self._size,
                on_stop=self.on_stop,
            )
            over: set[str] = set()
            try:
                for index, reply in self._timed(replies, stopping=stopping):
                    over.add(left[index].id)
                    yield left[index], reply
            except OutOfMemory:
                if self._size == 1 or self.asked_size is not None:
                    raise
                self._size //= 2
                self.progress.remark(f"out of memory; going on with {self._size} questions at once")
            left = [question for question in left if question.id not in over]

    def _timed(
        self, replies: Iterator[tuple[int, Reply]], *, stopping: bool
    ) -> Iterator[tuple[int, Reply]]:
        """Pass replies on, adding up the time that the engine took for them and nothing else."""
        while True:
            began = time.perf_counter()
            found = next(replies, None)
            self.seconds[stopping] += time.perf_counter() - began
            if found is None:
                return
            yield found

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
