"""Workloads: read and check a file of questions, fill in the prompt, and split by question.

A workload is a JSONL file with one question a line.  A malformed line is never skipped: it is an
error that names file, line and field.  Questions are identified by the hash of their content, so
neither gold nor place in the file moves one to another part of the split.
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
from stopadvisor.workload.lines import free_name, messages_field, read_rows, refuse, text_field

__all__ = [
    "ASSUMED_TASK", "PARTS", "SMALLEST_PARTS", "TASKS", "PartCounts", "Question", "RecordedTrace",
    "Workload", "assign_parts", "content_key", "default_split", "name_key", "parse_split",
    "read_workload", "render_messages", "require_usable_gold",
]  # fmt: skip

PARTS = ("fit", "calibration", "test")


@dataclass(frozen=True)
class PartCounts:
    """Questions in each part of the split."""

    fit: int
    """Questions that choose and fit the rule."""
    calibration: int
    """Questions that stay closed until `calibrate` opens them."""
    test: int
    """Questions that measure a finished policy."""


ASSUMED_TASK = "math"
"""Task of questions with neither task nor gold: it handles numbers, formulas and words."""
SMALLEST_PARTS = {"fit": 20, "calibration": 10, "test": 10}
"""Fewest distinct questions in each part."""


@dataclass(frozen=True)
class RecordedTrace:
    """Recorded thinking, and the reply after it."""

    where: str
    """``FILE:LINE``."""
    thinking: str
    reply: str | None
    """None if thinking was cut, or the model ended without a reply."""
    ended: bool = False
    """Whether the model ended by itself, even if it did not close its thinking."""


@dataclass(frozen=True)
class Question:
    """One question of a workload."""

    id: str
    """Name in the run's files; unique in the workload."""
    key: str
    """SHA-256 (hex) of the messages alone, so that relabelling moves no question."""
    messages: tuple[Mapping[str, str], ...]
    """Chat messages before the prompt template; a `question` is one user message."""
    gold: str | None
    """The right answer; None if it is unknown."""
    task: str
    """Kind of answer, one of `TASKS`."""
    category: str | None = None
    """For display only."""
    group: str | None = None
    """Questions of a group share a part of the split."""
    templated: bool = True
    """Whether the prompt template applies: to a `question`, not to `messages`."""
    traces: tuple[RecordedTrace, ...] = ()
    """Recorded traces; empty if the model is to think."""

    @property
    def text(self) -> str:
        """The last message."""
        return self.messages[-1]["content"]

    @property
    def group_key(self) -> str:
        """The key by which the split is drawn: the group, otherwise the content."""
        return self.group or self.key


@dataclass(frozen=True)
class Workload:
    """All questions of a file, in order."""

    path: Path
    """The file."""
    questions: tuple[Question, ...]
    """At least one."""
    sha256: str
    """SHA-256 (hex) of the file's bytes."""
    guessed_tasks: Mapping[str, int]
    """Number of questions without a task, by the task guessed from their gold."""
    assumed_task: str | None = None
    """Task of the questions with neither task nor gold; None if there are none."""

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

    A line has either `question` (text) or `messages` (chat messages, the last from the user), and
    optionally `gold`, or without it `answer` (text or number), `id`, `task`, `category` and
    `group`.  ``null`` counts as absent; other fields are ignored.  The default `id` is the first 12
    digits of the key, to which repeated questions append ``-2``, ``-3`` in the order of the file.

    Lines without a task get `default_task`, otherwise one guessed from their gold.  Lines with
    neither get the task that all others share, otherwise `assumed`; if that is None, they are
    refused.

    Raises
    ------
    WorkloadError
        The file cannot be read or has no question; or a line is malformed, repeats an `id`, or
        repeats a question with another gold, task or group.  The message gives ``FILE:LINE`` and
        the field.
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
        name = text_field(row, "id", where) or free_name(key[:12], ids, derived)
        gold = _gold(row, where)
        if row.get("task") is None and default_task is None:
            if gold is None:
                assumed = task
            else:
                guessed[task] += 1
        if gold is not None:
            require_usable_gold(task, gold, where, _gold_field(row))
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


def require_usable_gold(task: str, gold: str, where: str, field: str = "gold") -> None:
    """Raise the `WorkloadError` for gold that no answer of its task could equal."""
    try:
        check_gold(task, gold)
    except ValueError as error:
        raise WorkloadError(f"{where}: field {field!r}: {error}") from None


