"""Answers one chat request under a policy, wherever the model runs.

The model thinks on while a probe is asked beside it; a `policy.session.Session` says where to ask,
what may be shown, and when to stop.  Where the next position is known, the probe is sent as soon as
the thinking reaches it, and that it goes on there is seen while the probe runs.  A probe that fails
means to think on.  With a shadow policy everything is asked and judged, and nothing is stopped.
Knows ids, text and decisions; no HTTP, no engine's interface and no metrics.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from stopadvisor.engines.answer_end import AnswerStops, ForcedAnswer
from stopadvisor.engines.chat import Chat
from stopadvisor.engines.openai.trace import Trace
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.session import AskProbe, Ended, Judge, Rule, Session, Show, Stop
from stopadvisor.policy.stepper import Decision
from stopadvisor.probes.markers import count_markers
from stopadvisor.probes.trigger import Positions, Trigger
from stopadvisor.serving.chat_reply import ChatCounts, Finish, TextStream, forced_content

__all__ = ["Answered", "ChatModel", "Reader", "answer_chat"]


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

    async def force(self, trace: Trace, position: int) -> ForcedAnswer:
        """Force an answer behind so many thinking tokens; cancelling it gives it up at once."""
        ...

    async def write(
        self,
        trace: Trace,
        at: int,
        show: Callable[[Sequence[int]], Awaitable[None]] | None = None,
    ) -> list[int]:
        """Close the thinking there and return the visible answer; `show` is told what comes."""
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
class Answered:
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
) -> Answered:
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
    return await _Request(model, trace, policy, task, shadow, reader).answer()


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
        if self.seldom and not self._task.done():
            await self.model.abandon(self.trace)
            await asyncio.wait({self._task}, timeout=_ABANDON_SECONDS)
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.exception()  # looked at: who is interested has had it from `reach`


@dataclass(frozen=True)
class _Early:
    """A probe on its way before its answer is asked for."""

    position: int
    answer: asyncio.Task[ForcedAnswer]
    began: float = field(default_factory=time.perf_counter)


@dataclass
class _Request:
    """A request on its way."""

    model: ChatModel
    trace: Trace
    policy: Policy
    task: str
    is_shadow: bool
    reader: Reader | None
    probe_tokens: int = 0
    failed_probes: int = 0
    probe_seconds: list[float] = field(default_factory=list)
    first_logprob: float | None = None
    shadow: _Shadow | None = None
    early: _Early | None = None
    """A probe that was sent before its answer was asked for."""

    def __post_init__(self) -> None:
        chat = self.model.chat
        self._thinking_text, self._visible_text = TextStream(chat.decode), TextStream(chat.decode)
        rule: Rule = self.policy
        if self.is_shadow:
            rule = self.shadow = _Shadow(self.policy)
        self.session = Session(
            rule,
            closer_tokens=len(chat.closer.ids),
            on_stop=self.policy.on_stop,
            task=self.task,
            streams=self.reader is not None,
        )

    async def answer(self) -> Answered:
        seldom = self.reader is None and not self.session.needs_ids
        thinking = _Thinking(self.model, self.trace, seldom)
        try:
            forced: ForcedAnswer | None = None
            while True:
                event = self.session.next_event()
                if isinstance(event, Show):
                    await self._show(self.trace.ids[event.start : event.stop])
                elif isinstance(event, AskProbe):
                    forced = await self._probe(event.position)
                elif isinstance(event, Stop):
                    await thinking.give_up()
                    return await self._stopped(event, forced)
                elif isinstance(event, Ended):
                    return await self._ended(thinking)
                else:
                    await thinking.reach(self._next_wanted(event.until))
                    self._tell()
        finally:
            if self.early is not None:
                self.early.answer.cancel()
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

    def _tell(self) -> None:
        """Tell the session what was drawn since it was told last."""
        session, trace = self.session, self.trace
        if session.needs_ids:
            session.receive(trace.ids[session.drawn :])
        else:
            session.receive(len(trace.ids) - session.drawn)
        if session.thinking is None and trace.end.thinking >= 0:
            session.end(trace.end.thinking, cut=trace.end.cut)

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
            markers = None
            if self.policy.rule.needs_markers:
                seen = self.model.chat.decode(self.trace.ids[:position])
                markers = float(count_markers(seen))
            self.session.judge(
                answer=forced.text,
                mean_logprob=forced.mean_logprob,
                mean_entropy=forced.mean_entropy,
                markers=markers,
                closed_by_itself=forced.closed_by_itself,
            )
        except Exception:  # noqa: BLE001 - engines raise what they like, and thinking goes on
            self.failed_probes += 1
            self.session.give_up_probing()
            return None
        if not self.probe_seconds and self.policy.reads_logprobs:
            self.first_logprob = forced.mean_logprob
        self.probe_tokens += len(forced.ids)
        self.probe_seconds.append(time.perf_counter() - began)
        return forced

    async def _show(self, ids: Sequence[int], *, last: bool = False) -> None:
        if self.reader is not None and (text := self._thinking_text.take(ids, last=last)):
            await self.reader.reasoning(text)

    async def _show_visible(self, ids: Sequence[int], *, last: bool = False) -> None:
        shown = [token for token in ids if token not in self.model.stop_ids]
        if self.reader is not None and (text := self._visible_text.take(shown, last=last)):
            await self.reader.content(text)

    async def _stopped(self, stop: Stop, forced: ForcedAnswer | None) -> Answered:
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

    async def _ended(self, thinking: _Thinking) -> Answered:
        """Let the model write the answer that it began by itself, if it was not cut."""
        trace, stop_ids = self.trace, self.model.stop_ids
        if self.early is not None:  # the thinking ended just there
            with suppress(Exception):  # engines raise what they like, and nobody asked for it
                self.probe_tokens += len((await self.early.answer).ids)
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
    ) -> Answered:
        trace = self.trace
        own = visible if stop is None else 0  # of the visible answer, drawn with the trace itself
        return Answered(
            trace=trace,
            stop=stop,
            shadow=None if self.shadow is None else self.shadow.stop,
            reasoning=self.model.chat.decode(trace.ids[:shown]),
            content=content,
            finish=finish,
            counts=ChatCounts(
                prompt=len(trace.prompt_ids),
                thinking=shown,
                visible=visible,
                probes=self.session.probes,
                probe_tokens=self.probe_tokens,
                discarded=len(trace.ids) - shown - own,
                budget=None if stop is None else stop.position,
                cached=trace.requests[0].cached_tokens if trace.requests else None,
            ),
            failed_probes=self.failed_probes,
            probe_seconds=tuple(self.probe_seconds),
            first_logprob=self.first_logprob,
        )


@dataclass(frozen=True)
class _NobodyStops:
    """A trigger's positions, of which none stops whoever still thinks there."""

    own: Trigger
    stop_at: None = None

    @property
    def kind(self) -> Literal["grid", "stride", "marker"]:
        """The trigger's."""
        return self.own.kind

    @property
    def needs_ids(self) -> bool:
        """The trigger's."""
        return self.own.needs_ids

    @property
    def probes(self) -> bool:
        """The trigger's."""
        return self.own.probes

    def start(self) -> Positions:
        """Begin a trace."""
        return self.own.start()


@dataclass
class _Shadow:
    """A policy that judges and never stops; remembers where it would have."""

    policy: Policy
    stop: Stop | None = None
    _probes: int = 0

    @property
    def trigger(self) -> Trigger:
        """Where to probe."""
        return _NobodyStops(self.policy.trigger)

    def start(self, task: str | None = None) -> Judge:
        """Begin the request."""
        self._judge: Judge = self.policy.start(task)
        return self

    def observe(self, *, think_tokens: int, **answer: Any) -> Decision:
        """Decide as the policy does; behind its stop there is nothing left to ask."""
        decision = self._judge.observe(think_tokens=think_tokens, **answer)
        if decision.stop or think_tokens == self.policy.trigger.stop_at:
            self.stop = Stop(think_tokens, self._probes, self.policy.on_stop)
            decision = decision._replace(stop=False, natural_end=True)
        self._probes += 1
        return decision
