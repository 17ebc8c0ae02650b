"""Early exit for one live request: a model thinks on while it is asked for forced answers.

The one loop of vLLM's plugin, the gateway and `run` over HTTP; models in this process think in
batches, in `engines.hf.early_exit`.  A `policy.session.Session` says where to ask, what may be
shown and when to stop; a backend thinks, answers and writes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stopadvisor.engines.answer_end import AnswerStops, ForcedAnswer
from stopadvisor.engines.chat import Chat
from stopadvisor.engines.trace import AnswerReport, Trace, report_drawn
from stopadvisor.ground.errors import EngineError, UndecidedError
from stopadvisor.policy.requests import OnStop
from stopadvisor.policy.session import AskProbe, Ended, Rule, Session, Show, Stop, Think

__all__ = ["Backend", "Grown", "LiveAnswer", "LiveRequest", "Observer", "Thinking"]

Grown = Callable[[], None]
"""Is told that a trace has more tokens."""


class Thinking(Protocol):
    """One trace on its way."""

    async def reach(self, tokens: int | None) -> None:
        """Return when this many tokens are drawn, or the trace has ended; None for its end."""
        ...

    async def give_up(self) -> None:
        """Draw no more; also where all is drawn."""
        ...


class Backend(Protocol):
    """A model that answers when it is forced to, and writes visible answers."""

    @property
    def stops(self) -> AnswerStops:
        """Where answers end, with the chat whose tokens they are."""
        ...

    @property
    def chat(self) -> Chat:
        """Tokenizer and markers."""
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


@dataclass
class LiveAnswer:
    """What one request got; whole once it is over."""

    trace: Trace
    """All that was drawn: an audit can think on after it."""
    started: float = field(default_factory=time.perf_counter)
    """When it began, by `time.perf_counter`."""
    stop: Stop | None = None
    """None where the trace ended by itself."""
    shadow: Stop | None = None
    """Where a policy in its shadow would have stopped it."""
    forced: ForcedAnswer | None = None
    """What a stop serves; None where a visible answer was written, or nothing was stopped."""
    written: tuple[int, ...] = ()
    """Visible answer after a stop."""
    probes: int = 0
    failed_probes: int = 0
    first_logprob: float | None = None
    """Mean over the first forced answer's tokens; None where there is none."""

    @property
    def thinking(self) -> int:
        """Thinking tokens that were served."""
        return self.trace.end.thinking if self.stop is None else self.stop.position

    @property
    def decoded(self) -> int:
        """Tokens that were decoded as a trace, also after a stop."""
        return len(self.trace.ids) + self.trace.surplus


@dataclass
class LiveRequest:
    """A request on its way; cancelling `answer` gives all of it up."""

    backend: Backend
    trace: Trace
    draw: Callable[[Grown | None], Thinking]
    """Begins the trace's thinking; is told whom to tell of further tokens, if anybody."""
    rule: Rule | None
    """None thinks to the end."""
    on_stop: OnStop
    task: str
    observer: Observer | None = None
    shadow: bool = False
    """Judge and never stop."""
    lenient: bool = True
    """A probe that fails lets the thinking go on to its end; else it is the request's error."""
    probe_timeout: float | None = None
    """Seconds after which a probe has failed."""
    at_once: int = 1
    """See `Session`."""
    _content_shown: int = 0
    _found: LiveAnswer = field(init=False)
    _report: AnswerReport = field(init=False)
    _session: Session = field(init=False)
    _showing: Session = field(init=False)
    """Says what may be shown; where nothing is ever stopped that is another session."""

    def __post_init__(self) -> None:
        self._found = LiveAnswer(self.trace)
        self._report = AnswerReport(self.rule, self.backend.chat)
        self._session = self._begin(self.rule, streams=self._shows and not self.shadow)
        self._showing = self._begin(None, streams=self._shows) if self.shadow else self._session

    def _begin(self, rule: Rule | None, *, streams: bool) -> Session:
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
        calibration saw their answers, and a stop there counts.  Raises what the engine raises where
        the thinking failed, or the visible answer after a stop.
        """
        thinking = self.draw(self._grown if self._shows else None)
        found, forced = self._found, None
        try:
            while True:
                event = self._session.next_event()
                if isinstance(event, Show):
                    self._show(event)
                elif isinstance(event, AskProbe):
                    forced = await self._probe(event.position)
                elif isinstance(event, Think):
                    await thinking.reach(event.until)
                    report_drawn(self._session, self.trace)
                elif isinstance(event, Stop) and self.shadow:  # on, as if there were no policy
                    found.shadow, self._session = event, self._begin(None, streams=False)
                    report_drawn(self._session, self.trace)
                elif isinstance(event, Stop):
                    await thinking.give_up()
                    found.stop = event
                    if event.reply == "probe":
                        found.forced = forced  # such a stop rests on one
                    else:
                        show = self._show_content if self._shows else None
                        written = await self.backend.write(self.trace, event.position, show)
                        found.written = tuple(written)
                    return found
                else:  # the model writes the answer that it began by itself, if it was not cut
                    if self._shows:
                        self._grown()
                    await thinking.reach(None)
                    if self._shows:
                        self._grown()
                    return found
        finally:
            await thinking.give_up()

    async def _probe(self, position: int) -> ForcedAnswer | None:
        """Force the answer that the session asks for, and judge it; without one, probe no more."""
        began, found = time.perf_counter(), self._found
        forced: ForcedAnswer | None = None
        failed: Exception | None = None
        try:
            async with asyncio.timeout(self.probe_timeout):
                forced = await self._judged(position)
        except TimeoutError:
            failed = EngineError(f"no forced answer within {self.probe_timeout} s")
        except Exception as error:  # noqa: BLE001 - engines raise what they like
            failed = error
        if self.observer is not None:
            self.observer.probed(time.perf_counter() - began, failed)
        if failed is not None and not self.lenient:
            raise failed
        if forced is None:
            found.failed_probes += 1
            self._session.give_up_probing()
            return None
        if not found.probes:
            found.first_logprob = forced.mean_logprob
        found.probes += 1
        return forced

    async def _judged(self, position: int) -> ForcedAnswer:
        seen = self.trace.ids[:position]
        forced = await self.backend.force(self.trace, position)
        try:
            self._report.judge(self._session, seen, forced)
        except UndecidedError:
            forced = await self.backend.force(self.trace, position, precise=True)
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
