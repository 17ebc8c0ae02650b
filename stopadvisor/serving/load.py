"""Load on an OpenAI-compatible server: chat requests, streamed, timed and counted.

A number of requests kept in flight (closed loop), or requests that arrive at times of their own,
whatever the server does (open loop).  Times are those of the running event loop.  Knows no policy
and draws no conclusions.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from stopadvisor.engines.errors import first_error
from stopadvisor.engines.http.completion import read_events
from stopadvisor.engines.http.key import Key
from stopadvisor.engines.openai.chat_stream import ChatReader
from stopadvisor.errors import EngineError, ModelError
from stopadvisor.json_text import parse_json
from stopadvisor.serving.chat_reply import HEADER

__all__ = ["KvUse", "LoadServer", "Timed", "closed_loop", "open_loop"]

_REFUSALS = range(400, 429)
"""Statuses that asking again does not change; 429 and above are overload."""
_EVERY = 0.1
"""Seconds between two looks at the server's metrics."""
_LINE = 2**20
"""Bytes of an event."""
_USE = re.compile(r"^vllm:kv_cache_usage_perc(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
_BLOCKS = re.compile(r'^vllm:cache_config_info\{[^}]*num_gpu_blocks="(\d+)"', re.MULTILINE)


@dataclass(frozen=True)
class Timed:
    """One request and what became of it; seconds are infinite where it failed."""

    ttft: float = math.inf
    """To the first token that was shown."""
    tpot: float = math.inf
    """Per further token that was shown."""
    e2e: float = math.inf
    prompt: int = 0
    cached: int | None = None
    """Tokens of the prompt that came from the cache; None where the server does not say."""
    decoded: int = 0
    header: str = ""
    """`X-StopAdvisor`; empty where no policy is near."""

    @property
    def worked(self) -> bool:
        """Whether there is an answer."""
        return math.isfinite(self.e2e)

    @property
    def route(self) -> str:
        """``policy``, ``passthrough`` or ``shadow``; empty without the header."""
        return self.header.partition(";")[0]


@dataclass
class KvUse:
    """Use of the server's KV cache, watched."""

    block_seconds: float | None = None
    """Blocks in use, summed over the time; None where the server does not say."""


@dataclass
class LoadServer:
    """A server under load, within one event loop."""

    url: str
    model: str
    key_name: str | None = None
    """Environment variable with the server's key."""
    timeout: float = 600.0
    """Seconds for one answer."""
    metrics: bool = False
    _http: aiohttp.ClientSession = field(init=False, repr=False)
    _key: Key | None = field(init=False, repr=False, default=None)

    async def __aenter__(self) -> LoadServer:
        headers = {"Accept-Encoding": "identity"}
        name = self.key_name or "OPENAI_API_KEY"
        self._key = Key.of_environment(name, required=self.key_name is not None)
        if self._key is not None:
            headers["Authorization"] = f"Bearer {os.environ[name].strip()}"
        self._http = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=self.timeout),
            read_bufsize=_LINE,
            trust_env=True,
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.close()

    async def ask(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Timed:
        """Send one chat request, `body` beside model and streaming; a failure is an answer too.

        Raises
        ------
        EngineError
            The server refuses the request.
        """
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        now = asyncio.get_running_loop().time
        shown: list[float] = []

        def take(reasoning: str, text: str) -> bool:
            if not shown:
                shown.append(now())
            return True

        began = now()
        reader = ChatReader(take)
        try:
            async with self._http.post(
                f"{self.url}/chat/completions",
                json={"model": self.model, **stream, **body},
                headers=headers,
            ) as reply:
                if reply.status in _REFUSALS:
                    raise EngineError(
                        f"{self.url} refuses a request: {reply.status} "
                        f"{self._one_line(await reply.content.read(2000))}"
                    )
                reply.raise_for_status()
                async with aclosing(read_events(_lines(reply.content), parse_json)) as events:
                    async for event in events:
                        reader.read(event)
                header = reply.headers.get(HEADER, "")
            ended = now()
            result = reader.result(ended - began)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError):
            return Timed()
        first = shown[0] if shown else ended
        own = reader.usage.get("stopadvisor") or {}
        # What probes decode and what is thrown away is not shown.
        hidden = int(own.get("probe_tokens") or 0) + int(own.get("discarded_tokens") or 0)
        further = max(1, result.decoded_tokens - hidden - 1)
        return Timed(
            ttft=first - began,
            tpot=(ended - first) / further,
            e2e=ended - began,
            prompt=result.prompt_tokens,
            cached=result.cached_tokens,
            decoded=result.decoded_tokens,
            header=header,
        )

    async def context(self) -> int | None:
        """Tokens that the model takes, as the server says; None where it does not.

        Raises
        ------
        ModelError
            Nothing answers there, or the server does not serve the model.
        """
        try:
            async with self._http.get(f"{self.url}/models") as reply:
                text = await reply.content.read(_LINE)
                reply.raise_for_status()
                served = {row["id"]: row for row in parse_json(text)["data"]}
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            said = self._one_line(str(error).encode())
            raise ModelError(f"--base-url {self.url}: no list of models ({said})") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(f"--base-url {self.url}: not an OpenAI-compatible server") from error
        if self.model not in served:
            names = ", ".join(sorted(map(str, served))) or "none"
            raise ModelError(f"{self.url} serves {names}, --model is {self.model}")
        length = served[self.model].get("max_model_len")
        return length if isinstance(length, int) else None

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[KvUse]:
        """Add up the use of the KV cache meanwhile.

        Raises
        ------
        ModelError
            The server's metrics do not hold it.
        """
        use = KvUse()
        if not self.metrics:
            yield use
            return
        now = asyncio.get_running_loop().time
        use.block_seconds, last = 0.0, now()
        await self._blocks_in_use()

        async def look() -> None:
            nonlocal last
            blocks, at = await self._blocks_in_use(), now()
            use.block_seconds = (use.block_seconds or 0.0) + blocks * (at - last)
            last = at

        async def watch() -> None:
            while True:
                await asyncio.sleep(_EVERY)
                await look()

        task = asyncio.create_task(watch())
        try:
            yield use
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _blocks_in_use(self) -> float:
        at = self.url.removesuffix("/v1") + "/metrics"
        try:
            async with self._http.get(at) as reply:
                text = (await reply.read()).decode(errors="replace")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ModelError(f"{at}: {self._one_line(str(error).encode())}") from None
        use, blocks = _USE.search(text), _BLOCKS.search(text)
        if use is None or blocks is None:
            raise ModelError(
                f"{at} does not name vllm:kv_cache_usage_perc and its blocks: --engine openai "
                "measures any server, and no KV cache"
            )
        return float(use[1]) * int(blocks[1])

    def _one_line(self, said: bytes) -> str:
        text = " ".join(said.decode(errors="replace").split())[:200]
        return self._key.hide(text) if self._key else text


