"""Try every kind of engine request once at start, and compare it with thinking in one piece.

vLLM guarantees little of what `adapter.py` uses, and changes can go unnoticed: merged outputs once
made entropies too low.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from stopadvisor.engines.trace import Trace, TraceEnd, mean_figures
from stopadvisor.ground.errors import EngineError, ModelError
from stopadvisor.probes.asking import Prompt
from stopadvisor.serving.vllm.engine_model import (
    EngineModel,
    EngineThinking,
    Position,
    figures,
    positions,
)

__all__ = ["try_engine"]

_QUESTION = ({"role": "user", "content": "What is 17 + 25?"},)
_TOKENS = 48
_NEAR = 0.25
"""Tokens whose log-probabilities differ by less (in nats) may swap ranks in another batch."""
_SECONDS = 300.0
_ENDS_WITHIN = 30.0
"""Seconds in which an aborted request must end."""


async def try_engine(model: EngineModel, context: int, max_logprobs: int) -> None:
    """Send requests of every kind.

    Raises `ModelError` if one gives other tokens or figures than thinking in one piece, or takes
    too long.
    """
    try:
        async with asyncio.timeout(_SECONDS):
            await _SelfTest(model, context, max_logprobs).run()
    except TimeoutError as error:
        raise ModelError(f"the self-test in the engine took more than {_SECONDS:.0f} s") from error
    except ModelError:
        raise
    except Exception as error:
        raise _failed("a request", type(error).__name__, "fails:") from error


class _SelfTest:
    def __init__(self, model: EngineModel, context: int, max_logprobs: int) -> None:
        greedy = {**model.drawn, "temperature": 0.0, "repetition_penalty": 1.0}
        self.model = replace(model.for_request("stopadvisor-self-test", None), drawn=greedy)
        self.prompt = tuple(model.chat.prompt_ids(_QUESTION))
        self.most = min(_TOKENS, context - len(self.prompt) - 1)
        self.k = 2 if max_logprobs < 0 else min(2, max_logprobs)

    async def run(self) -> None:
        if self.most < 4:
            raise ModelError("the context leaves the self-test in the engine no room to think")
        asked = {"logprobs": self.k, "max_tokens": self.most, "ignore_eos": True}
        named: dict[str, Any] = {**self.model.drawn, **asked}
        whole = await self.model.final("whole", self.prompt, named, ends=())
        self.ids = list(whole.token_ids)
        self.rows = positions(whole.logprobs, self.ids, self.k)
        for seldom in (False, True):
            self._compare("thinking on", await self._think(seldom))
        merged = await self._fetch_late(named)
        self._compare("merged outputs", merged[0], merged[1])
        at = self.most // 2
        prefix = [*self.prompt, *self.ids[:at]]
        part = await self.model.final("part", prefix, named | {"max_tokens": 2}, ends=())
        rows = positions(part.logprobs, part.token_ids, self.k)
        self._compare(
            "a probe's prefix", [*self.ids[:at], *part.token_ids], [*self.rows[:at], *rows]
        )
        trace = self._trace()
        trace.ids = self.ids[:at]
        forced = await self.model.force(trace, at)
        if trace.probe_tokens < len(forced.ids):
            raise _failed("a forced answer", f"{len(forced.ids)} tokens of {trace.probe_tokens}")
        await self._abort()

    def _trace(self) -> Trace:
        most = self.most
        end = TraceEnd(self.model.chat.closer.ids, (), most, most, limit=most)
        return Trace(self.prompt, Prompt("self-test", _QUESTION), self.model.plan, None, end)

    async def _think(self, seldom: bool) -> list[int]:
        """Think as under a policy, waiting at a third and two thirds of the way."""
        trace = self._trace()
        drawn = {**self.model.drawn, "ignore_eos": True}
        model = replace(self.model, drawn=drawn, stop_ids=())
        thinking = EngineThinking(model, trace, None, seldom=seldom)
        try:
            for tokens in (self.most // 3, 2 * self.most // 3, None):
                await thinking.reach(tokens)
                if len(trace.ids) < (tokens or self.most):
                    raise _failed("thinking on", f"{len(trace.ids)} tokens of {tokens}")
        finally:
            await thinking.give_up()
        return trace.ids

    async def _fetch_late(self, named: dict[str, Any]) -> tuple[list[int], list[Position]]:
        ids: list[int] = []
        rows: list[Position] = []
        async with aclosing(self.model.ask("merged", self.prompt, named, ends=())) as outputs:
            async for output in outputs:
                new = output.outputs[0]
                ids += new.token_ids
                rows += positions(new.logprobs, new.token_ids, self.k)
                await asyncio.sleep(0.0 if output.finished else 0.05)  # so the engine merges more
        return ids, rows

    async def _abort(self) -> None:
        """Abort a trace after its first tokens; tokens already decoded must still come."""
        trace = self._trace()
        drawn = {**self.model.drawn, "ignore_eos": True}
        model = replace(self.model, drawn=drawn, stop_ids=(), name=f"{self.model.name}-abort")
        thinking = EngineThinking(model, trace, None, seldom=False)
        try:
            await thinking.reach(1)
            await thinking.abort()
            with suppress(EngineError):  # expected, unless the trace has already ended
                await asyncio.wait_for(thinking.reach(None), _ENDS_WITHIN)
        except TimeoutError as error:
            raise _failed("an aborted request", "no end") from error
        finally:
            await thinking.give_up()
        self._compare("an aborted request", trace.ids)

    def _compare(
        self, what: str, ids: Sequence[int], rows: Sequence[Position] | None = None
    ) -> None:
        """Compare tokens and figures with those of thinking in one piece.

        If the two likeliest tokens are close, another batch may pick the other one; from there on
        the texts differ and are not compared.
        """
        same = 0
        for mine, other, row in zip(self.ids, ids, self.rows, strict=False):
            if mine != other:
                if len(row.likeliest) < 2 or row.likeliest[0] - row.likeliest[1] > _NEAR:
                    raise _failed(what, f"token {other} where thinking in one piece has {mine}")
                break
            same += 1
        if rows is not None and same:
            ours, others = (mean_figures(figures(row[:same])) for row in (self.rows, rows))
            for mine, theirs in zip(ours, others, strict=True):
                if abs(mine - theirs) > _NEAR:
                    raise _failed(what, f"figures of {theirs:.3f} where others are {mine:.3f}")


def _failed(what: str, found: str, does: str = "gives") -> ModelError:
    return ModelError(f"this vLLM does not pass the plugin's self-test: {what} {does} {found}")
