"""A model in vLLM's engine: thinking, forced answers and visible answers as engine requests.

A probe finds its prefix in the KV cache, where the thinking left it; only its tail is computed.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from stopadvisor.engines.answer_end import AnswerStops, AnswerTokens, ForcedAnswer
from stopadvisor.engines.chat import Chat
from stopadvisor.engines.live import Grown
from stopadvisor.engines.trace import Trace, TraceEnd, mean_figures, token_figures
from stopadvisor.ground.errors import EngineError
from stopadvisor.probes.asking import ProbePlan, Prompt, is_open_cue
from stopadvisor.serving.vllm.adapter import VllmEngine

__all__ = ["EngineModel", "EngineThinking", "Likeliest", "Position", "figures", "positions"]

_FIRST = -1
"""Priority of a probe: until it is answered, its trace may think in vain."""
_LAST = 1_000_000
"""Priority of an audit: nobody waits for it."""
_SELDOM = 64
"""Tokens per output if nobody waits for an earlier one: each output wakes this process, which costs
about as much as a token."""
_ABANDON_SECONDS = 0.05
"""Time to wait for the last tokens of an aborted trace."""


@dataclass(frozen=True)
class EngineModel:
    """A model in the engine, probed as a plan says; a `live.Backend`."""

    engine: VllmEngine
    chat: Chat
    stop_ids: tuple[int, ...]
    stops: AnswerStops = field(repr=False)
    plan: ProbePlan
    drawn: Mapping[str, Any]
    """Sampling parameters of thinking and visible answers."""
    logprobs: int | None
    """Number of likeliest tokens whose log-probability a probe requests; 0 for only the decoded
    token's, -1 for all, None if the rule reads none."""
    likeliest: Likeliest | None
    """Bounds the entropy over the whole vocabulary, which the engine would have to sort in a step
    that all requests share; None to request that at once."""
    by_priority: bool
    """Whether the engine schedules by priority."""
    suffix: tuple[int, ...]
    """Token ids that force an answer."""
    answer_ends: tuple[int, ...] = field(repr=False)
    """Token ids at which the engine ends a forced answer."""
    name: str = ""
    """Id of the client's request, with which the names of its engine requests start."""

    def for_request(self, name: str, seed: int | None) -> EngineModel:
        """Return the model for a request, which may have its own seed."""
        drawn = self.drawn if seed is None else {**self.drawn, "seed": seed}
        return replace(self, name=name, drawn=drawn)

    def begin(self, prompt_ids: Sequence[int], prompt: Prompt, limit: int | None = None) -> Trace:
        """Return a new trace; a `limit` in tokens replaces the policy's caps."""
        plan, closer = self.plan, self.chat.closer.ids
        caps = (plan.max_think, plan.answer_cap) if limit is None else (limit, limit)
        end = TraceEnd(closer, self.stop_ids, *caps, limit=limit)
        return Trace(prompt_ids, prompt, plan, None, end)

    def think(self, trace: Trace, grown: Grown | None, *, needs_ids: bool) -> EngineThinking:
        """See `live.Backend`; generation begins at once."""
        return EngineThinking(self, trace, grown, seldom=grown is None and not needs_ids)

    async def finish(self, trace: Trace) -> int:
        """Continue a stopped trace to its end at the lowest priority; return the tokens decoded."""
        drawn = len(trace.ids)
        if trace.end.over:
            return 0
        parameters = {**self.drawn, "max_tokens": trace.end.most - drawn}
        prefix = [*trace.prompt_ids, *trace.ids]
        async with aclosing(self.ask("audit", prefix, parameters, priority=_LAST)) as outputs:
            async for output in outputs:
                trace.take(output.outputs[0].token_ids)
                if trace.end.over and not output.finished:
                    return len(trace.ids) - drawn
        trace.end.give_up(trace.ids)
        return len(trace.ids) - drawn

    async def force(self, trace: Trace, at: int, *, precise: bool = False) -> ForcedAnswer:
        """Force an answer after `at` thinking tokens, greedily.

        The engine ends the request at a newline and returns it in one output, so that nothing
        depends on when outputs are fetched.  A newline before the answer costs a second request, as
        do the tokens after an answer in open thinking.  Unless `precise`, an entropy over the whole
        vocabulary is bounded by that of the likeliest tokens.

        Raises `EngineError` if the engine decodes nothing, or leaves out log-probabilities.
        """
        plan, likeliest = self.plan, None if precise else self.likeliest
        k = self.logprobs if likeliest is None else likeliest.count
        parameters = {"temperature": 0.0} if k is None else {"temperature": 0.0, "logprobs": k}
        prefix = [*trace.prompt_ids, *trace.ids[:at], *self.suffix]
        kind = f"probe-{at}-precise" if precise else f"probe-{at}"

        async def ask(ids: Sequence[int], limit: int) -> tuple[Sequence[int], list[Position]]:
            asked = {**parameters, "max_tokens": limit}
            new = await self.final(kind, [*prefix, *ids], asked, self.answer_ends)
            trace.probe_tokens += len(new.token_ids)
            if new.finish_reason not in ("stop", "length") or not new.token_ids:
                raise EngineError("the engine gave up a forced answer")
            rows = [] if k is None else positions(new.logprobs, new.token_ids, k)
            return new.token_ids, rows

        forced = AnswerTokens(self.stops, is_open=is_open_cue(plan.cue))
        rows = await forced.decode(ask, plan.cap)
        logprob, entropy, tail = mean_figures(figures(rows)) if rows else (0.0, 0.0, 0.0)
        if likeliest is None:
            return forced.forced(logprob, entropy, tail if k else None)
        more, slack = likeliest.rest(rows)
        return replace(forced.forced(logprob, entropy + more, None), entropy_slack=slack)

    async def final(
        self, kind: str, ids: Sequence[int], parameters: Mapping[str, Any], ends: Sequence[int]
    ) -> Any:
        """Send a request of the highest priority and return its only output."""
        asked = self.ask(kind, ids, parameters, priority=_FIRST, ends=ends, final=True)
        last = None
        async with aclosing(asked) as outputs:
            async for output in outputs:
                last = output.outputs[0]
        if last is None:
            raise EngineError("the engine ended a request without an output")
        return last

    async def write(
        self, trace: Trace, at: int, show: Callable[[Sequence[int]], None] | None = None
    ) -> list[int]:
        """Close the thinking after `at` tokens and return the visible answer's token ids.

        `show` is called with new tokens as they come.
        """
        prefix = [*trace.prompt_ids, *trace.ids[:at], *self.chat.closer.ids]
        parameters = {**self.drawn, "max_tokens": self.plan.answer_cap}
        if show is None:
            parameters["stream_interval"] = _SELDOM
        ids: list[int] = []
        async with aclosing(self.ask("answer", prefix, parameters)) as outputs:
            async for output in outputs:
                new = output.outputs[0].token_ids
                ids += new
                if show is not None:
                    show(new)
        return ids

    def ask(
        self,
        kind: str,
        ids: Sequence[int],
        parameters: Mapping[str, Any],
        *,
        priority: int = 0,
        ends: Sequence[int] | None = None,
        final: bool = False,
    ) -> AsyncGenerator[Any, None]:
        """Send a request that stops at any id in `ends`, by default the model's stop ids.

        Closing the outputs aborts it, so read those of a finished request to their end.
        """
        return self.engine.generate(
            ids,
            {**parameters, "stop_token_ids": list(self.stop_ids if ends is None else ends)},
            f"{self.name}-{kind}",
            final=final,
            priority=priority if self.by_priority else 0,
        )


