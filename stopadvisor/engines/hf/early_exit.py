"""Early exit on a model in this process: a `policy.session.Session` says what each request needs.

A probe branches off the cache of the running trace, and its columns are dropped afterwards.  So a
trace that goes on is token for token the one that comes without probes.  Requests are answered
batch by batch, and rows that are over leave their batch.
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
from stopadvisor.policy.requests import OnStop, Reply, Request
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
    on_stop: OnStop = "probe",
) -> Iterator[tuple[int, Reply]]:
    """Answer requests and yield each with its position as soon as it is over.

    Without a rule every request thinks to its end, and is not probed.  `OutOfMemory`: the batch is
    too large; those yielded so far are done.
    """
    for first in range(0, len(requests), batch_size):
        asked = dict(enumerate(requests[first : first + batch_size], first))
        serving = _Serving(model, asked, plan, rule, on_stop)
        while serving.unfinished:
            yield from within_memory(serving.step, serving.give_up)


@dataclass
class _Drawn:
    """A request whose trace is drawn."""

    index: int
    request: Request
    started: float
    session: Session
    event: Event
    """What the session said last."""
    report: AnswerReport


@dataclass
class _Serving:
    """Requests that are answered together, by number."""

    model: LocalModel
    requests: dict[int, Request]
    plan: ProbePlan
    rule: Rule | None
    on_stop: OnStop
    _open: dict[Trace, _Drawn] = field(default_factory=dict, init=False)
    """Those without a reply so far."""
    _batch: RollingBatch | None = field(default=None, init=False)

    @property
    def unfinished(self) -> bool:
        """Whether anything is left to do."""
        return self._batch is None or bool(self._open)

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Reply]]:
        """Draw one token per row; returns what is over then."""
        if self._batch is None:
            self._batch = self._begin()
        elif self._batch.is_split_worthwhile():
            self._batch.drop()
        self._batch.step()
        stopped = self._probe(self._batch)
        ended = [trace for trace in self._open if trace.end.over]  # by themselves
        return stopped + [
            self._reply(trace, trace.visible if trace.end.closed else None) for trace in ended
        ]

    def give_up(self) -> str:
        """Drop the batch and its memory; returns what did not fit."""
        size = len(self._batch.traces if self._batch else self.requests)
        self._batch, self._open = None, {}
        return "1 question at once does" if size == 1 else f"{size} questions at once do"

    def _begin(self) -> RollingBatch:
        """Read the prompts."""
        started, closer = time.perf_counter(), len(self.model.chat.closer.ids)
        traces = self.model.begin([r.prompt for r in self.requests.values()], self.plan)
        for (i, request), trace in zip(self.requests.items(), traces, strict=True):
            session = Session(
                self.rule, closer_tokens=closer, on_stop=self.on_stop, task=request.task
            )
            event, report = session.next_event(), AnswerReport(self.rule, self.model.chat)
            self._open[trace] = _Drawn(i, request, started, session, event, report)
        return self.model.batch(traces)

    def _probe(self, batch: RollingBatch) -> list[tuple[int, Reply]]:
        """Probe where it is due and reply where the policy stops."""
        stopped: dict[int, tuple[Stop, ForcedAnswer | None]] = {}
        suffix, stops = self.model.chat.suffix_ids(self.plan.cue), self.model.stops
        while due := self._due(batch, stopped):
            answers = probe_branches(
                self.model.runner,
                batch.kept,
                due,
                suffix,
                stops.after_cue(self.plan.cue),
                cap=self.plan.cap,
                entropy=self.plan.entropy,
            )
            for branch, forced in zip(due, answers, strict=True):
                trace = batch.traces[branch.row]
                served, trace.probe_tokens = self._open[trace], trace.probe_tokens + len(forced.ids)
                served.report.judge(served.session, trace.ids[: branch.tokens], forced)
                served.event = served.session.next_event()
                if isinstance(served.event, Stop):
                    stopped[branch.row] = served.event, forced
        branches = [Branch(row, stopped[row][0].position) for row in sorted(stopped)]
        written: list[list[int]] = []
        if branches and self.on_stop == "answer":
            written = self.model.write(batch.kept, batch.traces, branches)
        replies = []
        for number, branch in enumerate(branches):
            trace, (stop, answer) = batch.traces[branch.row], stopped[branch.row]
            trace.end.over = True
            # A stop that serves the probe rests on one.
            said = written[number] if self.on_stop == "answer" else answer
            replies.append(self._reply(trace, said, stop))
        return replies

    def _due(
        self, batch: RollingBatch, stopped: dict[int, tuple[Stop, ForcedAnswer | None]]
    ) -> list[Branch]:
        """Where sessions ask for a probe, now that the batch has come this far; notes stops too."""
        due = []
        for row, trace in enumerate(batch.traces):
            served = self._open.get(trace)
            if served is None or row in stopped:
                continue
            if isinstance(served.event, Think):
                until = served.event.until
                if trace.end.thinking < 0 and (until is None or batch.steps < until):
                    continue  # nothing that the session waits for: spare it the token
                report_drawn(served.session, trace)
                served.event = served.session.next_event()
            if isinstance(served.event, AskProbe):
                due.append(Branch(row, served.event.position))
            elif isinstance(served.event, Stop):  # where everybody is stopped
                stopped[row] = served.event, None
        return due

    def _reply(
        self, trace: Trace, served: ForcedAnswer | Sequence[int] | None, stop: Stop | None = None
    ) -> tuple[int, Reply]:
        """Sum a request up; without `stop` its trace has ended by itself."""
        asked, end = self._open.pop(trace), trace.end
        length = end.thinking if end.thinking >= 0 else len(trace.ids)
        return asked.index, make_reply(
            asked.request.task,
            self.model.stops,
            stop,
            served,
            trace.ids[: length if stop is None else stop.position],
            cut=end.cut,
            started=asked.started,
            prompt_tokens=len(trace.prompt_ids),
            think_tokens=length,
            probe_tokens=trace.probe_tokens,
            n_probes=asked.session.probes,
        )
