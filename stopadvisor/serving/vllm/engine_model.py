"""The model as vLLM's engine runs it: thinking, forced answers and visible ones as engine requests.

A probe is a request whose prefix the thinking has left in the KV cache; full blocks of it are not
computed again.  Closing a request that is not finished aborts it; one that is finished is read to
its end, as an abort would be sent all the same.  Knows the engine's `generate` and what
it yields, and imports nothing of vLLM.
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
from stopadvisor.engines.live import Grown, LiveRequest, Observer
from stopadvisor.engines.trace import Trace, TraceEnd, mean_figures, token_figures
from stopadvisor.ground.errors import EngineError
from stopadvisor.policy.frozen import Policy
from stopadvisor.probes.asking import ProbePlan, Prompt
from stopadvisor.serving.vllm.adapter import VllmEngine

__all__ = ["EngineModel", "EngineThinking", "Likeliest", "Position", "figures", "positions"]

_SOON = -1
"""Priority of a probe: while one waits, its trace thinks on in vain."""
_LAST = 1_000_000
"""Priority of an audit: nobody waits for it."""
_SELDOM = 64
"""Tokens that the engine brings at once where nobody waits for an earlier one: each output wakes
this process, which costs about as much as the token."""
_ABANDON_SECONDS = 0.05
"""How long the last tokens of a trace that is given up are waited for."""


@dataclass(frozen=True)
class EngineModel:
    """A model in the engine, asked as a plan says; a `live.Backend`."""

    engine: VllmEngine
    chat: Chat
    stop_ids: tuple[int, ...]
    stops: AnswerStops = field(repr=False)
    plan: ProbePlan
    drawn: Mapping[str, Any]
    """Parameters under which thinking and visible answers are drawn."""
    logprobs: int | None
    """Of how many likeliest tokens a probe asks for log-probabilities: 0 for its own alone, -1 for
    all, None where the rule reads none."""
    likeliest: Likeliest | None
    """Encloses an entropy over the whole vocabulary, which costs all requests of a step a sorted
    vocabulary; None where it is asked for at once."""
    by_priority: bool
    """The engine's scheduler goes by priority."""
    suffix: tuple[int, ...]
    """Ids that ask for the forced answer."""
    answer_ends: tuple[int, ...] = field(repr=False)
    """Ids at which the engine ends a forced answer's request."""
    name: str = ""
    """Of the request; its engine requests are named after it."""

    def for_request(self, name: str, seed: int | None) -> EngineModel:
        """Return the model for one request, which may bring a seed of its own."""
        drawn = self.drawn if seed is None else {**self.drawn, "seed": seed}
        return replace(self, name=name, drawn=drawn)

    def begin(self, prompt_ids: Sequence[int], prompt: Prompt, limit: int | None = None) -> Trace:
        """Return a trace of which nothing is drawn yet.

        With a `limit` that alone cuts it, and the policy's caps do not.
        """
        plan, closer = self.plan, self.chat.closer.ids
        caps = (plan.max_think, plan.answer_cap) if limit is None else (limit, limit)
        end = TraceEnd(closer, self.stop_ids, *caps, limit=limit)
        return Trace(prompt_ids, prompt, plan, None, end)

    def live(
        self,
        trace: Trace,
        policy: Policy,
        *,
        task: str,
        shadow: bool = False,
        observer: Observer | None = None,
    ) -> LiveRequest:
        """Return a request that can be answered under a policy; nothing of the trace is drawn."""

        def draw(grown: Grown | None) -> EngineThinking:
            seldom = grown is None and not request.needs_ids
            return EngineThinking(self, trace, grown, seldom=seldom)

        request = LiveRequest(self, trace, draw, policy, policy.on_stop, task, observer, shadow)
        return request

    async def finish(self, trace: Trace) -> int:
        """Think on from what was drawn, after all other requests; return the tokens it took.

        Where the engine does not go by priority, as one request among the others.
        """
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

        The engine ends the request at a newline and gives all of it in one output, so that nothing
        depends on when outputs are fetched.  A newline before the answer, and in open thinking the
        tokens after it, take a further request each.  Unless `precise`, an entropy over the whole
        vocabulary comes from the likeliest tokens, with its slack.

        Raises
        ------
        EngineError
            The engine decodes nothing, or leaves log-probabilities out.
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
                raise EngineError("the engine gave a forced answer up")
            rows = [] if k is None else positions(new.logprobs, new.token_ids, k)
            return new.token_ids, rows

        forced = AnswerTokens(self.stops.after_cue(plan.cue))
        rows = await forced.decode(ask, plan.cap)
        logprob, entropy, tail = mean_figures(figures(rows)) if rows else (0.0, 0.0, 0.0)
        if likeliest is None:
            return forced.forced(logprob, entropy, tail if k else None)
        more, slack = likeliest.rest(rows)
        return replace(forced.forced(logprob, entropy + more, None), entropy_slack=slack)

    async def final(
        self, kind: str, ids: Sequence[int], parameters: Mapping[str, Any], ends: Sequence[int]
    ) -> Any:
        """Return the output of a request, of which there is one, when it is over.

        It goes before others, and ends at any of the ids in `ends`.
        """
        asked = self.ask(kind, ids, parameters, priority=_SOON, ends=ends, final=True)
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
        """Close the thinking after `at` tokens and let the model write its visible answer.

        `show` gets its tokens as they come.
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
        """Send a request; it ends at the ids of `ends`, by default those that end a generation."""
        return self.engine.generate(
            ids,
            {**parameters, "stop_token_ids": list(self.stop_ids if ends is None else ends)},
            f"{self.name}-{kind}",
            final=final,
            priority=priority if self.by_priority else 0,
        )


# --- Thinking -------------------------------------------------------------------------------------


class EngineThinking:
    """Draws a trace to its end from the moment it is made; where `seldom`, in large pieces."""

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
        """Wait for this many tokens, or for the end; raises what the drawing raised.

        Raises
        ------
        EngineError
            Somebody aborted it.
        """
        if not self._task.done():
            self._wanted = tokens
            self._reached.clear()
            self._tell()
            await self._reached.wait()
        if self._task.done():
            self._task.result()

    async def abort(self) -> None:
        """End the request; what it has drawn still comes."""
        await self._model.engine.abort(self._name)

    async def give_up(self) -> None:
        """Abort the request, and take what it has drawn."""
        if not self._task.done():
            await self.abort()
            await asyncio.wait({self._task}, timeout=_ABANDON_SECONDS)
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.exception()  # looked at: who is interested in it has had it before

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
                    await self.abort()  # its last output counts what was drawn in vain
                elif output.outputs[0].finish_reason == "abort" and not was_over:
                    raise EngineError("the engine gave the thinking up")
                elif not trace.end.over:
                    self._tell_all()
        trace.end.give_up(trace.ids)
        self._tell_all()

    def _tell_all(self) -> None:
        if self._grown is not None:
            self._grown()
        self._tell()

    def _tell(self) -> None:
        """Wake who waits, once there is what it waits for: not for every token."""
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
"""By which probabilities of a whole vocabulary, in 32 bits, may miss 1."""


class Position(NamedTuple):
    """Log-probabilities at one token of an answer."""

    own: float
    """Of the token itself."""
    likeliest: list[float]
    """Of the likeliest tokens, descending; nats."""


def positions(logprobs: Any, ids: Sequence[int], k: int) -> list[Position]:
    """Return what vLLM's `FlatLogprobs` name at each token of `ids`, `k` likeliest asked for.

    At each position the decoded token stands first, and once more where it is among the likeliest;
    vLLM drops the second copy when it merges outputs, so that nothing here depends on order or
    copies.  A decoded token that is left out raises `EngineError`.
    """
    rows = []
    ends = (
        () if logprobs is None else zip(logprobs.start_indices, logprobs.end_indices, strict=True)
    )
    for token, (begin, end) in zip(ids, ends, strict=False):
        named, at = np.unique(logprobs.token_ids[begin:end], return_index=True)
        values = np.array(logprobs.logprobs[begin:end])[at]  # (n_named,)
        own = values[named == token]
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
    """Encloses the entropy over a vocabulary by its likeliest tokens."""

    vocabulary: int
    count: int = 64
    """Tokens that are asked for."""

    def rest(self, rows: Sequence[Position]) -> tuple[float, float]:
        """Return what the others add to the mean entropy, and by how much that may be off; nats.

        All that is left of 1 adds least where each of the others is as likely as the last that is
        named, and most where all are equally likely.
        """
        least = most = 0.0
        for row in rows:
            left = 1.0 - math.fsum(map(math.exp, row.likeliest))
            least += max(left - _ROUNDING, 0.0) * min(-row.likeliest[-1], 1e4)
            upper = max(left, 0.0) + _ROUNDING
            most += upper * math.log((self.vocabulary - self.count) / upper)
        return (least + most) / 2 / len(rows), (most - least) / 2 / len(rows)
