"""Early exit for one live request: a model thinks on while it is asked for forced answers.

The one loop of vLLM's plugin, the gateway and `run` over HTTP; models in this process think in
batches, in `engines.hf.early_exit`.  A `policy.session.Session` says where to ask, what
may be shown and when to stop; a backend thinks, answers and writes.  Knows ids and decisions; no
HTTP, no engine's interface and no text of replies.
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
from stopadvisor.engines.replies import AnswerReport
from stopadvisor.engines.trace import Trace, report_drawn
from stopadvisor.ground.errors import EngineError, UndecidedError
from stopadvisor.policy.requests import OnStop
from stopadvisor.policy.session import AskProbe, Ended, Rule, Session, Show, Stop, Think

__all__ = [
    "Backend",
    "LiveAnswer",
    "LiveRequest",
    "Observer",
    "ResumedThinking",
    "StreamedThinking",
    "Thinking",
]

_ABANDON_SECONDS = 0.05
"""How long the last tokens of a trace that is given up are waited for."""

Grown = Callable[[], None]


class Thinking(Protocol):
    """One trace on its way."""

    async def reach(self, tokens: int | None) -> None:
        """Return when this many tokens are drawn, or the trace has ended; None for its end."""
        ...

    async def give_up(self) -> None:
        """Draw no more; also where all is drawn."""
        ...


class Backend(Protocol):
    """A model that thinks on, answers when it is forced to, and writes visible answers."""

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

    async def force(self, trace: Trace, at: int, *, precise: bool = False) -> ForcedAnswer:
        """Force an answer after `at` thinking tokens, and count what it decodes in the trace.

        Cancelling aborts the request.  The entropy may be an interval unless `precise`.
        """
        ...

    async def write(
        self, trace: Trace, at: int, show: Callable[[Sequence[int]], None] | None = None
    ) -> list[int]:
        """Close the thinking after `at` tokens and return the visible answer.

        `show` gets its tokens as they come.
        """
        ...


class Observer(Protocol):
    """Called about one request while it is answered, within the event loop; returns at once."""

    @property
    def shows(self) -> bool:
        """Whether thinking and content are wanted as they come."""
        ...

    def reasoning(self, ids: Sequence[int]) -> None:
        """Thinking tokens may be shown."""
        ...

    def content(self, ids: Sequence[int]) -> None:
        """Tokens of a visible answer may be shown, without the one that ends it."""
        ...

    def probed(self, seconds: float, failed: Exception | None) -> None:
        """A forced answer came, or did not."""
        ...


# --- How thinking is drawn ------------------------------------------------------------------------


@dataclass(frozen=True)
class ResumedThinking:
    """Thinks no further than it is asked to, so nothing is discarded; each part is a request."""

    extend: Callable[[int | None], Awaitable[None]]
    """Draws until there are this many tokens after the prompt; None for the end."""

    async def reach(self, tokens: int | None) -> None:
        """Draw them."""
        await self.extend(tokens)

    async def give_up(self) -> None:
        """Do nothing: no request is on its way."""


@dataclass
class StreamedThinking:
    """One request that thinks on while others wait for it or probe."""

    trace: Trace
    draw: Callable[[Grown], Awaitable[None]]
    """Draws to the trace's end and says when there are more tokens; cancelling it aborts."""
    grown: Grown | None = None
    """Is told, too."""
    wake_at: Callable[[int | None], None] | None = None
    """Is told how many tokens are waited for, None for all, where others may be held back."""
    abandon: Callable[[], Awaitable[None]] | None = None
    """Aborts the request so that what it has drawn still comes; None where it does not."""
    _wanted: int | None = None
    _reached: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Future[None] = field(init=False)

    def __post_init__(self) -> None:
        self._task = asyncio.ensure_future(self.draw(self._more))
        self._task.add_done_callback(lambda _: self._reached.set())

    def _more(self) -> None:
        if self.grown is not None:
            self.grown()
        self._tell()

    def _tell(self) -> None:
        """Wake who waits, once there is what it waits for: not for every token."""
        if self._wanted is not None and len(self.trace.ids) >= self._wanted:
            self._reached.set()
        elif self.wake_at is not None:
            self.wake_at(self._wanted)

    async def reach(self, tokens: int | None) -> None:
        """Wait for this many tokens."""
        if not self._task.done():
            self._wanted = tokens
            self._reached.clear()
            self._tell()
            await self._reached.wait()
        if self._task.done():
            self._task.result()

    async def give_up(self) -> None:
        """Abort the request, and take what it has drawn."""
        if self.abandon is not None and not self._task.done():
            await self.abandon()
            await asyncio.wait({self._task}, timeout=_ABANDON_SECONDS)
        await _end(self._task)


