r"""Is an answer right: compare it with gold.  Labels alone come from here, never features.

Numbers, option letters and exact texts are right when their normal forms (``answers.py``) are
equal.  Mathematics is right when math-verify says so; that can hang on an innocent-looking answer
(``2003^{2002^{2001}}``), so it runs in processes of its own that can be killed.  This module knows
no probes and no files, and imports no mathematics itself.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from stopadvisor.answers.normal_form import GRADER, NORMALIZER, extract_forced, normalize
from stopadvisor.errors import StopAdvisorError

__all__ = ["GRADING", "Grader"]

GRADING = {"normalizer": NORMALIZER, "grader": GRADER}
"""Versions that decide the labels; changing them needs `regrade`, not new probes."""

_START_SECONDS = 120.0
_WALL_PER_CPU_SECOND = 10.0  # patience with a machine that is busy with other things


class Grader:
    """Grades answers; a context manager, because it may own processes.

    No process is started before the first mathematical answer that needs one.  Identical items
    are compared once.  Not to be shared between threads.

    Parameters
    ----------
    workers : int
        Processes for mathematical answers.
    timeout_s : float
        CPU seconds that one mathematical answer may take; past them it counts as wrong.

    Attributes
    ----------
    timeouts : int
        Answers given up so far, be it for the time limit or because the comparison took its
        process down; each is graded False.

    Raises
    ------
    ValueError
        `workers` < 1 or `timeout_s` not positive.

    Examples
    --------
    >>> with Grader() as grader:
    ...     grader.grade_many([("numeric", "1,000", "$1000.00"), ("choice", "B", "(c)")])
    [True, False]
    """

    def __init__(self, workers: int = 1, timeout_s: float = 5.0) -> None:
        if workers < 1:
            raise ValueError(f"workers must be >= 1, got {workers!r}")
        if not timeout_s > 0:
            raise ValueError(f"timeout_s must be > 0, got {timeout_s!r}")
        self.timeouts = 0
        self._workers = [_Worker(timeout_s) for _ in range(workers)]
        self._verdicts: dict[tuple[str, str], bool] = {}
        # For those who forget to close: workers end with the grader, at the latest at exit.
        self._finalizer = weakref.finalize(self, _stop_all, self._workers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes; a later mathematical answer would start new ones."""
        _stop_all(self._workers)

    def grade(self, task: str, gold: str, answer: str | None) -> bool:
        """Grade one answer; see `grade_many`."""
        return self.grade_many([(task, gold, answer)])[0]

    def grade_many(self, items: Sequence[tuple[str, str, str | None]]) -> list[bool]:
        r"""Grade answers against gold.

        Parameters
        ----------
        items : sequence of (task, gold, answer)
            `answer` is a raw probe text or an extracted answer; None (thinking never closed), ""
            and what holds no answer of the task's kind are wrong.

        Raises
        ------
        ValueError
            Unknown task.
        StopAdvisorError
            The process for mathematical answers cannot be started.
        """
        verdicts: list[bool | tuple[str, str]] = []
        pending: dict[tuple[str, str], None] = {}
        for task, gold, answer in items:
            verdict = _by_normal_form(task, gold, answer)
            if verdict is not None:
                verdicts.append(verdict)
                continue
            assert answer is not None  # has been graded by its lack of a normal form
            pair = (gold, answer)
            verdicts.append(pair)
            if pair not in self._verdicts:
                pending[pair] = None
        self._compare(list(pending))
        return [v if isinstance(v, bool) else self._verdicts[v] for v in verdicts]

    def _compare(self, pairs: list[tuple[str, str]]) -> None:
        """Put a verdict on each pair; an interruption keeps those that are there."""
        if len(self._workers) == 1 or len(pairs) < 2:
            for pair in pairs:
                self._keep(pair, self._workers[0].same(*pair))
            return
        idle: SimpleQueue[_Worker] = SimpleQueue()
        for worker in self._workers:
            idle.put(worker)

        def compare(pair: tuple[str, str]) -> bool | None:
            worker = idle.get()
            try:
                return worker.same(*pair)
            finally:
                idle.put(worker)

        with ThreadPoolExecutor(len(self._workers)) as pool:
            try:
                for pair, verdict in zip(pairs, pool.map(compare, pairs), strict=True):
                    self._keep(pair, verdict)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _keep(self, pair: tuple[str, str], verdict: bool | None) -> None:
        self.timeouts += verdict is None
        self._verdicts[pair] = bool(verdict)


_INTEGER = re.compile(r"-?\d+", re.ASCII)


def _by_normal_form(task: str, gold: str, answer: str | None) -> bool | None:
    """Verdict where normal forms decide; None where the mathematics must be looked at."""
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
    """Ways to hand an answer to math-verify, which reads bare LaTeX only between dollars."""
    text = extract_forced("math", text)
    bare = text.replace("\\$", "").strip().rstrip(".").strip()
    for opening, closing in _DELIMITERS:
        if bare.startswith(opening) and bare.endswith(closing) and len(bare) > 2 * len(opening):
            bare = bare[len(opening) : -len(closing)].strip().rstrip(".").strip()
    if "$" in bare or "\\(" in bare or "\\[" in bare:
        return [text]  # several formulas, or prose around them: it finds them itself
    return [f"${bare}$", text] if _PROSE.search(bare) else [f"${bare}$"]


class _Worker:
    """One process that compares, started when needed and killed when it takes too long."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    def same(self, gold: str, answer: str) -> bool | None:
        """Verdict on one pair; None when it had to be given up."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._start()
        assert process.stdin is not None
        request = {
            "gold": _formulas(gold)[0],
            "answers": _formulas(answer),
            "cpu_seconds": self._timeout_s,
        }
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            reply = _read(process, self._timeout_s * _WALL_PER_CPU_SECOND)
        except BrokenPipeError:
            reply = b""
        except BaseException:
            self.stop()  # interrupted: its late answer must not pass for the next one's
            raise
        if reply in (b"0", b"1"):
            return reply == b"1"
        self.stop()
        return None

    def _start(self) -> subprocess.Popen[bytes]:
        self.stop()
        # By its path and without the script's folder in front (-P): it starts the same way from
        # tests, scripts, notebooks and the entry point, and our module names shadow no library.
        # Its own session keeps Ctrl-C for the parent.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("math_worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        reply = _read(self._process, _START_SECONDS)
        if reply != b"+":
            self.stop()
            reason = reply[1:].decode(errors="replace") or "the process ended without a word"
            raise StopAdvisorError(
                "cannot grade mathematical answers, which needs math-verify 0.9 "
                f"(pip install 'math-verify>=0.9,<0.10'): {reason}"
            )
        return self._process

    def stop(self) -> None:
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
                continue  # a request that was never read is lost with its reader


def _read(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """Read what the process says within the time; b"" when it ends or stays silent."""
    assert process.stdout is not None
    answers = select.poll()
    answers.register(process.stdout, select.POLLIN)
    if not answers.poll(seconds * 1000):
        return b""
    return os.read(process.stdout.fileno(), select.PIPE_BUF)


def _stop_all(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.stop()
