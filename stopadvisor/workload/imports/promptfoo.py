"""Results of promptfoo, as ``promptfoo eval -o results.json`` writes them.

Gold is the variable that ``--map gold=VARIABLE`` names, else the value of an ``equals`` assertion.
Reasoning stands in promptfoo's output as text: between markers where the provider leaves them,
else behind ``Thinking:`` up to a blank line.  Thinking may contain blank lines, so the text is
split only if it has exactly one.

References
----------
promptfoo, "Output Formats", https://www.promptfoo.dev/docs/configuration/outputs/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stopadvisor.ground.json_text import parse_json
from stopadvisor.workload.imports.logged import (
    LogContent,
    Logged,
    LogOptions,
    chat_messages,
    gold_text,
    named_fields,
    read_json,
)
from stopadvisor.workload.lines import refuse
from stopadvisor.workload.traces import split_thinking

__all__ = ["read_promptfoo"]


_THINKING, _BLANK = "Thinking: ", "\n\n"
"""How promptfoo's own providers write reasoning, and what stands behind it."""


def read_promptfoo(paths: Sequence[Path], log_options: LogOptions) -> LogContent:
    """Read promptfoo's results."""
    entries: list[Logged] = []
    left_out: list[str] = []
    for path in paths:
        results = read_json(path).get("results")
        rows = results.get("results") if isinstance(results, dict) else None
        if not isinstance(rows, list) or not rows:
            refuse(str(path), "results.results", "the results of promptfoo eval -o", rows)
        for number, row in enumerate(rows):
            where = f"{path}: results[{number}]"
            if not isinstance(row, dict):
                refuse(where, "results", "an object", row)
            entries.append(_logged(where, row, log_options, left_out))
    return LogContent(tuple(entries), tuple(left_out))


def _logged(
    where: str, row: Mapping[str, Any], log_options: LogOptions, left_out: list[str]
) -> Logged:
    thinking = reply = None
    response = row.get("response")
    output = response.get("output") if isinstance(response, dict) else None
    if isinstance(output, str) and output:
        thinking, reply = _told_apart(output, log_options)
    else:
        why = row.get("error") or (response or {}).get("error") or "none"
        left_out.append(f"{where}: reply: expected text, got {str(why)[:100]!r}")
    return Logged(
        where,
        _messages(where, row, log_options),
        gold=_gold(where, row, log_options, left_out),
        thinking=thinking,
        reply=reply,
        ended=isinstance(response, dict) and response.get("finishReason") == "stop",
        **named_fields(where, log_options, lambda kind: _variable(where, row, log_options, kind)),
    )


def _told_apart(output: str, log_options: LogOptions) -> tuple[str | None, str | None]:
    """Thinking and reply in an output."""
    thinking, blank, reply = output.removeprefix(_THINKING).partition(_BLANK)
    if output.startswith(_THINKING) and blank and _BLANK not in reply:
        return thinking, reply
    return split_thinking(output, log_options.markers)


def _messages(
    where: str, row: Mapping[str, Any], log_options: LogOptions
) -> tuple[Mapping[str, str], ...]:
    """The prompt as it was sent: a text, or chat messages written as JSON."""
    if "question" in log_options.columns:
        sent = _variable(where, row, log_options, "question")
    else:
        prompt = row.get("prompt")
        sent = prompt.get("raw") if isinstance(prompt, dict) else prompt
    if not isinstance(sent, str) or not sent.strip():
        refuse(where, "prompt.raw", "a prompt", sent)
    try:
        found = parse_json(sent)
    except ValueError:
        found = None
    if isinstance(found, list) and found and isinstance(found[0], dict):
        return chat_messages(found, where, "prompt.raw")
    return ({"role": "user", "content": sent},)


def _gold(
    where: str, row: Mapping[str, Any], log_options: LogOptions, left_out: list[str]
) -> str | None:
    if "gold" in log_options.columns:
        return gold_text(_variable(where, row, log_options, "gold"), where, "gold", left_out)
    case = row.get("testCase")
    checks = case.get("assert") if isinstance(case, dict) else None
    equal = [
        check.get("value")
        for check in (checks if isinstance(checks, list) else [])
        if isinstance(check, dict) and check.get("type") == "equals"
    ]
    # A value may be a template over the variables, which the results do not fill in.
    fixed = [value for value in equal if not (isinstance(value, str) and "{{" in value)]
    return gold_text(fixed, where, "testCase.assert", left_out)


def _variable(where: str, row: Mapping[str, Any], log_options: LogOptions, kind: str) -> Any:
    """A variable of the test case that the user named; None where none is named."""
    name = log_options.columns.get(kind)
    if name is None:
        return None
    found = row.get("vars")
    if not isinstance(found, dict) or name not in found:
        known = ", ".join(found) if isinstance(found, dict) else "none"
        refuse(where, f"vars.{name}", f"a variable of {known}", None)
    return found[name]
