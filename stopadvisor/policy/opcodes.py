"""Pickles of plain values, read without unpickling.

The file is walked opcode by opcode (`pickletools.genops`) against an allow-list, and the walk
itself builds the value: no unpickler ever runs, so there is nothing a hostile file could call, and
what it declares to be large is never allocated.  This module knows no file and no policy field.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

from stopadvisor.errors import PolicyError
from stopadvisor.policy.values import MAX_BYTES, MAX_DEPTH, MAX_ELEMENTS, short_repr

__all__ = ["decode_pickle"]

_MAX_OPCODES = 4 * MAX_ELEMENTS

_LEAVES = frozenset(
    ("BINFLOAT", "BININT", "BININT1", "BININT2", "BINUNICODE", "LONG1", "SHORT_BINUNICODE")
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict}


class _Walk:
    """The part of a pickle machine that plain values need.

    Containers cannot be fetched from the memo, so the result is a tree: no recursion, and no
    shared lists that expand without end.
    """

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []
        self.count = 0
        self.text = 0

    def push(self, value: Any) -> None:
        if type(value) is str:  # counted at each use: one text may be fetched many times
            self.text += len(value)
            if self.text > MAX_BYTES:
                raise PolicyError(f"a policy holds at most {MAX_BYTES} bytes of text")
        self.count += 1
        if self.count > MAX_ELEMENTS:
            raise PolicyError(f"a policy holds at most {MAX_ELEMENTS} values, this one more")
        self.stack.append(value)

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
        self.push(self.memo[index])

    def pop(self, n: int | None) -> list[Any]:
        """Take the last n values, or those since the last mark."""
        if n is None:
            if not self.marks:
                raise PolicyError("damaged pickle: no mark on the stack")
            start = self.marks.pop()
        else:
            start = len(self.stack) - n
            if start < (self.marks[-1] if self.marks else 0):
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
    # Sizes declared in the data are no danger: genops reads from memory and gets what is there.
    opcodes = pickletools.genops(data)
    for number in range(_MAX_OPCODES):
        try:
            opcode, arg, position = next(opcodes)
        except StopIteration:
            raise PolicyError("damaged pickle: it has no end") from None
        except Exception as error:  # genops raises several kinds for damaged arguments
            raise PolicyError(f"damaged or truncated pickle: {short_repr(str(error))}") from error
        assert position is not None  # it is for bytes
        name = opcode.name
        if name in _LEAVES:
            walk.push(arg)
        elif name == "MEMOIZE":
            walk.memo.append(walk.top())
        elif name in _CONSTANTS:
            walk.push(_CONSTANTS[name])
        elif name in ("BINGET", "LONG_BINGET"):
            assert type(arg) is int
            walk.fetch(arg)
        elif name == "MARK":
            walk.mark()
        elif name in _EMPTY:
            walk.push(_EMPTY[name]())
        elif name == "APPENDS":
            walk.extend(walk.pop(None))
        elif name == "APPEND":
            walk.extend(walk.pop(1))
        elif name == "SETITEMS":
            walk.update(walk.pop(None))
        elif name == "SETITEM":
            walk.update(walk.pop(2))
        elif name == "PROTO":
            if number or arg not in (4, 5):
                raise PolicyError(f"pickle protocol 4 or 5 is required, got {arg!r}")
        elif name == "FRAME":
            assert type(arg) is int
            if arg > len(data) - position - 9:
                raise PolicyError("damaged or truncated pickle: a frame passes the end of the file")
        elif name == "STOP":
            if len(walk.stack) != 1 or walk.marks:
                raise PolicyError("damaged pickle: it ends with values left over")
            if position != len(data) - 1:
                raise PolicyError("bytes follow the end of the policy")
            return walk.stack[0]
        else:
            raise PolicyError(
                f"refused: pickle opcode {name} at byte {position}; "
                "a policy holds plain values only, no classes, functions or other objects"
            )
    raise PolicyError(f"a policy has at most {_MAX_OPCODES} pickle opcodes, this one more")
