"""`vllm serve` that imports once what its two processes need, which is most of a start.

On a CPU vLLM spawns its engine, which imports everything again, as a fork loses OpenMP's threads.
The servers of tests have none (`OMP_NUM_THREADS=1`), so theirs is forked, as elsewhere it may be.
Runs in the environment that `setup-vllm.sh` builds.
"""

from __future__ import annotations

import gc
import multiprocessing
import sys
from importlib import import_module
from multiprocessing.context import BaseContext

BOTH_NEED = (
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.model_executor.models.qwen3",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
)

if __name__ == "__main__":
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
    sys.exit(import_module("vllm.entrypoints.cli.main").main())
