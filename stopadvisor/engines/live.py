"""Early exit for one live request: think, probe, and stop when the policy says so.

The loop of the vLLM plugin, the gateway and `run` over HTTP; models in this process run in batches,
in `engines.hf.early_exit`.  A `policy.session.Session` decides where to probe, what to show and
when to stop; a `Backend` generates tokens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stopadvisor.engines.answer_end import AnswerStops, ForcedAnswer
from stopadvisor.engines.trace import AnswerReport, Trace, report_drawn
from stopadvisor.ground.errors import EngineError, UndecidedError
from stopadvisor.policy.session import AskProbe, Ended, Rule, Session, Show, Stop, Think

__all__ = ["Backend", "Grown", "LiveAnswer", "LiveRequest", "Observer", "Thinking"]

Grown = Callable[[], None]
"""Called when a trace has grown."""


class Thinking(Protocol):
    """The generation of one trace."""

    async def reach(self, tokens: int | None) -> None:
        """Return once this many tokens exist or the trace has ended; None waits for its end."""
        ...

    async def give_up(self) -> None:
        """Stop generating; no effect once the trace has ended."""
        ...


class Backend(Protocol):
    """A model that thinks, can be forced to answer, and writes visible answers."""

    @property
    def stops(self) -> AnswerStops:
        """The rules that end a forced answer, with their `chat`."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a generation."""
        ...

    def think(self, trace: Trace, grown: Grown | None, *, needs_ids: bool) -> Thinking:
        """Start generating a trace, and call `grown` whenever it has grown.

        Unless `needs_ids`, nobody reads the tokens before the position that `reach` waits for.
        """
        ...

    async def force(self, trace: Trace, at: int, *, precise: bool = False) -> ForcedAnswer:
        """Force an answer after `at` thinking tokens; adds its tokens to `trace.probe_tokens`.

        Cancelling aborts the request.  The entropy may be an interval unless `precise`.
        """
        ...

    async def write(
        self, trace: Trace, at: int, show: Callable[[Sequence[int]], None] | None = None
    ) -> list[int]:
        """Close the thinking after `at` tokens and return the visible answer.

        `show` is called with new tokens as they arrive.
        """
        ...


class Observer(Protocol):
    """Callbacks for one request, called in the event loop; they must not block."""

    @property
    def shows(self) -> bool:
        """Whether thinking and content are streamed."""
        ...

    def reasoning(self, ids: Sequence[int]) -> None:
        """Show these thinking tokens."""
        ...

    def content(self, ids: Sequence[int]) -> None:
        """Show these tokens of the visible answer, without the ending one."""
        ...

    def probed(self, seconds: float, failed: Exception | None) -> None:
        """Record a probe and its error, if it failed."""
        ...


@dataclass
class LiveAnswer:
    """The outcome of a request; complete once `LiveRequest.answer` returns."""

    trace: Trace
    """All generated tokens; an audit can continue the trace."""
    started: float = field(default_factory=time.perf_counter)
    """By `time.perf_counter`."""
    stop: Stop | None = None
    """None if the trace ended by itself."""
    shadow: Stop | None = None
    """In shadow mode, where the policy would have stopped."""
    forced: ForcedAnswer | None = None
    """The answer served at a stop; None with a visible answer or without a stop."""
    written: tuple[int, ...] = ()
    """Visible answer after a stop."""
    probes: int = 0
    failed_probes: int = 0
    first_logprob: float | None = None
    """Mean log-probability of the first forced answer; None without probes."""

    @property
    def thinking(self) -> int:
        """Number of thinking tokens served."""
        return self.trace.end.thinking if self.stop is None else self.stop.position

    @property
    def decoded(self) -> int:
        """Number of trace tokens decoded, including those after a stop."""
        return len(self.trace.ids) + self.trace.surplus


