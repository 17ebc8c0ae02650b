"""Ask the rungs of a ladder every question to record their replies, or a few to check them.

Each reply is written to ``asked.jsonl`` as it arrives.  Once all rungs have replied to a question,
its replies are graded and written to ``replies.jsonl``.  The first fit questions are asked and
checked before all others.  Nothing here shows an outcome.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from stopadvisor._version import __version__
from stopadvisor.answers.grading import Grades
from stopadvisor.answers.normal_form import extract_natural, normalize
from stopadvisor.collection.collect import (
    check_grading,
    finished_records,
    make_prompts,
    say_what_is_kept,
)
from stopadvisor.collection.model_checks import (
    PREFLIGHT_QUESTIONS,
    Preflight,
    checked,
    keep_checks,
    worst,
)
from stopadvisor.collection.probe_settings import (
    ProbeSettings,
    ProbeSummary,
    fit_questions,
    summary_of,
)
from stopadvisor.engines.engine_settings import EngineSettings, open_ladder
from stopadvisor.ground.constants import TRUNCATED_WARN
from stopadvisor.ground.errors import ProbeError
from stopadvisor.ground.progress import Progress
from stopadvisor.policy.requests import RungAnswer
from stopadvisor.probes.asking import Check, ProbePlan, Prompt, Status
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.ladder import Rung
from stopadvisor.runs.manifest import build_manifest, describe_workload, run_path
from stopadvisor.runs.replies import ReplyRecord, RungReply
from stopadvisor.runs.storage import (
    append,
    finished_objects,
    json_lines,
    lock_directory,
    set_aside_tail,
)
from stopadvisor.runs.verdicts import grade_records
from stopadvisor.stats.binomial import binomial_tail
from stopadvisor.workload.questions import Question, Workload

if TYPE_CHECKING:
    from stopadvisor.engines.openai.rung_servers import RungServers

__all__ = ["ASKED", "record_replies", "try_rungs"]

ASKED = "asked.jsonl"
"""Replies as they arrived, one per line; an interrupted run resumes from it."""
_EFFORT_LEVEL = 0.05
_CUT_WARN = 0.5
"""Warn if a larger share of a cheap rung's replies is cut: each is paid for in vain."""
_SELF_WARN = 0.05
"""Warn if the reference contradicts itself on a larger share of the questions."""


def record_replies(
    settings: ProbeSettings,
    workload: Workload,
    engine: EngineSettings,
    grader: Grades,
    progress: Progress,
) -> ProbeSummary:
    """Ask the rungs of the engine's ladder for all missing replies."""
    with open_ladder(engine) as servers:
        ladder = servers.ladder
        longest = max(rung.max_tokens or ProbePlan.max_think for rung in ladder.rungs)
        manifest = build_manifest(
            {"engine": "ladder", "engine_version": __version__, "model": ladder.reference.model},
            ProbePlan((), cue="", max_think=longest, seed=settings.seed),  # without probes
            workload,
            fractions=settings.shares(workload),
            template=settings.prompt_template,
            grading=grader.identity,
            ladder=ladder,
        )
        path = settings.out or run_path(Path("runs"), manifest)
        with lock_directory(path):
            run = RunDirectory.resume(path, manifest) or RunDirectory.create(path, manifest)
            replies = _Replies(settings.prompt_template, progress, servers)
            job = _Recording(run, replies, workload, settings, grader)
            summary = job.go(workload.questions[: settings.limit], manifest)
    for remark in grader.remarks():
        progress.remark(remark)
    return summary


def try_rungs(
    fit: Sequence[Question], template: str | None, engine: EngineSettings, progress: Progress
) -> Preflight:
    """Check the rungs of the engine's ladder on the first fit questions."""
    fit = fit[:PREFLIGHT_QUESTIONS]
    with open_ladder(engine) as servers:
        replies = _Replies(template, progress, servers)
        missing = replies.missing(fit, again=True)
        progress.begin("preflight", len(missing))
        for _ in replies.arriving(missing):
            pass
    return replies.preflight(fit)


_Rows = Sequence[Sequence[RungAnswer]]
"""For each question, the replies of one rung."""


