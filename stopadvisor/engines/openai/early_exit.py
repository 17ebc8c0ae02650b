"""A policy at a served model, over HTTP: how its thinking is drawn, and what a request is served.

The loop is `engines.live`'s.  Thinking is drawn in parts, up to the next probe, each of which sends
the prompt and the thinking so far as token ids: the server finds them in its prefix cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from stopadvisor.engines.live import Grown, LiveAnswer, LiveRequest, Observer
from stopadvisor.engines.openai.served_model import NO_ENTROPY, ServedModel
from stopadvisor.engines.trace import Trace, make_reply
from stopadvisor.ground.errors import ModelError
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import OnStop, Reply, Request
from stopadvisor.policy.session import Rule
from stopadvisor.probes.asking import ProbePlan

__all__ = ["PolicyService", "bind_policy", "entropy_at"]

_AT_ONCE = 64
"""Tokens of a request that goes on with the thinking where markers decide on the next probe.

Half of them are drawn in vain at a stop; one by one, each would take a request.
"""


def entropy_at(served: ServedModel, policy: Policy) -> tuple[str, str]:
    """Return the entropy source that a policy gets at a server, and what its probes ask for.

    A rule that reads no entropy gets the same log-probability from every source; one that reads
    answers alone is asked none.
    """
    own, top = policy.terms.entropy_source, served.endpoint.top_limit
    if not policy.reads_logprobs or not top:
        return NO_ENTROPY, NO_ENTROPY
    if not policy.rule.needs_entropy:
        return own, "top-k:1"
    if served.top_of(own) > top:
        own = f"top-k:{top}"
    return own, own


@dataclass(frozen=True)
class _ResumedThinking:
    """Thinks no further than it is asked to; a `live.Thinking`."""

    model: ServedModel
    trace: Trace
    grown: Grown | None

    async def reach(self, tokens: int | None) -> None:
        """Draw them."""
        await self.model.extend(self.trace, until=tokens, grown=self.grown)

    async def give_up(self) -> None:
        """Do nothing: no request is on its way."""


@dataclass
class PolicyService:
    """A policy at a served model, or no policy; what all its requests share."""

    model: ServedModel
    plan: ProbePlan
    rule: Rule | None
    on_stop: OnStop
    remarks: list[str]
    """What the user should know; grows."""
    shadow: bool = False
    """Judge and never stop: only the observer gets what the policy would have done."""
    probe_timeout: float | None = None
    """Seconds for a forced answer.  One that fails, or takes longer, then lets the thinking go on
    to its end, where it would else be the request's error."""

    def __post_init__(self) -> None:
        # A policy's certificate holds under its own cap, and under no other.
        room, cap = self.model.thinking_room((), self.plan), self.plan.max_think
        if room < cap:
            raise ModelError(
                f"the policy's cap of {cap} thinking tokens is beyond the server's context of "
                f"{self.model.endpoint.context}, which leaves less than {room}: its certificate "
                "does not hold there; serve the model with a longer context"
            )

    async def answer(
        self,
        request: Request,
        *,
        prompt_ids: Sequence[int] | None = None,
        replica: int | None = None,
    ) -> Reply:
        """Answer one request; the parameters are those of `live`."""
        live = self.live(request, prompt_ids=prompt_ids, replica=replica)
        return self.reply(request.task, await live.answer())

    def live(
        self,
        request: Request,
        *,
        prompt_ids: Sequence[int] | None = None,
        replica: int | None = None,
        observer: Observer | None = None,
    ) -> LiveRequest:
        """Return a request that can be answered, by default at the server whose turn it is.

        `prompt_ids` are those of `Chat.prompt_ids`, where they are known already.  For an observer
        that `shows` all thinking is streamed.
        """
        prompt_ids = prompt_ids or self.model.chat.prompt_ids(request.prompt.messages)
        if self.model.thinking_room(prompt_ids, self.plan) < self.plan.max_think:
            remark = (
                "some prompts leave less of the server's context than the policy's cap of "
                f"{self.plan.max_think} thinking tokens: the certificate does not cover them"
            )
            if remark not in self.remarks:
                self.remarks.append(remark)
        if replica is None:
            replica = self.model.client.assign_replica()
        trace = self.model.begin(prompt_ids, request.prompt, self.plan, replica=replica)
        return LiveRequest(
            self.model,
            trace,
            partial(_ResumedThinking, self.model, trace),
            self.rule,
            self.on_stop,
            request.task,
            observer,
            shadow=self.shadow,
            lenient=self.probe_timeout is not None,
            probe_timeout=self.probe_timeout,
            at_once=_AT_ONCE,
        )

    def reply(self, task: str, answered: LiveAnswer) -> Reply:
        """Return what a request is served; of a cut trace, without an answer."""
        trace, stop = answered.trace, answered.stop
        visible = trace.visible if trace.end.closed else None
        return make_reply(
            task,
            self.model.stops,
            stop,
            answered.forced or (visible if stop is None else answered.written),
            trace.ids[: answered.thinking],
            cut=trace.end.cut,
            started=answered.started,
            prompt_tokens=len(trace.prompt_ids),
            think_tokens=len(trace.ids) if trace.end.thinking < 0 else trace.end.thinking,
            probe_tokens=trace.probe_tokens,
            n_probes=answered.probes,
        )


def bind_policy(policy: Policy, served: ServedModel, plan: ProbePlan) -> PolicyService:
    """Hold a policy against an opened model, and return what answers with the two.

    Raises
    ------
    PolicyError
        The policy is bound to another model, tokenizer, template or entropy, or to none.
    """
    source, asked = entropy_at(served, policy)
    remarks = policy.check_source(served.identity(), source)
    return PolicyService(served, replace(plan, entropy=asked), policy, policy.on_stop, remarks)
