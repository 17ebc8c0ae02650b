"""Samples of lm-evaluation-harness: ``samples_TASK_DATE.jsonl``, as ``--log_samples`` writes them.

A line is a question under one filter, with every reply to it.  The prompt is taken as it was sent;
where the harness rendered the chat template itself, the sent text is no message any more, and a
field of the question's own document has to be named.

References
----------
lm-evaluation-harness, https://github.com/EleutherAI/lm-evaluation-harness
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stopadvisor.ground.json_text import parse_json
from stopadvisor.workload.imports.logged import (
    LETTERS,
    LogContent,
    Logged,
    LogOptions,
    chat_messages,
    gold_text,
    named_fields,
    option_lines,
    plain_text,
)
from stopadvisor.workload.lines import read_rows, refuse
from stopadvisor.workload.traces import split_thinking

__all__ = ["read_lm_eval"]

_RENDERED = re.compile(r"<\|[^|>\s]+\|>|<｜|\[INST\]|<start_of_turn>")
"""What chat templates write around messages."""
_SOLUTION_END = "####"
"""What GSM8K's solutions have before the answer."""


def read_lm_eval(paths: Sequence[Path], log_options: LogOptions) -> LogContent:
    """Read the samples of lm-evaluation-harness."""
    entries: list[Logged] = []
    left_out: list[str] = []
    for path in paths:
        first: dict[Any, Any] = {}  # of each question the filter whose line is read
        for where, row in read_rows(path)[1]:
            number = row.get("doc_id")
            if isinstance(number, list | dict):
                refuse(where, "doc_id", "a number or text", number)
            if first.setdefault(number, row.get("filter")) == row.get("filter"):
                entries += _logged(where, row, log_options, left_out)
    return LogContent(tuple(entries), tuple(left_out))


def _logged(
    where: str, row: dict[str, Any], log_options: LogOptions, left_out: list[str]
) -> list[Logged]:
    requests = row.get("arguments")
    if not isinstance(requests, dict) or not requests:
        refuse(where, "arguments", "the requests of a sample of lm-eval", requests)
    doc = row.get("doc")
    doc = doc if isinstance(doc, dict) else {}
    options = _options(requests)
    gold = _gold(where, row, doc, options, log_options, left_out)
    entry = Logged(
        where,
        _messages(where, requests, doc, options, log_options),
        gold=gold,
        **named_fields(where, log_options, lambda kind: _field(doc, log_options, kind, where)),
    )
    replies = row.get("resps")
    if options or not isinstance(replies, list) or not replies:
        return [entry]  # options are compared by their likelihood: there is no reply
    texts = replies[0] if isinstance(replies[0], list) else replies
    found = []
    for text in texts:
        if not isinstance(text, str):
            refuse(where, "resps", "texts", text)
        thinking, reply = split_thinking(text, log_options.markers)
        found.append(Logged(**{**vars(entry), "thinking": thinking, "reply": reply}))
    return found


def _options(requests: Mapping[str, Any]) -> list[str]:
    """The options of a question whose requests are one for each."""
    texts = [r.get("arg_1") for r in requests.values() if isinstance(r, dict)]
    return [text for text in texts if isinstance(text, str)] if len(texts) > 1 else []


def _gold(
    where: str,
    row: Mapping[str, Any],
    doc: Mapping[str, Any],
    options: Sequence[str],
    log_options: LogOptions,
    left_out: list[str],
) -> str | None:
    if "gold" in log_options.columns:
        return gold_text(_field(doc, log_options, "gold", where), where, "gold", left_out)
    gold = gold_text(row.get("target"), where, "target", left_out)
    if gold is not None and options:
        if not gold.isdecimal() or int(gold) >= len(options):
            texts = [option.strip() for option in options]
            if gold.strip() not in texts:
                refuse(where, "target", f"one of {len(options)} options", gold)
            gold = str(texts.index(gold.strip()))
        return LETTERS[int(gold)]
    if gold is not None and _SOLUTION_END in gold:
        return gold.rpartition(_SOLUTION_END)[2].strip().replace(",", "")
    return gold


def _messages(
    where: str,
    requests: Mapping[str, Any],
    doc: Mapping[str, Any],
    options: Sequence[str],
    log_options: LogOptions,
) -> tuple[Mapping[str, str], ...]:
    """The prompt as it was sent, or the field that was named."""
    if "question" in log_options.columns:
        text = plain_text(_field(doc, log_options, "question", where), where, "question")
        if text is None:
            refuse(where, f"doc.{log_options.columns['question']}", "text that is not empty", text)
        return _user(text, options)
    request = next(iter(requests.values()))
    sent = request.get("arg_0") if isinstance(request, dict) else None
    if isinstance(sent, list) and len(sent) == 1:  # a chat endpoint's messages, as text
        sent = sent[0]
    if not isinstance(sent, str) or not sent.strip():
        refuse(where, "arguments", "a prompt", sent)
    if sent.lstrip().startswith('[{"role"'):
        try:
            return chat_messages(parse_json(sent), where, "arguments")
        except ValueError as error:
            refuse(where, "arguments", f"chat messages ({error})", sent)
    if _RENDERED.search(sent):
        fields = ", ".join(map(str, doc)) or "none"
        refuse(
            where,
            "arguments",
            "a prompt without the chat template's own marks; name the question with --map "
            f"question=FIELD of the sample's doc ({fields})",
            sent,
        )
    return _user(sent, options)


def _user(text: str, options: Sequence[str]) -> tuple[Mapping[str, str], ...]:
    return ({"role": "user", "content": option_lines(text, options) if options else text},)


def _field(doc: Mapping[str, Any], log_options: LogOptions, kind: str, where: str) -> Any:
    """A field of the question's document that the user named; None where none is named."""
    name = log_options.columns.get(kind)
    if name is None:
        return None
    if name not in doc:
        refuse(where, f"doc.{name}", f"a field of {', '.join(map(str, doc))}", None)
    return doc[name]