# --- Thinking -------------------------------------------------------------------------------------


class EngineThinking:
    """Decodes a trace to its end, beginning at once; if `seldom`, in few large outputs."""

    def __init__(
        self, model: EngineModel, trace: Trace, grown: Grown | None, *, seldom: bool
    ) -> None:
        self._model, self._trace, self._grown, self._seldom = model, trace, grown, seldom
        self._name = f"{model.name}-think"
        self._wanted: int | None = None
        self._reached = asyncio.Event()
        self._task = asyncio.ensure_future(self._draw())
        self._task.add_done_callback(lambda _: self._reached.set())

    async def reach(self, tokens: int | None) -> None:
        """Wait until the trace has this many tokens, or has ended.

        Raises `EngineError` if the engine aborted the request, or the engine's own error.
        """
        if not self._task.done():
            self._wanted = tokens
            self._reached.clear()
            self._notify()
            await self._reached.wait()
        if self._task.done():
            self._task.result()

    async def abort(self) -> None:
        """Abort the request; a last output brings the tokens decoded so far."""
        await self._model.engine.abort(self._name)

    async def give_up(self) -> None:
        """Abort the request and wait briefly for its last output."""
        if not self._task.done():
            await self.abort()
            await asyncio.wait({self._task}, timeout=_ABANDON_SECONDS)
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.exception()  # retrieved, or asyncio would log it; `reach` has raised it

    async def _draw(self) -> None:
        trace, model = self._trace, self._model
        parameters = {**model.drawn, "max_tokens": trace.end.most}
        if self._seldom:
            parameters["stream_interval"] = _SELDOM
        async with aclosing(model.ask("think", trace.prompt_ids, parameters)) as outputs:
            async for output in outputs:
                if trace.cached_tokens is None:
                    trace.cached_tokens = output.num_cached_tokens
                was_over = trace.end.over
                trace.take(output.outputs[0].token_ids)
                if trace.end.over and not output.finished and not was_over:
                    await self.abort()  # the last output counts the tokens decoded in vain
                elif output.outputs[0].finish_reason == "abort" and not was_over:
                    raise EngineError("the engine gave up the thinking")
                elif not trace.end.over:
                    self._notify_all()
        trace.end.give_up(trace.ids)
        self._notify_all()

    def _notify_all(self) -> None:
        if self._grown is not None:
            self._grown()
        self._notify()

    def _notify(self) -> None:
        """Wake `reach` if it has its tokens, else tell the engine when to deliver output."""
        trace, end, wanted = self._trace, self._trace.end, self._wanted
        if wanted is not None and len(trace.ids) >= wanted:
            self._reached.set()
        elif self._seldom:
            limit = end.max_think + len(end.closer)
            if end.thinking >= 0:
                limit = end.thinking + len(end.closer) + end.answer_cap
            tokens = limit if wanted is None else min(wanted, limit)
            self._model.engine.wait(self._name, min(tokens, len(trace.ids) + _SELDOM))


