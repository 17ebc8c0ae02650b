"""Golden files: text that is committed as it is meant to be, and compared letter by letter.

`pytest --update-goldens` writes what was found instead; read the diff before you commit it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Goldens"]


@dataclass(frozen=True)
class Goldens:
    """Compares texts with committed files, or writes them."""

    update: bool
    """Whether `--update-goldens` was given."""

    def check(self, path: Path, text: str) -> None:
        """Hold `text` against the file; `AssertionError` where they differ or no file is there."""
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no golden file {path}: write it with `pytest --update-goldens`"
        assert text == path.read_text(encoding="utf-8"), (
            f"{path.name} differs; if that is meant, run `pytest --update-goldens` on this test"
        )