async def _end(task: asyncio.Future[Any]) -> None:
    """Give up what a task does; who is interested in its error has had it before."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # looked at


# --- One request ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class LiveAnswer:
    """One request that is over."""

    trace: Trace
    """All that was drawn: an audit can think on after it."""
    stop: Stop | None
    """None where the trace ended by itself."""
    shadow: Stop | None
    """Where a policy in its shadow would have stopped it."""
    forced: ForcedAnswer | None
    """What a stop serves; None where a visible answer was written, or nothing was stopped."""
    written: tuple[int, ...]
    """Visible answer after a stop."""
    probes: int
    failed_probes: int
    first_logprob: float | None
    """Mean over the first forced answer's tokens; None where there is none."""
    started: float
    """When it began, by `time.perf_counter`."""

    @property
    def thinking(self) -> int:
        """Thinking tokens that were served."""
        return self.trace.end.thinking if self.stop is None else self.stop.position

    @property
    def decoded(self) -> int:
        """Tokens that were decoded as a trace, also after a stop."""
        return len(self.trace.ids) + self.trace.surplus


@dataclass
class _Early:
    """A probe on its way before its answer is asked for."""

    position: int
    answer: asyncio.Task[ForcedAnswer]
    began: float = field(default_factory=time.perf_counter)


