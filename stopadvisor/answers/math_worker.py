"""The process that compares mathematical answers, so that a hanging comparison can be killed.

``grading.py`` starts this file as a script: it reads one JSON request per line from standard input
and writes one byte each to standard output, ``+`` once it is ready, then ``1`` for the same and
``0`` for different.  It knows nothing of the package around it, not even how to import it.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence

__all__ = ["main"]

SUPPORTED = "0.9."
_MEMORY_BYTES = 4 << 30


def main() -> None:
    """Serve requests until standard input ends."""
    # Whatever a library prints must not pass for an answer.
    answers = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    logging.disable(logging.CRITICAL)
    try:
        same = _comparison()
    except Exception as error:  # noqa: BLE001 - reported to the parent, whatever it is
        os.write(answers, f"!{type(error).__name__}: {error}".encode())
        return
    _limit_memory()
    os.write(answers, b"+")
    for line in sys.stdin.buffer:
        request = json.loads(line)
        # The limit is CPU time, so that a busy machine changes no label; the signal's default
        # action ends the process, whatever code it is in, even when the parent is gone.
        signal.setitimer(signal.ITIMER_PROF, request["cpu_seconds"])
        verdict = same(request["gold"], request["answers"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(answers, b"1" if verdict else b"0")


def _comparison() -> Callable[[str, Sequence[str]], bool]:
    from importlib.metadata import version

    from math_verify import parse, verify

    found = version("math-verify")
    if not found.startswith(SUPPORTED):
        raise ImportError(f"math-verify {SUPPORTED}* is required, got {found}")

    def same(gold: str, answers: Sequence[str]) -> bool:
        # math-verify's own time-outs are signal.alarm; this process has a better one.
        try:
            right = parse(gold, parsing_timeout=None)
            return any(
                verify(right, parse(answer, parsing_timeout=None), timeout_seconds=None)
                for answer in answers
            )
        except Exception:  # noqa: BLE001 - what cannot be compared is not the same
            return False

    same("$x^2$", ["$x$"])  # builds the parser's tables before the first clock starts
    return same


def _limit_memory() -> None:
    """Let a tower of powers run out of memory here rather than take the machine's."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(_MEMORY_BYTES, hard)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    except (OSError, ValueError):
        return  # macOS has no such limit; the CPU limit still holds


if __name__ == "__main__":
    main()