@dataclass
class LiveRequest:
    """A request under a policy; cancelling `answer` aborts everything it started."""

    backend: Backend
    trace: Trace
    rule: Rule | None
    """None never stops."""
    task: str
    observer: Observer | None = None
    shadow: bool = False
    """Evaluate the policy but never stop."""
    lenient: bool = True
    """After a failed probe, think to the end without probes; otherwise raise its error."""
    probe_timeout: float | None = None
    """Seconds until a probe counts as failed."""
    at_once: int = 1
    """See `Session.at_once`."""
    _content_shown: int = 0
    _answer: LiveAnswer = field(init=False)
    _report: AnswerReport = field(init=False)
    _session: Session = field(init=False)
    _showing: Session = field(init=False)
    """Decides what may be shown; in shadow mode a session without a rule."""

    def __post_init__(self) -> None:
        self._answer = LiveAnswer(self.trace)
        self._report = AnswerReport(self.rule, self.backend.stops.chat)
        self._session = self._begin(self.rule, streams=self._shows and not self.shadow)
        self._showing = self._begin(None, streams=self._shows) if self.shadow else self._session

    def _begin(self, rule: Rule | None, *, streams: bool) -> Session:
        return Session(
            rule,
            closer_tokens=len(self.backend.stops.chat.closer.ids),
            on_stop=self.trace.plan.on_stop,
            task=self.task,
            streams=streams,
            at_once=self.at_once,
        )

    @property
    def _shows(self) -> bool:
        return self.observer is not None and self.observer.shows

    async def answer(self) -> LiveAnswer:
        """Think, probe and answer.

        If the trace ends while a probe runs, the checkpoints before its end are still probed:
        calibration saw their answers, so a stop there counts.  Errors of the engine while thinking
        or writing the visible answer propagate.
        """
        answer, forced, grown = self._answer, None, self._grown if self._shows else None
        thinking = self.backend.think(self.trace, grown, needs_ids=self._session.needs_ids)
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
                elif isinstance(event, Stop) and self.shadow:  # go on as if there were no policy
                    answer.shadow, self._session = event, self._begin(None, streams=False)
                    report_drawn(self._session, self.trace)
                elif isinstance(event, Stop):
                    await thinking.give_up()
                    answer.stop = event
                    if event.reply == "probe":
                        answer.forced = forced  # of the probe that triggered this stop
                    else:
                        show = self._show_content if self._shows else None
                        written = await self.backend.write(self.trace, event.position, show)
                        answer.written = tuple(written)
                    return answer
                else:  # the trace ended by itself: let the model finish its visible answer
                    if self._shows:
                        self._grown()
                    await thinking.reach(None)
                    if self._shows:
                        self._grown()
                    return answer
        finally:
            await thinking.give_up()

    async def _probe(self, position: int) -> ForcedAnswer | None:
        """Run the probe that the session asks for; if it fails, stop probing."""
        began, answer = time.perf_counter(), self._answer
        forced: ForcedAnswer | None = None
        failed: Exception | None = None
        try:
            async with asyncio.timeout(self.probe_timeout):
                forced = await self._force_and_judge(position)
        except TimeoutError:
            failed = EngineError(f"no forced answer within {self.probe_timeout} s")
        except Exception as error:  # noqa: BLE001 - engines may raise anything
            failed = error
        if self.observer is not None:
            self.observer.probed(time.perf_counter() - began, failed)
        if failed is not None and not self.lenient:
            raise failed
        if forced is None:
            answer.failed_probes += 1
            self._session.give_up_probing()
            return None
        if not answer.probes:
            answer.first_logprob = forced.mean_logprob
        answer.probes += 1
        return forced

    async def _force_and_judge(self, position: int) -> ForcedAnswer:
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
        """Show all that may be shown; called on new tokens, even while a probe runs."""
        session = self._showing
        report_drawn(session, self.trace)
        while isinstance(event := session.next_event(), Show):
            self._show(event)
        if isinstance(event, Ended) and self.trace.end.closed:
            new = self.trace.visible[self._content_shown :]
            self._content_shown += len(new)
            self._show_content(new)

    def _show(self, event: Show) -> None:
        assert self.observer is not None  # only streaming sessions emit `Show`
        self.observer.reasoning(self.trace.ids[event.start : event.stop])

    def _show_content(self, ids: Sequence[int]) -> None:
        shown = [token for token in ids if token not in self.backend.stop_ids]
        if self.observer is not None and shown:
            self.observer.content(shown)
