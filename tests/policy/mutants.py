"""Randomly damaged and forged policies, and how they load.

Some shipped policies are damaged as bytes, which breaks their digest; others get one or a few wrong
values and a right digest, so that later checks see them too.  `test_mutants.py` loads thousands,
`python -m tests.long --part loader` more.
"""

from __future__ import annotations

import copy
import pickle
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.file import encode_policy, sealed
from stopadvisor.policy.frozen import Policy
from tests.policy.forgeries import impossible, originals, shipped
from tests.policy_content import file_bytes

__all__ = ["Fuzzed", "fuzz"]

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

# --- Wrong values under a right digest ------------------------------------------------------------


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


_NUMBERS = (
    *(0, 1, -1, 2, 100, 2**31, 2**53, 2**62, 2**63 - 1, -(2**63), 2**63, 10**400, 0.0, -0.0, 1.0),
    *(-1.0, 0.5, 0.95, 0.05, 1e-9, 1 - 1e-9, 0.999, 1.0001, 1e6, 1e300, 1e308, -1e308, 5e-324),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, "drop", "differs", "", "x", "\x1b[2J", "\ud800", "é" * 1000, "1,11," * 5000),
    *(" " * 30_000 + "x", [], {}, [[]], [0] * 2000, {"": None}, {"chat_template": "x"}),
    *(_nested(20), _nested(40), *_NUMBERS),
)
_MOST_FORGED = (
    *("certificate", "expected", "trigger", "ladder", "budgets", "max_think", "probe", "split"),
    "decision_threshold",
)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a value in a container."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from _places(value[key])


def _forged(forged: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        # First a field, then a place in it, or long fields would have nearly all of them.
        known = [name for name in _MOST_FORGED if name in forged]
        field = draw.choice(known if draw.random() < 0.7 else list(forged))
        places = [(forged, field)]
        if isinstance(forged.get(field), (dict, list)):
            places += _places(forged[field])
        node, key = draw.choice(places)
        value = node[key]
        if isinstance(value, list) and value:
            node[key] = draw.choice((value[:-1], value[1:], value + value[-1:], value[::-1]))
        elif draw.random() < 0.05:
            del node[key]
        elif type(value) in (int, float) and abs(value) < 1e308 and draw.random() < 0.9:
            near = (value * 2, value / 2, value * 10, -value, value + 1, value - 1, value * 1.01)
            new = draw.choice((*near, *_NUMBERS))
            small = abs(new) < 1e308
            node[key] = draw.choice((type(value)(new), new)) if small else new
        else:
            node[key] = copy.deepcopy(draw.choice(_VALUES))
    return forged


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
        One raised another error than `PolicyError`, a refusal of several lines, or loaded although
        it says something impossible or has another digest than that of its bytes' origin.
    """
    draw = random.Random(seed)
    files = [
        (c, encode_policy(sealed(c)[0], form)) for c in shipped() for form in ("joblib", "json")
    ]
    contents = [pickle.dumps(content) for content in originals()]  # read faster than copied
    refused = loaded = 0
    slowest = 0.0
    for number in range(count):
        digest = None
        if draw.random() < 0.7:
            mutant = file_bytes(_forged(pickle.loads(draw.choice(contents)), draw))
        else:
            content, data = draw.choice(files)
            damaged, digest = bytearray(data), content["digest"]
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
            assert digest in (None, policy.digest), (seed, number)
            assert impossible(policy.content) == [], (seed, number)
        slowest = max(slowest, time.thread_time() - began)
        assert "\n" not in message, (seed, number, message)
        assert len(message) < 600, (seed, number, message)
    return Fuzzed(refused, loaded, slowest)
