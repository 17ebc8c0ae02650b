"""Chat requests inside vLLM: passed on to its own handler, or answered under the policy.

A covered request is answered by a response that listens for its client while it thinks, so that
thinking and probe are given up as soon as the client is gone, whatever they wait for.
Knows ASGI and vLLM's handler as something to call; nothing of tokens.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.background import BackgroundTasks
from starlette.requests import Request
from starlette.responses import Response

from stopadvisor.engines.openai.trace import Trace
from stopadvisor.errors import ModelError
from stopadvisor.serving.chat_answer import ChatAnswer, answer_chat
from stopadvisor.serving.chat_reply import (
    HEADER,
    KEEP_ALIVE,
    KEEP_ALIVE_SECONDS,
    ChatReply,
    header_value,
)
from stopadvisor.serving.coverage import TASK_HEADER, CoveredRequest, NotCovered
from stopadvisor.serving.metrics import Metrics, RequestRecord
from stopadvisor.serving.vllm.binding import BoundPolicy
from stopadvisor.serving.vllm.engine import EngineModel

__all__ = ["ROUTE", "AfterReply", "PolicyRoute"]

ROUTE = "stopadvisor.route"
"""Key of a request's scope: who answers it, for the header of an error."""

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
AfterReply = Callable[[CoveredRequest, ChatAnswer, EngineModel, str], None]
"""Is called when a reply was sent under the policy, with the request's model and the reply's id; it
must return at once, and may begin work of its own."""

_log = logging.getLogger("vllm.stopadvisor")


@dataclass
class PolicyRoute:
    """What answers ``POST /v1/chat/completions``."""

    bound: BoundPolicy
    metrics: Metrics
    shadow: bool = False
    shows_cached: bool = False
    """Usage names the prompt tokens that were cached, as vLLM was told to."""
    after_reply: AfterReply | None = None
    """Where an audit thinks on behind a stop."""
    is_shadowed: Callable[[], bool] = lambda: False
    """Whether an alarm has put the policy into its shadow."""

    async def answer(self, request: Request, pass_on: Callable[[], Awaitable[Any]]) -> Any:
        """Return the response to a request that vLLM has found to be in form."""
        record = RequestRecord(id="", digest=self.bound.policy.digest[:8])
        began = time.perf_counter()
        body = await request.json()
        found = self.bound.coverage.check(body, task=request.headers.get(TASK_HEADER))
        if isinstance(found, CoveredRequest):
            reply = ChatReply(body["model"])
            model = self.bound.model.for_request(reply.id, found.seed)
            shadow = self.shadow or self.is_shadowed()
            trace = self._begin(model, found, shadow)
            if isinstance(trace, Trace):
                record.id = reply.id
                record.route = "shadow" if shadow else "policy"
                record.reason = "covered"
                return _PolicyResponse(self, found, model, trace, reply, record, began)
            found = trace
        record.reason = found.reason
        return await self._pass_on(pass_on, record, began)

    def _begin(self, model: EngineModel, found: CoveredRequest, shadow: bool) -> Trace | NotCovered:
        """Render the prompt; one that leaves less than the policy's caps is not covered.

        In the shadow vLLM's limits hold and not the policy's caps: nothing changes for the client.
        """
        try:
            prompt_ids = model.chat.prompt_ids(found.request.prompt.messages)
        except ModelError:
            return NotCovered("template")
        if len(prompt_ids) > self.bound.longest_prompt:
            return NotCovered("room")
        limit = self.bound.limit(len(prompt_ids), found.max_tokens) if shadow else None
        return model.begin(prompt_ids, found.request.prompt, limit)

    async def _pass_on(
        self, pass_on: Callable[[], Awaitable[Any]], record: RequestRecord, began: float
    ) -> Any:
        """Let vLLM answer, and say in a header why."""
        record.own_seconds = time.perf_counter() - began
        try:
            with self.metrics.running():
                response = await pass_on()
        except Exception:
            record.status = 500
            self.count(record, began)
            raise
        if not isinstance(response, Response):  # the client has gone
            self.count(record, began)
            return response
        response.headers[HEADER] = header_value("passthrough", record.reason, record.digest)
        record.status = response.status_code
        after = BackgroundTasks()
        if response.background is not None:
            after.tasks.append(response.background)
        after.add_task(self.count, record, began)
        response.background = after
        return response

    def count(self, record: RequestRecord, began: float) -> None:
        """Count a request that is over."""
        record.e2e_seconds = time.perf_counter() - began
        self.metrics.count(record)


