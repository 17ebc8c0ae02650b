"""Run the checks of the project, in order, and stop at the first that fails.

`python -m tests` from a checkout with the `hf` and `dev` extras installed: ruff, ruff format,
codespell, import-linter, pytest, and mypy in parallel, since the others leave a core idle.
`--fast` leaves out the tests that take long or need a model, a browser or a server.  Other
arguments go to pytest, so `python -m tests -k layout` runs one part of it after the linters.  The
failing check is named, and its code is the exit code.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

ROOT = Path(__file__).resolve().parent.parent

N_WORKERS = min((os.cpu_count() or 1) + 1, 4)
"""One more than cores: tests of servers wait.  Up to four: each takes a gigabyte of memory, and
collects all tests, ten seconds of a processor."""
WORKERS = ("-n", str(N_WORKERS), "--dist", "loadfile", "--no-loadscope-reorder")
"""Whole files, in order."""

APART = ("slow", "integration", "browser", "vllm", "gpu")
"""Markers of what the fast tier leaves out; `long` is left out of every tier."""
FAST = " and ".join(f"not {marker}" for marker in (*APART, "long"))
REST = f"({' or '.join(APART)}) and not long"

ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
"""Every process that a test starts would compile the package again."""


@dataclass(frozen=True)
class Check:
    """One tool, run by this interpreter, so that a tool of another environment never answers."""

    shown: str
    words: tuple[str, ...]
    """What follows the interpreter's name."""
    beside: bool = False
    """Whether it runs while the others do, and ends the last of them where it fails."""
    parallel: bool = False
    """Whether it is pytest with its workers, to which other arguments go."""


LINT = (
    Check("mypy", ("-m", "mypy"), beside=True),
    Check("ruff check", ("-m", "ruff", "check", ".")),
    Check("ruff format --check", ("-m", "ruff", "format", "--check", ".")),
    Check("codespell", ("-m", "codespell_lib")),
    # It has no module to run by name; its command reads its own arguments, of which there are none.
    Check(
        "lint-imports", ("-c", "from importlinter.cli import lint_imports_command as main; main()")
    ),
)


COLLECT = Check("pytest --collect-only", ("-m", "pytest", "--collect-only", "-qq", "-n", "0"))
"""Compiles test modules, and what they import, once for all workers, while the linters run."""


def _pytest(*words: str) -> Check:
    return Check(" ".join(("pytest", *words)), ("-m", "pytest", *WORKERS, *words), parallel=True)


TIERS: dict[str, tuple[Check, ...]] = {
    "full": (*LINT, _pytest()),
    "fast": (*LINT, _pytest("-m", FAST)),
    "lint": LINT,
    "unit": (_pytest("-m", FAST),),
    "integration": (_pytest("-m", REST),),
}
"""What each option runs; CI runs the last three as jobs of their own."""


def parse(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the tier that is asked for, and what goes to pytest."""
    parser = argparse.ArgumentParser(
        prog="python -m tests",
        description="Run the checks of the project; other arguments go to pytest.",
    )
    tier = parser.add_mutually_exclusive_group()
    for name, meaning in (
        ("fast", "linters, types and unit tests"),
        ("lint", "linters and types alone"),
        ("unit", "unit tests alone"),
        ("integration", "the tests that --fast leaves out"),
    ):
        tier.add_argument(f"--{name}", action="store_const", const=name, dest="tier", help=meaning)
    options, rest = parser.parse_known_args(arguments)
    return options.tier or "full", rest


def main(arguments: Sequence[str]) -> int:
    """Run the checks in order, and mypy in parallel; return the first failing code, or 0."""
    tier, rest = parse(arguments)
    beside = next((check for check in TIERS[tier] if check.beside), None)
    *first, last = (check for check in TIERS[tier] if not check.beside)
    with TemporaryFile() as said:  # shown when it ends, apart from what the others say
        other = _start(beside, output=said) if beside else None
        collecting = _start(COLLECT, output=subprocess.DEVNULL) if first and last.parallel else None
        for check in first:
            code = _start(check).wait()
            if code:
                for process in (other, collecting):
                    if process:
                        process.terminate()
                        process.wait()
                return _failed(check, code)
        if collecting:
            collecting.wait()  # what it finds wrong the tests say themselves
        running = _start(last, rest)
        if beside and other:
            code = other.wait()
            said.seek(0)
            print(said.read().decode(errors="replace"), end="", flush=True)
            if code:
                running.send_signal(signal.SIGINT)  # as ^C does: tests end their servers
                running.wait()
                return _failed(beside, code)
    code = running.wait()
    return _failed(last, code) if code else 0


def _start(
    check: Check, rest: Sequence[str] = (), *, output: IO[bytes] | int | None = None
) -> subprocess.Popen[bytes]:
    extra = rest if check.parallel else ()
    print(f"$ {' '.join((check.shown, *extra))}", flush=True)
    return subprocess.Popen(
        [sys.executable, *check.words, *extra],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
    )


def _failed(check: Check, code: int) -> int:
    print(f"tests: {check.shown!r} failed with exit code {code}", file=sys.stderr)
    # A negative code means a signal ended it; a process cannot exit with one.
    return code if code > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
