"""Record the replies of a ladder: ask every rung every question of a workload.

Each reply is written to ``asked.jsonl`` as it arrives.  Once all rungs have replied to a question,
its replies are graded and written to ``replies.jsonl``.  The first fit questions are checked before
the others are asked.  Nothing here shows an outcome.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from stopadvisor._version import __version__
from stopadvisor.answers.grading import Grades, open_graders
from stopadvisor.answers.normal_form import extract_natural, normalize
from stopadvisor.collection.collect import make_prompts, say_what_is_kept
from stopadvisor.collection.model_checks import (
    PREFLIGHT_QUESTIONS,
    LadderPreflight,
    checked,
    keep_checks,
    worst,
)
from stopadvisor.collection.probe_settings import (
    ProbeSettings,
    ProbeSummary,
    check_parts,
    fit_questions,
)
from stopadvisor.engines.engine_settings import EngineSettings, how_to_open
from stopadvisor.ground.constants import TRUNCATED_WARN
from stopadvisor.ground.errors import ProbeError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.ground.progress import Progress
from stopadvisor.policy.requests import RungAnswer
from stopadvisor.policy.rung_policies import read_rungs
from stopadvisor.probes.asking import Check, ProbePlan, Prompt, Status
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.ladder import Ladder, Rung
from stopadvisor.runs.manifest import build_manifest, describe_workload, run_path
from stopadvisor.runs.replies import ReplyRecord, RungReply, graded, replies_by_rung
from stopadvisor.runs.storage import (
    append,
    check_writable,
    encode,
    finished_lines,
    lock_directory,
    set_aside_tail,
)
from stopadvisor.stats.binomial import binomial_tail
from stopadvisor.workload.questions import PARTS, PartCounts, Question, Workload

__all__ = ["ASKED", "record_replies"]

ASKED = "asked.jsonl"
"""Replies as they arrived, one per line; an interrupted run resumes from it."""
_EFFORT_LEVEL = 0.05
_CUT_WARN = 0.5
"""Warn if more of a cheap rung's replies are cut: each is paid for in vain."""
_SELF_WARN = 0.05
"""Warn if the reference contradicts itself on a larger share of questions."""


def record_replies(
    settings: ProbeSettings,
    engine: EngineSettings,
    file: Path,
    progress: Progress,
    *,
    whole: bool = False,
) -> ProbeSummary:
    """Ask the rungs of a ladder file for all missing replies; raises as `probing.probe`.

    `engine` sets the concurrency, and the device of local models.  With `whole`, a `limit` that
    leaves a part too small to be assessed is refused.
    """
    from stopadvisor.engines.openai.rung_servers import open_rungs

    ladder = read_rungs(file)
    workload = settings.read()
    asked = workload.questions[: settings.limit]
    check_parts(workload, settings, workload.questions[: settings.limit if whole else None])
    check_writable(settings.out or Path("runs"))
    with open_graders(settings.grader) as graders:
        longest = max(rung.max_tokens or ProbePlan.max_think for rung in ladder.rungs)
        manifest = build_manifest(
            {"engine": "ladder", "engine_version": __version__, "model": ladder.reference.model},
            ProbePlan((), cue="", max_think=longest, seed=settings.seed),  # without probes
            workload,
            fractions=settings.shares(workload),
            template=settings.prompt_template,
            grading=graders.right.identity,
            ladder=[rung.to_dict() for rung in ladder.rungs],
        )
        path = settings.out or run_path(Path("runs"), manifest)
        with (
            lock_directory(path),
            how_to_open(engine, ladder) as how,
            open_rungs(ladder, **how) as ask,
        ):
            run = RunDirectory.resume(path, manifest) or RunDirectory.create(path, manifest)
            job = _Recording(run, ladder, workload, settings, graders.right, ask, progress)
            summary = job.go(asked, manifest)
        for remark in graders.right.remarks():
            progress.remark(remark)
    return summary


