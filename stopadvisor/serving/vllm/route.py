"""Chat requests inside vLLM: answered under the policy, or passed on to vLLM's own handler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from starlette.background import BackgroundTasks
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response

from stopadvisor.engines.live import LiveRequest
from stopadvisor.engines.model_files import LoadedTokenizer
from stopadvisor.engines.trace import Trace
from stopadvisor.engines.trace_context import TRACE_CONTEXT, trace_context
from stopadvisor.ground.constants import POLICY_HEADER
from stopadvisor.ground.errors import ModelError, StopAdvisorError
from stopadvisor.ground.printable import printable
from stopadvisor.policy.frozen import Policy
from stopadvisor.serving.audits import Auditors, FullThinking
from stopadvisor.serving.eligibility import TASK_HEADER, VLLM_HEADERS, CoveredRequest
from stopadvisor.serving.metrics import Metrics, RequestRecord
from stopadvisor.serving.responder import (
    ChatReply,
    Gone,
    Message,
    Receive,
    Responder,
    Send,
    Sender,
    unless_gone,
)
from stopadvisor.serving.serve_settings import ServeSettings, for_task, load_policies
from stopadvisor.serving.vllm.adapter import PATH, EngineFacts, VllmEngine, error_handler
from stopadvisor.serving.vllm.binding import BoundPolicy, bind_policies
from stopadvisor.serving.vllm.engine_model import EngineModel
from stopadvisor.serving.vllm.self_test import try_engine

__all__ = ["MarkedReplies", "PolicyRoute"]

_ROUTE = "stopadvisor.route"
"""Key in a request's ASGI scope for its route, which an error's header names."""
_FAILED = "stopadvisor.failed"
"""Key for the record of a request for which vLLM raised an error: counted with its reply."""

_log = logging.getLogger("vllm.stopadvisor")


@dataclass
class PolicyRoute:
    """Answers ``POST /v1/chat/completions``, once `use` was given policies."""

    settings: ServeSettings
    facts: EngineFacts
    tokenizer: LoadedTokenizer
    engine: VllmEngine
    metrics: Metrics
    auditors: Auditors
    shows_cached: bool = False
    """Report cached prompt tokens in usage, as vLLM was configured to."""
    policies: tuple[BoundPolicy, ...] = ()
    """One, or one for each task; a reload replaces all."""
    _swapping: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def use(self, policies: Sequence[tuple[Path, Policy]]) -> None:
        """Check policies against the engine, and answer new requests under them.

        Replaces all policies in use or none; requests in flight keep theirs.

        Raises
        ------
        PolicyError, ModelError
            As in `bind_policies` and `try_engine`; or a policy's audit log cannot be continued.
        """
        # In a thread: hashing weights and decoding a vocabulary take seconds.
        fitting = await asyncio.to_thread(
            bind_policies, policies, self.facts, self.tokenizer, self.engine, self.settings
        )
        for bound in fitting:
            if bound.policy.kind == "stop":
                await try_engine(bound.model, self.facts.context, self.facts.max_logprobs)
        self.auditors.open(bound.policy for bound in fitting)
        self.policies = fitting
        how = "judged and never stopped" if self.settings.shadow else "answered under it"
        for bound in fitting:
            for remark in bound.remarks:
                _log.warning("%s", printable(remark))
            digest = bound.policy.digest
            _log.info("policy %s: requests that it covers are %s", digest, how)
        self.metrics.show_policies((self.facts.names[0], bound.policy) for bound in fitting)

    async def reload(self) -> None:
        """Load the policies again for new requests; if one is refused, the old ones stay."""
        async with self._swapping:
            try:
                await self.use(await asyncio.to_thread(load_policies, self.settings))
            except StopAdvisorError as error:
                message = printable(str(error))
                _log.error("reload refused, the policies in use stay: %s", message)

    @property
    def digest(self) -> str:
        """First eight digits of the policy's digest; empty with several policies."""
        return self.policies[0].policy.digest[:8] if len(self.policies) == 1 else ""

    async def answer(self, request: Request, pass_on: Callable[[], Awaitable[Any]]) -> Any:
        """Return the response to a request that vLLM has validated."""
        record = RequestRecord(id="", reason="task")
        TRACE_CONTEXT.set(trace_context(request.headers.raw))
        body = await request.json()
        task = request.headers.get(TASK_HEADER)
        bound = for_task(self.policies, task)
        if bound is not None:
            record.digest = bound.policy.digest[:8]
            covered = bound.coverage.check(body, task=task)
            if any(name in request.headers for name in VLLM_HEADERS):
                covered = "field"
            if isinstance(covered, CoveredRequest):
                response = self._begin(bound, covered, record, ChatReply(body["model"]))
                if response is not None:
                    return response
            else:
                record.reason = covered
        return await self._pass_on(request, pass_on, record)

    def _begin(
        self, bound: BoundPolicy, covered: CoveredRequest, record: RequestRecord, reply: ChatReply
    ) -> _PolicyResponse | None:
        """Render a covered request's prompt; None if it leaves too little room to think."""
        model, prompt = bound.model.for_request(reply.id, covered.seed), covered.request.prompt
        try:
            prompt_ids = model.chat.prompt_ids(prompt.messages)
        except ModelError:
            record.reason = "template"
            return None
        if len(prompt_ids) > bound.longest_prompt:
            record.reason = "room"
            return None
        limit = None
        record.route = "policy"
        if self.settings.shadow or self.auditors.is_shadowed(bound.policy):
            # vLLM's limits instead of the policy's caps: nothing changes for the client.
            record.route, limit = "shadow", self.facts.limit(len(prompt_ids), covered.max_tokens)
        record.id, record.reason = reply.id, "covered"
        trace = model.begin(prompt_ids, prompt, limit)
        return _PolicyResponse(self, bound, covered, model, trace, reply, record)

    async def _pass_on(
        self, request: Request, pass_on: Callable[[], Awaitable[Any]], record: RequestRecord
    ) -> Any:
        """Let vLLM answer, and add the header that gives the reason."""
        record.own_seconds = record.seconds
        try:
            with self.metrics.in_flight.track_inprogress():
                response = await pass_on()
        except Exception:  # often vLLM's way to refuse: another handler makes the reply
            request.scope[_FAILED] = record
            raise
        if not isinstance(response, Response):  # the client has disconnected
            self.count(record)
            return response
        response.headers[POLICY_HEADER] = record.header()[1].decode()
        record.status = response.status_code
        after = BackgroundTasks()
        if response.background is not None:
            after.tasks.append(response.background)
        after.add_task(self.count, record)
        response.background = after
        return response

    def count(self, record: RequestRecord) -> None:
        """Count a finished request."""
        record.e2e_seconds = record.seconds
        self.metrics.count(record)


