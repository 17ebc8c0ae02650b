"""Script of a process that grades one answer after another, so that a hanging one can be killed.

``grading.py`` starts it: without arguments it compares mathematical answers, with
``MODULE:FUNCTION`` it calls a user's function.  It writes ``+`` once it is ready, or ``!`` and why
it cannot start.  Then it reads one JSON request per line from standard input and writes a short
reply to each: ``1`` for right, ``0`` for wrong; for a user's function also ``?`` and why it cannot
tell, ``!`` and what it did wrong, ``x`` and why nothing can be graded now.  It imports nothing from
the package.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["main"]

SUPPORTED = "0.9."
_MEMORY_BYTES = 4 << 30
_MOST_SHOWN = 300
"""Limit on a message, in characters: in any encoding fewer bytes than a pipe takes at once."""
_GIVES_UP = "stopadvisor.ground.errors"
"""If a user's function raises an error of this module, the command ends."""

_Grade = Callable[[Mapping[str, Any]], bytes]


def main() -> None:
    """Serve requests until standard input ends."""
    # A library must neither write into our replies nor read our requests.
    answers, requests = os.dup(1), os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    os.dup2(1, 0)
    logging.disable(logging.CRITICAL)
    try:
        grade, ready = _function(sys.argv[1]) if len(sys.argv) > 1 else _comparison()
    except Exception as error:  # noqa: BLE001 - reported to the parent, whatever it is
        os.write(answers, b"!" + _message(error))
        return
    os.write(answers, b"+" + ready)
    for line in requests:
        request = json.loads(line)
        # CPU time, so that a busy machine changes no label.  The signal's default action ends the
        # process whatever code it runs, even if the parent is gone.
        signal.setitimer(signal.ITIMER_PROF, request["cpu_seconds"])
        reply = grade(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(answers, reply)


def _message(error: Exception) -> bytes:
    return " ".join(f"{type(error).__name__}: {error}".split())[:_MOST_SHOWN].encode(
        errors="replace"
    )


# --- Mathematics ----------------------------------------------------------------------------------


def _comparison() -> tuple[_Grade, bytes]:
    from importlib.metadata import version

    from math_verify import parse, verify

    installed = version("math-verify")
    if not installed.startswith(SUPPORTED):
        raise ImportError(f"math-verify {SUPPORTED}* is required, got {installed}")

    def same(gold: str, answers: Sequence[str]) -> bool:
        # math-verify's own timeouts use signal.alarm; this process has a better one.
        try:
            right = parse(gold, parsing_timeout=None)
            return any(
                verify(right, parse(answer, parsing_timeout=None), timeout_seconds=None)
                for answer in answers
            )
        except Exception:  # noqa: BLE001 - answers that cannot be compared are different
            return False

    same("$x^2$", ["$x$"])  # builds the parser's tables before the first clock starts
    _limit_memory()
    return lambda request: b"1" if same(request["gold"], request["answers"]) else b"0", b""


def _limit_memory() -> None:
    """Let a tower of powers exhaust this process's memory, not the machine's."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(_MEMORY_BYTES, hard)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    except (OSError, ValueError):
        return  # macOS has no such limit; the CPU limit still holds


# --- A user's function ----------------------------------------------------------------------------


def _function(name: str) -> tuple[_Grade, bytes]:
    """Load ``MODULE:FUNCTION``; also return its identity as JSON."""
    module_name, _, attribute = name.partition(":")
    module = _module(module_name)
    function = getattr(module, attribute)
    if not callable(function):
        raise TypeError(f"{attribute} is a {type(function).__name__}, not a function")
    file = getattr(module, "__file__", None)
    if file is None:
        raise ImportError(f"module {module_name} has no source file to name by its hash")
    try:
        signature = inspect.signature(function)
    except ValueError:
        signature = None  # written in C
    if signature is not None:
        try:
            signature.bind("", "", "")
        except TypeError as error:
            raise TypeError(
                f"{attribute} does not take (question, gold, answer): {error}"
            ) from None
    identity = {
        "sha256": hashlib.sha256(Path(file).read_bytes()).hexdigest(),
        "version": str(getattr(function, "version", "")),
        "workers": int(getattr(function, "workers", 1)),
    }

    def grade(request: Mapping[str, Any]) -> bytes:
        try:
            verdict = function(request["question"], request["gold"], request["answer"])
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises
            if any(kind.__module__ == _GIVES_UP for kind in type(error).__mro__):
                return b"x" + _message(error).partition(b": ")[2]
            return b"?" + _message(error)
        if verdict is None:
            return b"?it returned None"
        if type(verdict).__name__ not in ("bool", "bool_"):  # or numpy's
            returned = f"{type(verdict).__name__} {verdict!r}"
            return b"!" + returned[:_MOST_SHOWN].encode(errors="replace")
        return b"1" if verdict else b"0"

    return grade, json.dumps(identity).encode()


def _module(name: str) -> ModuleType:
    """Import a grader's module, from the current directory if it is nowhere else.

    The directory is not added to ``sys.path``, so that nothing else is imported from there.
    """
    top = name.partition(".")[0]
    if importlib.util.find_spec(top) is None:
        spec = PathFinder.find_spec(top, [os.getcwd()])
        if spec is not None:
            sys.dont_write_bytecode = True
            sys.modules[top] = importlib.util.module_from_spec(spec)
            if spec.loader is not None:  # a folder without __init__.py has none
                spec.loader.exec_module(sys.modules[top])
    return importlib.import_module(name)


if __name__ == "__main__":
    main()
