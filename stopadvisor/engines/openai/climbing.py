"""Climb a ladder live: ask rung by rung until a reply is good enough to serve.

If a cheap rung is down, busy or cut off, or replies with nonsense, the request climbs; the rung's
tokens are paid for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stopadvisor.answers.normal_form import extract_natural
from stopadvisor.engines.errors import first_error
from stopadvisor.engines.openai.rung_servers import RungServers
from stopadvisor.ground.fields import plain
from stopadvisor.policy.climber import Ask
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import Climbed, Reply, Request, RungAnswer
from stopadvisor.policy.session import Rule
from stopadvisor.probes.asking import ProbePlan

__all__ = ["LadderEngine", "climb"]


async def climb(
    servers: RungServers,
    policy: Policy,
    request: Request,
    *,
    reference_alone: bool = False,
    before: Sequence[RungAnswer] = (),
    leaves_reference: bool = False,
) -> Climbed:
    """Climb for one question; raises EngineError if the reference cannot answer.

    Parameters
    ----------
    reference_alone : bool
        Ask no other rung.
    before : sequence of RungAnswer
        Earlier samples for this question; finished ones are reused.
    leaves_reference : bool
        Return before asking the reference, if it is a single reply.
    """
    climber = policy.climb(request.task, reference_alone=reference_alone)
    left = leaves_reference and policy.ladder[-1].repeat == 1
    asked: list[RungAnswer] = []
    answers: list[str | None] = []
    gave_up = False

    async def one(ask: Ask) -> RungAnswer:
        made = [reply for reply in before if reply.name == ask.rung.name]
        if ask.sample < len(made) and made[ask.sample].finished:
            return made[ask.sample]
        each = replace(request.prompt, sample=ask.sample)
        return await servers.ask(
            ask.rung, each, max_tokens=ask.max_tokens, logprobs=ask.needs_logprob
        )

    while climber.ask is not None:
        asks = [ask for ask in climber.certain if not (left and ask.is_reference)]
        if not asks:
            return Climbed(policy.ladder[-1].name, tuple(asked), gave_up or None, len(asked))
        try:  # the first failure cancels the others
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(each) for each in map(one, asks)]
        except BaseExceptionGroup as several:
            raise first_error(several) from None
        for ask, done in zip(asks, tasks, strict=True):
            reply = done.result()
            # A reply without the log-probability that the rule reads cannot be judged: climb.
            known = reply.mean_logprob is not None or not ask.needs_logprob
            answers.append(extract_natural(request.task, reply.text) if reply.finished else None)
            asked.append(reply)
            judged = climber.observe(
                answer=answers[-1] or "",
                finished=reply.finished and known,
                completion_tokens=reply.completion_tokens,
                mean_logprob=reply.mean_logprob,
            )
            gave_up = gave_up or judged.gives_up
    # The last reply ended the climb, perhaps by confirming an earlier one's answer.
    at, column = judged.reply, None if ask.is_reference else ask.column
    return Climbed(asked[at].name, tuple(asked), gave_up or None, at, column, answers[at])


@dataclass
class LadderEngine:
    """Answers requests under a policy that climbs; an `answering.Answering`.

    Expects `servers` of a ladder that `open_ladder` checked and opened.
    """

    policy: Policy
    servers: RungServers
    remarks: list[str] = field(default_factory=list)
    """Notes for the user, one line each."""

    @property
    def name(self) -> str:
        """The models in the order of climbing."""
        return " -> ".join(str(rung.model) for rung in self.servers.ladder.rungs)

    def identity(self) -> dict[str, Any]:
        """All settings that determine the outcome, as plain values."""
        rungs = [plain(rung.terms) for rung in self.servers.ladder.rungs]
        return {"engine": "ladder", "rungs": rungs}

    def auto_batch_size(self, plan: ProbePlan) -> int:
        """Return the concurrency."""
        del plan
        return self.servers.concurrency

    def serve(
        self,
        requests: Sequence[Request],
        plan: ProbePlan,
        rule: Rule | None,
        *,
        batch_size: int | None = None,
    ) -> Iterator[tuple[int, Reply]]:
        """Yield each reply when it is done; without a `rule` only the reference is asked."""
        del plan

        async def ask(request: Request) -> Reply:
            began = time.perf_counter()
            climbed = await climb(self.servers, self.policy, request, reference_alone=rule is None)
            for reply in climbed.asked:  # one remark per rung
                if reply.down is not None and not any(reply.name in said for said in self.remarks):
                    down = f"rung {reply.name} was down, and was climbed past: {reply.down}"
                    if len({rung.name for rung in self.policy.ladder}) > 2:
                        down += " (the promise does not cover what a middle rung answers instead)"
                    self.remarks.append(down)
            return _recorded(climbed, time.perf_counter() - began)

        return self.servers.each(requests, ask, batch_size or self.servers.concurrency)


def _recorded(climbed: Climbed, seconds: float) -> Reply:
    """The record that `run` writes, without the texts of the rungs."""
    served, column = climbed.served, climbed.column
    kept = tuple(replace(reply, text="", reasoning="") for reply in climbed.asked)
    return Reply(
        text=served.text if served.finished else None,
        answer=climbed.answer,
        stopped_at=column,
        budget=None,
        prompt_tokens=sum(reply.prompt_tokens for reply in climbed.asked),
        think_tokens=0,
        probe_tokens=climbed.discarded_tokens,
        visible_tokens=served.completion_tokens,
        n_probes=len(climbed.asked) - 1,
        seconds=seconds,
        finish="stopped" if column is not None else "stop" if served.finished else "length",
        thinking="",
        climbed=replace(climbed, asked=kept),
    )
