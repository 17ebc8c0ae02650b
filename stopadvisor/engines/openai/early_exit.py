"""Early exit over HTTP: binds a policy to a served model and answers requests under it.

`engines.live` has the loop.  Each request generates the thinking up to the next probe; the server
finds the prompt and the thinking so far in its prefix cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stopadvisor.engines.live import LiveAnswer, LiveRequest, Observer
from stopadvisor.engines.openai.served_model import NO_ENTROPY, ServedModel
from stopadvisor.engines.trace import make_reply
from stopadvisor.ground.errors import ModelError
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import Reply, Request, policy_plan
from stopadvisor.policy.session import Rule
from stopadvisor.probes.asking import ProbePlan

__all__ = ["PolicyService", "bind_policy", "entropy_at"]

_AT_ONCE = 64
"""Thinking tokens per request if markers decide on the next probe.

A stop wastes half of them on average, but one at a time each would cost a request.
"""


def entropy_at(served: ServedModel, policy: Policy) -> tuple[str, str]:
    """Return the entropy source of a policy at this server, and the source its probes request.

    A rule without entropy needs one log-probability, which is the same for every source; a rule
    that reads only answers needs none.
    """
    source, top = policy.terms.entropy_source, served.endpoint.top_limit
    if not policy.reads_logprobs or not top:
        return NO_ENTROPY, NO_ENTROPY
    if not policy.rule.needs_entropy:
        return source, "top-k:1"
    if served.top_of(source) > top:
        source = f"top-k:{top}"
    return source, source


@dataclass
class PolicyService:
    """A served model, with a policy or without: all that requests share."""

    model: ServedModel
    plan: ProbePlan
    rule: Rule | None
    remarks: list[str]
    """Notes for the user; requests may add to them."""
    probe_timeout: float | None = None
    """Seconds per probe.  If set, thinking goes on to its end after a failed or slow probe;
    otherwise the request fails."""

    def __post_init__(self) -> None:
        # A policy's certificate holds only under its own cap.
        room, cap = self.model.thinking_room((), self.plan), self.plan.max_think
        if room < cap:
            raise ModelError(
                f"the policy's cap of {cap} thinking tokens is beyond the server's context of "
                f"{self.model.endpoint.context}, which leaves less than {room}: its certificate "
                "does not hold there; serve the model with a longer context"
            )

    async def answer(self, request: Request, *, prompt_ids: Sequence[int] | None = None) -> Reply:
        """Answer one request; pass `prompt_ids` if they are known."""
        answered = await self.live(request, prompt_ids=prompt_ids).answer()
        return self.reply(request.task, answered)

    def live(
        self,
        request: Request,
        *,
        prompt_ids: Sequence[int] | None = None,
        observer: Observer | None = None,
        shadow: bool = False,
    ) -> LiveRequest:
        """Return a request that is ready to be answered.

        Pass `prompt_ids` if they are known.  With an observer that `shows`, all thinking is
        streamed.  In its `shadow` the policy never stops.
        """
        prompt_ids = prompt_ids or self.model.chat.prompt_ids(request.prompt.messages)
        if self.model.thinking_room(prompt_ids, self.plan) < self.plan.max_think:
            remark = (
                "some prompts leave less of the server's context than the policy's cap of "
                f"{self.plan.max_think} thinking tokens: the certificate does not cover them"
            )
            if remark not in self.remarks:
                self.remarks.append(remark)
        return LiveRequest(
            self.model,
            self.model.begin(prompt_ids, request.prompt, self.plan),
            self.rule,
            request.task,
            observer,
            shadow=shadow,
            lenient=self.probe_timeout is not None,
            probe_timeout=self.probe_timeout,
            at_once=_AT_ONCE,
        )

    def reply(self, task: str, answered: LiveAnswer) -> Reply:
        """Return the reply to a request; it has no answer if the trace was cut."""
        return make_reply(
            task,
            self.model.stops,
            answered.trace,
            answered.stop,
            answered.forced or answered.written,
            started=answered.started,
            n_probes=answered.probes,
        )


def bind_policy(policy: Policy, served: ServedModel) -> PolicyService:
    """Bind a policy to a served model.

    Raises `PolicyError` if it was made for another model, tokenizer, template or entropy source.
    """
    source, requested = entropy_at(served, policy)
    remarks = policy.check_source(served.identity(), source)
    plan = replace(policy_plan(policy, at_server=True), entropy=requested)
    return PolicyService(served, plan, policy, remarks)
