"""The gateway's application: which way a request goes, and what becomes of it.

A covered request is answered under its policy; everything else is sent on as it came.  Whoever
hangs up is worked for no longer, wherever the work stands.  Knows HTTP by ASGI; no sockets.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

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
from stopadvisor.serving.eligibility import TASK_HEADER, CoveredRequest
from stopadvisor.serving.gateway.forward import BrokenReply, Forwarder
from stopadvisor.serving.gateway.intake import Admission, Incoming, Intake, Refusal
from stopadvisor.serving.gateway.ladder_reply import (
    as_reference,
    audited_climb,
    finish_climb,
    note_climb,
    send_served,
)
from stopadvisor.serving.gateway.policies import Bound, PolicySet, ServedPolicy
from stopadvisor.serving.gateway.pool import Pool, Upstream
from stopadvisor.serving.metrics import Log, Metrics, RequestRecord
from stopadvisor.serving.responder import (
    ChatReply,
    Gone,
    Receive,
    Responder,
    Send,
    Sender,
    SlowReader,
    unless_gone,
)
from stopadvisor.serving.serve_settings import GatewaySettings, for_task

__all__ = ["Gateway"]

_SMALL = 64 * 2**10
"""Bodies up to this size are parsed in the event loop, larger ones in a thread."""
_OPEN = 5.0
"""Seconds for which an upstream is waited for while it is checked."""

T = TypeVar("T")


class _Covered(NamedTuple):
    """A request that a policy covers."""

    served: ServedPolicy
    by: CoveredRequest


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
        self.policies.audit(self.auditors)
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
        async with self._swapping:
            try:
                found = await asyncio.to_thread(PolicySet.load, self.settings)
                found.audit(self.auditors)
                checked = [upstream for upstream in self.pool.all if upstream.is_up]
                if not checked:
                    raise EngineError("no upstream is in use that policies could be checked with")
                try:
                    for upstream in checked:
                        await found.open_at(upstream, retry_timeout=_OPEN)
                except BaseException:
                    await found.retire()
                    raise
            except StopAdvisorError as error:
                self.log.write("reload-refused", message=str(error))
                return
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
        self.metrics.show_policies((served.name, served.policy) for served in self.policies.all)

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
        sender = Sender(send, record, time.perf_counter())
        try:
            async with self._intake.request(scope, receive) as request:
                await unless_gone(receive, self._serve(request, sender))
        except Gone:
            record.error = "client-gone"
        except Refusal as no:
            await _refuse(sender, no)
        except (BrokenReply, SlowReader) as error:
            record.error = type(error.__cause__ or error).__name__
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are served on
            record.error = type(error).__name__
            await _refuse(sender, Refusal(500, "internal error", "server_error"))
        finally:
            record.e2e_seconds = time.perf_counter() - sender.began
            self.metrics.count(record)
            self.log.request(record)

    async def _serve(self, request: Incoming, sender: Sender) -> None:
        record, left = sender.record, True
        if request.method == "POST":
            covered = await self._find_policy(request, record)
            async with self._admission.place(record):
                record.own_seconds = time.perf_counter() - sender.began - record.queue_seconds
                FORWARDED.set(request.header(b"authorization"))
                TRACE_CONTEXT.set(trace_context(request.headers))
                if covered is not None:
                    climbs = self.settings.ladder is not None
                    answer = self._climb if climbs else self._under_policy
                    left = await answer(request, sender, *covered)
                if left:
                    await self._forward(request, sender)
        else:
            await self._forward(request, sender)

    async def _forward(self, request: Incoming, sender: Sender) -> None:
        upstream = await self._forwarder.forward(request, sender)
        sender.record.upstream = upstream.number

    async def _find_policy(self, request: Incoming, record: RequestRecord) -> _Covered | None:
        """Decide which policy covers a request, and take down why none does."""
        is_chat = request.target.path == "/chat/completions"
        size = len(request.body)
        if size > _SMALL and (not is_chat or size > _SMALL + self.policies.longest_prompt):
            # Not read: no policy can cover it, and reading may take seconds.
            record.reason = "room" if is_chat else record.reason
            return None
        body = await _beside(_parsed, request.body, size=size)
        if not isinstance(body, dict):
            record.reason = "body"
            return None
        request.streams = body.get("stream") is True
        if not is_chat:
            return None
        named = self.policies.of(body.get("model"))
        task = request.header(TASK_HEADER.lower().encode()) or None
        served = for_task(named, task)
        if served is None or served.coverage is None:
            record.reason = "task" if named else "model"
            return None
        record.digest = served.policy.digest[:8]
        if served.policy.kind == "full-budget":
            record.route, record.reason = "policy", "full-budget"
            return None
        found = served.coverage.check(body, task=task)
        if not isinstance(found, CoveredRequest):
            record.reason = found.reason
            return None
        alarmed = served.auditor is not None and served.auditor.is_shadowed()
        record.route = "shadow" if self.settings.shadow or alarmed else "policy"
        record.reason = "covered"
        return _Covered(served, found)

    async def _climb(
        self, request: Incoming, sender: Sender, served: ServedPolicy, covered: CoveredRequest
    ) -> bool:
        """Answer a covered request by a rung; whether it is left to the reference's server."""
        record, reference, asked = sender.record, served.policy.ladder[-1], covered.request
        record.upstream, bound = 0, served.rungs
        try:
            if bound is None:
                raise EngineError("not checked yet")
            with bound.used() as servers:
                async with asyncio.timeout(self.settings.timeouts.total):
                    climbed = await climb(
                        servers, served.policy, asked.prompt, asked.task, leaves_reference=True
                    )
        except Exception as error:  # noqa: BLE001 - whatever it is, the reference answers
            if not isinstance(error, StopAdvisorError | TimeoutError):
                record.error = type(error).__name__  # a fault of ours
            record.route, record.reason = "passthrough", "failed"
            return True
        note_climb(climbed, record, self.metrics)
        is_left = climbed.at == len(climbed.asked) or record.route == "shadow"
        gave_up = "; gave-up" if climbed.gave_up else ""
        with bound.used():  # for the audit, too
            if is_left:
                sender.rung = reference.name + gave_up
                request.body = as_reference(request.body, reference)
            else:
                sender.rung = climbed.rung + gave_up
                limit = self.settings.timeouts.between
                await send_served(climbed, served.name, covered, sender, seconds=limit)
            finish = partial(finish_climb, bound, served.policy, asked, climbed)
            found = audited_climb(climbed, served.policy, asked.task, record)
            self._served(served, record, found, finish)
        return is_left

    async def _under_policy(
        self, request: Incoming, sender: Sender, served: ServedPolicy, covered: CoveredRequest
    ) -> bool:
        """Answer a covered request; whether nothing was sent, and it is to be sent on."""
        record = sender.record
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
                self._served(served, record, found, partial(_finish, bound, asked, answered))
                return False
        record.route, record.reason, record.budget = "passthrough", reason, None
        return True

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

    def _served(
        self, served: ServedPolicy, record: RequestRecord, found: AuditedReply, finish: FinishTrace
    ) -> None:
        """Take note of a request that was answered under its policy."""
        if served.auditor is not None and record.route == "policy":
            served.auditor.served(found, None if self._admission.is_crowded else finish)


async def _refuse(sender: Sender, no: Refusal) -> None:
    """Answer with an error, if nothing was answered yet."""
    if not sender.begun:
        error = {"message": no.text, "type": no.kind, "code": None}
        await sender.json(no.status, {"error": error}, no.headers)


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
