"""Questions, labelled or not: read and check the file, fill in the prompt, split by question.

A workload is a JSONL file, one question a line; a line that is not as it should be is an error that
names file, line and field, and nothing is skipped in silence.  A question's identity is the hash of
its content, so neither its label nor its place in the file moves it to another part of the split.
This module knows no model, no probe and no random state.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopadvisor.answers.normal_form import TASKS, check_gold, guess_task, normalize
from stopadvisor.ground.constants import PROMPT_TEMPLATES
from stopadvisor.ground.errors import WorkloadError
from stopadvisor.workload.lines import messages_field, read_rows, refuse, text_field

__all__ = [
    "ASSUMED_TASK",
    "PARTS",
    "SMALLEST_PARTS",
    "TASKS",
    "PartCounts",
    "Question",
    "RecordedTrace",
    "Workload",
    "assign_parts",
    "content_key",
    "default_split",
    "name_key",
    "parse_split",
    "read_workload",
    "render_messages",
]

PARTS = ("fit", "calibration", "test")


@dataclass(frozen=True)
class PartCounts:
    """Questions in each part of the split."""

    fit: int
    """Choose and fit the rule."""
    calibration: int
    """Closed until `calibrate` opens them."""
    test: int
    """Measure what a policy does."""


ASSUMED_TASK = "math"
"""Where nothing says the kind of answer: the form that tells numbers from formulas and words."""
SMALLEST_PARTS = {"fit": 20, "calibration": 10, "test": 10}
"""Fewest different questions that each part can do its work with."""


@dataclass(frozen=True)
class RecordedTrace:
    """Thinking that was recorded, and the reply to it."""

    where: str
    """``FILE:LINE``."""
    thinking: str
    reply: str | None
    """None where thinking was cut before its end, or the model ended without a reply."""
    ended: bool = False
    """The model ended by itself, be it without closing its thinking."""


@dataclass(frozen=True)
class Question:
    """One question of a workload."""

    id: str
    """Name in the run's files; unique in the workload."""
    key: str
    """SHA-256 (hex) of the content, which is the messages alone: relabelling moves nothing."""
    messages: tuple[Mapping[str, str], ...]
    """Chat messages before the prompt template; a `question` is one user message."""
    gold: str | None
    """Right answer; None where nobody has said which it is."""
    task: str
    """Kind of answer, one of `TASKS`."""
    category: str | None = None
    """For display only."""
    group: str | None = None
    """Questions of one group stay in one part of the split."""
    templated: bool = True
    """Given as `question`, so that the prompt template applies; False for `messages`."""
    traces: tuple[RecordedTrace, ...] = ()
    """What it was thought before; empty where the model is to think."""

    @property
    def text(self) -> str:
        """What is asked: the last message."""
        return self.messages[-1]["content"]

    @property
    def group_key(self) -> str:
        """What stays together in the split: the group, or the content where there is none."""
        return self.group or self.key


@dataclass(frozen=True)
class Workload:
    """All questions of one file, in its order."""

    path: Path
    """File they were read from."""
    questions: tuple[Question, ...]
    """At least one."""
    sha256: str
    """SHA-256 (hex) of the file's bytes."""
    guessed_tasks: Mapping[str, int]
    """How many questions named no task, by the task that was guessed from their gold."""
    assumed_task: str | None = None
    """Task of the questions that have neither task nor gold; None where there is none of those."""

    @property
    def n_labelled(self) -> int:
        """Questions with gold."""
        return sum(question.gold is not None for question in self.questions)

    @property
    def name(self) -> str:
        """Name of the file without its last suffix."""
        return self.path.stem


# --- Reading --------------------------------------------------------------------------------------


