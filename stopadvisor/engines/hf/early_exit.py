"""Early exit on a model in this process, in batches; `policy.session.Session` decides.

A probe branches off the running trace's cache and drops its columns afterwards, so a trace that
goes on is token for token what it would be without probes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from stopadvisor.engines.answer_end import ForcedAnswer
from stopadvisor.engines.hf.branch import Branch, probe_branches
from stopadvisor.engines.hf.local_model import LocalModel, RollingBatch, within_memory
from stopadvisor.engines.trace import AnswerReport, Trace, make_reply, report_drawn
from stopadvisor.policy.requests import Reply, Request
from stopadvisor.policy.session import AskProbe, Event, Rule, Session, Stop, Think
from stopadvisor.probes.asking import ProbePlan

__all__ = ["serve_requests"]


def serve_requests(
    model: LocalModel,
    requests: Sequence[Request],
    plan: ProbePlan,
    rule: Rule | None,
    *,
    batch_size: int,
) -> Iterator[tuple[int, Reply]]:
    """Answer requests in batches; yield each reply with its number as soon as it is complete.

    Without a rule every request thinks to its end without probes.  Raises `OutOfMemory` if the
    batch is too large; replies already yielded remain valid.
    """
    for first in range(0, len(requests), batch_size):
        numbered = dict(enumerate(requests[first : first + batch_size], first))
        serving = _Serving(model, numbered, plan, rule)
        while serving.unfinished:
            yield from within_memory(serving.step, serving.give_up)


@dataclass
class _RequestState:
    index: int
    request: Request
    started: float
    session: Session
    event: Event
    report: AnswerReport


@dataclass
class _Serving:
    """One batch of requests, by number."""

    model: LocalModel
    requests: dict[int, Request]
    plan: ProbePlan
    rule: Rule | None
    _open: dict[Trace, _RequestState] = field(default_factory=dict, init=False)
    """Requests without a reply."""
    _batch: RollingBatch | None = field(default=None, init=False)

    @property
    def unfinished(self) -> bool:
        """Whether any request has no reply yet."""
        return self._batch is None or bool(self._open)

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Reply]]:
        """Generate one token per row; return the replies that this completes."""
        if self._batch is None:
            self._batch = self._begin()
        elif self._batch.is_split_worthwhile():
            self._batch.drop()
        self._batch.step()
        stopped = self._probe(self._batch)
        ended = [trace for trace in self._open if trace.end.over]
        return stopped + [self._reply(trace) for trace in ended]

    def give_up(self) -> str:
        """Free the batch; describe what did not fit."""
        size = len(self._batch.traces if self._batch else self.requests)
        self._batch, self._open = None, {}
        return "1 question at once does" if size == 1 else f"{size} questions at once do"

    def _begin(self) -> RollingBatch:
        started, closer = time.perf_counter(), len(self.model.chat.closer.ids)
        traces = self.model.begin([r.prompt for r in self.requests.values()], self.plan)
        for (i, request), trace in zip(self.requests.items(), traces, strict=True):
            session = Session(
                self.rule, closer_tokens=closer, on_stop=self.plan.on_stop, task=request.task
            )
            event, report = session.next_event(), AnswerReport(self.rule, self.model.chat)
            self._open[trace] = _RequestState(i, request, started, session, event, report)
        return self.model.batch(traces)

    def _probe(self, batch: RollingBatch) -> list[tuple[int, Reply]]:
        """Probe where sessions ask for it, and reply where they stop."""
        stopped: dict[int, tuple[Stop, ForcedAnswer | None]] = {}
        while due := self._due(batch, stopped):
            answers = probe_branches(
                self.model.runner, batch.kept, due, self.model.stops, self.plan
            )
            for branch, forced in zip(due, answers, strict=True):
                trace = batch.traces[branch.row]
                trace.probe_tokens += len(forced.ids)
                state = self._open[trace]
                state.report.judge(state.session, trace.ids[: branch.tokens], forced)
                state.event = state.session.next_event()
                if isinstance(state.event, Stop):
                    stopped[branch.row] = state.event, forced
        branches = [Branch(row, stopped[row][0].position) for row in sorted(stopped)]
        written: list[list[int]] = []
        if branches and self.plan.on_stop == "answer":
            written = self.model.write(batch.kept, batch.traces, branches)
        replies = []
        for number, branch in enumerate(branches):
            trace, (stop, answer) = batch.traces[branch.row], stopped[branch.row]
            trace.end.over = True
            served = written[number] if self.plan.on_stop == "answer" else answer
            assert served is not None  # a session that stops without a probe wants a visible answer
            replies.append(self._reply(trace, stop, served))
        return replies

    def _due(
        self, batch: RollingBatch, stopped: dict[int, tuple[Stop, ForcedAnswer | None]]
    ) -> list[Branch]:
        """Return the probes that sessions ask for now; add those that stop to `stopped`."""
        due = []
        for row, trace in enumerate(batch.traces):
            state = self._open.get(trace)
            if state is None or row in stopped:
                continue
            if isinstance(state.event, Think):
                until = state.event.until
                if trace.end.thinking < 0 and (until is None or batch.steps < until):
                    continue  # the session waits for a later token
                report_drawn(state.session, trace)
                state.event = state.session.next_event()
            if isinstance(state.event, AskProbe):
                due.append(Branch(row, state.event.position))
            elif isinstance(state.event, Stop):  # a fixed budget, without a probe
                stopped[row] = state.event, None
        return due

    def _reply(
        self, trace: Trace, stop: Stop | None = None, served: ForcedAnswer | Sequence[int] = ()
    ) -> tuple[int, Reply]:
        """Build a reply; without `stop` the trace ended by itself."""
        state = self._open.pop(trace)
        return state.index, make_reply(
            state.request.task,
            self.model.stops,
            trace,
            stop,
            served,
            started=state.started,
            n_probes=state.session.probes,
        )
