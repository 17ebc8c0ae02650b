"""The gateway's application: which way a request goes, and what becomes of it.

A covered request is answered under its policy; everything else is sent on as it came.  Whoever
hangs up is worked for no longer, wherever the work stands.  Knows HTTP by ASGI; no sockets.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import aiohttp

from stopadvisor.engines.http.client import Refused
from stopadvisor.engines.http.key import FORWARDED, Key
from stopadvisor.engines.live import LiveAnswer
from stopadvisor.engines.openai.climbing import climb
from stopadvisor.engines.openai.early_exit import PolicyService
from stopadvisor.engines.trace_context import TRACE_CONTEXT, trace_context
from stopadvisor.ground.errors import EngineError, ModelError, StopAdvisorError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.policy.requests import Request
from stopadvisor.serving.audits import AuditedReply, Auditors, FinishTrace, FullThinking
from stopadvisor.serving.chat_reply import HEADER, ChatReply, header_value
from stopadvisor.serving.eligibility import TASK_HEADER, CoveredRequest
from stopadvisor.serving.gateway.forward import BrokenReply, Forwarder, Send
from stopadvisor.serving.gateway.intake import Admission, Incoming, Intake, Receive, Refusal
from stopadvisor.serving.gateway.ladder_reply import (
    as_reference,
    audited_ascent,
    finish_ascent,
    note_ascent,
    send_served,
)
from stopadvisor.serving.gateway.policies import Bound, PolicySet, ServedPolicy
from stopadvisor.serving.gateway.pool import Pool, Upstream
from stopadvisor.serving.metrics import Log, Metrics, RequestRecord
from stopadvisor.serving.responder import JSON, Gone, Responder, Sender, SlowReader, unless_gone
from stopadvisor.serving.serve_settings import GatewaySettings, for_task

__all__ = ["Gateway"]

_SMALL = 64 * 2**10
"""Bodies up to this size are parsed in the event loop, larger ones in a thread."""
_OPEN = 5.0
"""Seconds for which an upstream is waited for while it is checked."""

T = TypeVar("T")


@dataclass
class _Way:
    """How a request is served."""

    sender: Sender
    served: ServedPolicy | None = None
    covered: CoveredRequest | None = None
    rung: str = ""
    """Of a ladder: who answers."""

    @property
    def record(self) -> RequestRecord:
        return self.sender.record

    @property
    def header(self) -> tuple[bytes, bytes]:
        """The `X-StopAdvisor` header of this request."""
        digest = None if self.served is None else self.served.policy.digest
        value = header_value(self.record.route, self.record.reason, digest, self.rung)
        return HEADER.lower().encode(), value.encode()


@dataclass(eq=False)
class Gateway:
    """Policies before upstreams; an ASGI application for what lies under ``/v1``."""

    settings: GatewaySettings
    metrics: Metrics
    log: Log
    policies: PolicySet
    key: Key | None = None
    """The upstreams' own; None forwards each client's."""
    leave: Callable[[], None] = lambda: None
    """Ends the gateway; set by whoever runs it."""
    draining: bool = False
    exit_code: int = 0
    """Of the alarm that ended the gateway; 0 while none has."""
    _swapping: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tokenizing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Long prompts are tokenized one by one: each takes a hundred times its length in memory."""

    def __post_init__(self) -> None:
        settings = self.settings
        self.pool = Pool(
            settings.upstreams,
            check=self._check,
            glance=self._glance,
            every=settings.check_every,
            metrics=self.metrics,
            log=self.log,
        )
        self.auditors = Auditors(settings.audit, self.metrics, self._end)
        self._audit(self.policies)
        self._forwarder = Forwarder(self.pool, settings.timeouts, self.key)
        self._intake = Intake(settings.timeouts)
        self._admission = Admission(settings.concurrency, self.metrics, self.auditors.shed)

    @property
    def is_ready(self) -> bool:
        """Whether requests can be answered."""
        return self.pool.is_ready and not self.draining

    async def aclose(self) -> None:
        """Close all connections."""
        await self._forwarder.aclose()
        await self.policies.retire()

    async def reload(self) -> None:
        """Read the policies again for new requests; where one is refused the old ones stay."""
        try:
            async with self._swapping:
                await self._replace(await asyncio.to_thread(PolicySet.load, self.settings))
        except StopAdvisorError as error:
            self.log.write("reload-refused", message=str(error))

    async def _replace(self, found: PolicySet) -> None:
        """Use other policies, if they fit the upstreams."""
        self._audit(found)
        checked = [upstream for upstream in self.pool.all if upstream.is_up]
        if not checked:
            raise EngineError("no upstream is in use that policies could be checked with")
        try:
            for upstream in checked:
                await found.open_at(upstream, retry_timeout=_OPEN)
        except BaseException:
            await found.retire()
            raise
        old, self.policies = self.policies, found
        await old.retire()
        for upstream in self.pool.all:
            if upstream.is_up and upstream not in checked:
                self.pool.take_out(upstream, "unchecked")
        self._show_policies()
        self.log.write("reload", policies=self.names())

    def names(self) -> list[dict[str, str]]:
        """Models and digests of the policies in use."""
        return [{"model": p.name, "digest": p.policy.digest[:8]} for p in self.policies.all]

    def _show_policies(self) -> None:
        self.metrics.policy.clear()
        for served in self.policies.all:
            self.metrics.policy.labels(served.name, served.policy.digest[:8]).set(1)

    def _audit(self, policies: PolicySet) -> None:
        for served in policies.all:
            served.auditor = self.auditors.of(served.policy)

    def _end(self, code: int) -> None:
        """Leave, as an alarm is on."""
        self.exit_code = code
        self.leave()

    async def _check(self, upstream: Upstream) -> None:
        await self.policies.open_at(upstream, retry_timeout=_OPEN)
        self._show_policies()

    async def _glance(self, upstream: Upstream) -> bool:
        try:
            listed = await self._forwarder.get(upstream, "/models")
        except aiohttp.ClientConnectorError as error:
            raise EngineError(type(error).__name__) from error
        except TimeoutError:  # an `OSError`, too
            raise
        except (aiohttp.ClientError, ValueError, OSError):
            return True  # some keep their list to themselves, or are too busy to give it
        return self.policies.same_at(upstream, listed)

    # --- One request ---

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one request."""
        record = RequestRecord(uuid.uuid4().hex, reason="path")
        way = _Way(Sender(send, record, time.perf_counter()))
        try:
            async with self._intake.request(scope, receive) as request:
                await unless_gone(receive, self._serve(request, way))
        except Gone:
            record.error = "client-gone"
        except Refusal as no:
            await _refuse(way, no)
        except (BrokenReply, SlowReader) as error:
            record.error = type(error.__cause__ or error).__name__
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are served on
            record.error = type(error).__name__
            await _refuse(way, Refusal(500, "internal error", "server_error"))
        finally:
            record.e2e_seconds = time.perf_counter() - way.sender.began
            self.metrics.count(record)
            self.log.request(record)

    async def _serve(self, request: Incoming, way: _Way) -> None:
        if request.method != "POST":
            await self._forward(request, way)
            return
        request, record = await self._find_way(request, way), way.record
        async with self._admission.place(record):
            record.own_seconds = time.perf_counter() - way.sender.began - record.queue_seconds
            FORWARDED.set(request.header(b"authorization"))
            TRACE_CONTEXT.set(trace_context(request.headers))
            left: Incoming | None = request
            if way.served is not None and way.covered is not None:
                climbs = self.settings.ladder is not None
                answer = self._climb if climbs else self._under_policy
                left = await answer(request, way, way.served, way.covered)
            if left is not None:
                await self._forward(left, way)

    async def _find_way(self, request: Incoming, way: _Way) -> Incoming:
        """Decide whether a policy covers a request."""
        record = way.record
        is_chat = request.target.path == "/chat/completions"
        size = len(request.body)
        if size > _SMALL and (not is_chat or size > _SMALL + self.policies.longest_prompt):
            # Not read: no policy can cover it, and reading may take seconds.
            record.reason = "room" if is_chat else record.reason
            return request
        body = await _beside(_parsed, request.body, size=size)
        if not isinstance(body, dict):
            record.reason = "body"
            return request
        request = replace(request, streams=body.get("stream") is True)
        if not is_chat:
            return request
        named = self.policies.of(body.get("model"))
        task = request.header(TASK_HEADER.lower().encode()) or None
        way.served = served = for_task(named, task)
        if served is None or served.coverage is None:
            record.reason = "task" if named else "model"
            return request
        record.digest = served.policy.digest[:8]
        if served.policy.kind == "full-budget":
            record.route, record.reason = "policy", "full-budget"
            return request
        found = served.coverage.check(body, task=task)
        if isinstance(found, CoveredRequest):
            way.covered, record.reason = found, "covered"
            alarmed = served.auditor is not None and served.auditor.is_shadowed()
            record.route = "shadow" if self.settings.shadow or alarmed else "policy"
        else:
            record.reason = found.reason
        return request

    async def _forward(self, request: Incoming, way: _Way) -> None:
        upstream = await self._forwarder.forward(request, (way.header,), way.sender)
        way.record.upstream = upstream.number

    async def _climb(
        self, request: Incoming, way: _Way, served: ServedPolicy, covered: CoveredRequest
    ) -> Incoming | None:
        """Answer a covered request by a rung; what is to be sent on where the reference answers."""
        record, reference, asked = way.record, served.policy.ladder[-1], covered.request
        record.upstream, bound = 0, served.rungs
        try:
            if bound is None:
                raise EngineError("not checked yet")
            with bound.used() as servers:
                async with asyncio.timeout(self.settings.timeouts.total):
                    ascent = await climb(
                        servers, served.policy, asked.prompt, asked.task, leaves_reference=True
                    )
        except Exception as error:  # noqa: BLE001 - whatever it is, the reference answers
            if not isinstance(error, StopAdvisorError | TimeoutError):
                record.error = type(error).__name__  # a fault of ours
            record.route, record.reason = "passthrough", "failed"
            return request
        note_ascent(ascent, reference, record, self.metrics)
        left: Incoming | None = None
        with bound.used():  # for the audit, too
            if ascent.at == len(ascent.replies) or record.route == "shadow":
                way.rung, left = reference.name, as_reference(request, reference)
            else:
                way.rung = ascent.rung.name
                chat, limit = ChatReply(served.name, record.id), self.settings.timeouts.between
                await send_served(ascent, chat, covered, way.sender, way.header, seconds=limit)
            finish = partial(finish_ascent, bound, served.policy, asked, ascent)
            self._served(way, audited_ascent(ascent, served.policy, asked.task, record), finish)
        return left

    async def _under_policy(
        self, request: Incoming, way: _Way, served: ServedPolicy, covered: CoveredRequest
    ) -> Incoming | None:
        """Answer a covered request; what is to be sent on where nothing was sent."""
        sender, record = way.sender, way.record
        chance = secrets.randbits(31) if covered.seed is None else covered.seed
        asked = replace(covered.request, prompt=replace(covered.request.prompt, sample=chance))
        tried: list[Upstream] = []
        reason = "failed"
        while (upstream := self.pool.pick(tried)) is not None:
            tried.append(upstream)
            bound = served.at.get(upstream.number)
            if bound is None:  # checked just now, against policies that were replaced
                continue
            with self.pool.at(upstream), bound.used() as service:
                prompt_ids = await self._rendered(service, asked)
                if isinstance(prompt_ids, str):
                    reason = prompt_ids
                    break
                responder = Responder(
                    covered,
                    service.model,
                    ChatReply(served.name, record.id),
                    sender,
                    way.header,
                    self.metrics,
                    between=self.settings.timeouts.between,
                )
                shadowed = replace(service, shadow=record.route == "shadow")
                live = shadowed.live(asked, prompt_ids=prompt_ids, replica=0, observer=responder)
                record.upstream = upstream.number
                try:
                    async with asyncio.timeout(self.settings.timeouts.total):
                        answered = await responder.run(live)
                except Exception as error:
                    if sender.begun:
                        raise
                    if isinstance(error, Refused):
                        break  # said by the server itself, when the request is sent on
                    if isinstance(error, StopAdvisorError | TimeoutError):
                        self.pool.failed(upstream)
                        continue
                    # A fault of ours: it is answered in full, as if no policy were there.
                    record.error = type(error).__name__
                    break
                upstream.failures = 0
                found = responder.audited(answered, served.policy)
                self._served(way, found, partial(_finish, bound, asked, answered))
                return None
        record.route, record.reason, record.budget = "passthrough", reason, None
        return request

    async def _rendered(self, service: PolicyService, asked: Request) -> list[int] | str:
        """Return the prompt's ids; the reason where it cannot be thought about under the policy."""
        messages = asked.prompt.messages
        size = sum(len(message["content"]) for message in messages)
        try:
            async with self._tokenizing if size > _SMALL else nullcontext():
                prompt_ids = await _beside(service.model.chat.prompt_ids, messages, size=size)
        except ModelError:
            return "template"
        try:
            room = service.model.thinking_room(prompt_ids, service.plan)
        except ModelError:
            return "room"
        return prompt_ids if room >= service.plan.max_think else "room"

    def _served(self, way: _Way, found: AuditedReply, finish: FinishTrace) -> None:
        """Take note of a request that was answered under its policy."""
        auditor = None if way.served is None else way.served.auditor
        if auditor is not None and way.record.route == "policy":
            auditor.served(found, None if self._admission.is_crowded else finish)


