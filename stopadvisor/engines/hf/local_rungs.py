"""Rungs of a ladder whose models run here; concurrent requests are decoded as one batch.

As at a server, a reply longer than `max_tokens`, thinking and answer together, counts as cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from stopadvisor.engines.errors import OutOfMemory
from stopadvisor.engines.hf.engine import HfEngine
from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.fields import MOST_TOKENS
from stopadvisor.policy.frozen import MIXED_TASKS, Policy
from stopadvisor.policy.requests import Reply, Request, RungAnswer, policy_plan
from stopadvisor.probes.asking import ProbePlan, Prompt, cue_text
from stopadvisor.runs.ladder import Rung

__all__ = ["LocalModels"]

_Asked = tuple[Rung, Prompt, asyncio.Future[RungAnswer]]


class LocalModels:
    """The loaded model of each rung, by name, with the policy that stops it."""

    def __init__(
        self, models: Mapping[str, tuple[HfEngine, Policy | None]], batch_size: int | None = None
    ) -> None:
        for name, (engine, policy) in models.items():
            if policy is not None:
                _check_policy(name, policy, engine)
        self._models, self._batch_size = models, batch_size
        self._waiting: dict[tuple[str, int], list[_Asked]] = {}
        self._work: asyncio.Task[None] | None = None

    async def ask(self, rung: Rung, prompt: Prompt, max_tokens: int | None) -> RungAnswer:
        """Ask a rung; concurrent requests share a batch."""
        most = max_tokens or ProbePlan.max_think
        answer: asyncio.Future[RungAnswer] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault((rung.name, most), []).append((rung, prompt, answer))
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._decode())
        return await answer

    async def _decode(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # let concurrent requests join the batch
            name, most = next(iter(self._waiting))
            batch = self._waiting.pop((name, most))
            try:
                answers = await asyncio.to_thread(self._answers, batch, most)
            except BaseException as error:
                for *_, asked in batch:
                    if not asked.done():
                        asked.set_exception(error)
                if not isinstance(error, Exception):
                    raise
                continue
            for (*_, asked), answer in zip(batch, answers, strict=True):
                if not asked.done():  # else the caller was cancelled
                    asked.set_result(answer)

    def _answers(self, batch: Sequence[_Asked], most: int) -> list[RungAnswer]:
        rung = batch[0][0]
        engine, policy = self._models[rung.name]
        if policy is None:
            plan = ProbePlan(
                (),
                cue="",
                max_think=most,
                greedy=rung.temperature == 0,
                temperature=rung.temperature or None,
            )
        else:
            plan, most = policy_plan(policy), MOST_TOKENS
        # The task only says how to read an answer, which the caller does.
        task = "exact" if policy is None else policy.terms.task
        requests = [Request(prompt, task) for _, prompt, _ in batch]
        size = self._batch_size or engine.auto_batch_size(plan)
        while True:
            try:
                replies = dict(engine.serve(requests, plan, policy, batch_size=size))
                break
            except OutOfMemory:
                if size == 1:
                    raise
                size //= 2
        cue = cue_text(plan.cue) if plan.on_stop == "probe" else ""
        return [_answer(replies[number], most, cue) for number in range(len(batch))]


def _check_policy(name: str, policy: Policy, engine: HfEngine) -> None:
    """Refuse a policy for another model, or for mixed tasks."""
    try:
        if policy.terms.task == MIXED_TASKS:
            raise PolicyError("it covers mixed tasks, but a rung here needs one for a single task")
        policy.check_source(engine.identity(), engine.entropy_for(policy))
    except PolicyError as error:
        raise PolicyError(f"rung {name!r}: its policy: {error}") from error


def _answer(reply: Reply, most: int, cue: str) -> RungAnswer:
    tokens = reply.think_tokens + reply.probe_tokens + reply.visible_tokens
    finished = reply.finish != "length" and reply.text is not None and tokens <= most
    text = f"{cue}{reply.text}".strip() if reply.finish == "stopped" else reply.text
    return RungAnswer(
        finished,
        text or "" if finished else "",
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=min(tokens, most),
        seconds=reply.seconds,
    )
