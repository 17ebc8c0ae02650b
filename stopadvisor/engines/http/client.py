"""An asynchronous client for completions from one or several replicas.

Retries with growing pauses when a server under load answers 429 or 5xx, hangs, closes connections
or truncates JSON.  Keeps the API key out of everything it returns or raises.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Self, TypeVar

import httpx2

from stopadvisor.engines.http.completion import (
    Body,
    BodyLimits,
    Completion,
    StreamReader,
    StreamTimeouts,
    Take,
    UnacceptableError,
    read_completion,
    read_events,
)
from stopadvisor.engines.http.key import Key
from stopadvisor.engines.http.servers import (
    OPENING_TIMEOUT,
    MalformedError,
    Patience,
    Server,
    Servers,
    TransientError,
)
from stopadvisor.engines.trace_context import TRACE_CONTEXT
from stopadvisor.ground.errors import EngineError
from stopadvisor.ground.json_text import parse_json

__all__ = [
    "FINAL",
    "REQUEST_TIMEOUT",
    "RETRY_TIMEOUT",
    "Client",
    "Completion",
    "Key",
    "Refused",
    "StreamTimeouts",
    "Unreachable",
]

RETRY_TIMEOUT = 300.0
"""Seconds for which a failing request is retried."""
REQUEST_TIMEOUT = 600.0
"""Seconds for one answer."""
_CONNECT_TIMEOUT = 10.0
_KEEP_ALIVE = 4.0
"""Seconds for which idle connections are kept: uvicorn closes them after 5."""

_BROKEN = (httpx2.HTTPError, TimeoutError, EOFError)
"""Errors of a failing connection."""
_DISCONNECTED = (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError)
"""Errors of a connection closed or reset without an answer."""
_MALFORMED = (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError)
"""Errors of parsing a malformed answer."""
FINAL = {401, 402, 403}
"""Statuses that reject the key or the account."""
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504, 529}
"""Statuses that are retried."""
_SHOWN = 200
"""Limit on the characters of a server's message in an error."""
_ERROR_BYTES = 2**14
"""Limit on the bytes read from an error's body."""


_Result = TypeVar("_Result")


