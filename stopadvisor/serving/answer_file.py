"""The file of answers that `run` writes: a line per question, on disk before the next is asked."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from stopadvisor.answers.normal_form import normalize
from stopadvisor.ground.errors import OutputError, ProbeError
from stopadvisor.ground.fields import plain
from stopadvisor.ground.json_text import parse_json
from stopadvisor.ground.results import from_document
from stopadvisor.policy.requests import Climbed, Reply
from stopadvisor.runs.storage import append, encode
from stopadvisor.workload.questions import Question

__all__ = ["AnswerFile", "AnswerRecord", "FullAnswer", "graded_text"]


@dataclass(frozen=True)
class FullAnswer:
    """The reply with full thinking."""

    answer: str | None
    normalized: str
    finish: str
    think_tokens: int
    visible_tokens: int
    seconds: float
    correct: bool | None = None
    price: float | None = None
    """Price of asking the reference alone; only with a ladder."""

    @classmethod
    def of(cls, question: Question, reply: Reply, correct: bool | None) -> FullAnswer:
        """Build it from a reply."""
        return cls(
            answer=reply.text,
            normalized=_normal_form(question, reply),
            finish=reply.finish,
            think_tokens=reply.think_tokens,
            visible_tokens=reply.visible_tokens,
            seconds=round(reply.seconds, 6),
            correct=correct,
            price=None if reply.climbed is None else reply.climbed.price,
        )

    @property
    def decoded_tokens(self) -> int:
        """Tokens of thinking and visible answer."""
        return self.think_tokens + self.visible_tokens


@dataclass(frozen=True)
class AnswerRecord:
    """One line of the file: a question and its reply.  Optional fields are left out if None."""

    id: str
    key: str
    """Content hash of the question."""
    setting: str
    """Short hash of everything that determines the answer: policy, model, engine, `on_stop`."""
    answer: str | None
    """The reply as decoded."""
    normalized: str
    stopped: bool
    checkpoint: int | None
    budget: int | None
    finish: str
    think_tokens: int
    probe_tokens: int
    visible_tokens: int
    prompt_tokens: int
    seconds: float
    correct: bool | None = None
    """Only with gold."""
    full: FullAnswer | None = None
    """Only with ``--compare-full``."""
    climbed: Climbed | None = None
    """Only with a ladder: which rung answered, and every reply on the way."""

    @property
    def decoded_tokens(self) -> int:
        """Tokens of thinking, probes and visible answer."""
        return self.think_tokens + self.probe_tokens + self.visible_tokens

    def to_json(self) -> str:
        """Return the line, without its newline."""
        data = plain(replace(self, climbed=None), sparse=False)
        if self.climbed is not None:
            data["climbed"] = self.climbed.to_dict()
        return json.dumps(data, ensure_ascii=False, allow_nan=False)


def graded_text(reply: Reply) -> str | None:
    """Return what is graded: a forced answer as it is, or the short answer in a visible one."""
    is_forced = reply.finish == "stopped" and not reply.visible_tokens
    return reply.text if is_forced else reply.answer


def _normal_form(question: Question, reply: Reply) -> str:
    return normalize(question.task, graded_text(reply) or "")


# --- The file -------------------------------------------------------------------------------------


@dataclass
class AnswerFile:
    """A file of answers, locked for this process; made by `AnswerFile.open`."""

    path: Path
    setting: str
    lines: list[AnswerRecord]
    """In file order."""

    @classmethod
    @contextmanager
    def open(cls, path: Path, setting: str) -> Iterator[AnswerFile]:
        """Open or create the file and lock it; the lock ends with the process, even if killed.

        Removes an incomplete last line, which a killed process leaves.

        Raises
        ------
        OutputError
            The file cannot be written, another process is writing it, a line is damaged, or it
            holds answers of another policy or model.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open(path, "ab+")  # noqa: SIM115  closed below
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise OutputError(
                    f"{path}: another process is writing it; wait for it or choose another --out"
                ) from error
            file.seek(0)
            whole, _, tail = file.read().rpartition(b"\n")
            lines = [
                _read(line, f"{path}:{number}")
                for number, line in enumerate(whole.split(b"\n"), start=1)
                if line
            ]
            if tail:
                os.truncate(path, len(whole) + (1 if whole else 0))
            others = [line for line in lines if line.setting != setting]
            if others:
                raise OutputError(
                    f"{path} holds answers under other settings ({others[0].setting}, now "
                    f"{setting}): of another policy, model, dtype, --on-stop or --grader; choose "
                    "another --out"
                )
            yield cls(path, setting, lines)

    def done(self, questions: Sequence[Question]) -> set[str]:
        """Return the ids of the questions that the file answers already."""
        keys = {line.id: line.key for line in self.lines}
        for question in questions:
            if keys.get(question.id, question.key) != question.key:
                raise OutputError(
                    f"{self.path} answers another question under the id {question.id!r}: ids must "
                    "keep their questions; choose another --out"
                )
        return {question.id for question in questions if question.id in keys}

    def add(
        self, question: Question, reply: Reply, correct: bool | None, full: FullAnswer | None
    ) -> None:
        """Append a question's line; it is on disk when this returns."""
        line = AnswerRecord(
            id=question.id,
            key=question.key,
            setting=self.setting,
            answer=reply.text,
            normalized=_normal_form(question, reply),
            stopped=reply.stopped_at is not None,
            checkpoint=reply.stopped_at,
            budget=reply.budget,
            finish=reply.finish,
            think_tokens=reply.think_tokens,
            probe_tokens=reply.probe_tokens,
            visible_tokens=reply.visible_tokens,
            prompt_tokens=reply.prompt_tokens,
            seconds=round(reply.seconds, 6),
            correct=correct,
            full=full,
            climbed=reply.climbed,
        )
        append(self.path, encode(line.to_json() + "\n"))
        self.lines.append(line)


def _read(line: bytes, where: str) -> AnswerRecord:
    try:
        return from_document(AnswerRecord, parse_json(line), where)
    except (ValueError, ProbeError) as error:
        what = str(error).removeprefix(f"{where}: ")
        raise OutputError(f"{where}: not a line that `run` wrote: {what}") from error
