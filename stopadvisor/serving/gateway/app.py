"""The gateway's application: which way a request goes, and what becomes of it.

A covered request is answered under its policy; everything else is sent on as it came.  Whoever
hangs up is worked for no longer, wherever the work stands.  Knows HTTP by ASGI; no sockets.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
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
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import Request
from stopadvisor.serving.audits import AuditedReply, Auditor, AuditSettings, FullThinking
from stopadvisor.serving.chat_reply import HEADER, ChatReply, header_value
from stopadvisor.serving.eligibility import TASK_HEADER, CoveredRequest
from stopadvisor.serving.gateway.forward import BrokenReply, Forwarder, Send, error_body
from stopadvisor.serving.gateway.gateway_settings import GatewaySettings
from stopadvisor.serving.gateway.intake import (
    Admission,
    Incoming,
    Intake,
    QueueFull,
    Receive,
    Refusal,
)
from stopadvisor.serving.gateway.ladder_reply import (
    as_reference,
    audited_ascent,
    finishing,
    note_ascent,
    send_served,
)
from stopadvisor.serving.gateway.log import Log
from stopadvisor.serving.gateway.policies import Bound, PolicySet, ServedPolicy
from stopadvisor.serving.gateway.pool import NoUpstream, Pool, Upstream
from stopadvisor.serving.metrics import Metrics, RequestRecord
from stopadvisor.serving.policy_files import for_task
from stopadvisor.serving.responder import (
    Gone,
    Responder,
    Sender,
    SlowReader,
    audited_reply,
    unless_gone,
)

__all__ = ["Gateway"]

_SMALL = 64 * 2**10
"""Bodies up to this size are parsed in the event loop, larger ones in a thread."""
_OPEN = 5.0
"""Seconds for which an upstream is waited for while it is checked."""

T = TypeVar("T")


@dataclass
class _Way:
    """How a request is served."""

    record: RequestRecord
    served: ServedPolicy | None = None
    covered: CoveredRequest | None = None
    rung: str = ""
    """Of a ladder: who answers."""

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
    draining: bool = False
    _retired: list[PolicySet] = field(default_factory=list)
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
        self._forwarder = Forwarder(self.pool, settings.timeouts, self.key)
        self._intake = Intake(settings.timeouts)
        self._admission = Admission(settings.concurrency, self.metrics)
        self.audits = GatewayAudits(
            settings.audit, self.metrics, lambda: self._admission.is_crowded
        )
        self._admission.make_room = self.audits.shed
        self.audits.prepare(served.policy for served in self.policies.all)

    @property
    def is_ready(self) -> bool:
        """Whether requests can be answered."""
        return self.pool.is_ready and not self.draining

    async def aclose(self) -> None:
        """Close all connections."""
        await self._forwarder.aclose()
        self.policies.retire()
        for policies in (*self._retired, self.policies):
            await policies.sweep()

    async def reload(self) -> list[dict[str, str]]:
        """Read the policies again and use them for new requests, if all is well with them.

        Raises
        ------
        StopAdvisorError
            A policy is refused, or does not fit an upstream; the old ones stay in use.
        """
        async with self._swapping:
            found = await asyncio.to_thread(PolicySet.load, self.settings)
            self.audits.prepare(served.policy for served in found.all)
            checked = [upstream for upstream in self.pool.all if upstream.is_up]
            if not checked:
                raise EngineError("no upstream is in use that policies could be checked with")
            try:
                for upstream in checked:
                    await found.open_at(upstream, retry_timeout=_OPEN)
            except BaseException:
                found.retire()
                await found.sweep()
                raise
            old, self.policies = self.policies, found
            old.retire()
            self._retired = [p for p in (*self._retired, old) if not await p.sweep()]
            for upstream in self.pool.all:
                if upstream.is_up and upstream not in checked:
                    self.pool.check_again(upstream)
            self.show_policies()
            self.log.write("reload", policies=self.names())
            return self.names()

    def names(self) -> list[dict[str, str]]:
        """Models and digests of the policies in use."""
        return [{"model": p.name, "digest": p.policy.digest[:8]} for p in self.policies.all]

    def show_policies(self) -> None:
        """Export which policies are in use."""
        self.metrics.policy.clear()
        for served in self.policies.all:
            self.metrics.policy.labels(served.name, served.policy.digest[:8]).set(1)

    async def _check(self, upstream: Upstream) -> None:
        await self.policies.open_at(upstream, retry_timeout=_OPEN)
        self.show_policies()

    async def _glance(self, upstream: Upstream) -> bool:
        self._retired = [p for p in self._retired if not await p.sweep()]
        await self.policies.sweep()
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
        began = time.perf_counter()
        record = RequestRecord(uuid.uuid4().hex)
        sender, way = _Sender(send, record, began), _Way(record)
        record.reason = "path"
        try:
            async with self._intake.request(scope, receive) as request:
                await unless_gone(receive, self._serve(request, way, sender, began))
        except Gone:
            record.error = "client-gone"
        except Refusal as no:
            await sender.error(no.status, no.text, no.kind, *no.headers, way.header)
        except (BrokenReply, SlowReader) as error:
            record.error = type(error.__cause__ or error).__name__
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are served on
            record.error = type(error).__name__
            await sender.error(500, "internal error", "server_error")
        finally:
            record.e2e_seconds = time.perf_counter() - began
            self.metrics.count(record)
            self.log.request(record)

    async def _serve(self, request: Incoming, way: _Way, sender: _Sender, began: float) -> None:
        record = way.record
        if request.method != "POST":
            await self._forward(request, way, sender)
            return
        request, way = await self._find_way(request, way)
        try:
            async with self._admission.place(record):
                record.own_seconds = time.perf_counter() - began - record.queue_seconds
                FORWARDED.set(request.header(b"authorization"))
                TRACE_CONTEXT.set(trace_context(request.headers))
                left: Incoming | None = request
                if way.covered is not None:
                    climbs = self.settings.ladder is not None
                    answer = self._climb if climbs else self._under_policy
                    left = await answer(request, way, sender)
                if left is not None:
                    await self._forward(left, way, sender)
        except QueueFull as full:
            after = (b"retry-after", b"%d" % full.retry_after)
            await sender.error(429, "the queue is full", "rate_limit_exceeded", after, way.header)

    async def _find_way(self, request: Incoming, way: _Way) -> tuple[Incoming, _Way]:
        """Decide whether a policy covers a request."""
        record = way.record
        is_chat = request.target.path == "/chat/completions"
        size = len(request.body)
        if size > _SMALL and (not is_chat or size > _SMALL + self.policies.longest_prompt):
            # Not read: no policy can cover it, and reading may take seconds.
            record.reason = "room" if is_chat else record.reason
            return request, way
        body = await _beside(_parsed, request.body, size=size)
        if not isinstance(body, dict):
            record.reason = "body"
            return request, way
        request = replace(request, streams=body.get("stream") is True)
        if not is_chat:
            return request, way
        named = self.policies.of(body.get("model"))
        task = request.header(TASK_HEADER.lower().encode()) or None
        way.served = served = for_task(named, task)
        if served is None or served.coverage is None:
            record.reason = "task" if named else "model"
            return request, way
        record.digest = served.policy.digest[:8]
        if served.policy.kind == "full-budget":
            record.route, record.reason = "policy", "full-budget"
            return request, way
        found = served.coverage.check(body, task=task)
        if isinstance(found, CoveredRequest):
            way.covered, record.reason = found, "covered"
            shadowed = self.settings.shadow or self.audits.is_shadowed(served.policy)
            record.route = "shadow" if shadowed else "policy"
        else:
            record.reason = found.reason
        return request, way

    async def _forward(self, request: Incoming, way: _Way, sender: _Sender) -> None:
        _, upstream = await self._forwarder.forward(request, (way.header,), sender)
        way.record.upstream = None if upstream is None else upstream.number

    async def _climb(self, request: Incoming, way: _Way, sender: _Sender) -> Incoming | None:
        """Answer a covered request by a rung; what is to be sent on where the reference answers."""
        served, covered, record = way.served, way.covered, way.record
        assert served is not None
        assert covered is not None
        record.upstream, reference, asked = 0, served.policy.ladder[-1], covered.request
        bound = served.rungs
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
        if ascent.at == len(ascent.replies) or record.route == "shadow":
            way.rung = reference.name
            left: Incoming | None = as_reference(request, reference)
        else:
            way.rung, left = ascent.rung.name, None
            chat, limit = ChatReply(served.name, record.id), self.settings.timeouts.between
            await send_served(ascent, chat, covered, sender, way.header, seconds=limit)

        if record.route == "policy" and self.audits.settings is not None:
            found = audited_ascent(ascent, served.policy, asked.task, record)
            self.audits.served(served.policy, found, finishing(bound, served.policy, asked, ascent))
        return left

    async def _under_policy(self, request: Incoming, way: _Way, sender: _Sender) -> Incoming | None:
        """Answer a covered request; what is to be sent on where nothing was sent."""
        served, covered, record = way.served, way.covered, way.record
        assert served is not None
        assert covered is not None
        chance = secrets.randbits(31) if covered.seed is None else covered.seed
        prompt = replace(covered.request.prompt, sample=chance)
        asked = replace(covered.request, prompt=prompt)
        tried: list[Upstream] = []
        reason = "failed"
        while True:
            try:
                upstream = self.pool.pick(tried)
            except NoUpstream:
                break
            tried.append(upstream)
            bound = served.at.get(upstream.number)
            if bound is None:  # checked just now, against policies that were replaced
                continue
            with self.pool.at(upstream), bound.used() as service:
                if record.route == "shadow" and not service.shadow:
                    service = replace(service, shadow=True)
                try:
                    size = sum(len(message["content"]) for message in prompt.messages)
                    async with self._tokenizing if size > _SMALL else nullcontext():
                        prompt_ids = await _beside(service.model.open, prompt.messages, size=size)
                except ModelError:
                    reason = "template"
                    break
                if not _has_room(service, prompt_ids):
                    reason = "room"
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
                live = service.live(asked, prompt_ids=prompt_ids, replica=0, observer=responder)
                record.upstream = upstream.number
                try:
                    async with asyncio.timeout(self.settings.timeouts.total):
                        answered = await responder.run(live)
                except Refused:
                    break  # said by the server itself, when the request is sent on
                except (StopAdvisorError, TimeoutError):
                    if sender.begun:
                        raise
                    self.pool.failed(upstream)
                except Exception as error:
                    if sender.begun:
                        raise
                    # A fault of ours: the request is answered in full, as if no policy were there.
                    record.error = type(error).__name__
                    break
                else:
                    self.pool.worked(upstream)
                    if record.route == "policy" and self.audits.settings is not None:
                        policy, model = served.policy, service.model
                        found = audited_reply(record.id, covered, answered, model, policy)
                        self.audits.served(policy, found, _finishing(bound, asked, answered))
                    return None
        record.route, record.reason, record.budget = "passthrough", reason, None
        return request


class _Sender(Sender):
    """Answers with errors, too."""

    async def error(self, status: int, text: str, kind: str, *headers: tuple[bytes, bytes]) -> None:
        """Answer with an error, if nothing was answered yet."""
        if self.begun:
            return
        body = error_body(text, kind)
        own = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        start = {"status": status, "headers": [*own, *headers]}
        await self({"type": "http.response.start", **start})
        await self({"type": "http.response.body", "body": body, "more_body": False})


def _parsed(body: bytearray) -> Any:
    """Return what a body says; None where it is no JSON."""
    try:
        return parse_json(body)
    except ValueError:
        return None


async def _beside(work: Callable[..., T], *given: Any, size: int) -> T:
    """Work on something; where it is large, in a thread, so that the others are served on."""
    return work(*given) if size <= _SMALL else await asyncio.to_thread(work, *given)


def _finishing(
    bound: Bound[PolicyService], asked: Request, answered: LiveAnswer
) -> Callable[[], Awaitable[FullThinking]]:
    """What thinks a stopped request to its end, with the seed that it was answered under."""

    async def finish() -> FullThinking:
        with bound.used() as service:
            full = replace(service, rule=None, shadow=False)
            whole = await full.answer(asked, prompt_ids=answered.trace.prompt_ids, replica=0)
        return FullThinking(whole.text, whole.think_tokens + whole.visible_tokens)

    return finish


def _has_room(service: PolicyService, prompt_ids: tuple[int, ...]) -> bool:
    """Whether a prompt leaves room for the policy's cap on thinking."""
    try:
        room = service.model.thinking_room(prompt_ids, service.plan)
    except ModelError:
        return False
    return room >= service.plan.max_think


