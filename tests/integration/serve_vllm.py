"""Imports vLLM once and forks a server for each line of standard input.

Imports are most of a server's start.  A line is JSON: the words after `vllm`, the environment, the
folder and the log; the reply is a line with the process id.  The process ends with its input.

On a CPU vLLM spawns its engine, which imports everything again, because a fork would lose OpenMP's
threads.  Servers of tests have none (`OMP_NUM_THREADS=1`), so their engine is forked.  Runs in the
environment that `setup-vllm.sh` builds.
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
"""Modules that both the server and its engine import."""


def become(server: dict[str, Any]) -> None:
    """Turn this forked process into the server's."""
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
    os.dup2(2, 1)  # keep the output of modules out of the replies
    gc.disable()  # collecting during the imports would take a second
    for name in BOTH_NEED:
        import_module(name)
    gc.freeze()
    gc.enable()

    context_of = multiprocessing.get_context

    def forking(method: str | None = None) -> BaseContext:
        """Return the fork context for `spawn`."""
        return context_of("fork" if method == "spawn" else method)

    multiprocessing.get_context = forking  # type: ignore[assignment]  # not all of its overloads
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps servers that have ended
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            replies.close()
            become(json.loads(line))
            sys.exit(import_module("vllm.entrypoints.cli.main").main())
        print(pid, file=replies, flush=True)
