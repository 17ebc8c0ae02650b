"""One covered request: thinking and answer from an upstream, as a stream or as one body.

A failure is raised as long as no byte was sent, so that somebody else can be asked; behind the
first byte it ends the stream with an error.  Knows a policy at an upstream; nothing of others.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stopadvisor.engines.openai.early_exit import PolicyService
from stopadvisor.errors import EngineError, StopAdvisorError
from stopadvisor.policy.requests import Reply, Request
from stopadvisor.policy.session import Stop
from stopadvisor.serving.chat_reply import (
    KEEP_ALIVE,
    KEEP_ALIVE_SECONDS,
    ChatCounts,
    ChatReply,
    Finish,
    TextStream,
    forced_content,
)
from stopadvisor.serving.gateway.forward import BrokenReply, Send
from stopadvisor.serving.gateway.settings import Timeouts
from stopadvisor.serving.metrics import Metrics, RequestRecord

if TYPE_CHECKING:
    from stopadvisor.serving.coverage import CoveredRequest

__all__ = ["Exchange"]

_STREAM = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
_JSON = ((b"content-type", b"application/json"),)


@dataclass
class Exchange:
    """A request on its way; what `PolicyService.answer` tells comes here."""

    service: PolicyService
    covered: CoveredRequest
    request: Request
    """That of `covered`, with a seed of its own."""
    prompt_ids: tuple[int, ...]
    send: Send
    header: tuple[bytes, bytes]
    timeouts: Timeouts
    record: RequestRecord
    metrics: Metrics
    chat_reply: ChatReply
    reply: Reply | None = None
    """What was answered; None until it was."""
    _out: bytearray = field(default_factory=bytearray)
    _more: asyncio.Event = field(default_factory=asyncio.Event)
    _begun: bool = False
    _opened: bool = False

    def __post_init__(self) -> None:
        decode = self.service.model.chat.decode
        self._thinking, self._visible = TextStream(decode), TextStream(decode)

    async def run(self) -> None:
        """Answer.

        Raises
        ------
        StopAdvisorError, TimeoutError
            No byte was sent.
        BrokenReply
            The client reads no further.
        """
        answer = self.service.answer(
            self.request, prompt_ids=self.prompt_ids, replica=0, observer=self
        )
        async with asyncio.timeout(self.timeouts.total):
            if not self.covered.stream:
                reply = await answer
                await self._whole(reply)
                return
            work = asyncio.create_task(answer)
            work.add_done_callback(lambda _: self._more.set())
            try:
                await self._stream(work)
            finally:
                work.cancel()
                await asyncio.wait({work})
                if not work.cancelled():
                    work.exception()  # looked at: whoever wants it has it

    # --- What the service tells ---

    @property
    def shows(self) -> bool:
        """Whether the client wants a stream."""
        return self.covered.stream

    def reasoning(self, ids: Sequence[int]) -> None:
        """Take thinking that may be shown."""
        self._put(self.chat_reply.reasoning(self._thinking.take(ids)))

    def content(self, ids: Sequence[int]) -> None:
        """Take more of the model's own answer."""
        begin = self.chat_reply.reasoning(self._thinking.take((), last=True))
        self._put(begin + self.chat_reply.content(self._visible.take(ids)))

    def probed(self, seconds: float, failed: EngineError | None) -> None:
        """Count a probe."""
        if failed is None:
            self.metrics.probe_seconds.observe(seconds)
        else:
            self.record.failed_probes += 1

    def stops(self, stop: Stop) -> None:
        """Take note of where the policy stops the trace, or would."""
        self.record.budget = stop.position

    def _put(self, piece: bytes) -> None:
        if piece:
            self._out += piece
            self._more.set()

    # --- What the client gets ---

    async def _stream(self, work: asyncio.Task[Reply]) -> None:
        while not work.done():
            try:
                async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                    await self._more.wait()
            except TimeoutError:
                await self._piece(KEEP_ALIVE)
                continue
            self._more.clear()
            if self._out:
                await self._pending()
        error = work.exception()
        if error is None:
            await self._end(work.result())
        elif self._begun and isinstance(error, StopAdvisorError | TimeoutError):
            self.record.error = type(error).__name__
            await self._piece(self.chat_reply.error("the upstream broke off"), last=True)
        else:
            raise error

    async def _pending(self) -> None:
        out, self._out = bytes(self._out), bytearray()
        await self._piece(out)

    async def _end(self, reply: Reply) -> None:
        finish, content, counts = self._result(reply)
        chunk = self.chat_reply
        self._put(chunk.reasoning(self._thinking.take((), last=True)))
        if reply.finish == "stopped":
            self._put(chunk.content(content or ""))
        else:
            self._put(chunk.content(self._visible.take((), last=True)))
        self._put(chunk.last(finish, counts, include_usage=self.covered.include_usage))
        await self._piece(bytes(self._out), last=True)

    async def _whole(self, reply: Reply) -> None:
        finish, content, counts = self._result(reply)
        body = json.dumps(
            self.chat_reply.body(
                reasoning=reply.thinking, content=content, finish=finish, counts=counts
            )
        ).encode()
        length = (b"content-length", b"%d" % len(body))
        start = {"status": 200, "headers": [*_JSON, length, self.header]}
        await self.send({"type": "http.response.start", **start})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    async def _piece(self, piece: bytes, *, last: bool = False) -> None:
        """Send a part of a stream; whoever does not read it in time is left."""
        try:
            async with asyncio.timeout(self.timeouts.between):
                if not self._begun:
                    self._begun = True
                    start = {"status": 200, "headers": [*_STREAM, self.header]}
                    await self.send({"type": "http.response.start", **start})
                if not self._opened and piece != KEEP_ALIVE:
                    self._opened = True
                    piece = self.chat_reply.first() + piece
                message = {"type": "http.response.body", "body": piece, "more_body": not last}
                await self.send(message)
        except TimeoutError as error:
            raise BrokenReply from error

    def _result(self, reply: Reply) -> tuple[Finish, str | None, ChatCounts]:
        """Return how the reply ends, its content and its counts; also fill in the record."""
        plan, record = self.service.plan, self.record
        self.reply, content = reply, reply.text
        written = reply.visible_tokens - len(self.service.model.chat.closer.ids)
        cut = content is None or written >= plan.answer_cap
        if reply.finish == "stopped" and self.service.on_stop == "probe":
            content, cut = forced_content(plan.cue, reply.text or ""), False
        shown = reply.think_tokens if reply.budget is None else reply.budget
        counts = ChatCounts(
            prompt=reply.prompt_tokens,
            thinking=shown,
            visible=reply.visible_tokens,
            probes=reply.n_probes,
            probe_tokens=reply.probe_tokens,
            discarded=reply.think_tokens - shown,
            budget=reply.budget,
        )
        record.probes, record.probe_tokens = reply.n_probes, reply.probe_tokens
        record.prompt_tokens, record.visible_tokens = reply.prompt_tokens, reply.visible_tokens
        record.think_tokens, record.reasoning_tokens = reply.think_tokens, shown
        record.discarded_tokens = counts.discarded
        return "length" if cut else "stop", content, counts