class Refused(EngineError):
    """The server refuses the request or will not finish the answer; retrying is pointless."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Unreachable(EngineError):
    """The server was down, busy or silent until the retry time-out."""


class Client:
    """Completions from one or several servers of the same model, within one event loop.

    Each question stays with one replica (see `assign_replica`), whose cache then holds its prefix.
    The key is sent only to these servers.  An answer must be complete within `request_timeout`
    seconds and no larger than its tokens can need.  Failing requests are retried for
    `retry_timeout` seconds.  `stream_timeouts` limits the gaps in a stream.  `on_wait` is called
    once, with one line, if opening or the first answer has to wait for a server.

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
        connect_timeout: float = _CONNECT_TIMEOUT,
        stream_timeouts: StreamTimeouts | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        self.model = model
        self.key = key
        self.request_timeout = request_timeout
        self.retry_timeout = retry_timeout
        self._on_wait = on_wait
        self._has_answered = False
        self._stream_timeouts = stream_timeouts
        self._servers = Servers(base_urls)
        self._http = httpx2.AsyncClient(
            auth=key,
            # A few compressed bytes can expand to gigabytes.
            headers={"Accept-Encoding": "identity"},
            # `_once` and `Body` limit all else: the library's time-outs are per read, so a slow
            # trickle of bytes would pass.
            timeout=httpx2.Timeout(None, connect=connect_timeout),
            limits=httpx2.Limits(
                max_connections=None, max_keepalive_connections=None, keepalive_expiry=_KEEP_ALIVE
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
        """See `Servers.assign_replica`."""
        return self._servers.assign_replica()

    async def complete(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        take: Take | None = None,
        replica: int | None = None,
        opening: bool = False,
        temperature: float = 0.0,
        **fields: Any,
    ) -> Completion:
        """Continue a prompt of token ids.

        `fields` are further fields of the request, such as ``seed``, ``logprobs`` and
        ``stop_token_ids``; None leaves one out.  While the `replica` is down, another server takes
        the request.  While `opening` a replica, no other server answers for it, and malformed
        answers are retried for at most five seconds.

        With `take` the answer is streamed, and `take` is called with new tokens.  When it returns
        False, or this call is cancelled, the connection is closed, and the server aborts the
        request.  A stream that breaks after its first token is returned as ``broken``, so that the
        caller can resume there.

        Raises `Refused`; `Unreachable` after the retry time-out; or `EngineError` if answers were
        malformed for that long.
        """
        body = {
            "model": self.model,
            "prompt": list(prompt),
            "return_token_ids": True,
            # Names the alternatives in ``top_logprobs`` uniquely: two tokens may have one text.
            "return_tokens_as_token_ids": True,
            "max_tokens": max_tokens,
            "temperature": temperature,
            **{name: value for name, value in fields.items() if value is not None},
        }
        if take is not None:
            # A stream closed early reports its prompt tokens only with continuous usage.
            usage = {"include_usage": True, "continuous_usage_stats": True}
            body |= {"stream": True, "stream_options": usage}
        read = partial(self._read_completion, take=take)
        return await self._ask("POST", "/completions", body, read, replica=replica, opening=opening)

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        replica: int | None = None,
        opening: bool = False,
        optional: bool = False,
        header: str | None = None,
    ) -> dict[str, Any]:
        """Send any request and return the JSON object of the response.

        `path` is appended to the base URL; with a leading ``//``, to the base URL without ``/v1``.
        An `optional` request is retried for at most five seconds.  The value of the response header
        named `header` is added under that name.  Raises as `complete`.
        """
        return await self._ask(
            method,
            path,
            body or {},
            partial(self._read_object, header=header),
            replica=replica,
            opening=opening,
            most=OPENING_TIMEOUT if optional else math.inf,
        )

    async def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[Body], Awaitable[_Result]],
        *,
        replica: int | None,
        opening: bool,
        most: float = math.inf,
    ) -> _Result:
        """Retry a request until it succeeds, for the retry time-out but at most `most` seconds."""
        seconds = min(self.retry_timeout, most)
        patience = Patience(seconds, min(seconds, OPENING_TIMEOUT) if opening else seconds)
        while True:
            server = self._servers.pick(replica, alone=opening)
            try:
                result = await self._once(server, method, path, body, read)
                self._has_answered = True
                return result
            except TransientError as error:
                pause = patience.pause(error)
                if pause is None:
                    waited = patience.allowed(error)
                    tried = f"for {waited:.0f} s " if waited >= 1 else ""
                    kind = EngineError if isinstance(error, MalformedError) else Unreachable
                    raise kind(f"no answer {tried}from {error}") from error
                # A single failure is not worth a message.
                begins = opening or not self._has_answered
                if begins and patience.failures > 1 and self._on_wait is not None:
                    tell, self._on_wait = self._on_wait, None
                    waiting = f"for {seconds:.0f} s at most (--patience)"
                    tell(f"waiting for a server, {waiting}: {error}")
            await patience.sleep(pause)

    async def _once(
        self,
        server: Server,
        method: str,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[Body], Awaitable[_Result]],
    ) -> _Result:
        url = server.url.removesuffix("/v1") + path[1:] if path[:2] == "//" else server.url + path
        headers, content = dict(TRACE_CONTEXT.get()), None
        if method == "POST":
            headers["Content-Type"], content = "application/json", json.dumps(body).encode()
        request = self._http.build_request(method, url, content=content, headers=headers)
        now = asyncio.get_running_loop().time()
        deadline = begins_by = now + self.request_timeout
        timeouts = self._stream_timeouts if body.get("stream") else None
        if timeouts is not None:
            begins_by = min(deadline, now + timeouts.first)
        status = 0
        try:
            async with asyncio.timeout_at(begins_by):
                response = await self._sent(request)
            try:
                status = response.status_code
                answer = Body(response, BodyLimits.of(body), deadline, timeouts)
                if not response.is_success:
                    self._raise_for(server, response, await answer.begin(_ERROR_BYTES))
                result = await read(answer)
            finally:
                await response.aclose()
        except _BROKEN as error:
            server.rest()
            reason = str(error) or type(error).__name__
            if isinstance(error, TimeoutError):
                reason = "no answer within --request-timeout"
            elif isinstance(error, httpx2.TimeoutException):
                reason = f"timed out ({type(error).__name__})"
            raise TransientError(f"{server.url}: {self._one_line(reason)}") from error
        except UnacceptableError as error:
            raise Refused(f"{server.url} {self._one_line(str(error))}", status) from None
        except _MALFORMED as error:
            server.rest()
            # The error may quote the answer: `from None` keeps that out of tracebacks.
            reason = self._one_line(f"malformed answer ({type(error).__name__}: {error})")
            raise MalformedError(f"{server.url}: {reason}") from None
        server.worked()
        return result

    async def _sent(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; retry if the server had just closed the idle connection that it used."""
        opened: list[str] = []

        async def note(event: str, _: Any) -> None:
            if event.endswith(".connect_tcp.started"):  # a SOCKS proxy's has another prefix
                opened.append(event)

        request.extensions["trace"] = note
        while True:
            try:
                return await self._http.send(request, stream=True)
            except _DISCONNECTED:
                if opened:
                    raise

    def _raise_for(self, server: Server, response: httpx2.Response, body: bytes) -> None:
        """Raise for an error status: `TransientError` to retry, or `Refused`."""
        status = response.status_code
        try:
            data = self._read(body)
        except ValueError:
            data = body.decode(errors="replace")
        for name in ("error", "message", "detail"):
            if isinstance(data, dict) and data.get(name):
                data = data[name]
        message = self._one_line(str(data)) or self._one_line(response.reason_phrase)
        if status in (401, 403):
            key = f"the key in {self.key.name}" if self.key else "a request without a key"
            raise Refused(f"{server.url} does not accept {key} ({status} {message})", status)
        if status not in _TRANSIENT:
            raise Refused(f"{server.url} refuses the request: {status} {message}", status)
        retry_after = response.headers.get("Retry-After", "")  # seconds or a date
        pause = float(retry_after) if retry_after.isdecimal() else 0.0
        server.rest(pause)
        if self._servers.well():
            pause = 0.0  # the next attempt goes to another server
        raise TransientError(f"{server.url}: {status} {message}", pause)

    # --- Reading answers ---

    def _read(self, text: bytes) -> Any:
        """Parse JSON and remove the key from it; raises as `parse_json`."""
        data = parse_json(text)
        return self.key.hide_in_data(data) if self.key else data

    async def _read_object(self, answer: Body, header: str | None = None) -> dict[str, Any]:
        data = self._read(await answer.whole())
        if not isinstance(data, dict):
            raise TypeError(f"expected an object, got {type(data).__name__}")
        if header is not None:
            data[header] = self._one_line(answer.response.headers.get(header, ""))
        return data

    async def _read_completion(self, answer: Body, take: Take | None) -> Completion:
        if take is None:
            return read_completion(await self._read_object(answer))
        reader = StreamReader(take)
        try:
            async with (
                aclosing(answer.lines()) as lines,
                aclosing(read_events(lines, self._read)) as events,
            ):
                async for event in events:
                    if not reader.read(event):
                        break
            return reader.result()
        except (*_BROKEN, *_MALFORMED):
            if not reader.ids:
                raise
            return reader.result(broken=True)

    def _one_line(self, text: str) -> str:
        """Shorten a text that may quote a server, and hide the key."""
        # Before cutting: half a key would not be recognised.
        text = self.key.hide(text) if self.key else text
        return " ".join(text.split())[:_SHOWN]