@dataclass
class LiveRequest:
    """A request on its way; cancelling `answer` gives all of it up.

    Parameters
    ----------
    draw : callable
        Begins the trace's thinking; is told whom to tell of further tokens, if anybody.
    rule : Rule or None
        The policy; None thinks to the end.
    shadow : bool
        Judge and never stop.
    lenient : bool
        A probe that fails lets the thinking go on to its end; otherwise it is the request's error.
    probe_timeout : float, optional
        Seconds after which a probe has failed.
    drop : callable, optional
        Gives up a forced answer that nobody waits for, so that `force` counts it and raises.  Where
        it is there probes are sent as soon as the thinking reaches their position, and that it goes
        on there is seen while they run.
    at_once : int
        See `Session`.
    """

    backend: Backend
    trace: Trace
    draw: Callable[[Grown | None], Thinking]
    rule: Rule | None
    on_stop: OnStop
    task: str
    observer: Observer | None = None
    shadow: bool = False
    lenient: bool = True
    probe_timeout: float | None = None
    drop: Callable[[int], Awaitable[None]] | None = None
    at_once: int = 1
    started: float = field(default_factory=time.perf_counter)
    _probes: int = 0
    _failed: int = 0
    _first_logprob: float | None = None
    _shadowed: Stop | None = None
    _content_shown: int = 0
    _early: _Early | None = None
    _report: AnswerReport = field(init=False)
    _session: Session = field(init=False)
    _showing: Session = field(init=False)
    """Says what may be shown; where nothing is ever stopped that is another session."""

    def __post_init__(self) -> None:
        streams = self.observer is not None and self.observer.shows
        self._report = AnswerReport(self.rule, self.backend.chat)
        self._session = self._begin(self.rule, streams and not self.shadow)
        self._showing = self._begin(None, streams) if self.shadow else self._session

    def _begin(self, rule: Rule | None, streams: bool) -> Session:
        return Session(
            rule,
            closer_tokens=len(self.backend.chat.closer.ids),
            on_stop=self.on_stop,
            task=self.task,
            streams=streams,
            at_once=self.at_once,
        )

    @property
    def needs_ids(self) -> bool:
        """Whether the policy reads the tokens; otherwise their number is enough."""
        return self._session.needs_ids

    @property
    def _shows(self) -> bool:
        return self.observer is not None and self.observer.shows

    async def answer(self) -> LiveAnswer:
        """Think, probe and answer.

        If the trace ends while a probe runs, checkpoints before its end are probed all the same:
        calibration saw their answers, and a stop there counts.

        Raises
        ------
        StopAdvisorError, or what the engine raises
            The thinking failed, or the visible answer after a stop.
        """
        thinking = self.draw(self._grown if self._shows else None)
        forced: ForcedAnswer | None = None
        try:
            while True:
                event = self._session.next_event()
                if isinstance(event, Show):
                    self._show(event)
                elif isinstance(event, AskProbe):
                    forced = await self._probe(event.position)
                elif isinstance(event, Think):
                    await thinking.reach(self._next_wanted(event.until))
                    report_drawn(self._session, self.trace)
                elif isinstance(event, Stop) and self.shadow:  # on, as if there were no policy
                    self._shadowed, self._session = event, self._begin(None, streams=False)
                    report_drawn(self._session, self.trace)
                elif isinstance(event, Stop):
                    await thinking.give_up()
                    return await self._stopped(event, forced)
                else:
                    return await self._ended(thinking)
        finally:
            if self._early is not None:
                await _end(self._early.answer)
            await thinking.give_up()

    def _next_wanted(self, until: int | None) -> int | None:
        """How many tokens to wait for; sends the probe that they lead to."""
        position = self._session.upcoming
        if position and self._early is None and self.drop is not None:  # at 0 it races the prompt
            if len(self.trace.ids) < position:
                return position
            asked = asyncio.create_task(self.backend.force(self.trace, position))
            self._early = _Early(position, asked)
        return until

    async def _probe(self, position: int) -> ForcedAnswer | None:
        """Force the answer that the session asks for, and hand it over; without one, probe no more.

        Raises
        ------
        Exception
            It failed, where that is the request's error.
        """
        began = time.perf_counter()
        early, self._early = self._early, None
        if early is not None:
            began = early.began
        failed: Exception | None = None
        forced: ForcedAnswer | None = None
        try:
            async with asyncio.timeout(self.probe_timeout):
                forced = await self._judged(position, early)
        except TimeoutError:
            failed = EngineError(f"no forced answer within {self.probe_timeout} s")
        except Exception as error:  # noqa: BLE001 - engines raise what they like
            failed = error
        if self.observer is not None:
            self.observer.probed(time.perf_counter() - began, failed)
        if failed is not None and not self.lenient:
            raise failed
        if forced is None:
            self._failed += 1
            self._session.give_up_probing()
            return None
        if not self._probes:
            self._first_logprob = forced.mean_logprob
        self._probes += 1
        return forced

    async def _judged(self, position: int, early: _Early | None) -> ForcedAnswer:
        backend, seen = self.backend, self.trace.ids[:position]
        if early is not None and early.position == position:
            forced = await early.answer
        else:
            forced = await backend.force(self.trace, position)
        try:
            self._report.judge(self._session, seen, forced)
        except UndecidedError:
            forced = await backend.force(self.trace, position, precise=True)
            self._report.judge(self._session, seen, forced)
        return forced

    # --- What is shown ---

    def _grown(self) -> None:
        """Show what may be shown by now; called whenever tokens come, also while a probe runs."""
        session = self._showing
        report_drawn(session, self.trace)
        while isinstance(event := session.next_event(), Show):
            self._show(event)
        if isinstance(event, Ended) and self.trace.end.closed:
            new = self.trace.visible[self._content_shown :]
            self._content_shown += len(new)
            self._show_content(new)

    def _show(self, event: Show) -> None:
        assert self.observer is not None  # or the session would not speak of it
        self.observer.reasoning(self.trace.ids[event.start : event.stop])

    def _show_content(self, ids: Sequence[int]) -> None:
        shown = [token for token in ids if token not in self.backend.stop_ids]
        if self.observer is not None and shown:
            self.observer.content(shown)

    # --- How it ends ---

    async def _stopped(self, stop: Stop, forced: ForcedAnswer | None) -> LiveAnswer:
        """Answer after the stop: with the forced answer, or with a visible one that is written."""
        if stop.reply == "probe":
            assert forced is not None  # such a stop rests on one
            return self._over(stop, forced)
        show = self._show_content if self._shows else None
        written = await self.backend.write(self.trace, stop.position, show)
        return self._over(stop, None, tuple(written))

    async def _ended(self, thinking: Thinking) -> LiveAnswer:
        """Let the model write the answer that it began by itself, if it was not cut."""
        if self._early is not None and self.drop is not None:  # the thinking ended just there
            await self.drop(self._early.position)
            with suppress(Exception):  # engines raise what they like, and nobody asked for it
                await self._early.answer
            self._early = None
        if self._shows:
            self._grown()
        await thinking.reach(None)
        if self._shows:
            self._grown()
        return self._over(None, None)

    def _over(
        self, stop: Stop | None, forced: ForcedAnswer | None, written: tuple[int, ...] = ()
    ) -> LiveAnswer:
        return LiveAnswer(
            trace=self.trace,
            stop=stop,
            shadow=self._shadowed,
            forced=forced,
            written=written,
            probes=self._probes,
            failed_probes=self._failed,
            first_logprob=self._first_logprob,
            started=self.started,
        )
