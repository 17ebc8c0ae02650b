"""Send the reply to one covered request, streamed or whole, in plugin and gateway."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from stopadvisor.answers.normal_form import extract_forced, extract_natural
from stopadvisor.engines.live import Backend, LiveAnswer, LiveRequest
from stopadvisor.policy.frozen import Policy
from stopadvisor.probes.asking import cue_text
from stopadvisor.serving.audits import AuditedReply
from stopadvisor.serving.eligibility import CoveredRequest
from stopadvisor.serving.metrics import Metrics, RequestRecord

__all__ = [
    "DONE", "KEEP_ALIVE", "STREAM", "ChatReply", "Finish", "Gone", "Message", "Receive",
    "Responder", "Send", "Sender", "SlowReader", "TextStream", "forced_content", "unless_gone",
]  # fmt: skip

Message = MutableMapping[str, Any]
"""One message of ASGI."""
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

STREAM = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment that keeps a connection open while tokens are held back."""
KEEP_ALIVE_SECONDS = 15.0
DONE = b"data: [DONE]\n\n"

Finish = Literal["stop", "length"]


class SlowReader(Exception):
    """The client did not read part of its reply in time."""


@dataclass
class Sender:
    """Sends a reply with the `X-StopAdvisor` header, and records its status and first byte."""

    to: Send
    record: RequestRecord
    rung: str = ""
    """For the header, the rung of a ladder that answers."""
    begun: bool = False
    """Whether the status has been sent."""

    async def __call__(self, message: Message) -> None:
        """Send one ASGI message; the first one gets the header."""
        if message["type"] == "http.response.start":
            self.begun, self.record.status = True, message["status"]
            headers = [*message["headers"], self.record.header(self.rung)]
            message = {**message, "headers": headers}
        elif self.record.ttft_seconds is None and message["body"] not in (b"", KEEP_ALIVE):
            self.record.ttft_seconds = self.record.seconds
        await self.to(message)

    async def json(
        self, status: int, content: Any, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """Send a JSON body."""
        body = json.dumps(content, separators=(",", ":")).encode()
        headers = [
            *((b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))),
            *headers,
        ]
        await self({"type": "http.response.start", "status": status, "headers": headers})
        await self({"type": "http.response.body", "body": body, "more_body": False})


# --- The form of a reply --------------------------------------------------------------------------


def forced_content(cue: str, answer: str) -> str:
    """Return a stopped reply's content: cue and forced answer, which read like a visible one."""
    return (cue_text(cue) + answer).strip()


@dataclass
class TextStream:
    """Decodes tokens piece by piece into the same text as decoding all at once.

    A character may span several tokens, and a token may decode differently at the start of a text.
    So each piece is decoded along with the one before it, and an incomplete character is held back.
    """

    decode: Callable[[Sequence[int]], str]
    """Decodes token ids without special tokens."""
    _before: list[int] = field(default_factory=list)
    """Tokens of the last piece returned."""
    _held: list[int] = field(default_factory=list)

    def take(self, ids: Sequence[int], *, last: bool = False) -> str:
        """Return the text that these tokens add; if `last`, even with an incomplete character."""
        self._held += ids
        whole = self.decode(self._before + self._held)
        shown = self.decode(self._before)
        text = whole[len(shown) :]
        if not text or (text.endswith("\N{REPLACEMENT CHARACTER}") and not last):
            return ""
        self._before, self._held = self._held, []
        return text


