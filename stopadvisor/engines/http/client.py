"""Completions over HTTP: one asynchronous client for one or several equal servers.

Asks ``/v1/completions`` on token ids, survives what servers do under load (429, 5xx, hangs, closed
connections, JSON that breaks off) by asking again with growing pauses, and keeps the key to
itself.  Knows requests and answers; nothing of thinking, probes or runs.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import httpx2
from tenacity import AsyncRetrying, retry_if_exception_type

from stopadvisor.engines.http.completion import (
    Completion,
    EventReader,
    StreamReader,
    Take,
    Unfinished,
    read_completion,
    read_events,
)
from stopadvisor.engines.http.key import Key
from stopadvisor.engines.http.retries import TransientError, Waiting
from stopadvisor.engines.http.servers import Server, Servers
from stopadvisor.errors import EngineError

__all__ = [
    "FINAL",
    "REQUEST_TIMEOUT",
    "RETRY_TIMEOUT",
    "Client",
    "Completion",
    "Key",
    "Refused",
    "Traffic",
]

RETRY_TIMEOUT = 300.0
"""Seconds for which a request that fails is sent again before the run gives up."""
REQUEST_TIMEOUT = 600.0
"""Seconds that a server may take over one answer."""
CONNECT_TIMEOUT = 10.0
KEEP_ALIVE = 4.0
"""Seconds an idle connection is kept: less than the 5 after which uvicorn closes it."""

_MALFORMED = (ValueError, KeyError, TypeError, IndexError, AttributeError)
"""What reading an answer that does not look like one raises."""
FINAL = {401, 402, 403}
"""Statuses of a key, or an account, with which nothing can be asked."""
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504, 529}
"""Statuses that another attempt may change."""
_SHOWN = 200
"""Characters of a server's message that are passed on."""


_Result = TypeVar("_Result")
_Receive = Callable[[httpx2.Response, float], Awaitable[_Result]]
"""Reads an answer that has begun, asked for at that time."""


