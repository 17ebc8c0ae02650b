"""A ladder's replies to covered requests: sent whole once a rung passes, else forwarded."""

from __future__ import annotations

import asyncio
import json

from stopadvisor.engines.openai.climbing import climb
from stopadvisor.engines.openai.rung_servers import RungServers, request_of
from stopadvisor.ground.json_text import parse_json
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import Climbed, Request
from stopadvisor.runs.ladder import Rung
from stopadvisor.serving.audits import AuditedReply, FullThinking
from stopadvisor.serving.eligibility import CoveredRequest
from stopadvisor.serving.gateway.policies import Bound
from stopadvisor.serving.metrics import Metrics, RequestRecord
from stopadvisor.serving.responder import STREAM, ChatReply, Finish, Sender, SlowReader

__all__ = ["as_reference", "audited_climb", "finish_climb", "note_climb", "send_served"]


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


# --- Audits ---------------------------------------------------------------------------------------


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
        full = await climb(
            servers, policy, asked.prompt, asked.task, reference_alone=True, before=climbed.asked
        )
    decoded = sum(reply.completion_tokens for reply in full.asked)
    return FullThinking(full.served.text if full.served.finished else None, decoded)
