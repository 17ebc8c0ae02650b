"""The engine over HTTP: prompts in, probed traces out, every slot of the server busy.

Each question is worked on by itself, first its trace and then its forced answers, and handed out
when it is finished; no batch waits for its slowest.  The event loop runs in a thread of its own, so
that grading and writing do not hold the server up.  Knows no gold answer and no file.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from stopadvisor.engines.answer_end import ForcedAnswer
from stopadvisor.engines.chat import Chat
from stopadvisor.engines.errors import first_error
from stopadvisor.engines.http.client import Traffic
from stopadvisor.engines.openai.checks import server_checks
from stopadvisor.engines.openai.model import NO_ENTROPY, ServedModel
from stopadvisor.engines.openai.ramp import find_concurrency
from stopadvisor.engines.openai.requests import RequestUsage
from stopadvisor.engines.raw_trace import raw_trace
from stopadvisor.probes.plan import Capabilities, Check, ProbePlan, Prompt, RawTrace

__all__ = ["OpenAiEngine"]

_Result = TypeVar("_Result")

BATCH = 256
"""Questions that pilot and preflight hand over at once; `probe_each` has no batches."""
KEPT = 100_000
"""Requests that are remembered."""
USUAL_TOP = 20
"""Log-probabilities that are asked for unless the plan says another number."""


@dataclass
class OpenAiEngine:
    """A served model, as `probes.Engine`.

    Made by `load_engine`; `close` it, as connections and a thread belong to it.
    """

    served_model: ServedModel
    model_identity: dict[str, Any]
    """What `identity` returns; found while loading."""
    portal: BlockingPortal = field(repr=False)
    """Into the event loop's thread."""
    thread: AbstractContextManager[BlockingPortal] = field(repr=False)
    """That thread, to be left at the end."""
    concurrency: int | None = None
    """Most requests at once; None: found by a short ramp over the first questions asked."""
    remarks: list[str] = field(default_factory=list)
    """What the user should know, one line each, in the order it came up."""
    requests: deque[RequestUsage] = field(default_factory=lambda: deque(maxlen=KEPT), repr=False)
    """The requests that were answered last."""
    _began: float | None = field(default=None, repr=False)
    _before: Traffic = field(default_factory=Traffic, repr=False)
    """Of the client when work began."""

    @property
    def name(self) -> str:
        """The model's name as the server knows it."""
        return self.served_model.client.model

    @property
    def chat(self) -> Chat:
        """Tokenizer, chat template and markers."""
        return self.served_model.chat

    @property
    def context(self) -> int | None:
        """Most tokens a sequence may have, where the server says so."""
        return self.served_model.context

    @property
    def capabilities(self) -> Capabilities:
        """What this server can do."""
        top = min(USUAL_TOP, self.served_model.endpoint.top_limit)
        return Capabilities(f"top-k:{top}" if top else NO_ENTROPY, batched=False)

    def identity(self) -> dict[str, Any]:
        """Return what decides the outcome, as plain values."""
        return dict(self.model_identity)

    def suffix_ids(self, cue: str) -> list[int]:
        """Return the ids that close the thinking and ask for the answer."""
        return self.chat.suffix_ids(cue)

    def temperature(self, plan: ProbePlan) -> float:
        """Return the temperature under which this plan's traces are drawn."""
        return self.served_model.sampling(plan).temperature

    def auto_batch_size(self, plan: ProbePlan) -> int:
        """Return how many questions pilot and preflight hand over at once."""
        del plan  # memory is the server's affair
        return BATCH

    def longest_thinking(self, prompts: Sequence[Prompt], plan: ProbePlan) -> int | None:
        """Return the thinking tokens that the context leaves to each of these prompts, or the cap.

        None where the server names no context.

        Raises
        ------
        ModelError
            A prompt leaves no room at all.
        """
        if self.context is None:
            return None
        rendered = (self.chat.prompt_ids(p.messages) for p in prompts)
        return min(self.served_model.thinking_room(ids, plan) for ids in rendered)

    def prompt_checks(self, prompts: Sequence[Prompt]) -> list[Check]:
        """Check thinking markers and chat template on these prompts."""
        return self.chat.checks(prompts)

    def engine_checks(self, prompt: Prompt, plan: ProbePlan) -> list[Check]:
        """Try whether the server obeys, resumes, caches and gives the plan's log-probabilities.

        Raises
        ------
        ModelError
            It gives fewer.
        EngineError
            It refuses, or fails for longer than its retry time-out.
        """
        self.served_model.check_entropy(plan.entropy)
        ids = self.served_model.open(prompt.messages)
        return self.call(server_checks, self.served_model, ids, plan)

    def status(self) -> str:
        """Return requests a second and the cached share of prompt tokens, since work began."""
        traffic, before = self.served_model.client.traffic, self._before
        spent = time.monotonic() - (self._began or time.monotonic())
        text = f"{(traffic.requests - before.requests) / max(spent, 1e-9):.0f} requests/s"
        sent = traffic.prompt_tokens - before.prompt_tokens
        if self.served_model.endpoint.counts_cached and sent:
            share = (traffic.cached_tokens - before.cached_tokens) / sent
            text += f", {share:.0%} of prompt tokens cached"
        return text

    def probe(self, prompts: Sequence[Prompt], plan: ProbePlan) -> list[RawTrace]:
        """Draw one trace per prompt and probe it at every budget; same order as `prompts`.

        Raises
        ------
        ModelError
            A prompt, the entropy or the generation settings do not fit the server.
        EngineError
            The server refuses, or fails for longer than its retry time-out.
        """
        traces = dict(self.probe_each(prompts, plan))
        return [traces[i] for i in range(len(prompts))]

    def probe_each(
        self,
        prompts: Sequence[Prompt],
        plan: ProbePlan,
        on_tokens: Callable[[int], None] | None = None,
    ) -> Iterator[tuple[int, RawTrace]]:
        """Do as `probe`, and hand out each trace as soon as it is finished.

        `on_tokens` is never called: tokens are seen when their trace is finished.

        Yields
        ------
        number : int
            Of the prompt.
        trace : RawTrace

        Notes
        -----
        What was finished before an error is handed out before the error is raised.
        """
        del on_tokens
        self.served_model.sampling(plan)  # refused before, not after, anything is asked
        self.served_model.check_entropy(plan.entropy)
        self.served_model.endpoint.check_on_stop(plan.on_stop)
        done: queue.SimpleQueue[tuple[int, RawTrace] | None] = queue.SimpleQueue()

        async def work(size: int) -> None:
            slots = anyio.CapacityLimiter(size)
            waiting = iter(enumerate(prompts))

            async def worker() -> None:
                for number, prompt in waiting:
                    done.put((number, await self._question(prompt, plan, slots)))

            async with anyio.create_task_group() as group:
                for _ in range(min(size, len(prompts))):
                    group.start_soon(worker)

        yield from self.results(work, None, done)

    def results(
        self,
        work: Callable[[int], Awaitable[None]],
        size: int | None,
        done: queue.SimpleQueue[_Result | None],
    ) -> Iterator[_Result]:
        """Do some work in the engine's loop and yield what it puts into a queue, as it comes.

        Parameters
        ----------
        work : asynchronous function
            Takes the number of slots.
        size : int or None
            Slots; None for the engine's concurrency.
        done : queue
            Where the work puts its results.

        Raises
        ------
        StopAdvisorError
            The first that the work raised; what was done before is yielded before.
        """
        size = size or self.slots()
        self._began, self._before = time.monotonic(), replace(self.served_model.client.traffic)
        running = self.portal.start_task_soon(work, size)
        # Put there when the work is over, so behind everything that it has put there.
        running.add_done_callback(lambda _: done.put(None))
        try:
            while (result := done.get()) is not None:
                yield result
            _result(running)
        finally:
            if not running.done():
                running.cancel()

    def slots(self) -> int:
        """Return the concurrency, found by a ramp when it is needed for the first time."""
        if self.concurrency is None:
            questions = [f"What is {n} + {n + 9}? Think step by step." for n in range(16)]
            model = self.served_model
            prompts = [model.open([{"role": "user", "content": q}]) for q in questions]
            found = self.call(find_concurrency, model.backend, prompts)
            self.concurrency = found.concurrency
            self.remarks.append(found.remark())
        return self.concurrency

    def call(self, function: Callable[..., Awaitable[_Result]], *arguments: Any) -> _Result:
        """Run one asynchronous function in the engine's loop and wait for it."""
        return _result(self.portal.start_task_soon(function, *arguments))

    def close(self) -> None:
        """Close the connections and end the thread."""
        self.portal.call(self.served_model.aclose)
        self.thread.__exit__(None, None, None)

    # --- In the event loop's thread ---

    async def _question(
        self, prompt: Prompt, plan: ProbePlan, slots: anyio.CapacityLimiter
    ) -> RawTrace:
        """Draw one trace, then all its answers at once: its prefix is in the server's cache."""
        model = self.served_model
        replica = model.client.assign_replica()
        trace = model.begin(model.open(prompt.messages), prompt, plan, replica=replica)
        async with slots:
            await model.extend(trace)
        length = trace.end.thinking
        forced: dict[int, ForcedAnswer] = {}
        visible: dict[int, list[int]] = {}

        async def force(at: int) -> None:
            async with slots:
                forced[at] = await model.force(trace, at)

        async def write(at: int) -> None:
            async with slots:
                visible[at] = await model.write(trace, at)

        async with anyio.create_task_group() as group:
            for at in sorted({min(budget, length) for budget in plan.budgets}):
                group.start_soon(force, at)
            for budget in plan.budgets if plan.on_stop == "answer" else ():
                if budget < length:
                    group.start_soon(write, budget)
        self.requests += trace.requests
        return raw_trace(
            model.stops,
            plan,
            prompt_tokens=len(trace.prompt_ids),
            ids=trace.ids,
            thinking=length,
            closed=trace.end.closed,
            cut=trace.end.cut,
            forced=forced,
            visible=visible,
        )


def _result(work: Future[_Result]) -> _Result:
    """Return what a task returned; of the errors of several tasks, the first of ours."""
    try:
        return work.result()
    except BaseExceptionGroup as group:
        raise first_error(group) from None
