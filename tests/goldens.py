"""Golden files: expected texts, and expected figures of whole documents.

`pytest --update-goldens` rewrites them; read the diff before you commit it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Goldens"]

_LONGEST = 8
"""Lists of at most this many figures are compared one by one."""


@dataclass(frozen=True)
class Goldens:
    """Compares texts with committed files, or writes them."""

    update: bool
    """Whether `--update-goldens` was given."""

    def check(self, path: Path, text: str) -> None:
        """Compare a text with the file; AssertionError if they differ or there is no file."""
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no golden file {path}: write it with `pytest --update-goldens`"
        assert text == path.read_text(encoding="utf-8"), (
            f"{path.name} differs; if that is meant, run `pytest --update-goldens` on this test"
        )

    def check_figures(self, path: Path, document: Any) -> None:
        """Compare a document with the file: words exactly, figures to five digits.

        A learned rule's weights are where its optimizer stops, and processors round differently on
        the way: between two of them a saving moved by 1.5 millionths.

        For a long list of figures the file has their number, their sum, and the sum weighted by
        place.
        """
        found = _short(document)
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(found, indent=0, ensure_ascii=False) + "\n", "utf-8")
        _assert_close(found, json.loads(path.read_bytes()), path.stem)


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(inner) for key, inner in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) <= _LONGEST or not all(isinstance(each, int | float) for each in value):
        return [_short(each) for each in value]
    weighted = math.fsum(place * each for place, each in enumerate(value, start=1))
    return [len(value), math.fsum(value), weighted]


def _assert_close(found: Any, expected: Any, where: str) -> None:
    if isinstance(expected, dict):
        assert list(found) == list(expected), where
        for key in expected:
            _assert_close(found[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for number, pair in enumerate(zip(found, expected, strict=True)):
            _assert_close(*pair, f"{where}[{number}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-9), where
    else:
        assert found == expected, where