@dataclass(frozen=True)
class _Replies:
    """The rungs' replies so far, and how to ask for the missing ones."""

    template: str | None
    progress: Progress
    servers: RungServers
    known: dict[tuple[str, str, int], RungAnswer] = field(default_factory=dict)
    """By question's id and key and by column; an extra one holds the reference's second reply."""

    def missing(
        self, questions: Sequence[Question], *, again: bool = False
    ) -> list[tuple[Question, int]]:
        """Questions and columns without a reply; with `again`, the reference's second one too."""
        ladder = self.servers.ladder
        width = len(ladder.columns) + (again and ladder.reference.repeat == 1)
        asked = [(q, k) for q in questions for k in range(width)]
        return [(q, k) for q, k in asked if (q.id, q.key, k) not in self.known]

    def arriving(
        self, missing: Sequence[tuple[Question, int]]
    ) -> Iterator[tuple[Question, int, RungAnswer]]:
        """Ask for replies, and yield each as it arrives."""
        ladder = self.servers.ladder
        columns = (*ladder.columns, ladder.reference)
        samples = [columns[:k].count(rung) for k, rung in enumerate(columns)]
        asked = [
            (columns[k], make_prompts([question], self.template, samples[k])[0])
            for question, k in missing
        ]

        async def ask(item: tuple[Rung, Prompt]) -> RungAnswer:
            rung, prompt = item
            return await self.servers.ask(rung, prompt, max_tokens=rung.max_tokens, logprobs=True)

        for number, answer in self.servers.each(asked, ask, self.servers.size):
            question, column = missing[number]
            self.known[question.id, question.key, column] = answer
            self.progress.advance(1, answer.completion_tokens)
            yield question, column, answer

    def preflight(self, questions: Sequence[Question]) -> Preflight:
        """Check the rungs by their replies to these questions, all of which are known."""
        checks = tuple(self._checks(questions))
        return Preflight(worst(checks), checks, len(questions))

    def _checks(self, questions: Sequence[Question]) -> Iterator[Check]:
        ladder, last = self.servers.ladder, self.servers.ladder.reference

        def replies(columns: Sequence[int]) -> _Rows:
            return [[self.known[q.id, q.key, k] for k in columns] for q in questions]

        rungs = list(zip(ladder.rungs, map(replies, ladder.blocks), strict=True))
        for rung, rows in rungs:
            yield from _of_rung(rung, rows, TRUNCATED_WARN if rung is last else _CUT_WARN)
        for (lower, one), (higher, two) in pairwise(rungs):
            if lower.reasoning_effort != higher.reasoning_effort and lower.model == higher.model:
                yield _effort(lower, higher, one, two)
        first = ladder.blocks[-1].start
        yield _against_itself(last, [q.task for q in questions], replies((first, first + 1)))


@dataclass(frozen=True)
class _Recording:
    """One recording, made under the run's lock."""

    run: RunDirectory
    replies: _Replies
    workload: Workload
    settings: ProbeSettings
    grader: Grades
    done: set[str] = field(default_factory=set)
    """Questions whose replies are graded."""

    def go(self, questions: Sequence[Question], manifest: dict[str, object]) -> ProbeSummary:
        began, run, progress = time.monotonic(), self.run, self.replies.progress
        self._read()
        if self.done:
            check_grading(run, self.grader.identity, "choose another --out")
        run.annotate(
            workload=describe_workload(self.workload),
            ladder=manifest["ladder"],
            grading=dict(self.grader.identity),
            asked=len(self.done.union(q.id for q in questions)),
        )
        new = [q for q in questions if q.id not in self.done]
        first = fit_questions(self.workload, self.settings)[:PREFLIGHT_QUESTIONS]
        if not (self.settings.preflight and new):
            first = []
        missing = [*self.replies.missing(first, again=True), *self.replies.missing(new)]
        known, left = len(self.replies.known), len({(q.id, k) for q, k in missing})
        progress.begin("asking", known + left, known)
        with say_what_is_kept(run, progress):
            if first:
                self._ask(first, again=True)
                keep_checks(self.replies.preflight(first), run.path / "preflight.json", progress)
            self._ask(new)
        return summary_of(run, len(new), time.monotonic() - began)

    def _read(self) -> None:
        set_aside_tail(self.run.path / ASKED, "asked.partial")
        records = finished_records(self.run, self.workload, self.replies.progress)
        self.done.update(record.id for record in records)
        for where, row in finished_objects(self.run.path / ASKED):
            try:
                asked = row.pop("id"), row.pop("key"), row.pop("column")
                self.replies.known[asked] = RungAnswer(**row)
            except (KeyError, TypeError) as error:
                raise ProbeError(f"{where}: not a reply: {error}") from error

    def _ask(self, questions: Sequence[Question], *, again: bool = False) -> None:
        for question in questions:
            self._grade(question)  # a call may have been killed between last reply and grade
        missing = self.replies.missing(questions, again=again)
        for question, column, answer in self.replies.arriving(missing):
            row = {"id": question.id, "key": question.key, "column": column, **asdict(answer)}
            append(self.run.path / ASKED, json_lines([row]))
            self._grade(question)

    def _grade(self, question: Question) -> None:
        """Grade the replies to a question and write its line, once it has all of them."""
        if question.id in self.done or self.replies.missing([question]):
            return
        task, replies = question.task, []
        for k, rung in enumerate(self.replies.servers.ladder.columns):
            answer = self.replies.known[question.id, question.key, k]
            text = extract_natural(task, answer.text) or ""
            counts = answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens
            reply = (rung.name, text, normalize(task, text), None, answer.finished, *counts)
            replies.append(RungReply(*reply, answer.mean_logprob, answer.seconds))
        about = question.id, question.key, question.group, task, question.category, question.gold
        record = ReplyRecord(*about, tuple(replies))
        self.run.append(grade_records([record], self.grader, {question.key: question.text})[0])
        self.done.add(question.id)


