"""The reply to a covered request of a ladder: sent whole once a rung is judged, or left to forward.

Knows the form of replies and of requests; no server, and nothing of who judges.
"""

from __future__ import annotations

import asyncio
import json

from stopadvisor.engines.openai.climbing import Ascent, climb
from stopadvisor.engines.openai.rung_servers import RungServers, request_of
from stopadvisor.ground.json_text import parse_json
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import Request
from stopadvisor.runs.ladder import Rung
from stopadvisor.serving.audits import AuditedReply, FullThinking
from stopadvisor.serving.eligibility import CoveredRequest
from stopadvisor.serving.gateway.policies import Bound
from stopadvisor.serving.metrics import Metrics, RequestRecord
from stopadvisor.serving.responder import STREAM, ChatReply, Finish, Sender, SlowReader

__all__ = ["as_reference", "audited_ascent", "finish_ascent", "note_ascent", "send_served"]


def as_reference(body: bytearray, rung: Rung) -> bytearray:
    """A request's body with what the reference was asked with when its replies were recorded."""
    asked = parse_json(body)
    fields = request_of(rung, (), max_tokens=rung.max_tokens, logprobs=False)
    fields = {name: value for name, value in fields.items() if name not in ("model", "messages")}
    if rung.max_tokens is not None:
        asked.pop("max_completion_tokens", None)
    return bytearray(json.dumps(asked | fields).encode())


async def send_served(
    ascent: Ascent, model: str, covered: CoveredRequest, sender: Sender, *, seconds: float
) -> None:
    """Send the reply that is served; its usage counts all that was decoded.

    Raises
    ------
    SlowReader
        The client takes longer than `seconds` to read it.
    """
    served, chat = ascent.served, ChatReply(model, sender.record.id)
    finish: Finish = "stop" if served.finished else "length"
    asked = ascent.reply(0.0).climbed
    assert asked is not None
    completion = served.completion_tokens + ascent.discarded_tokens
    usage = {
        "prompt_tokens": served.prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": served.prompt_tokens + completion,
        "stopadvisor": {
            "rung": asked.rung,
            "discarded_tokens": ascent.discarded_tokens,
            "asked": [each.name for each in asked.asked],
            **({"gave_up": True} if asked.gave_up else {}),
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


def note_ascent(ascent: Ascent, reference: Rung, record: RequestRecord, metrics: Metrics) -> None:
    """Take down what climbing came to; what the reference decodes is not known where it is left."""
    is_left = ascent.at == len(ascent.replies)
    record.rung = reference.name if is_left else ascent.rung.name
    record.discarded_tokens = ascent.discarded_tokens
    if not is_left:
        record.prompt_tokens = ascent.served.prompt_tokens
        record.visible_tokens = ascent.served.completion_tokens
    for rung, reply in ascent.replies:
        if reply.down is not None:
            metrics.rungs_down.labels(rung.name).inc()


# --- Audits ---------------------------------------------------------------------------------------


def audited_ascent(
    ascent: Ascent, policy: Policy, task: str, record: RequestRecord
) -> AuditedReply:
    """What is written down of a reply, and what the reference's is compared with."""
    first = ascent.replies[0] if ascent.replies else None
    # Calibration holds the prompt's length as the first rung counts it.
    counted = first is not None and first[0] == policy.ladder[0]
    return AuditedReply(
        id=record.id,
        stop=ascent.column,
        answer=ascent.answer,
        task=task,
        tokens=record.visible_tokens + record.discarded_tokens,
        prompt_tokens=(first[1].prompt_tokens or None) if first and counted else None,
    )


async def finish_ascent(
    bound: Bound[RungServers], policy: Policy, asked: Request, ascent: Ascent
) -> FullThinking:
    """Ask the reference too; samples of it that were drawn already count."""
    with bound.used() as servers:
        full = await climb(
            servers, policy, asked.prompt, asked.task, reference_alone=True, before=ascent.replies
        )
    decoded = sum(reply.completion_tokens for _, reply in full.replies)
    return FullThinking(full.served.text if full.served.finished else None, decoded)
