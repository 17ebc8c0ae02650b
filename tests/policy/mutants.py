"""Damaged and hostile variants of the shipped policies, drawn at random, and how they load.

Some are damaged as bytes, and their digest with them; others get wrong values and a right digest,
so that the checks behind the digest see them too.  `tests/policy/test_mutants.py` loads a few
thousand, `python -m tests.long --part loader` more.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.file import encode_policy, sealed
from stopadvisor.policy.frozen import Policy, load_policy
from tests.policy_content import file_bytes

__all__ = ["Fuzzed", "fuzz", "shipped"]

POLICIES = sorted((Path(__file__).parents[2] / "policies").glob("*.joblib"))
_KEPT = 4
"""Entries of long lists that are kept: a mutant of a short file is loaded in a millisecond."""


@cache
def shipped() -> tuple[dict[str, Any], ...]:
    """Contents of the shipped policies, with few or short question ids."""
    found = []
    for path in POLICIES:
        content = load_policy(path).content
        for part in ("fit", "test"):
            content["split"][part] = content["split"][part][:_KEPT]
        # As many as the certificate counts, but under short names.
        content["split"]["calibration"] = [
            str(k) for k in range(len(content["split"]["calibration"]))
        ]
        if content["calibration_features"] is not None:  # one that never stops has none
            content["calibration_features"] = content["calibration_features"][:_KEPT]
        found.append(content | {"digest": sealed(content)[1]})
    return tuple(found)


# --- Damaged as bytes -----------------------------------------------------------------------------

_HOSTILE = (
    b"\x94", b"(", b"]", b"}", b".", b"0", b"h\x00", b"X\xff\xff\xff\x7f", b"cposix\nsystem\n",
    b"\x95" + b"\xff" * 8, b"[" * 4000, b'{"a":' * 4000, b"9" * 5000, b"1e999", b"NaN",
    b'"\\ud800"', b"\xed\xa0\x80", b"\x00", b"\xff", b"x" * 20_000,
)  # fmt: skip


def _flipped(data: bytearray, draw: random.Random) -> None:
    for _ in range(draw.choice((1, 1, 2, 8))):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def _cut(data: bytearray, draw: random.Random) -> None:
    del data[draw.randrange(len(data)) :]


def _removed(data: bytearray, draw: random.Random) -> None:
    start = draw.randrange(len(data))
    del data[start : start + draw.choice((1, 2, 9, 100))]


def _doubled(data: bytearray, draw: random.Random) -> None:
    start = draw.randrange(len(data))
    piece = data[start : start + draw.choice((1, 1, 2, 9, 300))]
    data[start:start] = piece * draw.choice((1, 1, 2, 1000))


def _inserted(data: bytearray, draw: random.Random) -> None:
    start = draw.randrange(len(data))
    data[start:start] = draw.choice(_HOSTILE)


def _overwritten(data: bytearray, draw: random.Random) -> None:
    start, piece = draw.randrange(len(data)), draw.choice(_HOSTILE)
    data[start : start + len(piece)] = piece


_BYTES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    *(_flipped, _cut, _removed, _doubled, _inserted, _overwritten),
)

# --- Wrong values, rightly signed -----------------------------------------------------------------


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


_VALUES: tuple[Any, ...] = (
    *(None, True, 0, 1, -1, 2**31, 2**62, -(2**63), 2**63, 10**400, 0.0, -0.0, 0.5, 1e308, -1e308),
    *(5e-324, "", "x", "\x1b[2J", "\ud800", "é" * 1000, "1,11," * 5000, " " * 30_000 + "x"),
    *([], {}, [[]], [0] * 2000, {"": None}, {"chat_template": "x"}, _nested(20), _nested(40)),
)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container with every key or index in it."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        node = waiting.pop()
        for key in node if isinstance(node, dict) else range(len(node)):
            found.append((node, key))
            if isinstance(node[key], (dict, list)):
                waiting.append(node[key])
    return found


def _changed(content: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    content = copy.deepcopy(content)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        # First a field, then a place in it, or long fields would have nearly all of them.
        field = draw.choice(list(content))
        inside = content[field]
        places = _places(inside) if isinstance(inside, (dict, list)) and inside else []
        node, key = draw.choice(
            [(content, field), *places] if draw.random() < 0.3 or not places else places
        )
        what = draw.randrange(6)
        if what == 0 and isinstance(node, dict):
            del node[key]
        elif what == 1 and isinstance(node, list):
            node.append(copy.deepcopy(node[key]))
        elif what == 2 and isinstance(node[key], (int, float)) and type(node[key]) is not bool:
            node[key] = node[key] * draw.choice((-1, 2, 10)) + draw.choice((0, 1))
        elif what == 3:
            other, place = draw.choice(_places(content))
            node[key] = other[place] if not isinstance(other[place], (dict, list)) else None
        else:
            node[key] = copy.deepcopy(draw.choice(_VALUES))
    return content


# --- Loading them ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fuzzed:
    """What became of all mutants."""

    refused: int
    loaded: int
    slowest_s: float
    """Processor time of the slowest load."""


def fuzz(count: int, seed: int) -> Fuzzed:
    """Load that many mutants.

    Raises
    ------
    AssertionError
        One raised another error than `PolicyError`, a refusal of several lines, or loaded with
        another digest than that of its bytes' origin.
    """
    draw = random.Random(seed)
    originals = [
        (c, encode_policy(sealed(c)[0], form)) for c in shipped() for form in ("joblib", "json")
    ]
    refused = loaded = 0
    slowest = 0.0
    for number in range(count):
        content, data = draw.choice(originals)
        signed = draw.random() < 0.4
        if signed:
            mutant = file_bytes(_changed(content, draw))
        else:
            damaged = bytearray(data)
            draw.choice(_BYTES)(damaged, draw)
            mutant = bytes(damaged)
        message = ""
        began = time.thread_time()
        try:
            policy = Policy.of(mutant)
        except PolicyError as error:
            refused += 1
            message = str(error)
        except BaseException as error:
            raise AssertionError(f"mutant {number} of seed {seed}: {error!r}") from error
        else:
            loaded += 1
            assert signed or policy.digest == content["digest"], (seed, number)
        assert "\n" not in message, (seed, number, message)
        assert len(message) < 600, (seed, number, message)
        slowest = max(slowest, time.thread_time() - began)
    return Fuzzed(refused, loaded, slowest)
