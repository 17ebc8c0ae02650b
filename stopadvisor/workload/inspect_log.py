"""Read logs of inspect_ai: ``.eval`` archives, or JSON.

An ``.eval`` file is a zip archive of JSON documents, one per sample and epoch, compressed with
Zstandard.  Reasoning has its own content parts (``ContentReasoning``) or stands between markers in
the text; what the provider redacted is lost.

References
----------
inspect_ai, "Eval Logs", https://inspect.aisi.org.uk/eval-logs.html
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from stopadvisor.ground.errors import WorkloadError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.workload.lines import is_reply, open_file, option_lines, refuse
from stopadvisor.workload.logged import MOST_BYTES, LogContent, Logged, gold_text, plain_text
from stopadvisor.workload.traces import Markers, split_thinking

__all__ = ["read_inspect"]

MOST_OF_A_SAMPLE = 2**26
"""Limit on one unpacked sample of an archive, in bytes; samples are read one by one."""
MOST_UNPACKED = 2**34
"""Limit on all unpacked samples of an archive, in bytes; most of them are not kept."""
_MOST_VALUES = 2**23
"""Limit on a document's values: twenty million empty objects take 60 MB as JSON, 2 GB parsed."""
_ATTACHMENT = "attachment://"
"""Prefix of references to long texts in a sample's ``attachments``."""


def read_inspect(paths: Sequence[Path], markers: Markers) -> LogContent:
    """Read inspect_ai's logs."""
    entries: list[Logged] = []
    left_out: list[str] = []
    kept = 0
    for path in paths:
        for where, sample in _samples(path):
            entry = _logged(where, sample, markers, left_out)
            kept += _text_length(entry)
            if kept > MOST_BYTES:
                raise WorkloadError(
                    f"{where}: expected at most {MOST_BYTES >> 20} MB of questions and replies, "
                    "got more; import the logs in parts"
                )
            entries.append(entry)
    return LogContent(tuple(entries), tuple(left_out))


def _text_length(entry: Logged) -> int:
    texts = (entry.thinking, entry.reply, entry.gold, *(m["content"] for m in entry.messages))
    return sum(len(text) for text in texts if text is not None)


# --- Files ----------------------------------------------------------------------------------------


