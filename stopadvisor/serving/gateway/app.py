"""The gateway as an ASGI application: answer covered requests, forward all others unchanged."""

from __future__ import annotations

import asyncio
import json
import secrets
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import aiohttp

from stopadvisor.engines.http.client import Refused
from stopadvisor.engines.http.key import FORWARDED
from stopadvisor.engines.openai.climbing import climb
from stopadvisor.engines.openai.early_exit import PolicyService
from stopadvisor.engines.openai.rung_servers import RungServers, request_of
from stopadvisor.engines.trace import Trace
from stopadvisor.engines.trace_context import TRACE_CONTEXT, trace_context
from stopadvisor.ground.errors import EngineError, ModelError, StopAdvisorError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import Climbed, Request
from stopadvisor.runs.ladder import Rung
from stopadvisor.serving.audits import AuditedReply, Auditors, FinishTrace, FullThinking
from stopadvisor.serving.eligibility import TASK_HEADER, VLLM_HEADERS, CoveredRequest
from stopadvisor.serving.gateway.forward import BrokenReply, Forwarder
from stopadvisor.serving.gateway.intake import Admission, Incoming, Intake, Refusal
from stopadvisor.serving.gateway.policies import Bound, PolicySet, ServedPolicy, upstream_key
from stopadvisor.serving.gateway.pool import Pool, Upstream
from stopadvisor.serving.metrics import Log, Metrics, RequestRecord
from stopadvisor.serving.responder import (
    STREAM,
    ChatReply,
    Finish,
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
_CHECK_SECONDS = 5.0
"""Seconds for which a check waits for an upstream."""

T = TypeVar("T")


@dataclass(eq=False)
class Gateway:
    """Answers the requests under ``/v1``; cancels one as soon as its client disconnects."""

    settings: GatewaySettings
    metrics: Metrics
    log: Log
    policies: PolicySet
    leave: Callable[[], None] = lambda: None
    """Shuts the gateway down; set by `server.run`."""
    draining: bool = False
    exit_code: int = 0
    """That of the alarm that shut the gateway down; 0 without one."""
    _swapping: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tokenizing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Long prompts are tokenized one at a time: that takes a hundred times their size in memory."""

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
        self.auditors.open(served.policy for served in self.policies.all)
        self._forwarder = Forwarder(self.pool, settings.timeouts, upstream_key(settings))
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
        """Load the policies again for new requests; if one is refused, the old ones stay."""
        async with self._swapping:
            try:
                new = await asyncio.to_thread(PolicySet.load, self.settings)
                checked = [upstream for upstream in self.pool.all if upstream.is_up]
                if not checked:
                    raise EngineError("no upstream is in use to check the policies with")
                try:
                    for upstream in checked:
                        await new.open_at(upstream, retry_timeout=_CHECK_SECONDS)
                    # Last, because an earlier alarm of theirs may end this gateway.
                    self.auditors.open(served.policy for served in new.all)
                except BaseException:
                    await new.retire()
                    raise
            except StopAdvisorError as error:
                self.log.write("reload-refused", message=str(error))
                return
            old, self.policies = self.policies, new
            await old.retire()
            for upstream in self.pool.all:
                if upstream.is_up and upstream not in checked:
                    self.pool.take_out(upstream, "unchecked")
            self._show_policies()
            self.log.write("reload", policies=self.names())

    def names(self) -> list[dict[str, str]]:
        """Return the models and digests of the policies in use."""
        return [{"model": p.name, "digest": p.policy.digest[:8]} for p in self.policies.all]

    def _show_policies(self) -> None:
        self.metrics.show_policies((served.name, served.policy) for served in self.policies.all)

    def _end(self, code: int) -> None:
        """Shut down because of an alarm."""
        self.exit_code = code
        self.leave()

    async def _check(self, upstream: Upstream) -> None:
        await self.policies.open_at(upstream, retry_timeout=_CHECK_SECONDS)
        self._show_policies()

    async def _glance(self, upstream: Upstream) -> bool:
        try:
            listed = await self._forwarder.get(upstream, "/models")
        except aiohttp.ClientConnectorError as error:
            raise EngineError(type(error).__name__) from error
        except TimeoutError:  # also an `OSError`
            raise
        except (aiohttp.ClientError, ValueError, OSError):
            return True  # some servers have no list, or are too busy to send it
        return self.policies.same_at(upstream, listed)

    # --- One request ---

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one request."""
        record = RequestRecord(uuid.uuid4().hex, reason="path")
        sender = Sender(send, record)
        try:
            async with self._intake.request(scope, receive) as request:
                await unless_gone(receive, self._serve(request, sender))
        except Gone:
            record.error = "client-gone"
        except Refusal as no:
            await _refuse(sender, no)
        except TimeoutError:  # its time has run out
            record.error = "TimeoutError"
            await _refuse(sender, Refusal(504, "the upstream took too long", "upstream_error"))
        except (BrokenReply, SlowReader) as error:
            record.error = type(error.__cause__ or error).__name__
        except Exception as error:  # noqa: BLE001 - a bug here must not affect other requests
            record.error = type(error).__name__
            await _refuse(sender, Refusal(500, "internal error", "server_error"))
        finally:
            record.e2e_seconds = record.seconds
            self.metrics.count(record)
            self.log.request(record)

    async def _serve(self, request: Incoming, sender: Sender) -> None:
        record = sender.record
        loop, total = asyncio.get_running_loop(), self.settings.timeouts.total
        if request.method != "POST":
            request.ends = loop.time() + total
            await self._forward(request, sender)
            return
        covered = await self._find_policy(request, record)
        async with self._admission.place(record):
            request.ends = loop.time() + total
            record.own_seconds = record.seconds - record.queue_seconds
            FORWARDED.set(request.header(b"authorization"))
            TRACE_CONTEXT.set(trace_context(request.headers))
            if covered is not None:
                answer = self._under_policy if self.settings.ladder is None else self._climb
                if await answer(request, sender, *covered):
                    return
            await self._forward(request, sender)

    async def _forward(self, request: Incoming, sender: Sender) -> None:
        upstream = await self._forwarder.forward(request, sender)
        sender.record.upstream = upstream.number

    async def _find_policy(
        self, request: Incoming, record: RequestRecord
    ) -> tuple[ServedPolicy, CoveredRequest] | None:
        """Return the policy that covers a request; None, with the reason recorded, if none does."""
        is_chat = request.target.path == "/chat/completions"
        size = len(request.body)
        if size > _SMALL and (not is_chat or size > _SMALL + self.policies.longest_prompt):
            # No policy can cover it, and parsing could take seconds.
            record.reason = "room" if is_chat else record.reason
            return None
        body = await _offload(_parsed, request.body, size=size)
        if not isinstance(body, dict):
            record.reason = "body"
            return None
        request.streams = body.get("stream") is True
        if not is_chat:
            return None
        kind = request.header(b"content-type").partition(";")[0].lower()
        if kind != "application/json":  # vLLM refuses it
            record.reason = "body"
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
        obeyed = any(request.header(name.lower().encode()) for name in VLLM_HEADERS)
        covered = "field" if obeyed else served.coverage.check(body, task=task)
        if not isinstance(covered, CoveredRequest):
            record.reason = covered
            return None
        shadowed = self.settings.shadow or self.auditors.is_shadowed(served.policy)
        record.route = "shadow" if shadowed else "policy"
        record.reason = "covered"
        return served, covered

    async def _climb(
        self, request: Incoming, sender: Sender, served: ServedPolicy, covered: CoveredRequest
    ) -> bool:
        """Answer a covered request from a cheap rung; False: forward it to the reference."""
        record, reference, asked = sender.record, served.policy.ladder[-1], covered.request
        record.upstream, bound = 0, served.at.get(0)
        try:
            if bound is None:
                raise EngineError("not checked yet")
            with bound.used() as servers:
                async with asyncio.timeout_at(request.ends):
                    climbed = await climb(servers, served.policy, asked, leaves_reference=True)
        except TimeoutError:
            raise
        except Exception as error:  # noqa: BLE001 - in any case the reference can answer
            if not isinstance(error, StopAdvisorError):
                record.error = type(error).__name__  # a bug in the gateway
            record.route, record.reason = "passthrough", "failed"
            return False
        note_climb(climbed, record, self.metrics)
        answers = climbed.at < len(climbed.asked) and record.route != "shadow"
        gave_up = "; gave-up" if climbed.gave_up else ""
        with bound.used():  # also for the audit
            if answers:
                sender.rung = climbed.rung + gave_up
                limit = self.settings.timeouts.between
                await send_served(climbed, served.name, covered, sender, seconds=limit)
            else:
                sender.rung = reference.name + gave_up
                request.body = as_reference(request.body, reference)
            finish = partial(finish_climb, bound, served.policy, asked, climbed)
            reply = audited_climb(climbed, served.policy, asked.task, record)
            self._served(served, record, reply, finish)
        return answers

    async def _under_policy(
        self, request: Incoming, sender: Sender, served: ServedPolicy, covered: CoveredRequest
    ) -> bool:
        """Answer a covered request; False if nothing was sent and it must be forwarded."""
        record = sender.record
        seed = secrets.randbits(31) if covered.seed is None else covered.seed
        asked = replace(covered.request, prompt=replace(covered.request.prompt, sample=seed))
        tried: list[Upstream] = []
        reason = "failed"
        while (upstream := self.pool.pick(tried)) is not None:
            tried.append(upstream)
            bound = served.at.get(upstream.number)
            if bound is None:  # it was checked against policies that have just been replaced
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
                shadow = record.route == "shadow"
                live = service.live(asked, prompt_ids=prompt_ids, observer=responder, shadow=shadow)
                record.upstream = upstream.number
                try:
                    async with asyncio.timeout_at(request.ends):
                        answered = await responder.run(live)
                except Exception as error:
                    if sender.begun:
                        raise
                    if isinstance(error, Refused):
                        break  # forward the request, so that the client sees the server's own error
                    if isinstance(error, StopAdvisorError | TimeoutError):
                        self.pool.failed(upstream)
                        if request.is_over:
                            raise TimeoutError from error
                        continue
                    # A bug in the gateway: answer in full, as if there were no policy.
                    record.error = type(error).__name__
                    break
                upstream.failures = 0
                reply = responder.audited(answered, served.policy)
                self._served(served, record, reply, partial(_finish, bound, answered.trace))
                return True
        record.route, record.reason, record.budget = "passthrough", reason, None
        return False

    async def _rendered(self, service: PolicyService, asked: Request) -> list[int] | str:
        """Return the prompt's token ids, or why the policy cannot answer it."""
        messages = asked.prompt.messages
        size = sum(len(message["content"]) for message in messages)
        try:
            async with self._tokenizing if size > _SMALL else nullcontext():
                prompt_ids = await _offload(service.model.chat.prompt_ids, messages, size=size)
        except ModelError:
            return "template"
        try:
            room = service.model.thinking_room(prompt_ids, service.plan)
        except ModelError:
            return "room"
        return prompt_ids if room >= service.plan.max_think else "room"

    def _served(
        self, served: ServedPolicy, record: RequestRecord, reply: AuditedReply, finish: FinishTrace
    ) -> None:
        """Tell the auditor about a request answered under its policy."""
        auditor = self.auditors.of(served.policy)
        if auditor is not None and record.route == "policy":
            auditor.served(reply, None if self._admission.is_crowded else finish)


async def _refuse(sender: Sender, no: Refusal) -> None:
    """Send an error, unless a reply has begun."""
    if not sender.begun:
        error = {"message": no.text, "type": no.kind, "code": None}
        await sender.json(no.status, {"error": error}, no.headers)


def _parsed(body: bytearray) -> Any:
    """Parse a body; None if it is not JSON."""
    try:
        return parse_json(body)
    except ValueError:
        return None


async def _offload(work: Callable[..., T], *given: Any, size: int) -> T:
    """Call `work`; if its input is large, in a thread, to keep the event loop responsive."""
    return work(*given) if size <= _SMALL else await asyncio.to_thread(work, *given)


async def _finish(bound: Bound[PolicyService], trace: Trace) -> FullThinking:
    """Think a stopped trace to its end; if sampled, another draw would differ by chance."""
    before = len(trace.ids) + trace.surplus
    with bound.used() as service:
        await service.model.extend(trace)
        text = service.model.stops.visible_text(trace.visible) if trace.end.closed else None
    return FullThinking(text, len(trace.ids) + trace.surplus - before, cut=trace.end.cut)


# --- Replies of a ladder: sent whole once a rung passes, else forwarded ---------------------------


def as_reference(body: bytearray, rung: Rung) -> bytearray:
    """Return the body with the fields that the reference's replies were recorded with."""
    asked = parse_json(body)
    fields = request_of(rung, (), max_tokens=rung.max_tokens, logprobs=False)
    fields = {name: value for name, value in fields.items() if name not in ("model", "messages")}
    if rung.max_tokens is not None:
        asked.pop("max_completion_tokens", None)
    return bytearray(json.dumps(asked | fields).encode())


async def send_served(
    climbed: Climbed, model: str, covered: CoveredRequest, sender: Sender, *, seconds: float
) -> None:
    """Send the served reply; its usage counts everything decoded.

    Raises SlowReader if the client takes longer than `seconds` to read it.
    """
    served, chat = climbed.served, ChatReply(model, sender.record.id)
    finish: Finish = "stop" if served.finished else "length"
    completion = served.completion_tokens + climbed.discarded_tokens
    usage = {
        "prompt_tokens": served.prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": served.prompt_tokens + completion,
        "stopadvisor": {
            "rung": climbed.rung,
            "discarded_tokens": climbed.discarded_tokens,
            "asked": [each.name for each in climbed.asked],
            **({"gave_up": True} if climbed.gave_up else {}),
        },
    }
    try:
        async with asyncio.timeout(seconds):
            if not covered.stream:
                await sender.json(200, chat.body(served.reasoning, served.text, finish, usage))
                return
            await sender({"type": "http.response.start", "status": 200, "headers": STREAM})
            parts = (chat.first(), chat.reasoning(served.reasoning), chat.content(served.text))
            body = b"".join(parts) + chat.last(finish, usage if covered.include_usage else None)
            await sender({"type": "http.response.body", "body": body, "more_body": False})
    except TimeoutError as error:
        raise SlowReader from error


def note_climb(climbed: Climbed, record: RequestRecord, metrics: Metrics) -> None:
    """Record a climb; the tokens of a forwarded reference are not known yet."""
    record.rung = climbed.rung
    record.discarded_tokens = climbed.discarded_tokens
    if climbed.at < len(climbed.asked):
        record.prompt_tokens = climbed.served.prompt_tokens
        record.visible_tokens = climbed.served.completion_tokens
    for reply in climbed.asked:
        if reply.down is not None:
            metrics.rungs_down.labels(reply.name).inc()


def audited_climb(
    climbed: Climbed, policy: Policy, task: str, record: RequestRecord
) -> AuditedReply:
    """Return the audit record of a reply, for comparison with the reference's."""
    # Calibration recorded the prompt's length as counted by the first rung.
    counted = [r.prompt_tokens for r in climbed.asked[:1] if r.name == policy.ladder[0].name]
    return AuditedReply(
        id=record.id,
        stop=climbed.column,
        answer=climbed.answer,
        task=task,
        tokens=record.visible_tokens + record.discarded_tokens,
        prompt_tokens=sum(counted) or None,
    )


async def finish_climb(
    bound: Bound[RungServers], policy: Policy, asked: Request, climbed: Climbed
) -> FullThinking:
    """Ask the reference too, reusing the samples it has already given."""
    with bound.used() as servers:
        full = await climb(servers, policy, asked, reference_alone=True, before=climbed.asked)
    decoded = sum(reply.completion_tokens for reply in full.asked)
    text = full.served.text if full.served.finished else None
    return FullThinking(text, decoded, cut=not any(reply.finished for reply in full.asked))
