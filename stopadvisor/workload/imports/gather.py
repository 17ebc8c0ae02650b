"""From replies to lines of a workload: a question once, with all its recorded traces.

Knows no format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stopadvisor.answers.normal_form import check_gold, guess_task
from stopadvisor.ground.errors import WorkloadError
from stopadvisor.workload.imports.logged import LogContent, Logged
from stopadvisor.workload.lines import check_text, refuse
from stopadvisor.workload.questions import content_key

__all__ = ["Gathered", "gather"]


@dataclass(frozen=True)
class Gathered:
    """Lines of a workload."""

    lines: tuple[dict[str, Any], ...]
    """In the order in which their questions come first."""
    n_gold: int
    """Questions with gold."""
    n_traces: int
    """Recorded replies whose thinking is known."""
    n_cut: int
    """Those of them whose thinking was cut."""
    without_thinking: tuple[str, ...]
    """Places of replies whose thinking is not known."""
    n_untraced: int
    """Questions without any trace whose thinking is known."""
    renamed: tuple[str, ...]
    """One sentence for each id that stood for several questions."""
    left_out: tuple[str, ...]
    """One sentence for each reply, question or gold that was not taken."""


def gather(log: LogContent, *, task: str | None = None, traces_only: bool = False) -> Gathered:
    """Make lines of what was read of a log.

    Parameters
    ----------
    task : str, optional
        Kind of answer of all questions; None: the log's, or guessed from gold.
    traces_only : bool
        Leave out replies without their thinking, and questions that have no other.

    Raises
    ------
    WorkloadError
        There is no question, one has two different golds, groups or tasks, or gold that no answer
        could equal.
    """
    questions: dict[str, dict[str, Any]] = {}
    places: dict[str, str] = {}
    names: dict[str, str] = {}
    counts: Counter[str] = Counter()
    left_out = list(log.left_out)
    without: list[str] = []
    renamed: list[str] = []
    for entry in log.entries:
        _check(entry, task)
        key = content_key(entry.messages)
        line = questions.setdefault(key, {"messages": entry.messages})
        first = places.setdefault(key, entry.where)
        if entry.name is not None and "id" not in line:
            line["id"] = _free_name(entry, names, counts)
            if line["id"] != entry.name:
                other = names[entry.name]
                renamed.append(
                    f"{entry.where}: id {entry.name!r} already names another question "
                    f"({other}), got {line['id']!r}"
                )
        for field in ("gold", "category", "group", "task"):
            value = task if field == "task" and task else getattr(entry, field)
            if value is None or line.setdefault(field, value) == value:
                continue
            if field != "category":
                expected = f"{line[field]!r} as for the same question in {first}"
                refuse(entry.where, field, expected, value)
        if entry.thinking is None and entry.reply is not None:
            if traces_only:
                left_out.append(f"{entry.where}: reply: expected its thinking, got none")
            else:
                without.append(entry.where)
        if entry.thinking is None and (traces_only or entry.reply is None):
            continue
        trace = {"thinking": entry.thinking, "reply": entry.reply}
        trace["finish"] = "stop" if entry.reply is None and entry.ended else None
        line.setdefault("traces", []).append({k: v for k, v in trace.items() if v is not None})
    untraced = [key for key, line in questions.items() if not _is_traced(line)]
    if traces_only:
        for key in untraced:
            del questions[key]
            left_out.append(f"{places[key]}: question: expected a recorded trace, got none")
        untraced = []
    if not questions:
        wanted = "question with a recorded trace" if traces_only else "question"
        raise WorkloadError(f"expected at least one {wanted}, got none")
    lines = tuple(_ordered(line) for line in questions.values())
    traces = [t for line in lines for t in line.get("traces", ()) if "thinking" in t]
    return Gathered(
        lines,
        n_gold=sum("gold" in line for line in lines),
        n_traces=len(traces),
        n_cut=sum(trace.keys() == {"thinking"} for trace in traces),
        without_thinking=tuple(without),
        n_untraced=len(untraced),
        renamed=tuple(renamed),
        left_out=tuple(left_out),
    )


def _is_traced(line: Mapping[str, Any]) -> bool:
    return any("thinking" in trace for trace in line.get("traces", ()))


def _check(entry: Logged, task: str | None) -> None:
    """Refuse what no workload could hold, as long as its place is known."""
    fields = ("gold", "name", "category", "group", "thinking", "reply")
    texts = [getattr(entry, name) for name in fields]
    for text in (*texts, *(value for m in entry.messages for value in m.values())):
        if text is not None:
            check_text(text, entry.where, "text")
    if entry.gold is not None:
        try:
            check_gold(task or entry.task or guess_task(entry.gold), entry.gold)
        except ValueError as error:
            raise WorkloadError(f"{entry.where}: field 'gold': {error}") from None


def _free_name(entry: Logged, names: dict[str, str], counts: Counter[str]) -> str:
    """The log's id, or with a number after it where another question has it."""
    assert entry.name is not None
    name = entry.name
    while name in names:
        counts[entry.name] += 1
        name = f"{entry.name}-{counts[entry.name] + 1}"
    names[name] = entry.where
    return name


def _ordered(line: Mapping[str, Any]) -> dict[str, Any]:
    """Fields in a fixed order; one plain message without a recorded reply is a `question`."""
    messages = line["messages"]
    plain = len(messages) == 1 and messages[0]["role"] == "user" and "traces" not in line
    content = {"question": messages[0]["content"]} if plain else {"messages": messages}
    names = ("id", "gold", "task", "category", "group", "traces")
    rest = {name: line[name] for name in names if name in line}
    return {**{k: rest.pop(k) for k in ("id",) if k in rest}, **content, **rest}
