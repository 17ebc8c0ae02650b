r"""Grade answers: compare them with gold, or ask a user's function, ``MODULE:FUNCTION``.

Numbers, option letters and exact texts are right if their normal forms (``normal_form.py``) are
equal, mathematics if math-verify says so.  That can hang on an innocent-looking answer
(``2003^{2002^{2001}}``), so it runs in processes that can be killed, and so does a user's function.
Grades are labels, never features: rules compare a model's answers by their normal forms alone.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

from stopadvisor.answers.normal_form import GRADER, NORMALIZER, extract_forced, normalize
from stopadvisor.ground.errors import EngineError, GraderError, StopAdvisorError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.ground.progress import tracked

__all__ = [
    "BY_GOLD", "GRADING", "FunctionGrader", "Grader", "Graders", "Grades", "described",
    "open_graders",
]  # fmt: skip

GRADING = {"normalizer": NORMALIZER, "grader": GRADER}
"""Versions that decide the labels; after a change, regrade: probes stay valid."""
BY_GOLD = "gold"
"""Value of `--grader` for comparison with gold."""
_MOST_WORKERS = 64
_LONGEST_NAME = 200
"""Limit on a function's name in a policy, in characters."""


class Grader:
    """Grades answers by comparison with gold; a context manager, because it may own a process.

    The process starts with the first mathematical answer that needs it.  An answer that takes more
    than `timeout_s` CPU seconds or crashes the process is wrong.  Identical items are compared
    once.  Not thread-safe.

    Examples
    --------
    >>> with Grader() as grader:
    ...     grader.grade_many([("numeric", "1,000", "$1000.00"), ("choice", "B", "(c)")])
    [True, False]
    """

    identity: Mapping[str, str] = GRADING
    """The grader as a run's manifest describes it."""
    reads_questions = False
    """Whether `grade_many` needs the questions."""

    def __init__(self, timeout_s: float = 5.0) -> None:
        self._workers = _Workers(1, timeout_s)
        self._verdicts: dict[tuple[str, str], bool] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._workers.close()

    def grade(self, task: str, gold: str, answer: str | None) -> bool:
        """Grade one answer; see `grade_many`."""
        return self.grade_many([(task, gold, answer)])[0]

    def grade_many(
        self, items: Sequence[tuple[str, str, str | None]], questions: Sequence[str] = ()
    ) -> list[bool]:
        """Grade items (task, gold, answer); `questions` are ignored.

        An answer may be a raw probe text or extracted.  None (thinking never closed), "" and text
        without an answer of the task's kind are wrong.

        Raises
        ------
        StopAdvisorError
            The process for mathematical answers cannot be started.
        """
        verdicts = [_by_normal_form(*item) for item in items]
        pairs = [(gold, answer or "") for _, gold, answer in items]
        graded = list(zip(pairs, verdicts, strict=True))
        unsure = dict.fromkeys(pair for pair, verdict in graded if verdict is None)
        self._compare([pair for pair in unsure if pair not in self._verdicts])
        return [self._verdicts[pair] if verdict is None else verdict for pair, verdict in graded]

    def remarks(self) -> list[str]:
        """None; only a `FunctionGrader` has remarks."""
        return []

    def _compare(self, pairs: list[tuple[str, str]]) -> None:
        """Store a verdict for each pair; an interrupt loses no stored one."""
        requests = [
            {"gold": _formulas(gold)[0], "answers": _formulas(answer)} for gold, answer in pairs
        ]
        try:
            replies = tracked("grading", self._workers.ask_each(requests), len(pairs))
            for pair, reply in zip(pairs, replies, strict=True):
                self._verdicts[pair] = reply == b"1"
        except _NotReady as error:
            raise StopAdvisorError(
                "cannot grade mathematical answers, which needs math-verify 0.9 "
                f"(pip install 'math-verify>=0.9,<0.10'): {error}"
            ) from error


_INTEGER = re.compile(r"-?\d+", re.ASCII)


def _by_normal_form(task: str, gold: str, answer: str | None) -> bool | None:
    """The verdict by normal forms; None if only mathematics can tell."""
    right = normalize(task, gold)
    given = normalize(task, answer or "")
    if not given or not right:
        return False
    if given == right:
        return True
    if task != "math":
        return False
    if _INTEGER.fullmatch(given) and _INTEGER.fullmatch(right):
        return False
    if right.isalpha() and len(right) > 2 and given.casefold() == right.casefold():
        return True  # a word, not a product of variables
    return None


_DELIMITERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"))
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")


