"""Many requests through one gateway: what grows that should not.

The gateway is a process of its own, before a server that tells a story; a part of the requests is
left by its client in the middle.
"""

from __future__ import annotations

import json
import re
import socket
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.benchmarks.gateway import running_gateway
from tests.engines.fake_server import FakeServer, fake_server
from tests.long.coverage import Check
from tests.serving.gateways import chat_body, save_policy_of

__all__ = ["soak"]

MOST_GROWTH = 8 * 2**20
"""Bytes by which the process may grow after the first fifth of the requests."""
ANSWERED, LEFT = "200", "left"
_KINDS: tuple[dict[str, Any], ...] = ({}, {"stream": True}, {"n": 2}, {"n": 2, "stream": True})


def soak(requests: int) -> list[Check]:
    """Send `requests` requests, eight at once, and look at the process."""
    with tempfile.TemporaryDirectory() as name, fake_server(chat="reasoning_content") as server:
        path = Path(name) / "policy.json"
        save_policy_of(server, path)
        with running_gateway(path, server.url) as (url, pid):
            port = int(url.rpartition(":")[2].partition("/")[0])
            seen: Counter[str] = Counter()
            lock = threading.Lock()

            def one(number: int) -> None:
                how = _ask(port, number)
                with lock:
                    seen[how] += 1
                    _forget(server)

            began = time.monotonic()
            with ThreadPoolExecutor(8) as threads:
                list(threads.map(one, range(requests // 5)))
                before = _state(pid, url)
                list(threads.map(one, range(requests // 5, requests)))
            after = _state(pid, url)
    grown, tasks, files = (b - a for a, b in zip(before, after, strict=True))
    left, wrong = seen.pop(LEFT, 0), sum(seen.values()) - seen.pop(ANSWERED, 0)
    line = (
        f"{requests} requests, {left} left by their client, {wrong} not answered with 200: "
        f"{grown / 2**20:+.1f} MiB (at most {MOST_GROWTH / 2**20:.0f}), {tasks:+d} tasks, "
        f"{files:+d} open files; {time.monotonic() - began:.0f} s"
    )
    line += "".join(f"\n  {number} x {how}" for how, number in seen.most_common())
    return [Check("gateway", not wrong and grown <= MOST_GROWTH and max(tasks, files) <= 2, line)]


def _ask(port: int, number: int) -> str:
    """Ask once; return `ANSWERED`, `LEFT` where the client leaves early, or what went wrong."""
    body = json.dumps(chat_body(f"{number}+4", **_KINDS[number % len(_KINDS)])).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    got = b""
    try:
        with socket.create_connection(("127.0.0.1", port), 30) as client:
            client.sendall(head.encode() + body)
            if number % 10 == 9:
                time.sleep(0.002 * (number % 7))
                return LEFT
            while piece := client.recv(2**16):
                got += piece
    except OSError as error:
        return f"{type(error).__name__} after {len(got):,} bytes"
    if got.startswith(b"HTTP/1.1 200 ") and got.endswith((b"0\r\n\r\n", b"}")):
        return ANSWERED
    status, _, rest = got.partition(b"\r\n")
    return f"{status.decode()}, ending with {rest[-100:]!r}"


def _forget(server: FakeServer) -> None:
    """Have the server, which is in this process, keep nothing of what was asked."""
    if len(server.asked) > 1000:
        server.asked.clear()
        server.headers.clear()


def _state(pid: int, url: str) -> tuple[int, int, int]:
    """Memory, tasks and open files of the gateway, once it has nothing to do."""
    time.sleep(6)  # longer than idle connections are kept
    with urllib.request.urlopen(url.removesuffix("/v1") + "/metrics") as answer:
        text = answer.read().decode()
    tasks = int(float(re.findall(r"^stopadvisor_event_loop_tasks (\S+)", text, re.M)[0]))
    status = Path(f"/proc/{pid}/status").read_text()
    memory = 1024 * int(re.findall(r"VmRSS:\s+(\d+)", status)[0])
    return memory, tasks, len(list(Path(f"/proc/{pid}/fd").iterdir()))