# --- Probes ---------------------------------------------------------------------------------------


_ROUNDING = 1e-5
"""Limit on the error of a sum of float32 probabilities over the vocabulary."""


class Position(NamedTuple):
    """Log-probabilities at one token of an answer, in nats."""

    own: float
    """That of the decoded token."""
    likeliest: list[float]
    """Those of the likeliest tokens, highest first."""


def positions(logprobs: Any, ids: Sequence[int], k: int) -> list[Position]:
    """Read vLLM's `FlatLogprobs` at each token of `ids`, given the requested `k`.

    vLLM lists the decoded token first, and again if it is among the likeliest, but drops the second
    copy when it merges outputs; so this ignores order and copies.  Raises `EngineError` if a
    decoded token has no log-probability.
    """
    rows = []
    ends = (
        () if logprobs is None else zip(logprobs.start_indices, logprobs.end_indices, strict=True)
    )
    for token, (begin, end) in zip(ids, ends, strict=False):
        listed, at = np.unique(logprobs.token_ids[begin:end], return_index=True)
        values = np.array(logprobs.logprobs[begin:end])[at]  # (n_listed,)
        own = values[listed == token]
        if len(own) == 0:
            break
        likeliest = np.sort(values)[::-1]
        rows.append(Position(float(own[0]), (likeliest if k < 0 else likeliest[:k]).tolist()))
    if len(rows) < len(ids):
        raise EngineError("the engine gives no log-probability of a token it decoded")
    return rows


def figures(rows: Sequence[Position]) -> list[tuple[float, float, float]]:
    """Return log-probability, entropy and tail mass of each token."""
    return [token_figures(row.own, row.likeliest) for row in rows]


@dataclass(frozen=True)
class Likeliest:
    """Bounds the entropy over a vocabulary, given its likeliest tokens."""

    vocabulary: int
    count: int = 64
    """Number of likeliest tokens to request."""

    def rest(self, rows: Sequence[Position]) -> tuple[float, float]:
        """Return the other tokens' part of the mean entropy as midpoint and half-width, in nats.

        Their probability mass adds least if each is as likely as the last listed token, and most if
        all are equally likely.
        """
        least = most = 0.0
        for row in rows:
            left = 1.0 - math.fsum(map(math.exp, row.likeliest))
            least += max(left - _ROUNDING, 0.0) * min(-row.likeliest[-1], 1e4)
            upper = max(left, 0.0) + _ROUNDING
            most += upper * math.log((self.vocabulary - self.count) / upper)
        return (least + most) / 2 / len(rows), (most - least) / 2 / len(rows)