class _PolicyResponse(Response):
    """Thinks, probes and answers once it is called; its client may go at any time."""

    def __init__(
        self,
        route: PolicyRoute,
        covered: CoveredRequest,
        model: EngineModel,
        trace: Trace,
        reply: ChatReply,
        record: RequestRecord,
        began: float,
    ) -> None:
        kind = "text/event-stream" if covered.stream else "application/json"
        value = header_value(record.route, record.reason, record.digest)
        self.route, self.covered, self.model, self.trace = route, covered, model, trace
        self.reply, self.record, self.began = reply, record, began
        self.status_code, self.background = 200, None
        self.body = b""
        self._raw = [(b"content-type", kind.encode()), (HEADER.lower().encode(), value.encode())]
        if covered.stream:
            self._raw.append((b"cache-control", b"no-cache"))

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        self.record.own_seconds = time.perf_counter() - self.began
        scope[ROUTE] = self.record.route
        work = asyncio.create_task(self._answer(send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            with self.route.metrics.running():
                await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.wait({work, gone})
            if work.cancelled():
                self.record.think_tokens = len(self.trace.ids)
            self.route.count(self.record, self.began)
        if not work.cancelled():
            work.result()

    async def _answer(self, send: Send) -> None:
        stream = _Stream(self, send) if self.covered.stream else None
        try:
            answered = await answer_chat(
                self.model,
                self.trace,
                self.route.bound.policy,
                task=self.covered.request.task,
                shadow=self.record.route == "shadow",
                reader=stream,
            )
        except Exception as error:
            if stream is None or not stream.open:
                raise  # for vLLM's own handlers, which know its errors
            _log.warning("request %s failed: %s", self.reply.id, type(error).__name__)
            await stream.send(self.reply.error("the engine failed"), last=True)
            return
        finally:
            if stream is not None:
                stream.alive.cancel()
        self._record(answered)
        counts = answered.counts
        if not self.route.shows_cached:
            counts = replace(counts, cached=None)
        if stream is not None:
            end = self.reply.last(answered.finish, counts, include_usage=self.covered.include_usage)
            await stream.send(end, last=True)
        else:
            whole = self.reply.body(
                reasoning=answered.reasoning,
                content=answered.content,
                finish=answered.finish,
                counts=counts,
            )
            data = json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode(
                errors="replace"
            )
            await self.start(send, len(data))
            await send({"type": "http.response.body", "body": data})
        if self.route.after_reply is not None and self.record.route == "policy":
            self.route.after_reply(self.covered, answered, self.model, self.reply.id)

    async def start(self, send: Send, length: int | None = None) -> None:
        """Send the status; from here on an error cannot have one of its own."""
        headers = list(self._raw)
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        self.record.status = 200
        self.record.ttft_seconds = time.perf_counter() - self.began
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    def _record(self, answered: ChatAnswer) -> None:
        """Take down the counts."""
        record, counts = self.record, answered.counts
        stop = answered.stop or answered.shadow
        record.budget = None if stop is None else stop.position
        record.probes, record.failed_probes = counts.probes, answered.failed_probes
        record.prompt_tokens, record.reasoning_tokens = counts.prompt, counts.thinking
        record.think_tokens = counts.thinking + counts.discarded
        record.probe_tokens, record.visible_tokens = counts.probe_tokens, counts.visible
        record.discarded_tokens = counts.discarded
        for seconds in answered.probe_seconds:
            self.route.metrics.probe_seconds.observe(seconds)
        if answered.failed_probes:
            _log.warning("request %s: a probe failed, thinking went on", self.reply.id)


@dataclass
class _Stream:
    """A stream to the client; its first chunk goes out with the first text."""

    response: _PolicyResponse
    raw_send: Send
    open: bool = False
    sent: float = field(default_factory=time.monotonic)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Comments come from a task of their own."""
    alive: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        self.alive = asyncio.create_task(self._keep_alive())

    async def reasoning(self, text: str) -> None:
        """Show thinking."""
        await self.send(self.response.reply.reasoning(text))

    async def content(self, text: str) -> None:
        """Show the answer."""
        await self.send(self.response.reply.content(text))

    async def send(self, data: bytes, *, last: bool = False) -> None:
        """Send chunks."""
        async with self.lock:
            if not self.open:
                self.open = True
                await self.response.start(self.raw_send)
                data = self.response.reply.first() + data
            self.sent = time.monotonic()
            body = {"type": "http.response.body", "body": data, "more_body": not last}
            await self.raw_send(body)

    async def _keep_alive(self) -> None:
        """Send a comment whenever nothing was sent for a while."""
        while True:
            await asyncio.sleep(self.sent + KEEP_ALIVE_SECONDS - time.monotonic())
            if time.monotonic() >= self.sent + KEEP_ALIVE_SECONDS:
                await self.send(KEEP_ALIVE)


async def _disconnected(receive: Receive) -> None:
    """Return when the client is gone; its body was read before."""
    with suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass
