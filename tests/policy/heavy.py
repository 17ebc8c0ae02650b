"""Policy files as large and as expensive to load as the limits allow.

Where possible they have a right digest, so that every check sees them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.policy_content import built, example_content, file_bytes

__all__ = ["HEAVY"]

MEGABYTE = 2**20
BUILT = built(example_content())


def _with(**changes: Any) -> bytes:
    return file_bytes(BUILT | changes, "joblib")


def _arguments(**arguments: Any) -> bytes:
    return _with(chat_template_kwargs=arguments)


def _ids(count: int, size: int) -> dict[str, Any]:
    return {**BUILT["split"], "fit": [f"{k:0{size}d}" for k in range(count)]}


def _golden(answer: str, steps: int = 6) -> list[dict[str, Any]]:
    entry = BUILT["golden"][0]
    step = entry["steps"][0] | {"answer": answer, "normalized": "none"}
    decisions = [{"stop": False, "score": 0.0}] * steps
    return [entry | {"steps": [step] * steps, "decisions": decisions} for _ in range(32)]


HEAVY: dict[str, Callable[[], bytes]] = {
    "ids": lambda: _with(split=_ids(240_000, 20)),
    "long-ids": lambda: _with(split=_ids(100_000, 64)),
    "dicts": lambda: _arguments(x=[{str(k): k} for k in range(49_000)]),
    "lists": lambda: _arguments(x=[[1.5] * 4 for _ in range(49_000)]),
    "keys": lambda: _arguments(**{str(k): float(k) for k in range(120_000)}),
    "features": lambda: _with(calibration_features=[[0.1 * k] * 8 for k in range(27_000)]),
    "order": lambda: _with(order=[1.375 - 0.001 * k for k in range(200_000)]),
    "control-characters": lambda: _arguments(**{str(k): "\x01" * 40_000 for k in range(8)}),
    "wide-texts": lambda: _arguments(x=["x" * 500_000 + "🙂"] * 3 + ["x" * 10**6] * 6),
    "golden-text": lambda: _with(golden=_golden("1,11," * 68)),
    "golden-white-space": lambda: _with(golden=_golden(" " * 300 + "x")),
    "golden-too-much-text": lambda: _with(golden=_golden(" " * 30_000 + "x", 1)),
    "no-end": lambda: file_bytes(BUILT)[:-3] + b" " * (8 * MEGABYTE - 20_000),
    "decimals": lambda: _arguments(x=314159).replace(b"314159", b"0." + b"1" * 7_900_000),
    "white-space": lambda: b" " * 8 * MEGABYTE,
}