# --- Checks of the first replies ------------------------------------------------------------------


def _of_rung(rung: Rung, rows: _Rows, most: float) -> Iterator[Check]:
    """How many replies arrived, and how many of them were cut."""
    replies = [answer for row in rows for answer in row]
    down = [answer.down for answer in replies if answer.down is not None]
    came = len(replies) - len(down)
    detail = f"{came} of {len(replies)} replies arrived" + "".join(f": {why}" for why in down[:1])
    status: Status = "fail" if not came else "warn" if down else "pass"
    yield checked(f"rung {rung.name}", status, detail, "questions it does not answer climb past it")
    cut = sum(not answer.finished for answer in replies) - len(down)
    at = "its server's own limit" if rung.max_tokens is None else f"max_tokens {rung.max_tokens}"
    yield checked(
        f"length of {rung.name}",
        "pass" if cut <= most * came else "warn",
        f"{cut} of {came} replies were cut",
        f"a cut reply is no answer: raise max_tokens in ladder.toml ({at} now)",
    )


def _effort(lower: Rung, higher: Rung, rows: _Rows, others: _Rows) -> Check:
    """Whether the server obeys the effort: lengths differ by a sign test."""
    firsts = [(one[0], two[0]) for one, two in zip(rows, others, strict=True)]
    pairs = [
        (a.completion_tokens, b.completion_tokens) for a, b in firsts if a.finished and b.finished
    ]
    shorter, longer = (sum(sign * (b - a) > 0 for a, b in pairs) for sign in (1, -1))
    p_value = 2 * binomial_tail(min(shorter, longer), shorter + longer, 0.5)
    means = [sum(column) / len(pairs) for column in zip(*pairs, strict=True)] or [0.0, 0.0]
    return checked(
        f"effort of {lower.name} and {higher.name}",
        "pass" if p_value <= _EFFORT_LEVEL else "warn",
        f"{means[0]:.0f} and {means[1]:.0f} tokens on average in {len(pairs)} questions",
        f"the server seems to ignore reasoning_effort ({lower.reasoning_effort!r} and "
        f"{higher.reasoning_effort!r}): see what its model takes, such as chat_template_kwargs",
    )


def _against_itself(rung: Rung, tasks: Sequence[str], twice: _Rows) -> Check:
    """How often two replies of the reference disagree."""
    differing = 0
    for task, pair in zip(tasks, twice, strict=True):
        one, two = (normalize(task, extract_natural(task, a.text) or "") for a in pair)
        differing += one != two or not all(a.finished for a in pair)
    return checked(
        f"{rung.name} against itself",
        "pass" if differing <= _SELF_WARN * len(twice) else "warn",
        f"{differing} of {len(twice)} questions get another answer the second time",
        "a promise about differing or lost replies counts these too, whatever a rung answers; one "
        "about the drop in accuracy does not",
    )
