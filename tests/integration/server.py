"""A vLLM server process for tests, which can be started, killed and restarted on its own port."""

from __future__ import annotations

import atexit
import fcntl
import functools
import json
import os
import select
import signal
import socket
import subprocess
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from stopadvisor.serving.serve_settings import ServeSettings
from stopadvisor.serving.vllm.plugin_settings import variables_of

ROOT = Path(__file__).resolve().parent.parent.parent
SETUP = Path(__file__).resolve().parent / "setup-vllm.sh"
SERVE = Path(__file__).resolve().parent / "serve_vllm.py"
TINY_REASONER = ROOT / "samples" / "tiny-reasoner"
NAME = "tiny-reasoner"
"""The model's name at the server."""
CONTEXT = 1536
AS_CALIBRATED = (
    *("--reasoning-parser", "deepseek_r1"),
    *("--override-generation-config", '{"temperature": 0}'),
)
"""Arguments that a policy for the tiny reasoner needs: vLLM samples by default."""
BLOCK = 32
"""Tokens per block of its prefix cache."""
STARTS_WITHIN = 480.0
"""Seconds; a busy machine needs minutes."""
BUILT_WITHIN = 480.0
"""Seconds to wait for a build that is running."""


def environment() -> Path | None:
    """Return the environment that `setup-vllm.sh` built, after waiting for a running build."""
    said = subprocess.run([SETUP, "--path"], check=True, capture_output=True, text=True)
    home = Path(said.stdout.strip())
    deadline = time.monotonic() + BUILT_WITHIN
    while not (home / "finished").exists():
        if not _is_being_built(home) or time.monotonic() > deadline:
            # It may have finished between the two checks.
            return home if (home / "finished").exists() else None
        time.sleep(0.5)
    return home


def _is_being_built(home: Path) -> bool:
    """Whether `setup-vllm.sh` is running: it holds a lock."""
    lock = Path(f"{home}.lock")
    if not lock.exists():
        return False
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


@functools.cache
def _imported(home: Path) -> subprocess.Popen[str]:
    """Return the process that has imported vLLM and forks its servers."""
    process = subprocess.Popen(
        [home / "bin" / "python", "-P", SERVE],
        env=_surroundings(home),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    atexit.register(process.communicate)
    return process


def _surroundings(home: Path) -> dict[str, str]:
    """Return the environment of every server, without paths to this process's own packages."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return kept | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        # By default clients and server drop an idle connection after the same five seconds, and a
        # request that meets the server's end of it is lost.
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60",
        # Inspecting the model's class takes seconds, so its result is kept.
        "VLLM_CACHE_ROOT": str(home / "cache"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


class _Process:
    """A process with its own session, started by another process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.handle = os.pidfd_open(pid)

    def has_ended(self, within: float = 0.0) -> bool:
        """Whether it has ended, waiting for up to `within` seconds."""
        return bool(select.select([self.handle], (), (), within)[0])


@dataclass
class VllmServer:
    """A server that keeps its port when restarted."""

    home: Path
    """The virtual environment."""
    folder: Path
    """Folder of its log and settings."""
    arguments: tuple[str, ...] = ()
    """Further arguments; later ones override those of every test."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables."""
    model: Path = TINY_REASONER
    port: int = field(default_factory=free_port)
    _process: _Process | None = field(default=None, init=False, repr=False)

    @property
    def base_url(self) -> str:
        """Value for ``--base-url``."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def pid(self) -> int:
        """Process id; the server has child processes."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        """File with its output."""
        return self.folder / "vllm.log"

    def start(self) -> None:
        """Start the process and wait until it answers.

        Raises
        ------
        RuntimeError
            It ended, or did not answer in time; the message holds the end of its log.
        """
        self.begin()
        deadline = time.monotonic() + STARTS_WITHIN
        while not self.answers():
            assert self._process is not None
            if self._process.has_ended() or time.monotonic() > deadline:
                self.kill()
                said = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
                raise RuntimeError(f"the vLLM server does not start:\n{said}")
            time.sleep(0.2)

    def begin(self) -> None:
        """Start the process without waiting."""
        words = [
            *("serve", str(self.model), "--served-model-name", NAME),
            *("--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32"),
            *("--max-model-len", str(CONTEXT), "--block-size", str(BLOCK), "--enforce-eager"),
            *("--distributed-executor-backend", "uni", "--kv-cache-memory-bytes", "67108864"),
            "--enable-prompt-tokens-details",
            *self.arguments,
        ]
        settings = {"VLLM_CONFIG_ROOT": str(self.folder / "config"), **self.environment}
        asked = {
            "words": words,
            "environment": _surroundings(self.home) | settings,
            "folder": str(self.folder),
            "log": str(self.log),
        }
        forking = _imported(self.home)
        assert forking.stdin is not None
        assert forking.stdout is not None
        print(json.dumps(asked), file=forking.stdin, flush=True)
        self._process = _Process(int(forking.stdout.readline()))

    def answers(self) -> bool:
        """Whether it is up."""
        if self._process is None or self._process.has_ended():
            return False
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def kill(self) -> None:
        """Kill it and its children at once, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Shut it down."""
        self._end(signal.SIGTERM)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if not process.has_ended():
            os.killpg(process.pid, how)
        if not process.has_ended(30):
            os.killpg(process.pid, signal.SIGKILL)
            assert process.has_ended(30)
        os.close(process.handle)


def server_with(settings: ServeSettings, home: Path, folder: Path, *more: str) -> VllmServer:
    """Return a server with the plugin, and with the arguments that the bundled policy needs.

    It finds this package and the plugin that it declares.  The packages that only other commands
    need are not installed beside vLLM, so that importing one of them would end a test.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    group = "vllm.endpoint_plugins"
    points = "".join(f"{name} = {at}\n" for name, at in project["entry-points"][group].items())
    declared = folder / "declared" / "stopadvisor-0.dist-info"
    declared.mkdir(parents=True)
    (declared / "METADATA").write_text("Metadata-Version: 2.1\nName: stopadvisor\nVersion: 0\n")
    (declared / "entry_points.txt").write_text(f"[{group}]\n{points}")
    path = os.pathsep.join((str(ROOT), str(declared.parent)))
    told = {"PYTHONPATH": path, "VLLM_PLUGINS": "stopadvisor", **variables_of(settings)}
    arguments = (*AS_CALIBRATED, "--max-logprobs", "-1", "--scheduling-policy", "priority", *more)
    return VllmServer(home, folder, arguments, told)
