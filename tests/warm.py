"""Python commands as forks of one process that has imported what takes seconds to import.

Each has its own words, folder, environment and streams, and ends by itself; what it imports beyond
that, it imports itself.  `python -m tests.warm SOCKET` is the process.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["python", "warm"]

_PLACE = "STOPADVISOR_TESTS_WARM"
"""Environment variable with the socket, where there is such a process."""
_IMPORTED = (
    *("stopadvisor.cli.assess", "stopadvisor.cli.calibrate", "stopadvisor.report.html.charts"),
    "stopadvisor.engines.hf.assemble",
)
_MOST_BYTES = 1 << 17
"""Of a command's words and environment."""


@contextmanager
def warm() -> Iterator[None]:
    """Start the process; `python` finds it from here and from what is started here."""
    with tempfile.TemporaryDirectory() as folder:
        place = str(Path(folder) / "socket")
        words = [sys.executable, "-m", "tests.warm", place]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n"
                os.environ[_PLACE] = place
                yield
            finally:
                os.environ.pop(_PLACE, None)
                process.terminate()


def python(words: Sequence[str]) -> int:
    """Run ``-m MODULE ...`` or ``-c PROGRAM`` as a fork where it can, and return its exit code."""
    place = os.environ.get(_PLACE)
    if place is None or words[0] not in ("-m", "-c"):
        return subprocess.run([sys.executable, *words], check=False).returncode
    request = {"words": [*words], "folder": os.getcwd(), "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(place)
        socket.send_fds(asking, [json.dumps(request).encode()], [0, 1, 2])
        return int(asking.recv(16) or 1)


def _serve(place: str) -> None:
    for name in _IMPORTED:
        import_module(name)
    gc.freeze()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(place)
        listening.listen()
        print("ready", flush=True)
        while True:
            asked, _ = listening.accept()
            with asked:
                if os.fork() == 0:
                    _answer(asked)
            with suppress(ChildProcessError):  # those that are done
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def _answer(asked: socket.socket) -> None:
    """Run a command in a child, and say how it ended."""
    message, streams, _, _ = socket.recv_fds(asked, _MOST_BYTES, 3)
    child = os.fork()
    if child == 0:
        _run(json.loads(message), streams)
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    asked.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _run(request: dict[str, Any], streams: Sequence[int]) -> None:
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
        os.close(stream)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    kind, what, *words = request["words"]
    sys.path[0] = ""
    sys.argv = [kind, *words]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    _serve(sys.argv[1])
