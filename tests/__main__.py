"""Run every check of the project, in order: ruff, ruff format, mypy, pytest.

`python -m tests` from a checkout with the `hf` and `dev` extras installed.  Arguments go to
pytest, so `python -m tests -k layout` runs one part of it after the linters.  Stops at the first
check that fails, names it, and exits with its code.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

WORKERS = ("-n", "logical", "--maxprocesses", "4", "--dist", "loadfile", "--no-loadscope-reorder")
"""A worker for each core, up to four: each takes a gigabyte of memory.  Whole files, in order."""

CHECKS: tuple[tuple[str, ...], ...] = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
    ("pytest", *WORKERS),
)
"""Each is run as a module of this interpreter, so a tool of another environment never answers."""


def main(arguments: Sequence[str]) -> int:
    """Run the checks one after the other; return the first failing code, or 0."""
    for check in CHECKS:
        shown = " ".join(check)
        extra = tuple(arguments) if check[0] == "pytest" else ()
        print(f"$ {' '.join((shown, *extra))}", flush=True)
        code = subprocess.run(
            [sys.executable, "-m", *check, *extra], cwd=ROOT, check=False
        ).returncode
        if code:
            print(f"tests: {shown!r} failed with exit code {code}", file=sys.stderr, flush=True)
            # A negative code means a signal ended it; a process cannot exit with one.
            return code if code > 0 else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