def content_key(messages: Sequence[Mapping[str, str]]) -> str:
    """Hash a question's messages without prompt template: its identity in every file."""
    content = json.dumps(messages, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()


def name_key(name: str) -> str:
    """Hash a question's name, to stand for its key where the content is unknown."""
    return hashlib.sha256(f"id:{name}".encode("utf-8", "backslashreplace")).hexdigest()


def _given_ids(rows: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, str]:
    """Where each given id is; collected before any id is derived."""
    ids: dict[str, str] = {}
    for where, row in rows:
        name = text_field(row, "id", where)
        if name is None:
            continue
        if name in ids:
            line = ids[name].rpartition(":")[2]
            raise WorkloadError(
                f"{where}: field 'id': expected one question per id, "
                f"got {name!r}, which line {line} has too"
            )
        ids[name] = where
    return ids


def _gold_field(row: Mapping[str, Any]) -> str:
    return "answer" if row.get("gold") is None and row.get("answer") is not None else "gold"


def _gold(row: dict[str, Any], where: str) -> str | None:
    gold = text_field(row, _gold_field(row), where, decimals=True)
    return gold.strip() if gold is not None else None


def _tasks(
    rows: Sequence[tuple[str, dict[str, Any]]], default: str | None, assumed: str | None
) -> list[str]:
    """The task of each line: its own, guessed from its gold, or the one that all others share."""
    tasks: list[str | None] = []
    for where, row in rows:
        task = row.get("task")
        if task not in (None, *TASKS):
            refuse(where, "task", f"one of {', '.join(TASKS)}", task)
        gold = None if task or default else _gold(row, where)
        tasks.append(task or default or (None if gold is None else guess_task(gold)))
    known = {task for task in tasks if task is not None}
    if assumed is None and None in tasks:
        where, _ = rows[tasks.index(None)]
        expected = f"one of {', '.join(TASKS)}, where there is no gold to guess it from"
        refuse(where, "task", expected, None)
    rest = known.pop() if len(known) == 1 else assumed or ASSUMED_TASK
    return [task or rest for task in tasks]


def _check_same(question: Question, where: str, first_where: str, first: Question) -> None:
    """Refuse a repeated question with another gold, task or group."""
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
    """The chat messages of a question, with the prompt template if it was given as `question`.

    `template` is a text with ``{question}``; None is the default of the question's task.
    """
    if template is not None and "{question}" not in template:
        raise WorkloadError(f"prompt template: expected text with '{{question}}', got {template!r}")
    if not question.templated:
        return question.messages
    # Not str.format: templates and questions contain other braces.
    text = (template if template is not None else PROMPT_TEMPLATES[question.task]).replace(
        "{question}", question.messages[0]["content"]
    )
    return ({"role": "user", "content": text},)


# --- Split ----------------------------------------------------------------------------------------

_MOST_WITHOUT_TEST = 2000


def parse_split(text: str) -> tuple[float, float, float]:
    """Parse ``40/40/20``, fit, calibration and test in percent, into shares that add up to 1."""
    try:
        fit, calibration, test = (float(part) for part in text.split("/"))
    except ValueError:
        fit = calibration = test = -1.0
    total = fit + calibration + test
    if not (fit > 0 and calibration > 0 and test >= 0 and abs(total - 100) < 1e-6):
        raise WorkloadError(
            "split: expected FIT/CALIBRATION/TEST in percent, adding up to 100, the first two "
            f"above 0, such as 40/40/20; got {text!r}"
        )
    return fit / 100, calibration / 100, test / 100


def default_split(n_questions: int) -> tuple[float, float, float]:
    """Default shares of fit, calibration and test.

    Up to 2,000 questions there is no test part: they are worth more in calibration, which measures
    savings too.  The fit part is always the same.
    """
    return (0.4, 0.6, 0.0) if n_questions <= _MOST_WITHOUT_TEST else (0.4, 0.4, 0.2)


def assign_parts(
    group_keys: Sequence[str], *, seed: int, fractions: tuple[float, float, float]
) -> NDArray[np.int8]:
    """Split questions by the hash of their group key.

    A pure function of key and seed: adding questions moves none, and equal keys share a part.
    Parts have the requested sizes only on average.

    `group_keys` holds each question's `Question.group_key`; `fractions`, of fit, calibration and
    test, add up to 1.  Returns an index into `PARTS` for each question, (n_questions,).
    """
    if min(fractions) < 0 or not abs(sum(fractions) - 1) < 1e-9:
        raise WorkloadError(
            f"fractions: expected three shares >= 0 that add up to 1, got {fractions!r}"
        )
    draws = np.array([_uniform(f"{seed}:{key}") for key in group_keys], dtype=np.float64)
    # Rounding must not give a question to a last part whose share is 0.
    edges = [float(x) if x < 1 - 1e-9 else 1.0 for x in np.cumsum(fractions)[:2]]
    return np.searchsorted(edges, draws, side="right").astype(np.int8)


def _uniform(text: str) -> float:
    """Map a text to [0, 1), using the 53 bits of a float."""
    return (int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 11) * 2.0**-53
