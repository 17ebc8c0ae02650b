"""A proxy that breaks some of the requests that it passes on, as networks and busy servers do.

Runs in a thread with an event loop of its own; one connection carries one request.  It counts what
it saw, so that a test can tell that its faults happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Literal, get_args

__all__ = ["FAULTS", "Fault", "FaultProxy", "every"]

Fault = Literal["429", "500", "truncated-json", "cut-body", "hang", "close", "lost-reply"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
"""Two statuses; a reply whose JSON ends too early, or that is shorter than it says; no reply ever;
a connection closed before the server was asked, or after it has done its work."""

_REFUSALS = {
    "429": b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 0",
    "500": b"HTTP/1.1 500 Internal Server Error",
}


def every(n: int, *faults: Fault) -> Callable[[int], Fault | None]:
    """Break the first of every `n` requests, each time by the next of these faults."""
    return lambda number: None if number % n else faults[number // n % len(faults)]


class FaultProxy:
    """Stands before a server on this machine and breaks what `schedule` says."""

    def __init__(
        self, port: int, schedule: Callable[[int], Fault | None] = lambda number: None
    ) -> None:
        self._upstream = port
        self._schedule = schedule
        """From the number of a completion request, 0 for the first, to what befalls it."""
        self.seen: Counter[str] = Counter()
        """Completion requests, by what befell them; ``passed`` for nothing."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._open: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def base_url(self) -> str:
        """What ``--base-url`` takes."""
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the proxy does not start")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        # A server that is closed while it accepts forgets the socket that it has just accepted.
        self._loop.remove_reader(server.sockets[0].fileno())
        await asyncio.sleep(0.1)
        server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        # A client that gives up, a server that is down, the end of the test: all end it quietly.
        ends = (OSError, asyncio.IncompleteReadError, asyncio.CancelledError)
        with contextlib.suppress(*ends):
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(_content_length(head))
            path = head.split(b" ", 2)[1].decode()
            fault = None
            if path.endswith("completions"):
                fault = self._schedule(sum(self.seen.values()))
                self.seen[fault or "passed"] += 1
            await self._answer(writer, head, body, fault)
        writer.close()
        if self._stop.is_set():
            writer.transport.abort()  # what nobody reads any more is not waited for
        with contextlib.suppress(*ends):
            await writer.wait_closed()
        self._open.discard(task)

    async def _answer(
        self, writer: asyncio.StreamWriter, head: bytes, body: bytes, fault: Fault | None
    ) -> None:
        if fault == "close":
            return
        if fault == "hang":
            await self._stop.wait()
            return
        if fault in _REFUSALS:
            await _refuse(writer, _REFUSALS[fault])
            return
        if fault is None:
            async with self._asked(head, body) as upstream:
                while piece := await upstream.read(1 << 16):  # streams are passed on as they come
                    writer.write(piece)
                    await writer.drain()
            return
        async with self._asked(head, body) as upstream:
            reply = await upstream.read()
        if fault == "lost-reply":
            return
        said, end, content = reply.partition(b"\r\n\r\n")
        half = content[: len(content) // 2]
        if fault == "cut-body":
            reply = said + end + half
        elif fault == "truncated-json":
            lines = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
            reply = lines % len(half) + half
        writer.write(reply)
        await writer.drain()

    @contextlib.asynccontextmanager
    async def _asked(self, head: bytes, body: bytes) -> AsyncIterator[asyncio.StreamReader]:
        """Ask the server itself; its reply, as it comes."""
        lines = [
            line
            for line in head.rstrip(b"\r\n").split(b"\r\n")
            if not line.lower().startswith((b"connection:", b"accept-encoding:"))
        ]
        reader, writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        try:
            writer.write(b"\r\n".join([*lines, b"Connection: close", b"", b""]) + body)
            await writer.drain()
            yield reader
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def _refuse(writer: asyncio.StreamWriter, status: bytes) -> None:
    said = b'{"error": {"message": "not now, or not here"}}'
    lines = b"%s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
    writer.write(lines % (status, len(said), said))
    await writer.drain()


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0