@dataclass(frozen=True)
class _Recording:
    """One recording, while the run's lock is held."""

    run: RunDirectory
    ladder: Ladder
    workload: Workload
    settings: ProbeSettings
    grader: Grades
    ask: Callable[[Sequence[tuple[Rung, Prompt]]], Iterator[tuple[int, RungAnswer]]]
    progress: Progress
    answers: dict[tuple[str, int], RungAnswer] = field(default_factory=dict)
    """Replies so far, by question and column."""
    done: set[str] = field(default_factory=set)
    """Questions whose replies are graded."""

    def go(self, questions: Sequence[Question], manifest: dict[str, object]) -> ProbeSummary:
        began, run = time.monotonic(), self.run
        self._read()
        if self.done and run.manifest["grading"] != manifest["grading"]:
            raise ProbeError(
                f"{run.path} was graded with {run.manifest['grading']}, this call grades with "
                f"{manifest['grading']}: choose another --out"
            )
        run.annotate(
            workload=describe_workload(self.workload),
            ladder=manifest["ladder"],
            grading=manifest["grading"],
        )
        new = [q for q in questions if q.id not in self.done]
        total = len(self.ladder.columns) * len(questions)
        self.progress.begin("asking", total, total - len(self._missing(new)))
        with say_what_is_kept(run, self.progress):
            first = fit_questions(self.workload, self.settings)[:PREFLIGHT_QUESTIONS]
            if self.settings.preflight and new:
                self._ask(first)
                checks = tuple(self._checks(first))
                report = LadderPreflight(worst(checks), checks, len(first))
                keep_checks(report, run.path / "preflight.json", self.progress)
            self._ask(new)
        return self._summary(len(new), time.monotonic() - began)

    def _read(self) -> None:
        """Read the replies of earlier calls."""
        set_aside_tail(self.run.path / ASKED, self.run.path / "asked.partial")
        if note := self.run.repair():
            self.progress.remark(note)
        keys = {q.id: q.key for q in self.workload.questions}
        for number, line in enumerate(finished_lines(self.run.path / ASKED)[0], start=1):
            try:
                row = parse_json(line)
                name, key, column = row.pop("id"), row.pop("key"), row.pop("column")
                answer = RungAnswer(**row)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                where = f"{self.run.path / ASKED}:{number}"
                raise ProbeError(f"{where}: not a reply: {error}") from error
            self._same(name, key, keys)
            self.answers[name, column] = answer
        for record in self.run.replies():
            self._same(record.id, record.key, keys)
            self.done.add(record.id)

    def _same(self, name: str, key: str, keys: dict[str, str]) -> None:
        if keys.get(name, key) != key:
            raise ProbeError(
                f"{self.run.path} holds another question under the id {name!r} than "
                f"{self.workload.path}: ids must keep their questions; choose another --out"
            )

    def _missing(self, questions: Sequence[Question]) -> list[tuple[Question, int]]:
        """Questions and columns without a reply."""
        width = range(len(self.ladder.columns))
        return [(q, k) for q in questions for k in width if (q.id, k) not in self.answers]

    def _ask(self, questions: Sequence[Question]) -> None:
        """Ask for the missing replies, and grade each question once it has all of them."""
        columns, left = self.ladder.columns, [q for q in questions if q.id not in self.done]
        starts = {k: block.start for block in self.ladder.blocks for k in block}
        missing = self._missing(left)
        open_columns = Counter(question.id for question, _ in missing)
        for question in left:
            if not open_columns[question.id]:  # killed between its last reply and its grade
                self._keep(question)
        template = self.settings.prompt_template
        asked = [(columns[k], make_prompts([q], template, k - starts[k])[0]) for q, k in missing]
        for number, answer in self.ask(asked):
            question, column = missing[number]
            row = {"id": question.id, "key": question.key, "column": column, **asdict(answer)}
            append(self.run.path / ASKED, encode(json.dumps(row, ensure_ascii=False) + "\n"))
            self.answers[question.id, column] = answer
            self.progress.advance(1, answer.completion_tokens)
            open_columns[question.id] -= 1
            if not open_columns[question.id]:
                self._keep(question)

    def _keep(self, question: Question) -> None:
        """Grade the replies to a question and write its line."""
        task, replies = question.task, []
        for k, rung in enumerate(self.ladder.columns):
            answer = self.answers[question.id, k]
            text = extract_natural(task, answer.text) or ""
            counts = answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens
            reply = (rung.name, text, normalize(task, text), None, answer.finished, *counts)
            replies.append(RungReply(*reply, answer.mean_logprob, answer.seconds))
        about = question.id, question.key, question.group, task, question.category, question.gold
        texts = [question.text] if self.grader.reads_questions else []
        self.run.append(graded([ReplyRecord(*about, tuple(replies))], self.grader, texts)[0])
        self.done.add(question.id)

    def _checks(self, questions: Sequence[Question]) -> Iterator[Check]:
        """Check the rungs by their replies to the first fit questions."""
        ladder, last = self.ladder, self.ladder.reference
        by_rung = [
            [[self.answers[q.id, k] for k in block] for q in questions] for block in ladder.blocks
        ]
        rungs = list(zip(ladder.rungs, by_rung, strict=True))
        for rung, rows in rungs:
            yield from _of_rung(rung, rows, TRUNCATED_WARN if rung is last else _CUT_WARN)
        for (lower, one), (higher, two) in pairwise(rungs):
            if lower.reasoning_effort != higher.reasoning_effort and lower.model == higher.model:
                yield _effort(lower, higher, one, two)
        if last.repeat > 1:
            yield _against_itself(last, [q.task for q in questions], by_rung[-1])

    def _summary(self, new: int, seconds: float) -> ProbeSummary:
        run, records = self.run, self.run.replies()
        table = run.table()
        counts = np.bincount(run.parts(table.groups), minlength=len(PARTS)).tolist()
        return ProbeSummary(
            run=run.path,
            questions=len(records),
            traces=len(records) * len(self.ladder.columns),
            new=new,
            schedule="ladder",
            budgets=(),
            every=None,
            markers=(),
            max_think=run.plan.max_think,
            truncated_share=float(table.truncated.mean()),
            seconds=round(seconds, 3),
            split=PartCounts(*counts),
            rungs=replies_by_rung(records, self.ladder),
        )


