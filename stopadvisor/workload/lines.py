"""Read the lines of a JSONL file and check their fields.

Every error gives ``FILE:LINE``, the field, what was expected and what was there.
"""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from io import BufferedReader
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NoReturn

from stopadvisor.ground.errors import WorkloadError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.ground.progress import tracked

__all__ = [
    "check_text", "decoded", "free_name", "is_reply", "messages_field", "open_file",
    "option_lines", "read_rows", "refuse", "text_field",
]  # fmt: skip

_ROLES = ("system", "developer", "user", "assistant", "tool")


def read_rows(path: Path) -> tuple[bytes, list[tuple[str, dict[str, Any]]]]:
    """Read a JSONL file.

    Returns the file's bytes, and for each line its ``FILE:LINE`` and object.  Numbers with a point
    become `Decimal`, so any float is NaN or infinite.

    Raises
    ------
    WorkloadError
        The file cannot be read or is empty; or a line is blank or not one JSON object in UTF-8.
    """
    with open_file(path) as file:
        data = file.read()
    return data, [
        (f"{path}:{number}", _parse(line, f"{path}:{number}", number))
        for number, line in enumerate(tracked(f"reading {path.name}", _lines(data, path)), start=1)
    ]


@contextmanager
def open_file(path: Path) -> Iterator[BufferedReader]:
    """Open a file for the block that reads it; raises WorkloadError if opening or reading fails."""
    try:
        with path.open("rb") as file:
            yield file
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = getattr(error, "strerror", None) or error
        raise WorkloadError(f"{path}: expected a readable file, got: {reason}") from None


def decoded(data: bytes, path: Path) -> str:
    """Decode the text of a file; raises WorkloadError, with the line, if it is not UTF-8."""
    body = data.removeprefix(codecs.BOM_UTF8)
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        number = body.count(b"\n", 0, error.start) + 1
        raise WorkloadError(
            f"{path}:{number}: expected UTF-8 text, "
            f"got the byte 0x{body[error.start]:02x} ({error.reason})"
        ) from None


def _lines(data: bytes, path: Path) -> list[str]:
    text = decoded(data, path)
    if not text.strip():
        raise WorkloadError(f"{path}: expected at least one question, got an empty file")
    # Split at \n alone: questions may contain other line separators.
    return text.rstrip().split("\n")


class _RepeatedFieldError(ValueError):
    pass


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise _RepeatedFieldError(name)
    return fields


def _parse(line: str, where: str, number: int) -> dict[str, Any]:
    if not line.strip():
        raise WorkloadError(f"{where}: expected a question, got a blank line")
    try:
        # Decimal: gold keeps its digits as written.
        row = parse_json(line, object_pairs_hook=_object, parse_float=Decimal)
    except _RepeatedFieldError as error:
        raise WorkloadError(f"{where}: field {str(error)!r}: expected once, got twice") from None
    except json.JSONDecodeError as error:
        hint = ""
        if number == 1 and line.lstrip().startswith("["):
            hint = "; a JSON array becomes JSONL with: jq -c '.[]'"
        raise WorkloadError(
            f"{where}: expected one JSON object, got broken JSON "
            f"({error.msg}, column {error.colno}){hint}"
        ) from None
    except ValueError as error:
        raise WorkloadError(f"{where}: expected one JSON object, got: {error}") from None
    if not isinstance(row, dict):
        raise WorkloadError(f"{where}: expected one JSON object, got {_shown(row)}")
    return row


# --- Fields ---------------------------------------------------------------------------------------


def refuse(where: str, field: str, expected: str, got: Any, *, shown: bool = False) -> NoReturn:
    """Raise the `WorkloadError` for a field at `where`, ``FILE:LINE``.

    `got` is the field's value or, with `shown`, a description that is printed as it is.
    """
    text = got if shown else _shown(got)
    raise WorkloadError(f"{where}: field {field!r}: expected {expected}, got {text}")


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def text_field(row: dict[str, Any], name: str, where: str, *, decimals: bool = False) -> str | None:
    """The text of an optional field; None if it is absent.

    Whole numbers become text and, with `decimals`, other numbers too.
    """
    value = row.get(name)
    if value is None:
        return None
    if type(value) is int or (decimals and isinstance(value, Decimal)):  # a bool is refused
        return str(value)
    if not isinstance(value, str) or not value.strip():
        kind = "number" if decimals else "whole number"
        refuse(where, name, f"text that is not empty, or a {kind}", value)
    check_text(value, where, name)
    return value


def check_text(text: str, where: str, field: str) -> None:
    """Refuse half a surrogate pair, which JSON can write but UTF-8 cannot."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        refuse(where, field, "Unicode text", f"half a surrogate pair ({error.reason})", shown=True)


def messages_field(row: dict[str, Any], where: str) -> tuple[tuple[Mapping[str, str], ...], bool]:
    """The chat messages of a line, and whether it gave them as `question`.

    A final assistant message is a recorded reply and not part of the question.
    """
    question, messages = row.get("question"), row.get("messages")
    if question is not None and messages is not None:
        refuse(where, "messages", "only one of 'question' and 'messages'", "both", shown=True)
    if messages is None:
        if question is None:
            refuse(where, "question", "'question' or 'messages'", "neither", shown=True)
        if not isinstance(question, str) or not question.strip():
            refuse(where, "question", "text that is not empty", question)
        check_text(question, where, "question")
        return ({"role": "user", "content": question},), True
    if not isinstance(messages, list) or not messages:
        refuse(where, "messages", "a list of chat messages that is not empty", messages)
    if len(messages) > 1 and is_reply(messages[-1]):
        messages = messages[:-1]
    for index, message in enumerate(messages):
        _check_message(message, where, f"messages[{index}]")
    if messages[-1]["role"] != "user":
        refuse(where, f"messages[{len(messages) - 1}].role", "'user'", messages[-1]["role"])
    return tuple(messages), False


def is_reply(message: Any) -> bool:
    """Whether a message is from the assistant."""
    return isinstance(message, dict) and message.get("role") == "assistant"


def _check_message(message: Any, where: str, field: str) -> None:
    if not isinstance(message, dict):
        refuse(where, field, "an object with 'role' and 'content'", message)
    if message.get("role") not in _ROLES:
        refuse(where, f"{field}.role", f"one of {', '.join(_ROLES)}", message.get("role"))
    content = message.get("content")
    if not isinstance(content, str) or not content.strip():
        refuse(where, f"{field}.content", "text that is not empty", content)
    for name, value in message.items():
        check_text(name, where, field)
        if not isinstance(value, str):
            refuse(where, f"{field}.{name}", "text", value)
        check_text(value, where, f"{field}.{name}")


def free_name(stem: str, taken: Container[str], counts: Counter[str]) -> str:
    """A name that is not taken: the stem, otherwise with ``-2``, ``-3`` appended.

    `counts` says how many names each stem has.
    """
    while True:
        counts[stem] += 1
        name = stem if counts[stem] == 1 else f"{stem}-{counts[stem]}"
        if name not in taken:
            return name


def option_lines(question: str, options: Sequence[str], filler: str | None = None) -> str:
    """A question and its lettered options, one a line; `filler` takes a letter but is not shown."""
    rows = zip(ascii_uppercase, options, strict=False)
    shown = [f"{letter}. {text.strip()}" for letter, text in rows if text != filler]
    return "\n".join([question.strip(), "", *shown])