@dataclass(frozen=True)
class ChatReply:
    """Builds the body or the chunks of a reply, all with the same id and time.

    Thinking is sent as ``reasoning`` and, for older clients, as ``reasoning_content``.
    """

    model: str
    """Model name of the request."""
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    """Seconds since 1970."""

    def body(
        self, reasoning: str, content: str | None, finish: Finish, usage: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the whole reply; `content` is None if thinking was never closed."""
        message = {"role": "assistant", "content": content} | _reasoning(reasoning)
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
        frame = self._frame("chat.completion")
        return frame | {"choices": [choice], "usage": usage}

    def first(self) -> bytes:
        """Return the chunk that opens a stream."""
        return self._chunk({"role": "assistant", "content": ""})

    def reasoning(self, text: str) -> bytes:
        """Return a chunk of thinking; empty if there is no text."""
        return self._chunk(_reasoning(text)) if text else b""

    def content(self, text: str) -> bytes:
        """Return a chunk of the answer; empty if there is no text."""
        return self._chunk({"content": text}) if text else b""

    def last(self, finish: Finish, usage: Mapping[str, Any] | None) -> bytes:
        """Return the end of a stream: finish reason, usage if the client wants it, and `DONE`."""
        end = self._chunk({}, finish)
        if usage is not None:
            frame = self._frame("chat.completion.chunk")
            end += _event(frame | {"choices": [], "usage": usage})
        return end + DONE

    def error(self, message: str) -> bytes:
        """Return the end of a stream that failed after its first byte."""
        return _event({"error": {"message": message, "type": "server_error"}}) + DONE

    def _chunk(self, delta: Mapping[str, Any], finish: Finish | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _event(self._frame("chat.completion.chunk") | {"choices": [choice]})

    def _frame(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def _reasoning(text: str) -> dict[str, str]:
    return {"reasoning": text, "reasoning_content": text}


def _event(data: Mapping[str, Any]) -> bytes:
    # Escaped to ASCII: a lone surrogate cannot be encoded.
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


# --- One request ----------------------------------------------------------------------------------


@dataclass
class Responder:
    """Sends the reply of a live request, as its `live.Observer`.

    Raises an error before the first byte, so that another server can answer; after it, ends the
    stream with an error event.
    """

    covered: CoveredRequest
    backend: Backend
    chat_reply: ChatReply
    send: Sender
    metrics: Metrics
    between: float | None = None
    """Seconds in which the client must read a piece of the stream."""
    shows_cached: bool = False
    """Report cached prompt tokens in usage."""
    _out: bytearray = field(default_factory=bytearray)
    _more: asyncio.Event = field(default_factory=asyncio.Event)
    _opened: bool = False

    def __post_init__(self) -> None:
        decode = self.backend.stops.chat.decode
        self._thinking, self._visible = TextStream(decode), TextStream(decode)

    async def run(self, live: LiveRequest) -> LiveAnswer:
        """Answer the request and record its figures.

        Raises `SlowReader` if the client stops reading, or any error of `live.answer`; if the
        stream has begun, the client is told first.
        """
        if not self.covered.stream:
            answered = await self._answered(live)
            await self._whole(answered)
            return answered
        work = asyncio.create_task(self._answered(live))
        work.add_done_callback(lambda _: self._more.set())
        try:
            return await self._stream(work)
        finally:
            work.cancel()
            await asyncio.wait({work})
            if not work.cancelled():
                work.exception()  # retrieved, or asyncio would log it

    async def _answered(self, live: LiveRequest) -> LiveAnswer:
        try:
            answered = await live.answer()
        except BaseException:  # the client left, or it failed: decoded tokens count
            record, trace = self.send.record, live.trace
            record.think_tokens, record.probe_tokens = len(trace.ids), trace.probe_tokens
            raise
        self._note(answered)
        return answered

    # --- Callbacks of the live request ---

    @property
    def shows(self) -> bool:
        """Whether the client wants a stream."""
        return self.covered.stream

    def reasoning(self, ids: Sequence[int]) -> None:
        """Show thinking tokens."""
        self._put(self.chat_reply.reasoning(self._thinking.take(ids)))

    def content(self, ids: Sequence[int]) -> None:
        """Show tokens of a visible answer."""
        begin = self.chat_reply.reasoning(self._thinking.take((), last=True))
        self._put(begin + self.chat_reply.content(self._visible.take(ids)))

    def probed(self, seconds: float, failed: Exception | None) -> None:
        """Count a probe."""
        if failed is None:
            self.metrics.probe_seconds.observe(seconds)
        else:
            self.send.record.failed_probes += 1

    def _put(self, piece: bytes) -> None:
        if piece:
            self._out += piece
            self._more.set()

    # --- The reply ---

    async def _stream(self, work: asyncio.Task[LiveAnswer]) -> LiveAnswer:
        while not work.done():
            try:
                async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                    await self._more.wait()
            except TimeoutError:
                await self._piece(KEEP_ALIVE)
                continue
            self._more.clear()
            if self._out:
                out, self._out = bytes(self._out), bytearray()
                await self._piece(out)
        error = work.exception()
        if error is not None:
            if self.send.begun:
                self.send.record.error = type(error).__name__
                await self._piece(self.chat_reply.error("the engine failed"), last=True)
            raise error
        answered = work.result()
        self._put(self.chat_reply.reasoning(self._thinking.take((), last=True)))
        finish, content = self._ending(answered)
        if answered.forced is not None:
            self._put(self.chat_reply.content(content or ""))
        else:
            self._put(self.chat_reply.content(self._visible.take((), last=True)))
        usage = self.send.record.usage() if self.covered.include_usage else None
        self._put(self.chat_reply.last(finish, usage))
        await self._piece(bytes(self._out), last=True)
        return answered

    async def _whole(self, answered: LiveAnswer) -> None:
        finish, content = self._ending(answered)
        thinking = answered.trace.ids[: answered.thinking]
        reasoning, usage = self.backend.stops.chat.decode(thinking), self.send.record.usage()
        await self.send.json(200, self.chat_reply.body(reasoning, content, finish, usage))

    async def _piece(self, piece: bytes, *, last: bool = False) -> None:
        """Send a piece of the stream, or raise `SlowReader`."""
        try:
            async with asyncio.timeout(self.between):
                if not self.send.begun:
                    start = {"status": 200, "headers": STREAM}
                    await self.send({"type": "http.response.start", **start})
                if not self._opened and piece != KEEP_ALIVE:
                    self._opened = True
                    piece = self.chat_reply.first() + piece
                message = {"type": "http.response.body", "body": piece, "more_body": not last}
                await self.send(message)
        except TimeoutError as error:
            raise SlowReader from error

    # --- Figures ---

    def _ending(self, answered: LiveAnswer) -> tuple[Finish, str | None]:
        """Return the finish reason and the content, which is None if thinking was never closed."""
        trace = answered.trace
        if answered.forced is not None:
            return "stop", forced_content(trace.plan.cue, answered.forced.text)
        if answered.stop is None and not trace.end.closed:
            return "length", None
        ids = trace.visible if answered.stop is None else answered.written
        ended = bool(ids) and ids[-1] in self.backend.stop_ids
        return "stop" if ended else "length", self.backend.stops.visible_text(ids)

    def _note(self, answered: LiveAnswer) -> None:
        """Record all tokens decoded for the request."""
        trace, record, stop = answered.trace, self.send.record, answered.stop
        shown = answered.thinking
        if stop is None:  # the visible answer is part of the trace
            visible = len(trace.ids) - shown if trace.end.closed else 0
            record.discarded_tokens, stop = answered.decoded - shown - visible, answered.shadow
        else:
            closer = len(self.backend.stops.chat.closer.ids)
            visible = len(answered.written) + closer if answered.written else 0
            record.discarded_tokens = answered.decoded - shown
        record.budget = None if stop is None else stop.position
        record.probes, record.probe_tokens = answered.probes, trace.probe_tokens
        record.prompt_tokens, record.visible_tokens = len(trace.prompt_ids), visible
        record.reasoning_tokens = shown
        record.think_tokens = shown + record.discarded_tokens
        if self.shows_cached:
            record.cached_tokens = trace.cached_tokens

    def audited(self, answered: LiveAnswer, policy: Policy) -> AuditedReply:
        """Return the reply for the auditor, which logs it and compares it with full thinking."""
        record, task, stop = self.send.record, self.covered.request.task, answered.stop
        answer: str | None
        if answered.forced is not None:
            answer = extract_forced(task, answered.forced.text)
        else:
            ids = answered.trace.visible if stop is None else answered.written
            answer = extract_natural(task, self.backend.stops.visible_text(ids))
        return AuditedReply(
            id=record.id,
            stop=None if stop is None else stop.position,
            answer=answer,
            task=task,
            tokens=record.completion_tokens,
            prompt_tokens=record.prompt_tokens,
            first_logprob=answered.first_logprob if policy.reads_logprobs else None,
        )


# --- Disconnects ----------------------------------------------------------------------------------


class Gone(Exception):
    """The client has disconnected."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work for a client whose request has been read; if it disconnects, raise `Gone`."""

    async def until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task = asyncio.create_task(work)
    gone = asyncio.create_task(until_gone())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
        task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.wait({task, gone})
        for ended in (task, gone):
            if not ended.cancelled():
                ended.exception()  # retrieved, or asyncio would log it