# --- Audits ---------------------------------------------------------------------------------------


@dataclass
class GatewayAudits:
    """An auditor for each policy that promises anything; none without settings."""

    settings: AuditSettings | None
    metrics: Metrics
    is_crowded: Callable[[], bool] = lambda: False
    """Whether requests wait for a place; then no audit begins."""
    leave: Callable[[], None] = lambda: None
    """Ends the gateway; set by whoever runs it."""
    exit_code: int = 0
    """Of the alarm that ended the gateway; 0 while none has."""
    _auditors: dict[str, Auditor] = field(default_factory=dict)

    def prepare(self, policies: Iterable[Policy]) -> None:
        """Open the audit log of every policy that has none open."""
        for policy in policies:
            digest = policy.digest
            if self.settings is None or policy.kind != "stop" or digest in self._auditors:
                continue
            self._auditors[digest] = Auditor(policy, self.settings, self.metrics, self._end)

    def is_shadowed(self, policy: Policy) -> bool:
        """Whether an alarm put the policy into its shadow."""
        auditor = self._auditors.get(policy.digest)
        return auditor is not None and auditor.is_shadowed()

    def served(
        self, policy: Policy, found: AuditedReply, finish: Callable[[], Awaitable[FullThinking]]
    ) -> None:
        """Take note of a request that was answered under its policy."""
        auditor = self._auditors.get(policy.digest)
        if auditor is not None:
            auditor.served(found, None if self.is_crowded() else finish)

    def shed(self) -> None:
        """Give up all audits under way: somebody waits for the place they take."""
        for auditor in self._auditors.values():
            auditor.shed()

    async def drain(self, seconds: float) -> None:
        """Let audits end, and give up what takes longer."""
        for auditor in self._auditors.values():
            await auditor.drain(seconds)

    def _end(self, code: int) -> None:
        self.exit_code = code
        self.leave()
