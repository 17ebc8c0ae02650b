"""Answers one chat request under a policy, wherever the model runs.

The model thinks on while a probe is asked beside it; a `policy.session.Session` says where to ask,
what may be shown, and when to stop.  Where the next position is known, the probe is sent as soon as
the thinking reaches it, and that it goes on there is seen while the probe runs.  A probe that fails
means to think on.  With a shadow policy everything is asked and judged, and nothing is stopped.
Knows ids, text and decisions; no HTTP, no engine's interface and no metrics.

`engines.openai.early_exit` is the same over HTTP, for `run`, `connect` and the gateway.  Its loop
is another: it may draw thinking part by part and begin anew where a stream breaks off, by packages
that are not installed beside vLLM.  Both report to the session through the same functions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from stopadvisor.engines.answer_end import AnswerStops, ForcedAnswer
from stopadvisor.engines.chat import Chat
from stopadvisor.engines.openai.trace import Trace, report_drawn
from stopadvisor.engines.replies import report_answer
from stopadvisor.errors import UndecidedError
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.session import AskProbe, Ended, Rule, Session, Show, Stop
from stopadvisor.serving.chat_reply import ChatCounts, Finish, TextStream, forced_content

__all__ = ["ChatAnswer", "ChatModel", "Reader", "answer_chat"]


_ABANDON_SECONDS = 0.05
"""For which the last tokens of a trace that is given up are waited for."""


class ChatModel(Protocol):
    """A model that thinks, is asked beside it, and writes answers."""

    @property
    def chat(self) -> Chat:
        """Tokenizer and markers."""
        ...

    @property
    def stops(self) -> AnswerStops:
        """Where answers end."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a generation."""
        ...

    async def stream(
        self, trace: Trace, grown: Callable[[], None], *, seldom: bool = False
    ) -> None:
        """Draw to the trace's end; `grown` is called when it has more tokens.

        Where `seldom`, tokens may be held back until those of `wake_at` are there.  Cancelling it
        gives the thinking up at once.
        """
        ...

    def wake_at(self, trace: Trace, tokens: int | None) -> None:
        """Say how many tokens are waited for; None for all."""
        ...

    async def abandon(self, trace: Trace) -> None:
        """End a `stream` after what was held back has come."""
        ...

    async def force(self, trace: Trace, position: int, *, precise: bool = False) -> ForcedAnswer:
        """Force an answer after `position` thinking tokens, and count what it decodes.

        Cancelling aborts the request.  The entropy may be an interval unless `precise`.
        """
        ...

    async def drop(self, position: int) -> None:
        """Give up a `force` that nobody waits for; it raises."""
        ...

    async def write(
        self, trace: Trace, at: int, show: Callable[[Sequence[int]], Awaitable[None]] | None = None
    ) -> list[int]:
        """Close the thinking there and return the visible answer; `show` gets what comes."""
        ...


class Reader(Protocol):
    """Is shown a reply while it comes; a whole body needs none."""

    async def reasoning(self, text: str) -> None:
        """Take further thinking."""
        ...

    async def content(self, text: str) -> None:
        """Take more of the answer."""
        ...


@dataclass(frozen=True)
class ChatAnswer:
    """One request that is over."""

    trace: Trace
    """All that was drawn: an audit can think on behind it."""
    stop: Stop | None
    """None where the trace ended by itself."""
    shadow: Stop | None
    """Where a shadow policy would have stopped it."""
    reasoning: str
    content: str | None
    """None where thinking was cut before it closed."""
    finish: Finish
    counts: ChatCounts
    failed_probes: int
    probe_seconds: tuple[float, ...]
    """Of each probe that was answered."""
    first_logprob: float | None = None
    """Mean over the first forced answer's tokens; None where none was asked for."""


async def answer_chat(
    model: ChatModel,
    trace: Trace,
    policy: Policy,
    *,
    task: str,
    shadow: bool = False,
    reader: Reader | None = None,
) -> ChatAnswer:
    """Think, probe and answer; cancel it to give all of that up.

    Parameters
    ----------
    trace : Trace
        From the model, for the request's prompt; nothing drawn yet.
    reader : Reader, optional
        Sees thinking as soon as the trace can no longer be stopped before it.

    Raises
    ------
    StopAdvisorError, or what the engine raises
        The thinking failed, or the visible answer behind a stop.  A probe that fails is counted.
    """
    return await _RequestRun(model, trace, policy, task, shadow, reader).answer()


