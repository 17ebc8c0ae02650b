"""Early exit on a model in this process: a `policy.session.Session` says what each request needs.

A probe branches off the cache of the running trace, and its columns are dropped afterwards.  So a
trace that goes on is token for token the one that comes without probes.  Requests are answered
batch by batch, and rows that are over leave their batch.  Knows no policy's file, no model's
identity and no gold answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from stopadvisor.engines.answer_end import ForcedAnswer
from stopadvisor.engines.hf.branch import Branch, probe_branches
from stopadvisor.engines.hf.cache import KeptCache, additive
from stopadvisor.engines.hf.local_model import LocalModel, within_memory
from stopadvisor.engines.hf.rolling import SMALLEST_SPLIT, Kept, RollingBatch
from stopadvisor.engines.hf.sampler import Sampler, uniforms
from stopadvisor.engines.replies import (
    AnswerReport,
    ReplyText,
    forced_reply,
    make_reply,
    written_reply,
)
from stopadvisor.policy.requests import OnStop, Reply, Request
from stopadvisor.policy.session import AskProbe, Event, Rule, Session, Stop, Think
from stopadvisor.probes.asking import ProbePlan, Prompt

__all__ = ["StoppedTrace", "serve_requests", "visible_answers"]


@dataclass(frozen=True)
class StoppedTrace:
    """Where a visible answer begins."""

    branch: Branch
    prompt: Prompt
    """Whose stream of random numbers is continued."""
    ids: tuple[int, ...]
    """Prompt and thinking up to the stop."""
    budget: int
    """Thinking tokens among them."""


def visible_answers(
    model: LocalModel, kept: Kept, traces: Sequence[StoppedTrace], plan: ProbePlan
) -> list[list[int]]:
    """Close the thinking and decode a visible answer after each trace; `kept` stays as it was.

    Returns token ids, the ending one included, where there is one.
    """
    closer, cap, runner = list(model.chat.closer.ids), plan.answer_cap, model.runner
    device, size = kept.pads.device, len(closer)
    # No stopped row sees a column after the last stop.
    first = kept.start + max(trace.branch.tokens for trace in traces)
    index = torch.tensor([trace.branch.row for trace in traces], device=device)
    pads = kept.pads[index]
    cache = KeptCache()
    cache.layers = [layer.take(index, 0, first) for layer in kept.cache.layers]
    seen = kept.start + torch.tensor([trace.branch.tokens for trace in traces], device=device)

    places = torch.arange(first + size + cap, device=device)
    allowed = (places >= pads[:, None]) & ((places < seen[:, None]) | (places >= first))
    start = seen - pads  # position of the closer in each sequence
    answer = start[:, None] + places - first
    key_positions = torch.where(places < first, places - pads[:, None], answer)

    step = torch.arange(size, device=device)
    causal = places[None, : first + size] <= first + step[:, None]  # (size, columns)
    logits = runner.forward(
        torch.tensor([closer] * len(traces), device=device),
        start[:, None] + step,
        cache,
        additive(allowed[:, None, : first + size] & causal, runner.dtype),
        key_positions[:, : first + size],
    )[:, -1]

    mask = additive(allowed, runner.dtype)[:, None]
    sampler = _sampler(model, traces, plan)
    over = np.zeros(len(traces), dtype=np.bool_)
    answers: list[list[int]] = [[] for _ in traces]
    for at in range(cap):
        tokens = sampler.draw(logits, at)
        for i, token in enumerate(tokens.tolist()):
            if not over[i]:
                answers[i].append(token)
                over[i] = token in model.stop_ids
        if over.all() or at == cap - 1:
            break
        stop = first + size + at + 1
        logits = runner.forward(
            tokens[:, None],
            (start + size + at)[:, None],
            cache,
            mask[:, :, :stop],
            key_positions[:, :stop],
        )[:, -1]
    return answers


def _sampler(model: LocalModel, traces: Sequence[StoppedTrace], plan: ProbePlan) -> Sampler:
    """Continue each question's stream after the closer."""
    sampling, closer = model.sampling(plan), model.chat.closer.ids
    streams = np.empty((len(traces), 0))
    if sampling.temperature > 0:
        begins = [trace.budget + len(closer) for trace in traces]
        whole = uniforms([t.prompt for t in traces], plan.seed, max(begins) + plan.answer_cap)
        streams = np.stack(
            [row[b : b + plan.answer_cap] for row, b in zip(whole, begins, strict=True)]
        )
    sequences = [[*trace.ids, *closer] for trace in traces]
    return Sampler(sampling, sequences, streams, model.vocabulary, model.runner.device)


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

    Without a rule every request thinks to its end, and is not probed.

    Raises
    ------
    OutOfMemory
        The batch is too large; those yielded so far are done.
    """
    for first in range(0, len(requests), batch_size):
        asked = requests[first : first + batch_size]
        serving = _Serving(model, asked, first, plan, rule, on_stop)
        while serving.unfinished:
            yield from within_memory(serving.step, serving.give_up)


@dataclass
class _BatchRow:
    """A request in the batch."""

    index: int
    request: Request
    prompt: list[int]
    started: float
    session: Session
    event: Event
    """What the session said last."""
    report: AnswerReport
    probe_tokens: int = 0
    over: bool = False


@dataclass
class _Serving:
    """Requests that are answered together."""

    model: LocalModel
    requests: Sequence[Request]
    first: int
    """Number of the first of them."""
    plan: ProbePlan
    rule: Rule | None
    on_stop: OnStop
    _rows: list[_BatchRow] = field(default_factory=list, init=False)
    _batch: RollingBatch | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._suffix = self.model.chat.suffix_ids(self.plan.cue)
        self._stops = self.model.stops.after_cue(self.plan.cue)
        self._closer = self.model.chat.closer.ids

    @property
    def unfinished(self) -> bool:
        """Whether anything is left to do."""
        return self._batch is None or any(not row.over for row in self._rows)

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Reply]]:
        """Draw one token per row; returns what is over then."""
        if self._batch is None:
            self._batch = self._begin()
        batch, over = self._batch, np.array([row.over for row in self._rows], dtype=np.bool_)
        if len(over) >= SMALLEST_SPLIT and 2 * over.sum() >= len(over):
            self._rows = [row for row in self._rows if not row.over]
            batch.drop(over)
        batch.advance()
        return [*self._probe(batch), *self._ends(batch)]

    def give_up(self) -> str:
        """Drop the batch and its memory; returns what did not fit."""
        size = len(self._rows)
        self._batch, self._rows = None, []
        return "1 question at once does" if size == 1 else f"{size} questions at once do"

    def _begin(self) -> RollingBatch:
        """Read the prompts."""
        started = time.perf_counter()
        model, plan, requests = self.model, self.plan, self.requests
        prompts = [model.chat.prompt_ids(request.prompt.messages) for request in requests]
        for i, (request, prompt) in enumerate(zip(requests, prompts, strict=True), self.first):
            session = Session(
                self.rule, closer_tokens=len(self._closer), on_stop=self.on_stop, task=request.task
            )
            event, report = session.next_event(), AnswerReport(self.rule, model.chat)
            self._rows.append(_BatchRow(i, request, prompt, started, session, event, report))
        asked = [request.prompt for request in requests]
        return model.batch(asked, prompts, model.limits(prompts, plan), plan)

    # --- Checkpoints ---

    def _due(self, batch: RollingBatch) -> list[int]:
        """Rows whose sessions ask for a probe, now that the batch has come this far."""
        drawn, thinking, cut = batch.steps, batch.trace_tokens, batch.cut
        due = []
        for i, row in enumerate(self._rows):
            if row.over:
                continue
            if isinstance(row.event, Think):
                over = thinking[i] >= 0
                until = row.event.until
                if not over and (until is None or drawn < until):
                    continue  # nothing that the session waits for: spare it the token
                if row.session.needs_ids:
                    row.session.receive(batch.generated(i, row.session.drawn))
                else:
                    row.session.receive(drawn - row.session.drawn)
                if over:
                    row.session.end(int(thinking[i]), cut=bool(cut[i]))
                row.event = row.session.next_event()
            if isinstance(row.event, AskProbe):
                due.append(i)
        return due

    def _probe(self, batch: RollingBatch) -> list[tuple[int, Reply]]:
        """Probe where it is due and end what the policy stops."""
        stopped: list[tuple[int, Stop, ForcedAnswer | None]] = []
        while due := self._due(batch):
            branches = [Branch(i, self._asked(i).position) for i in due]
            answers = probe_branches(
                self.model.runner,
                batch.kept,
                branches,
                self._suffix,
                self._stops,
                cap=self.plan.cap,
                entropy=self.plan.entropy,
            )
            for i, forced in zip(due, answers, strict=True):
                event = self._judge(batch, i, forced)
                if isinstance(event, Stop):
                    stopped.append((i, event, forced))
        for i, row in enumerate(self._rows):
            if isinstance(row.event, Stop) and not row.over:  # where everybody is stopped
                stopped.append((i, row.event, None))
                row.over = True
        if not stopped:
            return []
        batch.stop([i for i, _, _ in stopped])
        if self.on_stop == "answer":
            return self._answered(batch, [(i, stop) for i, stop, _ in stopped])
        replies = []
        for i, stop, answer in stopped:
            assert answer is not None  # a stop that serves the probe rests on one
            said = forced_reply(self._task(i), answer)
            replies.append(self._reply(batch, i, said, stop))
        return replies

    def _task(self, i: int) -> str:
        return self._rows[i].request.task

    def _asked(self, i: int) -> AskProbe:
        event = self._rows[i].event
        assert isinstance(event, AskProbe)
        return event

    def _judge(self, batch: RollingBatch, i: int, forced: ForcedAnswer) -> Event:
        """Hand a row's session the forced answer it asked for; returns what it says then."""
        row, thinking = self._rows[i], batch.generated(i)[: self._asked(i).position]
        row.report.judge(row.session, thinking, forced)
        row.probe_tokens += len(forced.ids)
        row.event = row.session.next_event()
        row.over = isinstance(row.event, Stop)
        return row.event

    # --- Replies ---

    def _answered(
        self, batch: RollingBatch, stopped: list[tuple[int, Stop]]
    ) -> list[tuple[int, Reply]]:
        """Close the thinking of rows that were stopped and decode their visible answers."""
        asked = []
        for i, stop in stopped:
            row = self._rows[i]
            ids = (*row.prompt, *batch.generated(i)[: stop.position])
            branch = Branch(i, stop.position)
            asked.append(StoppedTrace(branch, row.request.prompt, ids, stop.position))
        written = visible_answers(self.model, batch.kept, asked, self.plan)
        replies = []
        for (i, stop), drawn in zip(stopped, written, strict=True):
            said = written_reply(self.model.stops, self._task(i), drawn)
            replies.append(self._reply(batch, i, said, stop))
        return replies

    def _ends(self, batch: RollingBatch) -> list[tuple[int, Reply]]:
        """Rows that have ended by themselves."""
        replies = []
        traces, totals = batch.trace_tokens, batch.total_tokens
        for i, row in enumerate(self._rows):
            if row.over or totals[i] < 0:
                continue
            row.over, said = True, ReplyText()
            if batch.closed[i]:
                ids = batch.generated(i)[int(traces[i]) + len(self._closer) : int(totals[i])]
                said = written_reply(self.model.stops, self._task(i), ids)
            replies.append(self._reply(batch, i, said))
        return replies

    def _reply(
        self, batch: RollingBatch, i: int, said: ReplyText, stop: Stop | None = None
    ) -> tuple[int, Reply]:
        """Sum a row up; without `stop` it has ended by itself."""
        row, length = self._rows[i], int(batch.trace_tokens[i])
        thinking = batch.generated(i)[: length if stop is None else stop.position]
        return row.index, make_reply(
            said,
            stop,
            self.model.chat.decode(thinking),
            cut=bool(batch.cut[i]),
            started=row.started,
            prompt_tokens=len(row.prompt),
            think_tokens=length,
            probe_tokens=row.probe_tokens,
            n_probes=row.session.probes,
        )