class Refused(EngineError):
    """The server understood the request and will not do it, or not to its end.

    Asking again is no use.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Traffic:
    """What was answered so far; attempts that failed count as `failed` only."""

    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0


class Client:
    """Completions from one or several servers that serve the same model, within one event loop.

    With several servers, each question has a replica of its own (see `assign_replica`), so that
    its prefix is cached where it is asked for again.  The key is sent to these servers only,
    through the proxies that the environment names.  One answer may take `request_timeout`
    seconds.  A request that fails is sent again for `retry_timeout` seconds before `EngineError` is
    raised: a server that dies and comes back within that time costs time, and nothing else.

    Examples
    --------
    ::

        async with Client(["http://127.0.0.1:8000/v1"], "Qwen/Qwen3-8B") as client:
            answer = await client.complete(ids, max_tokens=48, logprobs=20)
    """

    def __init__(
        self,
        base_urls: Sequence[str],
        model: str,
        *,
        key: Key | None = None,
        request_timeout: float = REQUEST_TIMEOUT,
        retry_timeout: float = RETRY_TIMEOUT,
    ) -> None:
        self.model = model
        self.retry_timeout = retry_timeout
        self.traffic = Traffic()
        self._key = key
        self._servers = Servers(base_urls)
        self._http = httpx2.AsyncClient(
            auth=key,
            timeout=httpx2.Timeout(request_timeout, connect=CONNECT_TIMEOUT, pool=None),
            limits=httpx2.Limits(
                max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEP_ALIVE
            ),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    @property
    def urls(self) -> tuple[str, ...]:
        """Base URLs of the servers."""
        return self._servers.urls

    def assign_replica(self) -> int:
        """Give a question its server, by number: the one that was given the fewest so far."""
        return self._servers.assign_replica()

    async def complete(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        temperature: float | None = 0.0,
        replica: int | None = None,
        retry_timeout: float | None = None,
        **fields: Any,
    ) -> Completion:
        """Continue token ids; nothing is added to them.

        Further fields of the request, such as ``seed``, ``logprobs`` and ``stop_token_ids``, may be
        named; one that is None is left out, and so is `temperature`.  While the `replica` is down
        another server is asked.

        Raises
        ------
        Refused
            The server will not do this.
        EngineError
            It keeps failing for longer than `retry_timeout`.
        """
        body = self._body(prompt, max_tokens=max_tokens, temperature=temperature, **fields)
        receive = _whole(read_completion)
        found = await self._ask_until("POST", "/completions", body, replica, retry_timeout, receive)
        return self._count(found)

    async def stream(
        self,
        prompt: Sequence[int],
        take: Take,
        *,
        replica: int | None = None,
        retry_timeout: float | None = None,
        **fields: Any,
    ) -> Completion:
        """Continue token ids as `complete` does, and hand the tokens on as they are decoded.

        When `take` wants no more the connection is closed, and so it is when this call is
        cancelled: the server then gives the request up.  A stream that breaks off after its first
        token is returned as ``broken``, to be resumed from there; one that never began is asked for
        again, as any request.
        """
        # Without the running counts a stream that is closed early says nothing of its prompt.
        usage = {"include_usage": True, "continuous_usage_stats": True}
        body = self._body(prompt, stream=True, stream_options=usage, **fields)
        return await self.read_stream(
            "/completions",
            body,
            lambda: StreamReader(take),
            replica=replica,
            retry_timeout=retry_timeout,
        )

    async def read_stream(
        self,
        path: str,
        body: Mapping[str, Any],
        make_reader: Callable[[], EventReader],
        *,
        replica: int | None = None,
        retry_timeout: float | None = None,
    ) -> Completion:
        """Send a request whose answer is streamed, and have a reader put it together.

        `make_reader` gives each attempt its reader.  Where the stream breaks off before the reader
        has handed anything on, there is another attempt; afterwards its result is ``broken``.
        Errors are those of `complete`.
        """

        async def receive(response: httpx2.Response, began: float) -> Completion:
            reader = make_reader()
            try:
                async with aclosing(read_events(response.aiter_bytes())) as events:
                    async for event in events:
                        if not reader.read(event):
                            break
                return reader.result(time.monotonic() - began)
            except (httpx2.HTTPError, *_MALFORMED):
                if not reader.begun:
                    raise
                self.traffic.failed += 1
                return reader.result(time.monotonic() - began, broken=True)

        found = await self._ask_until("POST", path, body, replica, retry_timeout, receive)
        return self._count(found)

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        replica: int | None = None,
        retry_timeout: float | None = None,
    ) -> dict[str, Any]:
        """Send any request and return the JSON object it is answered with.

        `path` stands behind the base URL; one that begins with ``//`` stands behind the base URL
        without its ``/v1``, as in ``//version``.  Errors are those of `complete`.
        """
        receive = _whole(lambda data, seconds: data)
        return await self._ask_until(method, path, body, replica, retry_timeout, receive)

    def _body(self, prompt: Sequence[int], **fields: Any) -> dict[str, Any]:
        """Return the request of a completion; fields without a value are left out."""
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": list(prompt),
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        return body | {name: value for name, value in fields.items() if value is not None}

    def _count(self, completion: Completion) -> Completion:
        self.traffic.prompt_tokens += completion.prompt_tokens
        self.traffic.cached_tokens += completion.cached_tokens or 0
        return completion

    async def _ask_until(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        replica: int | None,
        retry_timeout: float | None,
        receive: _Receive[_Result],
    ) -> _Result:
        """Ask until it works, or until `retry_timeout` is over."""
        limit = Waiting(self.retry_timeout if retry_timeout is None else retry_timeout)
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(TransientError),
            stop=limit.stop,
            wait=limit.wait,
            sleep=asyncio.sleep,
            reraise=True,
        )
        content = None if body is None else json.dumps(body).encode()
        try:
            return await retrying(self._once, method, path, content, replica, receive)
        except TransientError as error:
            tried = f"for {limit.seconds:.0f} s " if limit.seconds >= 1 else ""
            raise EngineError(f"no answer {tried}from {error}") from error

    async def _once(
        self,
        method: str,
        path: str,
        content: bytes | None,
        replica: int | None,
        receive: _Receive[_Result],
    ) -> _Result:
        server = self._servers.pick(replica)
        url = server.url.removesuffix("/v1") + path[1:] if path[:2] == "//" else server.url + path
        headers = {} if content is None else {"Content-Type": "application/json"}
        server.in_flight += 1
        began = time.monotonic()
        try:
            async with self._http.stream(method, url, content=content, headers=headers) as response:
                if not response.is_success:
                    await response.aread()
                    self._raise_for(server, response)
                result = await receive(response, began)
        except httpx2.HTTPError as error:
            self.traffic.failed += 1
            server.rest()
            raise TransientError(f"{server.url}: {self._hide(_reason(error))}") from error
        except TransientError:
            self.traffic.failed += 1
            raise
        except Unfinished as error:
            said = self._hide(str(error))
            raise Refused(f"{server.url} {said}", response.status_code) from None
        except _MALFORMED as error:
            self.traffic.failed += 1
            server.rest()
            # The error may quote what was sent; `from None` keeps it out of tracebacks as well.
            reason = self._hide(f"malformed answer ({type(error).__name__}: {error})")
            raise TransientError(f"{server.url}: {reason}") from None
        finally:
            server.in_flight -= 1
        server.resting_until = 0.0
        self.traffic.requests += 1
        return result

    def _raise_for(self, server: Server, response: httpx2.Response) -> None:
        """Say what a status means: ask again, after a pause perhaps, or give up."""
        if response.status_code not in _TRANSIENT:
            raise self._refused(server, response)
        pause = _retry_after(response)
        server.rest(pause)
        if self._servers.any_well():
            pause = 0.0  # the next attempt goes to another
        said = self._said(response)
        raise TransientError(f"{server.url}: {response.status_code} {said}", pause)

    def _refused(self, server: Server, response: httpx2.Response) -> Refused:
        status, said = response.status_code, self._said(response)
        if status in (401, 403):
            key = f"the key in {self._key.name}" if self._key else "a request without a key"
            return Refused(f"{server.url} does not accept {key} ({status} {said})", status)
        return Refused(f"{server.url} refuses the request: {status} {said}", status)

    def _said(self, response: httpx2.Response) -> str:
        """What the server says is wrong, in one short line and without the key."""
        try:
            data = response.json()
        except ValueError:
            data = response.text
        for name in ("error", "message", "detail"):
            if isinstance(data, dict) and data.get(name):
                data = data[name]
        # Hidden before it is cut: of half a key nothing would be recognised.
        text = self._hide(" ".join(str(data).split()))
        return text[:_SHOWN] or response.reason_phrase

    def _hide(self, text: str) -> str:
        return self._key.hide(text) if self._key else text


def _whole(parse: Callable[[Any, float], _Result]) -> _Receive[_Result]:
    """Make a receiver of what reads a whole JSON object, and the seconds that it took."""

    async def receive(response: httpx2.Response, began: float) -> _Result:
        await response.aread()
        seconds = time.monotonic() - began
        data = response.json()
        if not isinstance(data, dict):
            raise TypeError(f"expected an object, got {type(data).__name__}")
        return parse(data, seconds)

    return receive


def _reason(error: httpx2.HTTPError) -> str:
    """Name a failure of the connection; some of the library's errors have no text."""
    if isinstance(error, httpx2.ReadTimeout):
        return "no answer within --request-timeout"
    if isinstance(error, httpx2.TimeoutException):
        return f"timed out ({type(error).__name__})"
    return str(error) or type(error).__name__


def _retry_after(response: httpx2.Response) -> float:
    """Seconds the server asks to be left alone; 0 where it does not, or gives a date."""
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isdecimal() else 0.0