def _formulas(text: str) -> list[str]:
    """An answer as math-verify reads it: bare LaTeX needs dollars around it."""
    text = extract_forced("math", text)
    bare = text.replace("\\$", "").strip().rstrip(".").strip()
    for opening, closing in _DELIMITERS:
        if bare.startswith(opening) and bare.endswith(closing) and len(bare) > 2 * len(opening):
            bare = bare[len(opening) : -len(closing)].strip().rstrip(".").strip()
    if "$" in bare or "\\(" in bare or "\\[" in bare:
        return [text]  # several formulas, or some in prose: math-verify finds them itself
    return [f"${bare}$", text] if _PROSE.search(bare) else [f"${bare}$"]


# --- A user's function ----------------------------------------------------------------------------


class FunctionGrader:
    """Grades by a user's function; a context manager, because it owns processes.

    The function is called as ``function(question, gold, answer)`` and returns True (right), False
    (wrong) or None (it cannot tell).  None, an exception, a crash or a timeout makes the answer
    wrong, and is counted.  `answer` is extracted from the text by the task's rule, but not
    normalised; a text without an answer is wrong without a call.  Identical items are asked once,
    each for at most `timeout_s` CPU seconds and ten times as much wall time.

    The module is looked up among installed packages, then in the current directory, from which it
    can import nothing outside its own package.  The function may have two attributes: `version`, a
    text that becomes part of its name, and `workers`, the number of processes that may call it at
    once.

    Raises
    ------
    GraderError
        There is no such function, or it does not take three arguments.
    """

    reads_questions = True

    def __init__(self, name: str, timeout_s: float = 30.0) -> None:
        module, _, function = name.partition(":")
        if not all(part.isidentifier() for part in [*module.split("."), function]):
            raise GraderError(f"--grader: expected MODULE:FUNCTION or {BY_GOLD!r}, got {name!r}")
        self._option = f"--grader {name}"
        first = _Workers(1, timeout_s, (name,))
        try:
            about = parse_json(first.pool[0].start())
        except _NotReady as error:
            raise GraderError(
                f"{self._option}: expected a function of (question, gold, answer) in an installed "
                f"module or one in the current directory, got {error}"
            ) from error
        self.name = f"{name} ({about['version']})" if about["version"] else name
        if len(self.name) > _LONGEST_NAME or not (self.name.isascii() and self.name.isprintable()):
            raise GraderError(
                f"{self._option}: expected a name and version of at most {_LONGEST_NAME} printable "
                f"ASCII characters, got {self.name[:_LONGEST_NAME]!a}"
            )
        self.identity: Mapping[str, str] = {
            "normalizer": NORMALIZER,
            "grader": self.name,
            "grader_sha256": str(about["sha256"]),
        }
        self._workers = first
        if about["workers"] > 1:
            first.close()
            self._workers = _Workers(min(about["workers"], _MOST_WORKERS), timeout_s, (name,))
        self._verdicts: dict[tuple[str, str, str], bool | None] = {}
        self._unjudged: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._workers.close()

    def grade_many(
        self, items: Sequence[tuple[str, str, str | None]], questions: Sequence[str] = ()
    ) -> list[bool | None]:
        """Grade items (task, gold, answer); None where the function cannot tell.

        Raises
        ------
        GraderError
            The function returned something other than True, False and None.
        EngineError
            The function cannot grade now, such as a judge whose server is down.
        """
        answers = [extract_forced(task, answer or "") for task, _, answer in items]
        cases = [
            (question, gold, answer)
            for question, (_, gold, _), answer in zip(questions, items, answers, strict=True)
        ]
        self._ask([case for case in dict.fromkeys(cases) if case[2] and case not in self._verdicts])
        return [self._verdicts[case] if case[2] else False for case in cases]

    def _ask(self, cases: Sequence[tuple[str, str, str]]) -> None:
        """Store a verdict for each case; an interrupt loses no stored one."""
        names = ("question", "gold", "answer")
        requests = [dict(zip(names, case, strict=True)) for case in cases]
        try:
            replies = tracked("grading", self._workers.ask_each(requests), len(cases))
            for case, reply in zip(cases, replies, strict=True):
                self._verdicts[case] = self._verdict(reply)
        except _NotReady as error:
            raise GraderError(f"{self._option}: {error}") from error

    def _verdict(self, reply: bytes) -> bool | None:
        kind, reason = reply[:1], reply[1:].decode(errors="replace")
        if kind in (b"0", b"1"):
            return kind == b"1"
        if kind == b"!":
            raise GraderError(f"{self._option}: expected True, False or None, got {reason}")
        if kind == b"x":
            raise EngineError(f"{self._option}: {reason}")
        self._unjudged[reason or "it ran out of time or killed its process"] += 1
        return None

    def remarks(self) -> list[str]:
        """How many distinct answers the function could not judge, and the most frequent reason."""
        if not self._unjudged:
            return []
        (reason, count), *_ = self._unjudged.most_common(1)
        total = self._unjudged.total()
        return [
            f"{self.name} could not judge {total} of {len(self._verdicts)} distinct answers, which "
            f"count as wrong; most often ({count}): {reason}"
        ]


