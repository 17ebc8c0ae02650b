"""Details of lighteval: Parquet files of one row per question, as ``--save-details`` writes them.

References
----------
lighteval, "Saving and reading results", https://huggingface.co/docs/lighteval/saving-and-reading-results
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stopadvisor.workload.imports.logged import (
    LETTERS,
    LogContent,
    Logged,
    LogOptions,
    chat_messages,
    gold_text,
    option_lines,
    plain_text,
)
from stopadvisor.workload.imports.parquet import read_parquet
from stopadvisor.workload.lines import refuse
from stopadvisor.workload.traces import split_thinking

__all__ = ["read_lighteval"]


def read_lighteval(paths: Sequence[Path], log_options: LogOptions) -> LogContent:
    """Read lighteval's details."""
    entries: list[Logged] = []
    left_out: list[str] = []
    for path in paths:
        for where, row in read_parquet(path, ("doc", "model_response")):
            entries += _logged(where, row, log_options, left_out)
    return LogContent(tuple(entries), tuple(left_out))


def _logged(
    where: str, row: Mapping[str, Any], log_options: LogOptions, left_out: list[str]
) -> list[Logged]:
    doc, response = row["doc"], row["model_response"]
    for name, value in (("doc", doc), ("model_response", response)):
        if not isinstance(value, dict):
            refuse(where, name, "fields of lighteval's details", value)
    options = _options(doc)
    entry = Logged(
        where,
        _messages(where, doc, response, options),
        gold=_gold(where, doc, options, left_out),
        name=plain_text(doc.get("id"), where, "doc.id"),
        category=plain_text(doc.get("task_name"), where, "doc.task_name"),
    )
    texts = response.get("text") or []
    reasonings = response.get("reasonings") or [None] * len(texts)
    if not isinstance(texts, list) or len(reasonings) != len(texts):
        refuse(where, "model_response.reasonings", f"{len(texts)} texts", reasonings)
    found = []
    for text, reasoning in zip(texts, reasonings, strict=True):
        thinking, reply = (
            (reasoning, text) if reasoning else split_thinking(text, log_options.markers)
        )
        found.append(Logged(**{**vars(entry), "thinking": thinking, "reply": reply}))
    return found or [entry]


def _options(doc: Mapping[str, Any]) -> list[str]:
    """Options that are compared by their likelihood, and so not part of the prompt."""
    choices = [str(choice).strip() for choice in doc.get("choices") or ()]
    shown = all(len(choice) == 1 and choice in LETTERS for choice in choices)
    return [] if shown or "LOGPROBS" not in (doc.get("sampling_methods") or ()) else choices


def _gold(
    where: str, doc: Mapping[str, Any], options: Sequence[str], left_out: list[str]
) -> str | None:
    choices, right = doc.get("choices") or [], doc.get("gold_index")
    found = []
    for index in right if isinstance(right, list) else [right]:
        if type(index) is not int or not 0 <= index < len(choices):
            refuse(where, "doc.gold_index", f"one of {len(choices)} choices", right)
        found.append(LETTERS[index] if options else str(choices[index]).strip())
    return gold_text(found, where, "doc.gold_index", left_out)


def _messages(
    where: str, doc: Mapping[str, Any], response: Mapping[str, Any], options: Sequence[str]
) -> tuple[Mapping[str, str], ...]:
    """The messages that were sent; the query where they were sent as one rendered text."""
    sent = response.get("input")
    if isinstance(sent, list) and sent and isinstance(sent[0], dict):
        return chat_messages(sent, where, "model_response.input")
    query = plain_text(doc.get("query"), where, "doc.query")
    if query is None:
        refuse(where, "doc.query", "text that is not empty", query)
    content = option_lines(query, options) if options else query
    instruction = plain_text(doc.get("instruction"), where, "doc.instruction")
    system = [] if instruction is None else [{"role": "system", "content": instruction}]
    return (*system, {"role": "user", "content": content})
