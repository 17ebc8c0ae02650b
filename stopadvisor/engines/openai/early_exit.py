"""Early exit over HTTP: a server thinks and answers, a `policy.session.Session` says what to ask.

Resumed thinking is drawn in parts.  Each part is a request that sends the prompt and the thinking
so far as token ids, which the server finds in its prefix cache.  With overlap, thinking streams on
while a probe runs, and is broken off at a stop.  Stops are the same either way, and those of
`engines.hf.early_exit`.  Knows no files and no gold answer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import anyio

from stopadvisor.engines.answer_end import ForcedAnswer
from stopadvisor.engines.openai.endpoint import check_streams
from stopadvisor.engines.openai.model import NO_ENTROPY, ServedModel
from stopadvisor.engines.openai.thinking import ResumedThinking, Thinking, streaming
from stopadvisor.engines.openai.trace import Trace, report_drawn
from stopadvisor.engines.replies import (
    ReplyText,
    forced_reply,
    make_reply,
    natural_reply,
    report_answer,
    written_reply,
)
from stopadvisor.errors import EngineError, ModelError
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import OnStop, Reply, Request, ThinkingMode
from stopadvisor.policy.session import AskProbe, Ended, Rule, Session, Show, Stop, Think
from stopadvisor.probes.plan import ProbePlan

__all__ = ["Observer", "PolicyService", "choose_thinking_mode", "entropy_at"]


async def choose_thinking_mode(
    served: ServedModel, policy: Policy, asked: ThinkingMode | None, remarks: list[str]
) -> ThinkingMode:
    """Return how thinking is drawn: as asked, else as the policy was chosen for, where that works.

    `remarks` grows where the policy was chosen for overlap and the server cannot do it.

    Raises
    ------
    ModelError
        The server cannot do what is asked for, or what the policy takes.
    """
    if asked == "resume" or (asked is None and policy.terms.serving != "overlap"):
        return "resume"
    try:
        await check_streams(served.client)
    except ModelError as error:
        if asked is not None:
            raise
        remarks.append(f"the policy was chosen for overlap: {error}")
        return "resume"
    return "overlap"


def entropy_at(served: ServedModel, policy: Policy) -> tuple[str, str]:
    """Return the entropy source that a policy gets at a server, and what its probes ask for.

    A rule that reads no entropy gets the same log-probability from every source; one that reads
    answers alone is asked none.
    """
    own, top = policy.terms.entropy_source, served.endpoint.top_limit
    if not policy.reads_logprobs or not top:
        return NO_ENTROPY, NO_ENTROPY
    if not policy.rule.needs_entropy:
        return own, "top-k:1"
    if served.top_of(own) > top:
        own = f"top-k:{top}"
    return own, own


_AT_ONCE = 64
"""Tokens of a request that goes on with the thinking where markers decide on the next probe.

Half of them are drawn in vain at a stop; one by one, each would take a request.
"""


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
        """Tokens of the model's own answer may be shown, without the one that ends it.

        A stopped request's answer is in its reply alone.
        """
        ...

    def probed(self, seconds: float, failed: EngineError | None) -> None:
        """A forced answer came, or did not."""
        ...

    def stops(self, stop: Stop) -> None:
        """The policy stops the trace, or would."""
        ...


@dataclass
class PolicyService:
    """A policy at a served model, or no policy; what all its requests share."""

    model: ServedModel
    plan: ProbePlan
    rule: Rule | None
    on_stop: OnStop
    mode: ThinkingMode
    remarks: list[str]
    """What the user should know; grows."""
    shadow: bool = False
    """Judge and never stop: only the observer gets what the policy would have done."""
    probe_timeout: float | None = None
    """Seconds for a forced answer.  One that fails, or takes longer, then lets the thinking go on
    to its end, where it would else be the request's error."""

    def __post_init__(self) -> None:
        self.model.check_cap(self.plan)

    async def answer(
        self,
        request: Request,
        *,
        prompt_ids: Sequence[int] | None = None,
        replica: int | None = None,
        observer: Observer | None = None,
    ) -> Reply:
        """Answer one request, by default at the server whose turn it is.

        `prompt_ids` are those of `ServedModel.open`, where they are known already.  For an observer
        that `shows` all thinking is streamed.
        """
        prompt_ids = prompt_ids or self.model.open(request.prompt.messages)
        if self.model.thinking_room(prompt_ids, self.plan) < self.plan.max_think:
            self._remark(
                "some prompts leave less of the server's context than the policy's cap of "
                f"{self.plan.max_think} thinking tokens: the certificate does not cover them"
            )
        if replica is None:
            replica = self.model.client.assign_replica()
        trace = self.model.begin(prompt_ids, request.prompt, self.plan, replica=replica)
        row = _RequestRow(self, request, trace, self.session(request, observer), observer)
        async with self._thinking(row) as thinking:
            stopped = await row.think(thinking)
        if stopped is None:
            return row.ended()
        return await row.stopped(*stopped)

    def session(self, request: Request, observer: Observer | None = None) -> Session:
        """Begin a trace of a request."""
        return Session(
            self.rule,
            closer_tokens=len(self.model.chat.closer.ids),
            on_stop=self.on_stop,
            task=request.task,
            streams=observer is not None and observer.shows and not self.shadow,
            at_once=_AT_ONCE if self.mode == "resume" else 1,
        )

    def _remark(self, text: str) -> None:
        if text not in self.remarks:
            self.remarks.append(text)

    def _thinking(self, row: _RequestRow) -> AbstractAsyncContextManager[Thinking]:
        grown = row.grown if row.observer is not None and row.observer.shows else None
        # Without a rule nothing runs beside the thinking.
        if self.mode == "overlap" and self.rule is not None and self.rule.trigger.probes:
            return streaming(self.model, row.trace, grown)
        return nullcontext(ResumedThinking(self.model, row.trace, grown))


