"""Policy files as large and as costly to load as the limits let them be.

Those that can be are valid up to their digest, so that every check sees them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from stopadvisor.policy.file import encode
from stopadvisor.policy.frozen import build_policy
from stopadvisor.policy.values import canonical_digest
from tests.policy_content import example_content, family_content

__all__ = ["HEAVY"]

MEGABYTE = 2**20
BUILT = build_policy(example_content())


def _signed(**changes: Any) -> dict[str, Any]:
    content = BUILT | changes
    return content | {"digest": canonical_digest(content)}


def _pickled(**changes: Any) -> bytes:
    return encode(_signed(**changes), "joblib")


def _json(**changes: Any) -> bytes:
    return json.dumps(_signed(**changes), separators=(",", ":")).encode()


def _ids(count: int, size: int) -> dict[str, Any]:
    return {**BUILT["split"], "fit": [f"{k:0{size}d}" for k in range(count)]}


def _chain_of_nodes(depth: int) -> dict[str, Any]:
    """A tree whose left branch is a chain of that many nodes."""
    return {
        "feature": [0] * depth + [-1] * (depth + 1),
        "threshold": [1e9] * (2 * depth + 1),
        "left": [*range(1, depth), 2 * depth] + [-1] * (depth + 1),
        "right": list(range(depth, 2 * depth)) + [-1] * (depth + 1),
        "value": [0.0] * (2 * depth + 1),
    }


def _deep_trees() -> bytes:
    content = build_policy(family_content("learned-boosted"))
    content |= {"trees": [_chain_of_nodes(30) for _ in range(500)], "golden": _golden("7")}
    content["digest"] = canonical_digest(content)
    return json.dumps(content).encode()


def _golden(answer: str, steps: int = 6) -> list[dict[str, Any]]:
    entry = BUILT["golden"][0]
    step = entry["steps"][0] | {"answer": answer, "normalized": "none"}
    decisions = [{"stop": False, "score": 0.0}] * steps
    return [entry | {"steps": [step] * steps, "decisions": decisions} for _ in range(32)]


def _wrapped(before: bytes, unit: bytes, after: bytes, size: int = 8 * MEGABYTE) -> bytes:
    return before + unit * ((size - len(before) - len(after)) // len(unit)) + after


HEAVY: dict[str, Callable[[], bytes]] = {
    "ids": lambda: _pickled(split=_ids(240_000, 20)),
    "long-ids": lambda: _pickled(split=_ids(100_000, 64)),
    "ids-json": lambda: _json(split=_ids(240_000, 20)),
    "dicts": lambda: _pickled(profile={"x": [{str(k): k} for k in range(49_000)]}),
    "dicts-json": lambda: _json(profile={"x": [{str(k): k} for k in range(49_000)]}),
    "lists": lambda: _pickled(profile={"x": [[1.5] * 4 for _ in range(49_000)]}),
    "keys": lambda: _pickled(profile={str(k): float(k) for k in range(120_000)}),
    "keys-json": lambda: _json(profile={str(k): float(k) for k in range(120_000)}),
    "features": lambda: _pickled(calibration_features=[[0.1 * k] * 8 for k in range(27_000)]),
    "order": lambda: _pickled(order=[1.375 - 0.001 * k for k in range(200_000)]),
    "control-characters": lambda: _pickled(profile={str(k): "\x01" * 10**6 for k in range(8)}),
    "letters-beyond-ascii": lambda: _pickled(profile={str(k): "é" * 500_000 for k in range(7)}),
    "one-wide-letter-each": lambda: _pickled(
        profile={str(k): "x" * 10**6 + "🙂" for k in range(7)}
    ),
    "golden-text": lambda: _json(golden=_golden("1,11," * 68)),
    "golden-white-space": lambda: _json(golden=_golden(" " * 300 + "x")),
    "golden-too-much-text": lambda: _json(golden=_golden(" " * 30_000 + "x", 1)),
    "trees": _deep_trees,
    "memo-entries": lambda: _wrapped(b"\x80\x04}", b"\x94", b"."),
    "frames": lambda: _wrapped(b"\x80\x04", b"\x95" + bytes(8), b"}."),
    "empty-texts": lambda: _wrapped(b"\x80\x04](", b"\x8c\x00", b"e."),
    "json-text": lambda: _wrapped(b'{"a":"', b"x", b'"}'),
    "json-escaped": lambda: _wrapped(b'{"a":"', b"x", b'\\ud83d\\ude42"}', 6 * MEGABYTE),
    "json-wide": lambda: _wrapped(b'{"a":"\xf0\x9f\x99\x82', b"x", b'"}', 2 * MEGABYTE),
    "json-quotes": lambda: _wrapped(b'{"a":"', b'\\"', b'"}', 6 * MEGABYTE),
    "json-digits": lambda: _wrapped(b'{"a":[', b"9" * 4299 + b",", b"0]}"),
    "json-decimals": lambda: _wrapped(b'{"a":0.', b"1", b"}"),
    "json-keys": lambda: b"{" + b",".join(b'"%d":0' % k for k in range(240_000)) + b"}",
    "white-space": lambda: _wrapped(b"", b" ", b"{"),
}