async def _end(task: asyncio.Task[Any]) -> None:
    """Give up what a task does; who is interested in its error has had it before."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # looked at


@dataclass
class _Thinking:
    """Tokens that come while others wait for them or probe."""

    model: ChatModel
    trace: Trace
    seldom: bool
    """Nobody looks at tokens before those that are waited for."""
    _wanted: int | None = None
    """Tokens that are waited for; None for all."""
    _reached: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        drawing = self.model.stream(self.trace, self._tell, seldom=self.seldom)
        self._task = asyncio.create_task(drawing)
        self._task.add_done_callback(lambda _: self._reached.set())

    def _tell(self) -> None:
        """Wake who waits, once there is what it waits for: not for every token."""
        if self._wanted is not None and len(self.trace.ids) >= self._wanted:
            self._reached.set()
        elif self.seldom:
            self.model.wake_at(self.trace, self._wanted)

    async def reach(self, tokens: int | None) -> None:
        """Return when so many tokens are drawn, or when no more will be."""
        if not self._task.done():
            self._wanted = tokens
            self._reached.clear()
            self._tell()
            await self._reached.wait()
        if self._task.done():
            self._task.result()

    async def give_up(self) -> None:
        """Draw no more."""
        if not self._task.done():
            await self.model.abandon(self.trace)
            await asyncio.wait({self._task}, timeout=_ABANDON_SECONDS)
        await _end(self._task)


@dataclass(frozen=True)
class _Early:
    """A probe on its way before its answer is asked for."""

    position: int
    answer: asyncio.Task[ForcedAnswer]
    began: float = field(default_factory=time.perf_counter)


@dataclass
class _RequestRun:
    """A request on its way."""

    model: ChatModel
    trace: Trace
    policy: Policy
    task: str
    is_shadow: bool
    reader: Reader | None
    failed_probes: int = 0
    probe_seconds: list[float] = field(default_factory=list)
    first_logprob: float | None = None
    shadow: Stop | None = None
    shown: int = 0
    """Thinking tokens that were."""
    early: _Early | None = None
    """A probe that was sent before its answer was asked for."""

    def __post_init__(self) -> None:
        decode = self.model.chat.decode
        self._thinking_text, self._visible_text = TextStream(decode), TextStream(decode)
        self.session = self._session(self.policy)

    def _session(self, rule: Rule | None) -> Session:
        return Session(
            rule,
            closer_tokens=len(self.model.chat.closer.ids),
            on_stop=self.policy.on_stop,
            task=self.task,
            streams=self.reader is not None,
        )

    async def answer(self) -> ChatAnswer:
        seldom = self.reader is None and not self.session.needs_ids
        thinking = _Thinking(self.model, self.trace, seldom)
        try:
            forced: ForcedAnswer | None = None
            while True:
                event = self.session.next_event()
                if isinstance(event, Show):
                    await self._show(self.trace.ids[max(event.start, self.shown) : event.stop])
                    self.shown = event.stop
                elif isinstance(event, AskProbe):
                    forced = await self._probe(event.position)
                elif isinstance(event, Stop) and self.is_shadow:  # on, as if there were no policy
                    self.shadow, self.session = event, self._session(None)
                    report_drawn(self.session, self.trace)
                elif isinstance(event, Stop):
                    await thinking.give_up()
                    return await self._stopped(event, forced)
                elif isinstance(event, Ended):
                    return await self._ended(thinking)
                else:
                    await thinking.reach(self._next_wanted(event.until))
                    report_drawn(self.session, self.trace)
        finally:
            if self.early is not None:
                await _end(self.early.answer)
            await thinking.give_up()

    def _next_wanted(self, until: int | None) -> int | None:
        """How many tokens to wait for; sends the probe that they lead to."""
        trace, position = self.trace, self.session.upcoming
        if position and self.early is None:  # at 0 it would race the prompt
            if len(trace.ids) < position:
                until = position
            else:
                asked = asyncio.create_task(self.model.force(trace, position))
                self.early = _Early(position, asked)
        return until if self.reader is None else self.session.drawn + 1

    async def _probe(self, position: int) -> ForcedAnswer | None:
        """Force the answer that the session asks for, and hand it over; without one, probe no more.

        Whatever is wrong with a probe, the model thinks on as it would without the policy.
        """
        began = time.perf_counter()
        try:
            early, self.early = self.early, None
            if early is not None and early.position == position:
                began, forced = early.began, await early.answer
            else:
                forced = await self.model.force(self.trace, position)
            seen, chat = self.trace.ids[:position], self.model.chat
            try:
                report_answer(self.session, self.policy, chat, seen, forced)
            except UndecidedError:
                forced = await self.model.force(self.trace, position, precise=True)
                report_answer(self.session, self.policy, chat, seen, forced)
        except Exception:  # noqa: BLE001 - engines raise what they like, and thinking goes on
            self.failed_probes += 1
            self.session.give_up_probing()
            return None
        if not self.probe_seconds and self.policy.reads_logprobs:
            self.first_logprob = forced.mean_logprob
        self.probe_seconds.append(time.perf_counter() - began)
        return forced

    async def _show(self, ids: Sequence[int], *, last: bool = False) -> None:
        if self.reader is not None and (text := self._thinking_text.take(ids, last=last)):
            await self.reader.reasoning(text)

    async def _show_visible(self, ids: Sequence[int], *, last: bool = False) -> None:
        shown = [token for token in ids if token not in self.model.stop_ids]
        if self.reader is not None and (text := self._visible_text.take(shown, last=last)):
            await self.reader.content(text)

    async def _stopped(self, stop: Stop, forced: ForcedAnswer | None) -> ChatAnswer:
        """Answer behind the stop: with the forced answer, or with a visible one that is written."""
        model, trace = self.model, self.trace
        await self._show([], last=True)
        visible = 0
        finish: Finish = "stop"
        if stop.reply == "probe":
            assert forced is not None  # such a stop rests on one
            content = forced_content(trace.plan.cue, forced.text)
            if self.reader is not None:
                await self.reader.content(content)
        else:
            show = None if self.reader is None else self._show_visible
            written = await model.write(trace, stop.position, show)
            await self._show_visible([], last=True)
            content = model.stops.visible_text(written)
            visible = len(written) + len(model.chat.closer.ids)
            finish = "stop" if written[-1:] and written[-1] in model.stop_ids else "length"
        return self._answered(stop.position, visible, content, finish, stop)

    async def _ended(self, thinking: _Thinking) -> ChatAnswer:
        """Let the model write the answer that it began by itself, if it was not cut."""
        trace, stop_ids = self.trace, self.model.stop_ids
        if self.early is not None:  # the thinking ended just there
            await self.model.drop(self.early.position)
            with suppress(Exception):  # engines raise what they like, and nobody asked for it
                await self.early.answer
            self.early = None
        await self._show([], last=True)
        if not trace.end.closed:
            return self._answered(trace.end.thinking, 0, None, "length", None)
        shown = 0
        while True:
            reached = len(trace.ids) + 1
            if self.reader is not None:
                over, ids = trace.end.over, trace.visible
                await self._show_visible(ids[shown:], last=over)
                shown = len(ids)
                if over:
                    break
            elif trace.end.over:
                break
            else:
                reached = trace.end.most
            await thinking.reach(reached)
        visible = trace.visible
        finish: Finish = "stop" if visible and visible[-1] in stop_ids else "length"
        content = self.model.stops.visible_text(visible)
        count = len(trace.ids) - trace.end.thinking
        return self._answered(trace.end.thinking, count, content, finish, None)

    def _answered(
        self, shown: int, visible: int, content: str | None, finish: Finish, stop: Stop | None
    ) -> ChatAnswer:
        trace = self.trace
        own = visible if stop is None else 0  # of the visible answer, drawn with the trace itself
        return ChatAnswer(
            trace=trace,
            stop=stop,
            shadow=self.shadow,
            reasoning=self.model.chat.decode(trace.ids[:shown]),
            content=content,
            finish=finish,
            counts=ChatCounts(
                prompt=len(trace.prompt_ids),
                thinking=shown,
                visible=visible,
                probes=len(self.probe_seconds),
                probe_tokens=trace.probe_tokens,
                discarded=len(trace.ids) - shown - own + trace.surplus,
                budget=None if stop is None else stop.position,
                cached=trace.requests[0].cached_tokens if trace.requests else None,
            ),
            failed_probes=self.failed_probes,
            probe_seconds=tuple(self.probe_seconds),
            first_logprob=self.first_logprob,
        )
