"""The answers of `run` as lines of a file.

Each question's line is on disk before the next question is answered.  A file that was left
unfinished is continued; one of another policy or model is refused.  Knows no engine and no screen.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from stopadvisor.answers.normal_form import normalize
from stopadvisor.ground.errors import OutputError, ProbeError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.ground.results import from_document
from stopadvisor.policy.requests import Climbed, Reply
from stopadvisor.runs.storage import append, encode
from stopadvisor.workload.questions import Question

__all__ = ["AnswerFile", "AnswerRecord", "FullAnswer", "normal_form"]


@dataclass(frozen=True)
class FullAnswer:
    """What the same question got without stopping."""

    answer: str | None
    normalized: str
    finish: str
    think_tokens: int
    visible_tokens: int
    seconds: float
    correct: bool | None = None
    price: float | None = None
    """Of a ladder's reference."""

    @property
    def decoded_tokens(self) -> int:
        """Thinking and visible answer."""
        return self.think_tokens + self.visible_tokens


@dataclass(frozen=True)
class AnswerRecord:
    """One line of the file: a question and its reply.  What is None by default is then left out."""

    id: str
    key: str
    """Content hash of the question."""
    setting: str
    """Short hash over all that decides the answer: policy, model, engine, `on_stop`."""
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
    """Of a ladder: which rung answered, and all that was asked."""

    @classmethod
    def of(
        cls,
        question: Question,
        setting: str,
        reply: Reply,
        correct: bool | None,
        full: FullAnswer | None = None,
    ) -> AnswerRecord:
        """Put a reply into a line."""
        return cls(
            id=question.id,
            key=question.key,
            setting=setting,
            answer=reply.text,
            normalized=normal_form(question, reply),
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

    @property
    def decoded_tokens(self) -> int:
        """Thinking, probes and visible answer."""
        return self.think_tokens + self.probe_tokens + self.visible_tokens

    def to_json(self) -> str:
        """One line of JSON."""
        data = asdict(replace(self, climbed=None))
        data["climbed"] = None if self.climbed is None else self.climbed.to_dict()
        for part in (data, data["full"] or {}):
            for name in ("correct", "full", "climbed", "price"):
                if part.get(name, 0) is None:
                    del part[name]
        return json.dumps(data, ensure_ascii=False, allow_nan=False)


def normal_form(question: Question, reply: Reply) -> str:
    """Normal form of a reply: of a forced answer's whole text, as the policy sees it."""
    if reply.text is None:
        return ""
    forced = reply.finish == "stopped" and not reply.visible_tokens
    return normalize(question.task, reply.text if forced else reply.answer or "")


# --- The file -------------------------------------------------------------------------------------


class AnswerFile:
    """A file of answers, locked for this process; made by `AnswerFile.open`."""

    def __init__(self, path: Path, setting: str, lines: Sequence[AnswerRecord]) -> None:
        self.path = path
        self.setting = setting
        self.lines = list(lines)
        """In the order of the file."""

    @classmethod
    @contextmanager
    def open(cls, path: Path, setting: str) -> Iterator[AnswerFile]:
        """Open or begin the file and lock it; the lock ends with the process, even if it is killed.

        A last line that is incomplete, as after a kill, is removed.

        Raises
        ------
        OutputError
            The file cannot be written, another process writes it, a line is broken, or it holds
            the answers of another policy or model.
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
            found = [
                _read(line, f"{path}:{number}")
                for number, line in enumerate(whole.split(b"\n"), start=1)
                if line
            ]
            if tail:
                os.truncate(path, len(whole) + (1 if whole else 0))
            others = [line for line in found if line.setting != setting]
            if others:
                raise OutputError(
                    f"{path} holds answers under other settings ({others[0].setting}, now "
                    f"{setting}): of another policy, model, dtype, --on-stop or --grader; choose "
                    "another --out"
                )
            yield cls(path, setting, found)

    def uncompared(self, questions: Sequence[Question]) -> int:
        """Number of these questions that were answered without full thinking as well."""
        wanted = {question.id for question in questions}
        return sum(line.full is None for line in self.lines if line.id in wanted)

    def done(self, questions: Sequence[Question]) -> set[str]:
        """Ids of these questions that the file answers already."""
        keys = {line.id: line.key for line in self.lines}
        for question in questions:
            if keys.get(question.id, question.key) != question.key:
                raise OutputError(
                    f"{self.path} answers another question under the id {question.id!r}: ids must "
                    "keep their questions; choose another --out"
                )
        return {question.id for question in questions if question.id in keys}

    def add(self, line: AnswerRecord) -> None:
        """Append a line: it is on disk when this returns."""
        append(self.path, encode(line.to_json() + "\n"))
        self.lines.append(line)


def _read(line: bytes, where: str) -> AnswerRecord:
    try:
        return from_document(AnswerRecord, parse_json(line), where)
    except (ValueError, ProbeError) as error:
        what = str(error).removeprefix(f"{where}: ")
        raise OutputError(f"{where}: not a line that `run` wrote: {what}") from error