Grades = Grader | FunctionGrader
"""Any grader of answers."""


def described(identity: Mapping[str, str]) -> str:
    """Name a grader for messages, a function with the beginning of its module's hash."""
    name, digest = identity.get("grader", "an unknown grader"), identity.get("grader_sha256")
    return name if digest is None else f"{name} (SHA-256 {digest[:12]})"


@dataclass(frozen=True)
class Graders:
    """The graders of one command."""

    equal: Grader
    """Decides whether two of the model's answers are equivalent; never a user's function."""
    right: Grades
    """Decides whether an answer is right."""


@contextmanager
def open_graders(name: str | None) -> Iterator[Graders]:
    """The graders of a command, closed at the end.

    `name` is the ``MODULE:FUNCTION`` that decides what is right; None or ``gold`` compare with
    gold.
    """
    with Grader() as equal:
        if name is None or name == BY_GOLD:
            yield Graders(equal, equal)
            return
        with FunctionGrader(name) as right:
            yield Graders(equal, right)


# --- Processes that can be killed -----------------------------------------------------------------

_START_SECONDS = 120.0
_WALL_PER_CPU_SECOND = 10.0
"""Wall time allowed per CPU second, for machines that are busy with other things."""


class _NotReady(Exception):
    """A process ended before it was ready; the message is its reason."""


class _Workers:
    """A pool of identical processes, started by the first request.

    A request may take `timeout_s` CPU seconds and ten times as much wall time.  The script gets
    `arguments`.
    """

    def __init__(self, count: int, timeout_s: float, arguments: Sequence[str] = ()) -> None:
        self.pool = [_Worker(timeout_s, arguments) for _ in range(count)]
        # Without a call of close, the processes end with this object, or at exit.
        self._finalizer = weakref.finalize(self, _stop_all, self.pool)

    def close(self) -> None:
        """End the processes; a later request would start new ones."""
        _stop_all(self.pool)

    def ask_each(self, requests: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
        """Yield the reply to each request, in order; b"" for one that had to be given up.

        Raises
        ------
        _NotReady
            A process cannot be started.
        """
        if len(self.pool) == 1 or len(requests) < 2:
            yield from map(self.pool[0].ask, requests)
            return
        idle: SimpleQueue[_Worker] = SimpleQueue()
        for worker in self.pool:
            idle.put(worker)

        def ask(request: Mapping[str, Any]) -> bytes:
            worker = idle.get()
            try:
                return worker.ask(request)
            finally:
                idle.put(worker)

        with ThreadPoolExecutor(len(self.pool)) as threads:
            try:
                yield from threads.map(ask, requests)
            except BaseException:
                threads.shutdown(cancel_futures=True)
                raise


class _Worker:
    """One process, started when needed and killed when it takes too long."""

    def __init__(self, timeout_s: float, arguments: Sequence[str] = ()) -> None:
        self._timeout_s = timeout_s
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = b""

    def start(self) -> bytes:
        """Start it unless it is running, and return what it wrote when it was ready."""
        if self._process is not None and self._process.poll() is None:
            return self._ready
        self.stop()
        # By path and without the script's folder on sys.path (-P), so that it starts the same way
        # from tests, scripts and notebooks, and our modules shadow no library.  In its own session,
        # so that Ctrl-C reaches only the parent.
        script = str(Path(__file__).with_name("grader_process.py"))
        self._process = subprocess.Popen(
            [sys.executable, "-P", script, *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        reply = _read(self._process, _START_SECONDS)
        if not reply.startswith(b"+"):
            self.stop()
            raise _NotReady(reply[1:].decode(errors="replace") or "the process ended silently")
        self._ready = reply[1:]
        return self._ready

    def ask(self, request: Mapping[str, Any]) -> bytes:
        """Return the reply to a request; b"" if it had to be given up."""
        self.start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        line = json.dumps({**request, "cpu_seconds": self._timeout_s}).encode() + b"\n"
        try:
            process.stdin.write(line)
            process.stdin.flush()
            reply = _read(process, self._timeout_s * _WALL_PER_CPU_SECOND)
        except BrokenPipeError:
            reply = b""
        except BaseException:
            self.stop()  # interrupted: a late reply must not be taken for the next request's
            raise
        if not reply:
            self.stop()
        return reply

    def stop(self) -> None:
        """Kill it."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # the process never read its request


def _read(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """Read what the process writes within `seconds`; b"" if it ends or writes nothing."""
    assert process.stdout is not None
    answers = select.poll()
    answers.register(process.stdout, select.POLLIN)
    if not answers.poll(seconds * 1000):
        return b""
    return os.read(process.stdout.fileno(), select.PIPE_BUF)


def _stop_all(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.stop()
