"""vLLM imported once, and forked for each server that the tests of a process ask for.

Imports are most of a start.  A line of standard input is one server, as JSON: the words after
`vllm`, its environment, its folder and its log; the reply is a line with its process id.  It ends
with its standard input.

On a CPU vLLM spawns its engine, which imports everything again, as a fork loses OpenMP's threads.
The servers of tests have none (`OMP_NUM_THREADS=1`), so theirs is forked, as elsewhere it may be.
Runs in the environment that `setup-vllm.sh` builds.
"""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import os
import signal
import sys
from importlib import import_module
from multiprocessing.context import BaseContext
from typing import Any

BOTH_NEED = (
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.model_executor.models.qwen3",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
)
"""By the server's process and by its engine's."""


def become(server: dict[str, Any]) -> None:
    """Turn this process, just forked, into one that was started for this server."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(server["folder"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    log = os.open(server["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.clear()
    os.environ.update(server["environment"])
    sys.path[:0] = server["environment"].get("PYTHONPATH", "").split(os.pathsep)
    importlib.invalidate_caches()
    sys.argv = ["vllm", *server["words"]]


if __name__ == "__main__":
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what modules print is no reply
    gc.disable()  # modules stay, and looking through them again and again takes a second
    for name in BOTH_NEED:
        import_module(name)
    gc.freeze()
    gc.enable()

    context_of = multiprocessing.get_context

    def forking(method: str | None = None) -> BaseContext:
        """Fork where vLLM says `spawn`."""
        return context_of("fork" if method == "spawn" else method)

    multiprocessing.get_context = forking  # type: ignore[assignment]  # not all of its overloads
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system forgets servers that have ended
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            replies.close()
            become(json.loads(line))
            sys.exit(import_module("vllm.entrypoints.cli.main").main())
        print(pid, file=replies, flush=True)
