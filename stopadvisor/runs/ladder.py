"""A ladder as it is configured: ``ladder.toml``, rungs as they are climbed, the reference last.

Knows the fields of a rung, and asks no model.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from stopadvisor.ground.errors import WorkloadError

__all__ = ["MOST_RUNGS", "MOST_SAMPLES", "Ladder", "Rung", "ladder_of", "read_ladder"]

MOST_RUNGS = 16
MOST_SAMPLES = 128
"""Of one rung."""
_WHERE = ("engine", "base_url", "api_key_env")
"""Where a rung is asked: no part of what a policy promises, and nothing that a file may choose."""
_ENGINES = ("openai", "hf")


@dataclass(frozen=True)
class Rung:
    """One rung: which model answers, how it is asked, and what its tokens cost."""

    name: str
    """As people and the header of a reply call it."""
    price: tuple[float, float, float]
    """Of a prompt token, a cached prompt token and a decoded one; per million, or any one unit."""
    model: str | None = None
    engine: str | None = None
    """``hf``: the model runs here, `model` being its folder; else a server answers."""
    base_url: str | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    api_key_env: str | None = None
    """Name of the variable that holds the key of its server."""
    repeat: int = 1
    """Samples; the plurality of those so far is the answer."""

    def to_dict(self) -> dict[str, Any]:
        """What a manifest holds of it: fields that were given."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        given = {k: v for k, v in found.items() if v is not None and (k, v) != ("repeat", 1)}
        return {**given, "price": list(self.price)}

    def to_policy(self) -> dict[str, Any]:
        """What a policy holds of it: all but where it is asked, and with which key."""
        return {name: value for name, value in self.to_dict().items() if name not in _WHERE}


@dataclass(frozen=True)
class Ladder:
    """Rungs in the order of climbing; the last is what people serve today."""

    rungs: tuple[Rung, ...]

    @property
    def columns(self) -> tuple[Rung, ...]:
        """A rung for each reply: one that is repeated stands as often."""
        return tuple(rung for rung in self.rungs for _ in range(rung.repeat))

    @property
    def blocks(self) -> tuple[range, ...]:
        """Columns of each rung."""
        ends = [sum(r.repeat for r in self.rungs[: k + 1]) for k in range(len(self.rungs))]
        return tuple(
            range(end - rung.repeat, end) for rung, end in zip(self.rungs, ends, strict=True)
        )

    @property
    def reference(self) -> Rung:
        """The last rung."""
        return self.rungs[-1]


def read_ladder(path: Path) -> Ladder:
    """Read ``ladder.toml``.

    Raises
    ------
    WorkloadError
        In one line: the file cannot be read, or a field is missing, unknown or no such value.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path}: expected a readable ladder.toml, got: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise WorkloadError(f"{path}: expected TOML, got: {error}") from error
    if content.keys() - {"rung"}:
        unknown = min(content.keys() - {"rung"})
        raise WorkloadError(f"{path}: field {unknown!r}: expected [[rung]] tables alone")
    return ladder_of(content.get("rung"), str(path))


def ladder_of(rows: Any, where: str) -> Ladder:
    """The ladder of a file's tables, or of a manifest; `where` names it in messages.

    Raises
    ------
    WorkloadError
        A field is missing, unknown or no such value.
    """
    if not isinstance(rows, list) or not 1 <= len(rows) <= MOST_RUNGS:
        got = len(rows) if isinstance(rows, list) else 0
        _refuse(where, "rung", f"1 to {MOST_RUNGS} [[rung]] tables", got)
    rungs = tuple(_rung(row, where, number) for number, row in enumerate(rows, start=1))
    names = [rung.name for rung in rungs]
    for name in names:
        if names.count(name) > 1:
            _refuse(where, "name", "each name once", name)
    if sum(rung.repeat for rung in rungs) < 2:
        _refuse(where, "rung", "two rungs or more, or one with repeat", len(rungs))
    return Ladder(rungs)


_TEXTS = ("name", "model", "engine", "base_url", "reasoning_effort", "api_key_env")
_KNOWN = frozenset(each.name for each in fields(Rung))
_REQUIRED = tuple(each.name for each in fields(Rung) if each.default is MISSING)


def _rung(row: Any, where: str, number: int) -> Rung:
    at = f"rung {number}"
    if not isinstance(row, dict):
        _refuse(where, at, "a table", row)
    for name in sorted(row.keys() - _KNOWN):
        _refuse(where, f"{at}, {name}", f"one of {', '.join(sorted(_KNOWN))}", "an unknown field")
    for name in _REQUIRED:
        if name not in row:
            _refuse(where, f"{at}, {name}", "a value", "nothing")
    for name in _TEXTS:
        value = row.get(name)
        good = isinstance(value, str) and value.strip() and value.isprintable()
        if name in row and not good:
            _refuse(where, f"{at}, {name}", "text on one line", value)
    engine = row.get("engine", "openai")
    if engine not in _ENGINES:
        _refuse(where, f"{at}, engine", " or ".join(_ENGINES), engine)
    if engine == "hf" and not isinstance(row.get("model"), str):
        _refuse(where, f"{at}, model", "a folder, as engine 'hf' loads it", None)
    for name in ("base_url", "api_key_env", "reasoning_effort") if engine == "hf" else ():
        if name in row:
            _refuse(where, f"{at}, {name}", "nothing with engine 'hf'", row[name])
    for name, most in (("max_tokens", 2**24), ("repeat", MOST_SAMPLES)):
        value = row.get(name, 1)
        if type(value) is not int or not 1 <= value <= most:
            _refuse(where, f"{at}, {name}", f"a whole number from 1 to {most}", value)
    temperature = row.get("temperature", 0.0)
    if not _is_number(temperature):
        _refuse(where, f"{at}, temperature", "a number >= 0", temperature)
    arguments = row.get("chat_template_kwargs", {})
    if not isinstance(arguments, dict):
        _refuse(where, f"{at}, chat_template_kwargs", "a table", arguments)
    return Rung(**{**row, "price": _price(row["price"], where, at)})


def _price(found: Any, where: str, at: str) -> tuple[float, float, float]:
    expected = "three prices >= 0: input, cached input and output, the last above 0"
    if not isinstance(found, Sequence) or isinstance(found, str) or len(found) != 3:
        _refuse(where, f"{at}, price", expected, found)
    if not all(map(_is_number, found)) or not found[2]:
        _refuse(where, f"{at}, price", expected, found)
    first, second, third = map(float, found)
    return first, second, third


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < float("inf")


def _refuse(where: str, field: str, expected: str, got: Any) -> None:
    raise WorkloadError(f"{where}: {field}: expected {expected}, got {got!r:.80}")