# --- Checks of the first replies ------------------------------------------------------------------

_Rows = Sequence[Sequence[RungAnswer]]
"""For each question, the replies of one rung."""


def _of_rung(rung: Rung, rows: _Rows, most: float) -> Iterator[Check]:
    """How many replies arrived, and how many of them were cut."""
    replies = [answer for row in rows for answer in row]
    down = [answer.down for answer in replies if answer.down is not None]
    came = len(replies) - len(down)
    detail = f"{came} of {len(replies)} replies came" + "".join(f": {why}" for why in down[:1])
    status: Status = "fail" if not came else "warn" if down else "pass"
    yield checked(f"rung {rung.name}", status, detail, "questions that it refuses climb past it")
    cut = sum(not answer.finished for answer in replies) - len(down)
    at = "its server's own limit" if rung.max_tokens is None else f"max_tokens {rung.max_tokens}"
    yield checked(
        f"length of {rung.name}",
        "pass" if cut <= most * came else "warn",
        f"{cut} of {came} replies were cut",
        f"a reply that is cut is no answer: raise max_tokens in ladder.toml ({at} now)",
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
        f"the server seems to ignore reasoning_effort {lower.reasoning_effort!r} against "
        f"{higher.reasoning_effort!r}: see what its model takes, such as chat_template_kwargs",
    )


def _against_itself(rung: Rung, tasks: Sequence[str], rows: _Rows) -> Check:
    """How often the reference's first two samples disagree."""
    differing = 0
    for task, row in zip(tasks, rows, strict=True):
        one, two = (normalize(task, extract_natural(task, a.text) or "") for a in row[:2])
        differing += one != two or not (row[0].finished and row[1].finished)
    return checked(
        f"{rung.name} against itself",
        "pass" if differing <= _SELF_WARN * len(rows) else "warn",
        f"{differing} of {len(rows)} questions get another answer the second time",
        "no rung can differ less from it: a promise about differing replies is bounded by this",
    )
