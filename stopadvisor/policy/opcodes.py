"""Pickles of plain values, read without unpickling.

The file is walked opcode by opcode against an allow-list, and the walk itself builds the value: no
unpickler ever runs, so there is nothing a hostile file could call, and what it declares to be large
is never allocated.  This module knows no file and no policy field.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from struct import Struct
from typing import Any

from stopadvisor.errors import PolicyError
from stopadvisor.policy.values import MAX_CONTAINERS, MAX_DEPTH, MAX_ELEMENTS, TextBudget
from stopadvisor.printable import short_repr

__all__ = ["decode_pickle"]

_MAX_OPCODES = 3 * MAX_ELEMENTS
"""Two for a text with its memo entry, and some for containers, batches and frames."""

_NAMES = {ord(info.code): info.name for info in pickletools.opcodes}
_CODES = {info.name: ord(info.code) for info in pickletools.opcodes}

_TEXT1, _TEXT4 = _CODES["SHORT_BINUNICODE"], _CODES["BINUNICODE"]
_LONG1 = _CODES["LONG1"]
_MEMOIZE, _MARK, _STOP = _CODES["MEMOIZE"], _CODES["MARK"], _CODES["STOP"]
_PROTO, _FRAME = _CODES["PROTO"], _CODES["FRAME"]
_NUMBERS = {
    _CODES["BINFLOAT"]: Struct(">d"),
    _CODES["BININT"]: Struct("<i"),
    _CODES["BININT1"]: Struct("<B"),
    _CODES["BININT2"]: Struct("<H"),
}
_FETCHES = {_CODES["BINGET"]: Struct("<B"), _CODES["LONG_BINGET"]: Struct("<I")}
_SIZE, _FRAME_SIZE = Struct("<I"), Struct("<Q")
_CONSTANTS = {_CODES["NONE"]: None, _CODES["NEWTRUE"]: True, _CODES["NEWFALSE"]: False}
_EMPTY: dict[int, Callable[[], Any]] = {_CODES["EMPTY_LIST"]: list, _CODES["EMPTY_DICT"]: dict}
_EXTENDS = {_CODES["APPENDS"]: None, _CODES["APPEND"]: 1}
_UPDATES = {_CODES["SETITEMS"]: None, _CODES["SETITEM"]: 2}


class _Walk:
    """The part of a pickle machine that plain values need.

    Containers cannot be fetched from the memo, so the result is a tree: no recursion, and no
    shared lists that expand without end.
    """

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []
        self.count = self.containers = 0
        self.texts = TextBudget()

    def push(self, value: Any) -> None:
        self.count += 1
        if self.count > MAX_ELEMENTS:
            raise PolicyError(f"a policy holds at most {MAX_ELEMENTS} values, this one more")
        self.stack.append(value)

    def push_text(self, text: str) -> None:
        self.texts.spend(text)  # at each use: one text may be fetched many times
        self.push(text)

    def push_empty(self, container: list[Any] | dict[str, Any]) -> None:
        self.containers += 1
        if self.containers > MAX_CONTAINERS:
            raise PolicyError(f"a policy holds at most {MAX_CONTAINERS} lists and dicts")
        self.push(container)

    def mark(self) -> None:
        if len(self.marks) >= MAX_DEPTH:
            raise PolicyError(f"a policy may nest at most {MAX_DEPTH} levels deep")
        self.marks.append(len(self.stack))

    def top(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise PolicyError("damaged pickle: nothing on the stack")
        return self.stack[-1]

    def fetch(self, index: int) -> None:
        if index >= len(self.memo):
            raise PolicyError(f"damaged pickle: memo entry {index} does not exist")
        if type(self.memo[index]) is not str:
            raise PolicyError("a policy shares no lists or dicts between fields")
        self.push_text(self.memo[index])

    def pop(self, n: int | None) -> list[Any]:
        """Take the last n values, or those since the last mark."""
        if n is None:
            if not self.marks:
                raise PolicyError("damaged pickle: no mark on the stack")
            start = self.marks.pop()
        else:
            start = len(self.stack) - n
            # One stays, to take them.
            if start <= (self.marks[-1] if self.marks else 0):
                raise PolicyError("damaged pickle: too few values on the stack")
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def extend(self, items: list[Any]) -> None:
        target = self.top()
        if type(target) is not list:
            raise PolicyError("damaged pickle: items for something that is no list")
        target.extend(items)

    def update(self, items: list[Any]) -> None:
        target = self.top()
        if type(target) is not dict or len(items) % 2:
            raise PolicyError("damaged pickle: items for something that is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) is not str:
                raise PolicyError(f"keys must be strings, got {short_repr(key)}")
            if key in target:
                raise PolicyError(f"key {short_repr(key)} appears twice")
            target[key] = value


def decode_pickle(data: bytes) -> Any:
    """Build the value of a pickle that holds plain values only.

    Raises
    ------
    PolicyError
        Any other opcode, a damaged or truncated pickle, shared containers, or bytes behind the end.
    """
    walk = _Walk()
    end = len(data)
    at = 0  # of what is read next
    for number in range(_MAX_OPCODES):
        if at >= end:
            raise PolicyError("damaged or truncated pickle: it has no end")
        code = data[at]
        at += 1
        if code == _MEMOIZE:
            walk.memo.append(walk.top())
        elif code in (_TEXT1, _TEXT4):
            size = _read(_SIZE, data, at) if code == _TEXT4 else _byte(data, at)
            at += 4 if code == _TEXT4 else 1
            walk.texts.check_size(size)
            walk.push_text(_text(data, at, size))
            at += size
        elif code in _NUMBERS:
            walk.push(_read(_NUMBERS[code], data, at))
            at += _NUMBERS[code].size
        elif code in _FETCHES:
            walk.fetch(_read(_FETCHES[code], data, at))
            at += _FETCHES[code].size
        elif code in _CONSTANTS:
            walk.push(_CONSTANTS[code])
        elif code in _EMPTY:
            walk.push_empty(_EMPTY[code]())
        elif code == _MARK:
            walk.mark()
        elif code in _EXTENDS:
            walk.extend(walk.pop(_EXTENDS[code]))
        elif code in _UPDATES:
            walk.update(walk.pop(_UPDATES[code]))
        elif code == _LONG1:
            size = _byte(data, at)
            at += 1 + size
            if at > end:
                raise _cut_off()
            walk.push(int.from_bytes(data[at - size : at], "little", signed=True))
        elif code == _PROTO:
            if number or _byte(data, at) not in (4, 5):
                raise PolicyError(f"pickle protocol 4 or 5 is required, got {_byte(data, at)}")
            at += 1
        elif code == _FRAME:
            size = _read(_FRAME_SIZE, data, at)
            at += 8
            if size > end - at:
                raise PolicyError("damaged or truncated pickle: a frame passes the end of the file")
        elif code == _STOP:
            if len(walk.stack) != 1 or walk.marks:
                raise PolicyError("damaged pickle: it ends with values left over")
            if at != end:
                raise PolicyError("bytes follow the end of the policy")
            return walk.stack[0]
        else:
            raise _refused(code, at - 1)
    raise PolicyError(f"a policy has at most {_MAX_OPCODES} pickle opcodes, this one more")


def _read(form: Struct, data: bytes, at: int) -> Any:
    if at + form.size > len(data):
        raise _cut_off()
    return form.unpack_from(data, at)[0]


def _byte(data: bytes, at: int) -> int:
    if at >= len(data):
        raise _cut_off()
    return data[at]


def _text(data: bytes, at: int, size: int) -> str:
    if at + size > len(data):
        raise _cut_off()
    try:
        # Surrogates pass here: the check of plain values has better words for them.
        return data[at : at + size].decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise PolicyError(f"damaged pickle: {short_repr(str(error))}") from error


def _cut_off() -> PolicyError:
    return PolicyError("damaged or truncated pickle: it ends in the middle of a value")


def _refused(code: int, position: int) -> PolicyError:
    if code not in _NAMES:
        return PolicyError(f"damaged or truncated pickle: no opcode {code:#04x} at byte {position}")
    return PolicyError(
        f"refused: pickle opcode {_NAMES[code]} at byte {position}; "
        "a policy holds plain values only, no classes, functions or other objects"
    )