@dataclass
class _RequestRow:
    """A request on its way."""

    service: PolicyService
    request: Request
    trace: Trace
    session: Session
    observer: Observer | None = None
    shown: Session | None = None
    """Where nothing is ever stopped, the one that says what may be shown."""
    content_shown: int = 0
    """Tokens of the model's own answer that the observer was given."""
    started: float = field(default_factory=time.perf_counter)
    n_probes: int = 0
    probe_tokens: int = 0

    def __post_init__(self) -> None:
        if self.service.shadow and self.observer is not None:
            closer_tokens = len(self.service.model.chat.closer.ids)
            self.shown = Session(None, closer_tokens=closer_tokens, streams=True)

    async def think(self, thinking: Thinking) -> tuple[Stop, ForcedAnswer | None] | None:
        """Do what the session asks until it stops, or until the trace and its answer are over.

        Returns the stop with the forced answer that it rests on, if any; None where the trace ended
        by itself.  A probe is sent once the one before was judged.  If the trace ends meanwhile,
        checkpoints before its end are probed all the same: calibration saw their answers, and a
        stop there counts.
        """
        forced: ForcedAnswer | None = None
        while True:
            event = self.session.next_event()
            if isinstance(event, AskProbe):
                forced = await self._judge(event.position)
            elif isinstance(event, Think):
                await thinking.reach(event.until)
                report_drawn(self.session, self.trace)
            elif isinstance(event, Show):
                self._show(event)
            elif isinstance(event, Stop) and self.observer is not None:
                self.observer.stops(event)
            if isinstance(event, Ended) or (isinstance(event, Stop) and self.service.shadow):
                self.grown()
                await thinking.reach(None)  # the visible answer, too
                self.grown()
                return None
            if isinstance(event, Stop):
                return event, forced

    def grown(self) -> None:
        """Show what may be shown by now; called whenever tokens come, also while a probe runs."""
        if self.observer is None or not self.observer.shows:
            return
        session = self.shown or self.session
        report_drawn(session, self.trace)
        while isinstance(event := session.next_event(), Show):
            self._show(event)
        if isinstance(event, Ended) and self.trace.end.closed:
            stops = self.trace.end.stop_ids
            new = [i for i in self.trace.visible[self.content_shown :] if i not in stops]
            self.content_shown += len(new)
            if new:
                self.observer.content(new)

    def _show(self, event: Show) -> None:
        assert self.observer is not None  # or the session would not speak of it
        self.observer.reasoning(self.trace.ids[event.start : event.stop])

    async def _judge(self, position: int) -> ForcedAnswer | None:
        """Force the answer that the session asks for, and hand it over; None where it failed."""
        began = time.perf_counter()
        limit = self.service.probe_timeout
        forced: ForcedAnswer | None = None
        failed: EngineError | None = EngineError(f"no forced answer within {limit} s")
        try:
            with anyio.move_on_after(limit):
                forced = await self.service.model.force(self.trace, position)
                failed = None
        except EngineError as error:
            if limit is None:
                raise
            failed = error
        if self.observer is not None:
            self.observer.probed(time.perf_counter() - began, failed)
        if forced is None:
            self.session.give_up_probing()
            return None
        self.n_probes += 1
        self.probe_tokens += len(forced.ids)
        chat, thinking = self.service.model.chat, self.trace.ids[:position]
        report_answer(self.session, self.service.rule, chat, thinking, forced)
        return forced

    async def stopped(self, stop: Stop, forced: ForcedAnswer | None) -> Reply:
        """Reply with the forced answer, or have a visible one written."""
        model = self.service.model
        trace, task = self.trace, self.request.task
        if self.service.mode == "overlap":
            drawn = len(trace.ids)  # also of an answer that the model began meanwhile
        else:
            drawn = trace.end.thinking if trace.end.thinking >= 0 else len(trace.ids)
        if stop.reply == "probe":
            assert forced is not None  # such a stop rests on one
            said = forced_reply(model.stops, task, forced, trace.plan)
        else:
            written = await model.write(trace, stop.position)
            said = written_reply(model.stops, task, written, trace.plan)
        return self._reply(said, drawn, stop)

    def ended(self) -> Reply:
        """Reply with the model's own answer, or without one where thinking was cut."""
        trace, said = self.trace, ReplyText()
        if trace.end.closed:
            said = natural_reply(self.service.model.stops, self.request.task, trace.visible)
        return self._reply(said, trace.end.thinking)

    def _reply(self, said: ReplyText, drawn: int, stop: Stop | None = None) -> Reply:
        trace = self.trace
        thinking = trace.ids[: drawn if stop is None else stop.position]
        return make_reply(
            said,
            stop,
            self.service.model.chat.decode(thinking),
            cut=trace.end.cut,
            started=self.started,
            prompt_tokens=len(trace.prompt_ids),
            think_tokens=drawn,
            probe_tokens=self.probe_tokens,
            n_probes=self.n_probes,
        )
