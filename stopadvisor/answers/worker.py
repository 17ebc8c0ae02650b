"""Run ``grader_process.py`` in processes that can be killed when an answer takes too long."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

__all__ = ["WALL_PER_CPU_SECOND", "NotReady", "Worker", "Workers"]

_START_SECONDS = 120.0
WALL_PER_CPU_SECOND = 10.0
"""Wall time allowed per CPU second, for machines that are busy with other things."""


class NotReady(Exception):
    """A process ended before it was ready; the message is its reason."""


class Workers:
    """A pool of identical processes, started by the first request.

    A request may take `timeout_s` CPU seconds and ten times as much wall time.  The script gets
    `arguments`.
    """

    def __init__(self, count: int, timeout_s: float, arguments: Sequence[str] = ()) -> None:
        self.pool = [Worker(timeout_s, arguments) for _ in range(count)]
        # Without a call of close, the processes end with this object, or at exit.
        self._finalizer = weakref.finalize(self, _stop_all, self.pool)

    def close(self) -> None:
        """End the processes; a later request would start new ones."""
        _stop_all(self.pool)

    def ask_each(self, requests: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
        """Yield the reply to each request, in order; b"" for one that had to be given up.

        Raises
        ------
        NotReady
            A process cannot be started.
        """
        if len(self.pool) == 1 or len(requests) < 2:
            yield from map(self.pool[0].ask, requests)
            return
        idle: SimpleQueue[Worker] = SimpleQueue()
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


class Worker:
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
            raise NotReady(reply[1:].decode(errors="replace") or "the process ended silently")
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
            reply = _read(process, self._timeout_s * WALL_PER_CPU_SECOND)
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


def _stop_all(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.stop()
