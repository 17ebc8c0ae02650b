"""Recorded traces of a workload's questions: thinking, and the reply after it.

A line gives its question as a workload does, and one trace as the final assistant message in
`messages`, or several as `traces`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stopadvisor.ground.constants import KNOWN_MARKERS
from stopadvisor.ground.errors import WorkloadError
from stopadvisor.workload.lines import check_text, is_reply, messages_field, read_rows, refuse
from stopadvisor.workload.questions import RecordedTrace, Workload, content_key

__all__ = ["Markers", "RecordedTraces", "read_traces", "split_thinking", "with_traces"]

REASONING = ("reasoning_content", "reasoning")
"""Fields for thinking in a server's message: vLLM's, and that of OpenRouter and newer vLLM."""
Markers = Sequence[tuple[str, str]]
"""Pairs of opener and closer around thinking inside a reply's text."""


@dataclass(frozen=True)
class RecordedTraces:
    """The recorded traces of a file."""

    path: Path
    sha256: str
    """SHA-256 (hex) of the file's bytes."""
    by_key: Mapping[str, tuple[RecordedTrace, ...]] = field(repr=False)
    """By `Question.key`, in the order of the file."""

    def describe(self) -> dict[str, Any]:
        """The file as a run's manifest describes it."""
        return {"path": str(self.path), "sha256": self.sha256}


def read_traces(path: Path) -> RecordedTraces:
    """Read and check recorded traces.

    A line has `question` or `messages` as in a workload.  Its traces are the list `traces`, each
    with `thinking` and `reply`, or the final assistant message in `messages`, whose thinking has
    its own field (`reasoning_content` or `reasoning`) or stands between thinking tags.  A trace
    without a reply was cut while thinking or, with `finish` ``stop``, ended without closing its
    thinking.  Lines may have no trace.

    Raises
    ------
    WorkloadError
        The file cannot be read or has no trace, or a trace's thinking is missing or cannot be told
        from its reply; the message gives ``FILE:LINE``.
    """
    data, rows = read_rows(path)
    traces_of: dict[str, list[RecordedTrace]] = {}
    for where, row in rows:
        key = content_key(messages_field(row, where)[0])
        traces_of.setdefault(key, []).extend(_traces(row, where))
    if not any(traces_of.values()):
        raise WorkloadError(f"{path}: expected recorded traces, got none in {len(rows)} lines")
    by_key = {key: tuple(traces) for key, traces in traces_of.items()}
    return RecordedTraces(path, hashlib.sha256(data).hexdigest(), by_key)


def with_traces(workload: Workload, recorded: RecordedTraces, samples: int) -> Workload:
    """The workload, with a recorded trace for each of a question's `samples`."""
    questions = []
    for line, question in enumerate(workload.questions, start=1):  # a line holds one question
        traces = recorded.by_key.get(question.key, ())
        if len(traces) < samples:
            wanted = "a recorded trace" if samples == 1 else f"{samples} recorded traces"
            raise WorkloadError(
                f"{workload.path}:{line}: question {question.id!r}: expected {wanted} in "
                f"{recorded.path}, got {len(traces)}"
            )
        questions.append(replace(question, traces=traces))
    return replace(workload, questions=tuple(questions))


def _traces(row: Mapping[str, Any], where: str) -> list[RecordedTrace]:
    listed, messages = row.get("traces"), row.get("messages")
    turn = messages[-1] if messages and is_reply(messages[-1]) else None
    if listed is not None and turn is not None:
        refuse(where, "traces", "only one of 'traces' and an assistant's turn", "both", shown=True)
    if turn is not None:
        return [_trace(*_message_reply(turn, where), where, "messages[-1]")]
    if listed is None:
        return []
    if not isinstance(listed, list):
        refuse(where, "traces", "a list of traces", listed)
    traces = []
    for number, trace in enumerate(listed):
        name = f"traces[{number}]"
        if not isinstance(trace, dict):
            refuse(where, name, "an object with 'thinking' and 'reply'", trace)
        for part in ("thinking", "reply"):
            value = trace.get(part)
            if value is not None and not isinstance(value, str):
                refuse(where, f"{name}.{part}", "text", value)
        finish = trace.get("finish")
        if finish not in (None, "stop", "length"):
            refuse(where, f"{name}.finish", "'stop' or 'length'", finish)
        parts = trace.get("thinking"), trace.get("reply")
        traces.append(_trace(*parts, where, name, ended=finish == "stop"))
    return traces


def _trace(
    thinking: str | None, reply: str | None, where: str, name: str, *, ended: bool = False
) -> RecordedTrace:
    if thinking is None:
        got = "nothing" if reply is None else "a reply alone"
        refuse(where, name, "thinking that can be separated from the reply", got, shown=True)
    for text in (thinking, reply or ""):
        check_text(text, where, name)
    # Taken for a wrong answer, a blank reply would hide that stopping loses a right one.
    return RecordedTrace(where, thinking, reply if reply and reply.strip() else None, ended)


# --- Thinking and reply ---------------------------------------------------------------------------


def split_thinking(text: str, markers: Markers) -> tuple[str | None, str | None]:
    """Split a text into thinking and reply, by the first pair of markers that occurs.

    Without an opener, which the chat template may have put into the prompt, everything before the
    closer is thinking.  Without a closer there is no reply; without either, no thinking.

    Examples
    --------
    >>> split_thinking("<think>6 and 1</think>7", [("<think>", "</think>")])
    ('6 and 1', '7')
    >>> split_thinking("7", [("<think>", "</think>")])
    (None, '7')
    """
    for opener, closer in markers:
        begun = text.lstrip().startswith(opener)
        if not begun and closer not in text:
            continue
        thinking, closed, reply = text.partition(closer)
        if begun:
            thinking = thinking.lstrip()[len(opener) :]
        return thinking, reply if closed else None
    return None, text


def _message_reply(message: Mapping[str, Any], where: str) -> tuple[str | None, str | None]:
    """Thinking and reply of an assistant message in the chat completions format.

    Thinking is in one of the fields that servers use, or between markers in the content.
    """
    fields = {name: message.get(name) for name in (*REASONING, "content")}
    for name, value in fields.items():
        if value is not None and not isinstance(value, str):
            refuse(where, name, "text", value)
    content = fields.pop("content") or None
    for thinking in fields.values():
        if thinking:
            return thinking, content
    return split_thinking(content, KNOWN_MARKERS) if content else (None, None)