def read_workload(
    path: str | Path, *, default_task: str | None = None, assumed: str | None = ASSUMED_TASK
) -> Workload:
    """Read and check a workload.

    Fields of a line: `question` (text) or `messages` (chat messages, the last from the user), one
    of them; optional `gold` or `answer` (text or number; where both are given `gold` is taken),
    `id`, `task`, `category`, `group`.  ``null`` is the same as leaving a field out, and others are
    not looked at.  Without `id` it is the first 12 digits of the key, further ones of the same
    content ending in ``-2``, ``-3`` in the order of the file.

    `default_task` is the task of lines that name none, instead of the guess from their gold;
    `assumed` that of lines with neither task nor gold, where the file's others do not share one,
    and None refuses such lines.

    Raises
    ------
    WorkloadError
        The file cannot be read or holds no question; or a line is no such question, repeats an
        `id`, or repeats a question with another gold, task or group.  The message gives
        ``FILE:LINE`` and the field.
    """
    path = Path(path)
    data, rows = read_rows(path)
    ids = _given_ids(rows)
    tasks = _tasks(rows, default_task, assumed)
    first: dict[str, tuple[str, Question]] = {}
    derived: Counter[str] = Counter()
    guessed: Counter[str] = Counter()
    questions = []
    assumed = None
    for (where, row), task in zip(rows, tasks, strict=True):
        messages, templated = messages_field(row, where)
        key = content_key(messages)
        name = text_field(row, "id", where) or _free_id(key[:12], ids, derived)
        gold = _gold(row, where)
        if row.get("task") is None and default_task is None:
            if gold is None:
                assumed = task
            else:
                guessed[task] += 1
        if gold is not None:
            try:
                check_gold(task, gold)
            except ValueError as error:
                raise WorkloadError(f"{where}: field {_gold_field(row)!r}: {error}") from None
        question = Question(
            id=name,
            key=key,
            messages=messages,
            gold=gold,
            task=task,
            category=text_field(row, "category", where),
            group=text_field(row, "group", where),
            templated=templated,
        )
        _check_same(question, where, *first.setdefault(key, (where, question)))
        questions.append(question)
    digest = hashlib.sha256(data).hexdigest()
    return Workload(path, tuple(questions), digest, dict(guessed), assumed)