def _samples(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each sample of a log, with its place."""
    with open_file(path) as file:
        packed = file.peek(2)[:2] == b"PK"
        data = b"" if packed else file.read(MOST_BYTES + 1)
    if packed:
        yield from _unpacked(path)
        return
    samples = _load_json(data, str(path)).get("samples")
    if not isinstance(samples, list) or not samples:
        refuse(str(path), "samples", "the samples of a finished log", samples)
    for number, sample in enumerate(samples):
        where = f"{path}: samples[{number}]"
        if not isinstance(sample, dict):
            raise WorkloadError(f"{where}: expected an object, got {type(sample).__name__}")
        yield where, sample


def _unpacked(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    unpacked = 0
    try:
        with _zipfile().ZipFile(path) as archive:
            members = [m for m in archive.infolist() if m.filename.startswith("samples/")]
            if not members:
                raise WorkloadError(f"{path}: expected samples in the archive, found none")
            for member in members:
                where = f"{path}: {' '.join(member.filename.split())}"
                with archive.open(member) as packed:
                    # Bounded, whatever size the archive declares.
                    data = packed.read(MOST_OF_A_SAMPLE + 1)
                unpacked += len(data)
                if len(data) > MOST_OF_A_SAMPLE:
                    allowed = f"{MOST_OF_A_SAMPLE >> 20} MB"
                    raise WorkloadError(f"{where}: expected at most {allowed} of JSON, got more")
                if unpacked > MOST_UNPACKED:
                    allowed = f"{MOST_UNPACKED >> 30} GB"
                    raise WorkloadError(f"{where}: expected at most {allowed} of samples, got more")
                yield where, _load_json(data, where)
    except WorkloadError:
        raise
    except Exception as error:  # archives and decompressors raise a dozen kinds of errors
        reason = " ".join(str(error).split())[:200]
        raise WorkloadError(f"{path}: expected an .eval log, got a broken one: {reason}") from error


def _load_json(data: bytes, where: str) -> dict[str, Any]:
    """Parse a JSON object."""
    if len(data) > MOST_BYTES:
        raise WorkloadError(f"{where}: expected at most {MOST_BYTES >> 20} MB of JSON, got more")
    # An upper bound: it counts brackets and commas inside texts too.
    if sum(map(data.count, (b"{", b"[", b","))) > _MOST_VALUES:
        raise WorkloadError(f"{where}: expected at most {_MOST_VALUES:,} values in a document")
    try:
        document = parse_json(data)
    except ValueError as error:
        raise WorkloadError(f"{where}: expected one JSON object, got: {error}") from None
    if not isinstance(document, dict):
        raise WorkloadError(f"{where}: expected one JSON object, got {type(document).__name__}")
    return document


def _zipfile() -> ModuleType:
    """Python's zipfile, which reads Zstandard from 3.14 on, or its backport."""
    if sys.version_info >= (3, 14):
        import zipfile

        return zipfile
    try:
        from backports.zstd import zipfile
    except ImportError as error:
        raise WorkloadError(
            ".eval logs are packed with Zstandard: pip install 'stopadvisor[import]'"
        ) from error
    return zipfile


# --- Samples --------------------------------------------------------------------------------------


def _logged(where: str, sample: dict[str, Any], markers: Markers, left_out: list[str]) -> Logged:
    attachments = sample.get("attachments")
    known = attachments if isinstance(attachments, dict) else {}
    messages = sample.get("messages")
    messages = [_resolve(m, known) for m in messages] if isinstance(messages, list) else []
    answered = bool(messages) and is_reply(messages[-1])
    thinking = reply = None
    if answered:
        thinking, reply = _reply(messages.pop(), where, markers)
        if thinking is None and reply is None:
            left_out.append(f"{where}: reply: expected text, got none")
    else:
        left_out.append(f"{where}: reply: expected one, got {_error(sample)}")
    raw_output = sample.get("output")
    output: Mapping[str, Any] = raw_output if isinstance(raw_output, dict) else {}
    epoch, usage = sample.get("epoch"), output.get("usage")
    options = sample.get("choices")
    gold = gold_text(sample.get("target"), where, "target", left_out)
    return Logged(
        where,
        _asked_messages(_text(sample.get("input"), known), messages, options, where),
        gold=gold,
        name=plain_text(sample.get("id"), where, "id"),
        thinking=thinking,
        reply=reply,
        ended=_stop_reason(output) == "stop",
        epoch=epoch if type(epoch) is int else 1,
        usage=usage if isinstance(usage, dict) else None,
    )


def _stop_reason(output: Mapping[str, Any]) -> Any:
    """Why the model ended, as inspect_ai names it; None if it does not say."""
    choices = output.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first.get("stop_reason") if isinstance(first, dict) else None


def _asked_messages(
    given: Any, messages: list[Any], options: Any, where: str
) -> tuple[dict[str, str], ...]:
    """The conversation before the reply, or the input of a sample that was never asked."""
    if messages:
        return _chat_messages(messages, where, "messages")
    if isinstance(given, list):
        return _chat_messages(given, where, "input")
    if not isinstance(given, str) or not given.strip():
        refuse(where, "input", "text or chat messages", given)
    if isinstance(options, list) and options:
        given = option_lines(given, [str(option) for option in options])
    return ({"role": "user", "content": given},)


def _chat_messages(value: Any, where: str, name: str) -> tuple[dict[str, str], ...]:
    """Chat messages reduced to role and text."""
    if not isinstance(value, list) or not value:
        refuse(where, name, "a list of chat messages that is not empty", value)
    plain = []
    for index, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            refuse(where, f"{name}[{index}]", "an object with 'role' and 'content'", message)
        content = message.get("content")
        if isinstance(content, list):
            content = _joined(content, where, f"{name}[{index}].content")
        if not isinstance(content, str) or not content.strip():
            refuse(where, f"{name}[{index}].content", "text that is not empty", content)
        plain.append({"role": message["role"], "content": content})
    return tuple(plain)


def _joined(parts: list[Any], where: str, name: str) -> str:
    texts: list[str] = []
    for index, part in enumerate(parts):
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            refuse(where, f"{name}[{index}]", "text", part)
        texts.append(text)
    return "\n".join(texts)


def _reply(message: dict[str, Any], where: str, markers: Markers) -> tuple[str | None, str | None]:
    """Thinking and reply of an assistant message; both None if it is empty."""
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        refuse(where, "messages[-1].content", "text or parts of it", content)
    reasoning = [part for part in content if part.get("type") == "reasoning"]
    text = "".join(str(part.get("text", "")) for part in content if part.get("type") == "text")
    if not reasoning:
        return split_thinking(text, markers) if text else (None, None)
    if any(part.get("redacted") for part in reasoning):
        return None, text or None
    return "\n".join(str(part.get("reasoning", "")) for part in reasoning), text or None


def _error(sample: dict[str, Any]) -> str:
    error = sample.get("error")
    text = str(error.get("message", "")) if isinstance(error, dict) else ""
    return f"the error {' '.join(text.split())[:100]!r}" if text else "no assistant's message"


def _resolve(message: Any, attachments: Mapping[str, Any]) -> Any:
    """A message with its attachments filled in."""
    if not isinstance(message, dict):
        return message
    content = message.get("content")
    if isinstance(content, list):
        content = [
            {k: _text(v, attachments) for k, v in p.items()} if isinstance(p, dict) else p
            for p in content
        ]
    return {**message, "content": _text(content, attachments)}


def _text(value: Any, attachments: Mapping[str, Any]) -> Any:
    if isinstance(value, str) and value.startswith(_ATTACHMENT):
        return attachments.get(value.removeprefix(_ATTACHMENT), value)
    return value
