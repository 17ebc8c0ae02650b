"""Batches of chat completions in OpenAI's format, as OpenAI's service and vLLM write them.

The output file holds replies, the input file the questions; ``custom_id`` joins them.  Reasoning is
kept where the server returns it (``reasoning_content`` or ``reasoning``, as vLLM and others do), or
between markers in the text.

References
----------
OpenAI, "Batch API", https://platform.openai.com/docs/guides/batch
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stopadvisor.ground.errors import WorkloadError
from stopadvisor.workload.imports.logged import LogContent, Logged, LogOptions, chat_messages
from stopadvisor.workload.lines import read_rows, refuse, text_field
from stopadvisor.workload.traces import message_reply

__all__ = ["read_openai_batch"]


def read_openai_batch(paths: Sequence[Path], log_options: LogOptions) -> LogContent:
    """Read a batch's files, output and input in any order."""
    questions: dict[str, tuple[str, Mapping[str, Any]]] = {}
    replies: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for path in paths:
        for where, row in read_rows(path)[1]:
            name = text_field(row, "custom_id", where)
            if name is None:
                refuse(where, "custom_id", "the request's id", None)
            known = replies if "response" in row else questions
            if name in known:
                refuse(where, "custom_id", f"one not yet in {known[name][0]}", name)
            known[name] = (where, row)
    return _joined(questions, replies, log_options, paths)


def _joined(
    questions: Mapping[str, tuple[str, Mapping[str, Any]]],
    replies: Mapping[str, tuple[str, Mapping[str, Any]]],
    log_options: LogOptions,
    paths: Sequence[Path],
) -> LogContent:
    if not questions:
        shown = ", ".join(map(str, paths))
        raise WorkloadError(
            f"{shown}: expected the batch's input file beside its output file, which holds no "
            "questions, got none"
        )
    for name, (where, _) in replies.items():
        if name not in questions:
            refuse(where, "custom_id", "an id of the input file", name)
    entries: list[Logged] = []
    left_out: list[str] = []
    for name, (asked_at, request) in questions.items():
        body = request.get("body")
        if not isinstance(body, dict) or body.get("messages") is None:
            refuse(asked_at, "body.messages", "the messages of a chat completion", body)
        messages = chat_messages(body["messages"], asked_at, "body.messages")
        if name not in replies:
            left_out.append(f"{asked_at}: reply: expected one, got none for {name!r}")
            entries.append(Logged(asked_at, messages, name=name))
            continue
        where, row = replies[name]
        for choice in _choices(where, row, left_out) or [{}]:
            thinking, reply = message_reply(choice.get("message", {}), where, log_options.markers)
            ended = choice.get("finish_reason") == "stop"
            entries.append(Logged(where, messages, None, name, None, thinking, reply, ended))
    return LogContent(tuple(entries), tuple(left_out))


def _choices(where: str, row: Mapping[str, Any], left_out: list[str]) -> list[dict[str, Any]]:
    """The choices of a response; none of one that failed, which is noted."""
    response = row.get("response")
    status = response.get("status_code") if isinstance(response, dict) else None
    body = response.get("body") if isinstance(response, dict) else None
    if row.get("error") is not None or not isinstance(body, dict) or status not in (200, None):
        why = row.get("error") or (body or {}).get("error") or f"status {status}"
        left_out.append(f"{where}: reply: expected one, got the error {str(why)[:100]!r}")
        return []
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        refuse(where, "response.body.choices", "the choices of a chat completion", choices)
    found = []
    for index, choice in enumerate(choices):
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(message, dict):
            refuse(where, f"response.body.choices[{index}].message", "a message", message)
        found.append(choice)
    return found