def content_key(messages: Sequence[Mapping[str, str]]) -> str:
    """Hash a question's messages, before any prompt template: its identity everywhere."""
    content = json.dumps(messages, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()


def name_key(name: str) -> str:
    """Stand in for `content_key` where a question's content is not known: a hash of its name."""
    return hashlib.sha256(f"id:{name}".encode("utf-8", "backslashreplace")).hexdigest()


def _given_ids(rows: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, str]:
    """Where each given id stands; all are known before the first one is derived."""
    ids: dict[str, str] = {}
    for where, row in rows:
        name = text_field(row, "id", where)
        if name is None:
            continue
        if name in ids:
            line = ids[name].rpartition(":")[2]
            raise WorkloadError(
                f"{where}: field 'id': expected one question per id, "
                f"got {name!r}, which stands in line {line} too"
            )
        ids[name] = where
    return ids


def _free_id(stem: str, given: Mapping[str, str], derived: Counter[str]) -> str:
    while True:
        derived[stem] += 1
        name = stem if derived[stem] == 1 else f"{stem}-{derived[stem]}"
        if name not in given:
            return name


def _gold_field(row: Mapping[str, Any]) -> str:
    return "answer" if row.get("gold") is None and row.get("answer") is not None else "gold"


def _gold(row: dict[str, Any], where: str) -> str | None:
    gold = text_field(row, _gold_field(row), where, decimals=True)
    return gold.strip() if gold is not None else None


def _tasks(
    rows: Sequence[tuple[str, dict[str, Any]]], default: str | None, assumed: str | None
) -> list[str]:
    """The task of each line: the one it names, or that follows from its gold; else the others'."""
    found: list[str | None] = []
    for where, row in rows:
        task = row.get("task")
        if task not in (None, *TASKS):
            refuse(where, "task", f"one of {', '.join(TASKS)}", task)
        gold = None if task or default else _gold(row, where)
        found.append(task or default or (None if gold is None else guess_task(gold)))
    known = {task for task in found if task is not None}
    if assumed is None and None in found:
        where, _ = rows[found.index(None)]
        expected = f"one of {', '.join(TASKS)}, where there is no gold to guess it from"
        refuse(where, "task", expected, None)
    rest = known.pop() if len(known) == 1 else assumed or ASSUMED_TASK
    return [task or rest for task in found]


def _check_same(question: Question, where: str, first_where: str, first: Question) -> None:
    """Refuse one question with two labels, or in two groups that the split could part."""
    fields = (
        ("gold", _comparable(question), _comparable(first)),
        ("task", question.task, first.task),
        ("group", question.group, first.group),
    )
    for name, value, other in fields:
        if value != other:
            line = first_where.rpartition(":")[2]
            raise WorkloadError(
                f"{where}: field {name!r}: expected {getattr(first, name)!r} as for the same "
                f"question in line {line}, got {getattr(question, name)!r}"
            )


def _comparable(question: Question) -> str | None:
    return None if question.gold is None else normalize(question.task, question.gold)


# --- Prompt ---------------------------------------------------------------------------------------


def render_messages(question: Question, template: str | None) -> tuple[Mapping[str, str], ...]:
    """The chat messages of a question, with the prompt template where it was given as `question`.

    `template` is a text with ``{question}``; None for the default of the question's task.
    """
    if template is not None and "{question}" not in template:
        raise WorkloadError(f"prompt template: expected text with '{{question}}', got {template!r}")
    if not question.templated:
        return question.messages
    # Replaced, not formatted: templates and questions are full of braces of their own.
    text = (template if template is not None else PROMPT_TEMPLATES[question.task]).replace(
        "{question}", question.messages[0]["content"]
    )
    return ({"role": "user", "content": text},)


# --- Split ----------------------------------------------------------------------------------------

_MOST_WITHOUT_TEST = 2000


def parse_split(text: str) -> tuple[float, float, float]:
    """Read ``40/40/20``, fit, calibration and test in percent, as shares that add up to 1."""
    try:
        fit, calibration, test = (float(part) for part in text.split("/"))
    except ValueError:
        fit = calibration = test = -1.0
    total = fit + calibration + test
    if not (fit > 0 and calibration > 0 and test >= 0 and abs(total - 100) < 1e-6):
        raise WorkloadError(
            "split: expected FIT/CALIBRATION/TEST in percent, adding up to 100, the first two "
            f"above 0, as 40/40/20; got {text!r}"
        )
    return fit / 100, calibration / 100, test / 100


def default_split(n_questions: int) -> tuple[float, float, float]:
    """Shares of fit, calibration and test where nobody asks for others.

    Up to 2,000 questions none is kept for test: as calibration questions they are worth more, and
    what a rule saves is measured on calibration questions too.  The fit part is the same in both.
    """
    return (0.4, 0.6, 0.0) if n_questions <= _MOST_WITHOUT_TEST else (0.4, 0.4, 0.2)


def assign_parts(
    group_keys: Sequence[str], *, seed: int, fractions: tuple[float, float, float]
) -> NDArray[np.int8]:
    """Split questions by the hash of their group key.

    A pure function of key and seed: more questions move none that are there, and equal keys share
    a part.  So the parts have the asked sizes only on average.

    `group_keys` are the `Question.group_key` of each question; `fractions`, of fit, calibration and
    test, add up to 1.  Returns an index into `PARTS` for each question, (n_questions,).
    """
    if min(fractions) < 0 or not abs(sum(fractions) - 1) < 1e-9:
        raise WorkloadError(
            f"fractions: expected three shares >= 0 that add up to 1, got {fractions!r}"
        )
    draws = np.array([_uniform(f"{seed}:{key}") for key in group_keys], dtype=np.float64)
    # Where the last shares are 0 rounding must not hand them a question.
    edges = [float(x) if x < 1 - 1e-9 else 1.0 for x in np.cumsum(fractions)[:2]]
    return np.searchsorted(edges, draws, side="right").astype(np.int8)


def _uniform(text: str) -> float:
    """Map a text to [0, 1) with the 53 bits that a float holds."""
    return (int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 11) * 2.0**-53