async def _refuse(way: _Way, no: Refusal) -> None:
    """Answer with an error, if nothing was answered yet."""
    if way.sender.begun:
        return
    error = {"message": no.text, "type": no.kind, "code": None}
    body = json.dumps({"error": error}).encode()
    headers = [*JSON, (b"content-length", b"%d" % len(body)), *no.headers, way.header]
    await way.sender({"type": "http.response.start", "status": no.status, "headers": headers})
    await way.sender({"type": "http.response.body", "body": body, "more_body": False})


def _parsed(body: bytearray) -> Any:
    """Return what a body says; None where it is no JSON."""
    try:
        return parse_json(body)
    except ValueError:
        return None


async def _beside(work: Callable[..., T], *given: Any, size: int) -> T:
    """Work on something; where it is large, in a thread, so that the others are served on."""
    return work(*given) if size <= _SMALL else await asyncio.to_thread(work, *given)


async def _finish(
    bound: Bound[PolicyService], asked: Request, answered: LiveAnswer
) -> FullThinking:
    """Think a stopped request to its end, with the seed that it was answered under."""
    with bound.used() as service:
        full = replace(service, rule=None, shadow=False)
        whole = await full.answer(asked, prompt_ids=answered.trace.prompt_ids, replica=0)
    return FullThinking(whole.text, whole.think_tokens + whole.visible_tokens)