@dataclass(eq=False, repr=False)  # a repr would show the prompt
class _PolicyResponse(Response):
    """Thinks, probes and answers when called; a disconnect cancels everything at once."""

    route: PolicyRoute
    bound: BoundPolicy
    covered: CoveredRequest
    model: EngineModel
    trace: Trace
    reply: ChatReply
    record: RequestRecord
    status_code: int = 200
    background: None = None
    body: bytes = b""

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        record, self.record.own_seconds = self.record, self.record.seconds
        scope[_ROUTE] = record.route
        try:
            with self.route.metrics.in_flight.track_inprogress():
                await unless_gone(receive, self._answer(Sender(send, record)))
        except Gone:
            record.error = "client-gone"
        finally:
            self.route.count(record)

    async def _answer(self, send: Sender) -> None:
        route, record, model = self.route, self.record, self.model
        responder = Responder(
            self.covered, model, self.reply, send, route.metrics, shows_cached=route.shows_cached
        )
        policy, auditor = self.bound.policy, route.auditors.of(self.bound.policy)
        task, shadow = self.covered.request.task, record.route == "shadow"
        live = LiveRequest(model, self.trace, policy, task, responder, shadow)
        try:
            answered = await responder.run(live)
        except Exception as error:
            if not send.begun:
                raise  # vLLM's own handlers know its errors
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
    return FullThinking(text, tokens, cut=trace.end.cut)


class MarkedReplies:
    """Middleware that adds the header to every reply to a chat request, even errors.

    Turns unexpected errors into replies itself, as vLLM does that outside all middleware.
    """

    def __init__(self, app: Any, *, server: Any, state: Any) -> None:
        self.app, self.server, self.state = app, server, state

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, and add the header to the start of its reply."""
        if scope["type"] != "http" or not scope["path"].endswith(PATH):
            await self.app(scope, receive, send)
            return
        began = False

        async def mark(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                digest, route = self.state.stopadvisor.digest, scope.get(_ROUTE, "passthrough")
                failed = RequestRecord("", route, "error", digest=digest)
                if _FAILED in scope:
                    failed = scope[_FAILED]
                    failed.status = message["status"]
                    self.state.stopadvisor.count(failed)
                MutableHeaders(scope=message).setdefault(POLICY_HEADER, failed.header()[1].decode())
            await send(message)

        try:
            await self.app(scope, receive, mark)
        except Exception as error:
            handler = error_handler(self.server)
            if began or handler is None:
                raise
            response = await handler(Request(scope, receive), error)
            await response(scope, receive, mark)
            raise
