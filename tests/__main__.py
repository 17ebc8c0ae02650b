"""Run the checks of the project, in order, and stop at the first that fails.

`python -m tests`, in a checkout with the `hf` and `dev` extras installed, runs ruff, ruff format,
codespell, import-linter and pytest, with mypy in parallel.  `--fast` deselects slow tests and those
that need a model, a browser or a server.  Other arguments go to pytest: `python -m tests -k layout`
runs the linters and one part of the tests.  The exit code is that of the failing check.
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
"""One more than cores, because tests of servers wait; at most four, because each worker takes a
gigabyte of memory, and seven CPU seconds to collect all tests."""
WORKERS = ("-n", str(N_WORKERS), "--dist", "loadfile", "--no-loadscope-reorder")
"""Workers take whole files, in the order of `tests.conftest`."""

APART = ("slow", "integration", "browser", "vllm", "gpu")
"""Markers that the fast tier deselects; every tier deselects `long`."""
FAST = " and ".join(f"not {marker}" for marker in (*APART, "long"))
REST = f"({' or '.join(APART)}) and not long"

ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
"""Without bytecode every process that a test starts would compile the package again."""


@dataclass(frozen=True)
class Check:
    """One tool, run as a module of this interpreter, so that it is this environment's."""

    shown: str
    words: tuple[str, ...]
    """Arguments of the interpreter."""
    in_background: bool = False
    """Whether it runs in parallel with the others; if it fails, the last of them is stopped."""
    takes_arguments: bool = False
    """Whether it receives the command line's other arguments, as pytest does."""


LINT = (
    Check("mypy", ("-m", "mypy"), in_background=True),
    Check("ruff check", ("-m", "ruff", "check", ".")),
    Check("ruff format --check", ("-m", "ruff", "format", "--check", ".")),
    Check("codespell", ("-m", "codespell_lib")),
    # It has no `__main__` module.
    Check(
        "lint-imports", ("-c", "from importlinter.cli import lint_imports_command as main; main()")
    ),
)


COLLECT = Check("pytest --collect-only", ("-m", "pytest", "--collect-only", "-qq", "-n", "0"))
"""Compiles test modules and their imports, once for all workers, while the linters run."""


def _pytest(*words: str) -> Check:
    return Check(
        " ".join(("pytest", *words)), ("-m", "pytest", *WORKERS, *words), takes_arguments=True
    )


TIERS: dict[str, tuple[Check, ...]] = {
    "full": (*LINT, _pytest()),
    "fast": (*LINT, _pytest("-m", FAST)),
    "lint": LINT,
    "unit": (_pytest("-m", FAST),),
    "integration": (_pytest("-m", REST),),
}
"""Checks by tier; CI runs the last three as jobs of their own."""


def parse(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the tier and the arguments for pytest."""
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
    """Run the checks in order, and mypy in the background; return the first failing code, or 0."""
    tier, rest = parse(arguments)
    types = next((check for check in TIERS[tier] if check.in_background), None)
    *first, last = (check for check in TIERS[tier] if not check.in_background)
    with TemporaryFile() as output:  # printed in one piece
        mypy = _start(types, output=output) if types else None
        collects = first and last.takes_arguments
        collecting = _start(COLLECT, output=subprocess.DEVNULL) if collects else None
        for check in first:
            if code := _start(check).wait():
                for process in filter(None, (mypy, collecting)):
                    process.terminate()
                    process.wait()
                return _failed(check, code)
        if collecting:
            collecting.wait()  # pytest itself will report its errors
        running = _start(last, rest)
        if types and mypy:
            code = mypy.wait()
            output.seek(0)
            print(output.read().decode(errors="replace"), end="", flush=True)
            if code:
                running.send_signal(signal.SIGINT)  # as ^C does: tests stop their servers
                running.wait()
                return _failed(types, code)
    code = running.wait()
    return _failed(last, code) if code else 0


def _start(
    check: Check, rest: Sequence[str] = (), *, output: IO[bytes] | int | None = None
) -> subprocess.Popen[bytes]:
    extra = rest if check.takes_arguments else ()
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
    # A negative code means a signal, and cannot be our exit code.
    return code if code > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
