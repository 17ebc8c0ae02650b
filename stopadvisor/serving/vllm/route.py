"""Chat requests inside vLLM: passed on to its own handler, or answered under the policy.

A covered request is answered by a response that listens for its client while it thinks, so that
thinking and probe are given up as soon as the client is gone, whatever they wait for.
Knows ASGI and vLLM's handler as something to call; nothing of tokens.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.background import BackgroundTasks
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response

from stopadvisor.engines.trace import Trace
from stopadvisor.engines.trace_context import TRACE_CONTEXT, trace_context
from stopadvisor.ground.errors import ModelError
from stopadvisor.serving.audits import FullThinking
from stopadvisor.serving.chat_reply import HEADER, ChatReply, header_value
from stopadvisor.serving.eligibility import TASK_HEADER, CoveredRequest, NotCovered
from stopadvisor.serving.metrics import Metrics, RequestRecord
from stopadvisor.serving.responder import Gone, Responder, Sender, unless_gone
from stopadvisor.serving.serve_settings import for_task
from stopadvisor.serving.vllm.adapter import PATH, unforeseen
from stopadvisor.serving.vllm.binding import BoundPolicy
from stopadvisor.serving.vllm.engine_model import EngineModel

__all__ = ["MarkedReplies", "PolicyRoute"]

_ROUTE = "stopadvisor.route"
"""Key of a request's scope: who answers it, for the header of an error."""

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_log = logging.getLogger("vllm.stopadvisor")


@dataclass
class PolicyRoute:
    """What answers ``POST /v1/chat/completions``."""

    policies: tuple[BoundPolicy, ...]
    """One, or one for each of several tasks; may be replaced at any time."""
    metrics: Metrics
    shadow: bool = False
    shows_cached: bool = False
    """Usage names the prompt tokens that were cached, as vLLM was told to."""

    @property
    def digest(self) -> str | None:
        """Of the policy; None where there are several."""
        return self.policies[0].policy.digest if len(self.policies) == 1 else None

    async def answer(self, request: Request, pass_on: Callable[[], Awaitable[Any]]) -> Any:
        """Return the response to a request that vLLM has found to be in form."""
        record, began = RequestRecord(id=""), time.perf_counter()
        TRACE_CONTEXT.set(trace_context(request.headers.raw))
        body = await request.json()
        task = request.headers.get(TASK_HEADER)
        bound = for_task(self.policies, task)
        if bound is None:
            record.reason = "task"
            return await self._pass_on(pass_on, record, began)
        record.digest = bound.policy.digest[:8]
        found = bound.coverage.check(body, task=task)
        if isinstance(found, CoveredRequest):
            reply = ChatReply(body["model"])
            model = bound.model.for_request(reply.id, found.seed)
            shadow = self.shadow or (bound.auditor is not None and bound.auditor.is_shadowed())
            trace = _begin(bound, model, found, shadow)
            if isinstance(trace, Trace):
                record.id, record.reason = reply.id, "covered"
                record.route = "shadow" if shadow else "policy"
                return _PolicyResponse(self, bound, found, model, trace, reply, record, began)
            found = trace
        record.reason = found.reason
        return await self._pass_on(pass_on, record, began)

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
        response.headers[HEADER] = header_value("passthrough", record.reason, record.digest or None)
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


def _begin(
    bound: BoundPolicy, model: EngineModel, found: CoveredRequest, shadow: bool
) -> Trace | NotCovered:
    """Render the prompt; one that leaves less than the policy's caps is not covered.

    In the shadow vLLM's limits hold and not the policy's caps: nothing changes for the client.
    """
    try:
        prompt_ids = model.chat.prompt_ids(found.request.prompt.messages)
    except ModelError:
        return NotCovered("template")
    if len(prompt_ids) > bound.longest_prompt:
        return NotCovered("room")
    limit = bound.limit(len(prompt_ids), found.max_tokens) if shadow else None
    return model.begin(prompt_ids, found.request.prompt, limit)


@dataclass(eq=False, repr=False)  # it holds a prompt
class _PolicyResponse(Response):
    """Thinks, probes and answers once it is called; its client may go at any time."""

    route: PolicyRoute
    bound: BoundPolicy
    covered: CoveredRequest
    model: EngineModel
    trace: Trace
    reply: ChatReply
    record: RequestRecord
    began: float
    status_code: int = 200
    background: None = None
    body: bytes = b""

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        record, self.record.own_seconds = self.record, time.perf_counter() - self.began
        scope[_ROUTE] = record.route
        try:
            with self.route.metrics.running():
                await unless_gone(receive, self._answer(Sender(send, record, self.began)))
        except Gone:
            record.error = "client-gone"
            record.think_tokens = len(self.trace.ids)
        finally:
            self.route.count(record, self.began)

    async def _answer(self, send: Sender) -> None:
        route, record, model = self.route, self.record, self.model
        value = header_value(record.route, record.reason, record.digest).encode()
        responder = Responder(
            self.covered,
            model,
            self.reply,
            send,
            (HEADER.lower().encode(), value),
            route.metrics,
            shows_cached=route.shows_cached,
        )
        policy, auditor = self.bound.policy, self.bound.auditor
        task, shadow = self.covered.request.task, record.route == "shadow"
        live = model.live(self.trace, policy, task=task, shadow=shadow, observer=responder)
        try:
            answered = await responder.run(live)
        except Exception as error:
            if not send.begun:
                raise  # for vLLM's own handlers, which know its errors
            _log.warning("request %s failed: %s", self.reply.id, type(error).__name__)
            return
        if answered.failed_probes:
            _log.warning("request %s: a probe failed, thinking went on", self.reply.id)
        if auditor is not None and not shadow:
            auditor.served(
                responder.audited(answered, policy), partial(_finish, model, answered.trace)
            )


async def _finish(model: EngineModel, trace: Trace) -> FullThinking:
    """Think a stopped trace to its end."""
    tokens = await model.finish(trace)
    text = model.stops.visible_text(trace.visible) if trace.end.closed else None
    return FullThinking(text, tokens)


class MarkedReplies:
    """Middleware: every reply to a chat request carries the header, also an error.

    What vLLM's handler of unforeseen errors would say outside of all middleware is said here.
    """

    def __init__(self, app: Any, *, server: Any, state: Any) -> None:
        self.app, self.server, self.state = app, server, state

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, and mark the start of its reply."""
        if scope["type"] != "http" or not scope["path"].endswith(PATH):
            await self.app(scope, receive, send)
            return
        began = False

        async def mark(message: Any) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                digest = self.state.stopadvisor.digest
                value = header_value(scope.get(_ROUTE, "passthrough"), "error", digest)
                MutableHeaders(scope=message).setdefault(HEADER, value)
            await send(message)

        try:
            await self.app(scope, receive, mark)
        except Exception as error:
            handler = unforeseen(self.server)
            if began or handler is None:
                raise
            response = await handler(Request(scope, receive), error)
            await response(scope, receive, mark)
            raise