async def _lines(content: aiohttp.StreamReader) -> AsyncGenerator[bytes]:
    async for line in content:
        yield line


SendRequest = Callable[[int], Awaitable[Timed]]
"""Sends the request of a number."""


async def closed_loop(
    send_request: SendRequest, requests: int, at_once: int
) -> tuple[list[Timed], float]:
    """Send so many requests, so many at once; what was answered, and the seconds of all."""
    left = iter(range(requests))
    answers: dict[int, Timed] = {}

    async def work() -> None:
        for number in left:
            answers[number] = await send_request(number)

    now = asyncio.get_running_loop().time
    began = now()
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(at_once, requests)):
                group.create_task(work())
    except BaseExceptionGroup as group_error:
        raise first_error(group_error) from None
    return list(answers.values()), now() - began


async def open_loop(
    send_request: SendRequest, arrivals: Sequence[float], hopeless: Callable[[int, Timed], bool]
) -> list[Timed | None]:
    """Send a request at each time of arrival, in seconds from now, and wait for the answers.

    `hopeless` is called with each answer; where it is true the rest is given up, and is None.
    """
    now = asyncio.get_running_loop().time
    began = now()
    answers: list[Timed | None] = [None] * len(arrivals)
    over = asyncio.Event()

    async def send(number: int) -> None:
        answers[number] = found = await send_request(number)
        if hopeless(number, found):
            over.set()

    async def send_all() -> None:
        async with asyncio.TaskGroup() as group:
            for number, at in enumerate(arrivals):
                await asyncio.sleep(began + at - now())
                group.create_task(send(number))

    sending, ended = asyncio.create_task(send_all()), asyncio.create_task(over.wait())
    try:
        await asyncio.wait({sending, ended}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            try:
                sending.result()
            except BaseExceptionGroup as group_error:
                raise first_error(group_error) from None
    finally:
        for task in (sending, ended):
            task.cancel()
        await asyncio.gather(sending, ended, return_exceptions=True)
    return answers
