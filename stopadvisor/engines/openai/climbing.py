"""Climbs a ladder for real: each request rung by rung, until a reply is served.

Whatever a rung before the reference does, down, busy, cut or talking nonsense, the request climbs,
and what it cost is counted.  Knows the rule through the policy's climber, and no file.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from stopadvisor.answers.normal_form import extract_natural
from stopadvisor.engines.asked_rungs import RungAnswer
from stopadvisor.engines.openai.each import asked_each
from stopadvisor.engines.openai.rung_servers import RungServers
from stopadvisor.ground.errors import ModelError
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import AskedRung, Climbed, OnStop, Reply, Request, ThinkingMode
from stopadvisor.policy.session import Rule
from stopadvisor.probes.asking import ProbePlan, Prompt
from stopadvisor.runs.ladder import Ladder, Rung

__all__ = ["LadderEngine", "check_rungs", "climb", "open_ladder"]


def check_rungs(policy: Policy, ladder: Ladder) -> None:
    """Refuse a ladder that is not the policy's; where its servers are, it says alone.

    Raises
    ------
    ModelError
        In one line: the rung and the field that differ.
    """
    ours = list(dict.fromkeys(rung.name for rung in policy.ladder))
    if ours != [rung.name for rung in ladder.rungs]:
        theirs = ", ".join(rung.name for rung in ladder.rungs)
        raise ModelError(f"the policy climbs {', '.join(ours)}, --ladder has {theirs}")
    of_policy = {rung.name: rung.to_policy() for rung in policy.ladder}
    for rung in ladder.rungs:
        there, here = of_policy[rung.name], rung.to_policy()
        for name in sorted({*there, *here} - {"price"}):
            if there.get(name) != here.get(name):
                raise ModelError(
                    f"the policy was calibrated with {name} {there.get(name)!r} of rung "
                    f"{rung.name!r}, --ladder has {here.get(name)!r}"
                )


async def climb(
    servers: RungServers,
    policy: Policy,
    prompt: Prompt,
    task: str,
    *,
    reference_alone: bool = False,
) -> Reply:
    """Climb for one question.

    Raises
    ------
    EngineError
        The reference cannot answer.
    """
    began = time.perf_counter()
    climber = policy.climb(task, reference_alone=reference_alone)
    found: list[tuple[Rung, RungAnswer, str | None]] = []
    column, at, is_reference = 0, 0, False
    while (ask := climber.ask) is not None:
        sample = sum(rung is ask.rung for rung, _, _ in found)
        reply = await servers.ask(
            ask.rung,
            replace(prompt, sample=sample),
            max_tokens=ask.max_tokens,
            logprobs=ask.needs_logprob,
        )
        # Without the figure that the rule reads a reply cannot be judged, and is climbed past.
        known = reply.mean_logprob is not None or not ask.needs_logprob
        answer = extract_natural(task, reply.text) if reply.finished else None
        found.append((ask.rung, reply, answer))
        column, is_reference = ask.column, ask.is_reference
        at = climber.observe(
            answer=answer or "",
            finished=reply.finished and known,
            completion_tokens=reply.completion_tokens,
            mean_logprob=reply.mean_logprob,
        ).reply
    rung, said, answer = found[at]
    decoded = sum(reply.completion_tokens for _, reply, _ in found)
    return Reply(
        text=said.text if said.finished else None,
        answer=answer,
        stopped_at=None if is_reference else column,
        budget=None,
        prompt_tokens=sum(reply.prompt_tokens for _, reply, _ in found),
        think_tokens=0,
        probe_tokens=decoded - said.completion_tokens,
        visible_tokens=said.completion_tokens,
        n_probes=len(found) - 1,
        seconds=time.perf_counter() - began,
        finish="stopped" if not is_reference else "stop" if said.finished else "length",
        thinking="",
        climbed=Climbed(rung.name, tuple(_asked(rung, reply) for rung, reply, _ in found)),
    )


def _asked(rung: Rung, reply: RungAnswer) -> AskedRung:
    return AskedRung(
        rung.name,
        reply.finished,
        reply.prompt_tokens,
        reply.cached_tokens,
        reply.completion_tokens,
        reply.price(rung),
        reply.down,
    )


@dataclass
class LadderEngine:
    """Answers requests under a policy that climbs; an `answer_pass.Answering`."""

    ladder: Ladder
    servers: RungServers
    portal: BlockingPortal = field(repr=False)
    policy: Policy
    concurrency: int
    remarks: list[str] = field(default_factory=list)
    """What the user should know, one line each."""

    @property
    def name(self) -> str:
        """What answers, in the order of climbing."""
        return " -> ".join(str(rung.model) for rung in self.ladder.rungs)

    def identity(self) -> dict[str, Any]:
        """Return what decides the outcome, as plain values."""
        return {"engine": "ladder", "rungs": [rung.to_policy() for rung in self.ladder.rungs]}

    def questions_at_once(self, plan: ProbePlan) -> int:
        """Return the concurrency."""
        del plan
        return self.concurrency

    def serve(
        self,
        requests: Sequence[Request],
        plan: ProbePlan,
        rule: Rule | None,
        *,
        batch_size: int | None = None,
        on_stop: OnStop = "probe",
        serving: ThinkingMode | None = None,
    ) -> Iterator[tuple[int, Reply]]:
        """Answer requests and yield each as it is over; without a `rule` by the reference alone."""
        del plan, on_stop, serving

        async def ask(request: Request, _: anyio.CapacityLimiter) -> Reply:
            reply = await climb(
                self.servers,
                self.policy,
                request.prompt,
                request.task,
                reference_alone=rule is None,
            )
            self._remark(reply)
            return reply

        return asked_each(self.portal, requests, ask, batch_size or self.concurrency)

    def _remark(self, reply: Reply) -> None:
        """Say once of each rung that it was down."""
        assert reply.climbed is not None
        for asked in reply.climbed.asked:
            text = f"rung {asked.name} was down, and was climbed past: {asked.down}"
            if asked.down is not None and not any(asked.name in said for said in self.remarks):
                self.remarks.append(text)


@contextmanager
def open_ladder(
    policy: Policy, ladder: Ladder, *, concurrency: int, **how: Any
) -> Iterator[LadderEngine]:
    """Open the servers of a ladder that is the policy's; `how` are time-outs of `RungServers`.

    Raises
    ------
    ModelError
        Another ladder, a rung without a model or a server, or a key that is not there.
    """
    check_rungs(policy, ladder)
    with start_blocking_portal() as portal:
        servers = portal.call(partial(RungServers.opened, ladder, concurrency=concurrency, **how))
        try:
            yield LadderEngine(ladder, servers, portal, policy, concurrency)
        finally:
            portal.call(servers.aclose)
