"""Run commands in processes forked from one that has done their imports, most of their time.

`Forked` starts that process.  A shell puts the words of its `client` before those of a command:
`stopadvisor` and its words, or `-c` and a program.  The command has the folder, environment,
standard streams and exit code of a process of its own.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

IMPORTED = (
    "scipy.stats", "stopadvisor.cli.assess", "stopadvisor.cli.calibrate", "stopadvisor.cli.run",
    "stopadvisor.engines.hf.engine", "tests.material", "transformers.models.qwen3",
)  # fmt: skip
_STREAMS = 3
_LONGEST = 2**20
"""Limit on a command with its environment, in bytes."""


class Forked:
    """The process from which commands are forked; it ends with the one that started it."""

    def __init__(self, folder: Path) -> None:
        self.address = folder / "forked"
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(self.address))
            listening.listen()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forked", str(listening.fileno()), str(os.getpid())],
                cwd=Path(__file__).parent.parent,
                pass_fds=[listening.fileno()],
            )

    @property
    def client(self) -> list[str]:
        """Words to put before a command's; without the package this file is imported quickly."""
        return [sys.executable, "-I", "-S", __file__, str(self.address)]

    def close(self) -> None:
        """End it; commands end by themselves."""
        self._process.terminate()
        self._process.wait()


def ask(address: str, words: list[str]) -> int:
    """Have a command run, and return its exit code."""
    command = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [json.dumps(command).encode() + b"\n"], range(_STREAMS))
        return int(connection.makefile().read())


def answer(connection: socket.socket) -> None:
    """Run one command in a process of its own, and send its exit code."""
    data, streams, _, _ = socket.recv_fds(connection, _LONGEST, _STREAMS)
    while not data.endswith(b"\n"):
        data += connection.recv(_LONGEST)
    command = os.fork()
    if not command:
        run(json.loads(data), streams)
    _, status = os.waitpid(command, 0)
    connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def run(command: dict[str, Any], streams: list[int]) -> NoReturn:
    """Turn this process into the command's.

    It exits without tearing down modules, which would take as long as importing them.
    """
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    # Streams depend on the kind of file they were opened on.
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace")
    os.chdir(command["folder"])
    os.environ.clear()
    os.environ.update(command["environment"])
    sys.path.insert(0, command["folder"])
    name, *words = command["words"]
    code = 0
    try:
        if name == "-c":
            program, *words = words
            sys.argv = ["-c", *words]
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = [name, *words]
            runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001  printed, as by any process
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve(listening: socket.socket, started_by: int) -> None:
    """Import, then fork for each command."""
    gc.disable()
    for name in IMPORTED:
        __import__(name)
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps the children
    listening.settimeout(5.0)
    while os.getppid() == started_by:  # until the parent is killed
        try:
            connection, _ = listening.accept()
        except TimeoutError:
            continue
        if not os.fork():
            listening.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            with connection:
                answer(connection)
            os._exit(0)
        connection.close()


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
    sys.exit(ask(sys.argv[1], sys.argv[2:]))
