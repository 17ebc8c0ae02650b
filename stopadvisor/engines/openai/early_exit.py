"""A policy at a served model, over HTTP: how its thinking is drawn, and what a request is served.

The loop is `engines.live`'s.  Resumed thinking is drawn in parts.  Each part is a request that
sends the prompt and the thinking so far as token ids, which the server finds in its prefix cache.
With overlap, thinking streams on while a probe runs, and is broken off at a stop.  Stops are the
same either way, and those of `engines.hf.early_exit`.  Knows no files and no gold answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from stopadvisor.engines.live import (
    LiveAnswer,
    LiveRequest,
    Observer,
    ResumedThinking,
    StreamedThinking,
    Thinking,
)
from stopadvisor.engines.openai.endpoint import check_streams
from stopadvisor.engines.openai.served_model import NO_ENTROPY, ServedModel
from stopadvisor.engines.replies import ReplyText, forced_reply, make_reply, written_reply
from stopadvisor.engines.trace import Trace
from stopadvisor.ground.errors import ModelError
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import OnStop, Reply, Request, ThinkingMode
from stopadvisor.policy.session import Rule
from stopadvisor.probes.asking import ProbePlan

__all__ = ["PolicyService", "bind_policy", "choose_thinking_mode", "entropy_at"]


async def choose_thinking_mode(
    served: ServedModel, policy: Policy, asked: ThinkingMode | None, remarks: list[str]
) -> ThinkingMode:
    """Return how thinking is drawn: as asked, else as the policy was chosen for, where that works.

    `remarks` grows where the policy was chosen for vllm and the server cannot do it.

    Raises
    ------
    ModelError
        The server cannot do what was asked for, or what the policy needs.
    """
    if asked == "resume" or (asked is None and policy.terms.serving != "vllm"):
        return "resume"
    try:
        await check_streams(served.client)
    except ModelError as error:
        if asked is not None:
            raise
        remarks.append(f"the policy was chosen for vllm, where thinking streams on: {error}")
        return "resume"
    return "overlap"


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


_AT_ONCE = 64
"""Tokens of a request that goes on with the thinking where markers decide on the next probe.

Half of them are drawn in vain at a stop; one by one, each would take a request.
"""


@dataclass
class PolicyService:
    """A policy at a served model, or no policy; what all its requests share."""

    model: ServedModel
    plan: ProbePlan
    rule: Rule | None
    on_stop: OnStop
    mode: ThinkingMode
    remarks: list[str]
    """What the user should know; grows."""
    shadow: bool = False
    """Judge and never stop: only the observer gets what the policy would have done."""
    probe_timeout: float | None = None
    """Seconds for a forced answer.  One that fails, or takes longer, then lets the thinking go on
    to its end, where it would else be the request's error."""

    def __post_init__(self) -> None:
        self.model.check_cap(self.plan)

    async def answer(
        self,
        request: Request,
        *,
        prompt_ids: Sequence[int] | None = None,
        replica: int | None = None,
        observer: Observer | None = None,
    ) -> Reply:
        """Answer one request, by default at the server whose turn it is.

        `prompt_ids` are those of `ServedModel.open`, where they are known already.  For an observer
        that `shows` all thinking is streamed.
        """
        live = self.live(request, prompt_ids=prompt_ids, replica=replica, observer=observer)
        return self.reply(request.task, await live.answer())

    def live(
        self,
        request: Request,
        *,
        prompt_ids: Sequence[int] | None = None,
        replica: int | None = None,
        observer: Observer | None = None,
    ) -> LiveRequest:
        """Return a request that can be answered; the parameters are those of `answer`."""
        prompt_ids = prompt_ids or self.model.open(request.prompt.messages)
        if self.model.thinking_room(prompt_ids, self.plan) < self.plan.max_think:
            self._remark(
                "some prompts leave less of the server's context than the policy's cap of "
                f"{self.plan.max_think} thinking tokens: the certificate does not cover them"
            )
        if replica is None:
            replica = self.model.client.assign_replica()
        trace = self.model.begin(prompt_ids, request.prompt, self.plan, replica=replica)
        return LiveRequest(
            self.model,
            trace,
            partial(self._draw, trace),
            self.rule,
            self.on_stop,
            request.task,
            observer,
            shadow=self.shadow,
            lenient=self.probe_timeout is not None,
            probe_timeout=self.probe_timeout,
            at_once=_AT_ONCE if self.mode == "resume" else 1,
        )

    def _draw(self, trace: Trace, grown: Callable[[], None] | None) -> Thinking:
        # Without a rule nothing else runs while the model thinks.
        if self.mode == "overlap" and self.rule is not None and self.rule.trigger.most_probes:
            return StreamedThinking(trace, partial(self.model.stream, trace), grown)

        async def extend(until: int | None) -> None:
            if grown is None:
                await self.model.extend(trace, until=until)
            else:
                await self.model.stream(trace, grown, until=until)

        return ResumedThinking(extend)

    def _remark(self, text: str) -> None:
        if text not in self.remarks:
            self.remarks.append(text)

    def reply(self, task: str, answered: LiveAnswer) -> Reply:
        """Return what a request is served; of a cut trace, without an answer."""
        trace, stop, stops = answered.trace, answered.stop, self.model.stops
        if stop is None:
            drawn, said = trace.end.thinking, ReplyText()
            if trace.end.closed:
                said = written_reply(stops, task, trace.visible)
        else:
            drawn = len(trace.ids)  # with overlap also of an answer that the model began meanwhile
            if self.mode == "resume" and trace.end.thinking >= 0:
                drawn = trace.end.thinking
            if answered.forced is not None:
                said = forced_reply(task, answered.forced)
            else:
                said = written_reply(stops, task, answered.written)
        return make_reply(
            said,
            stop,
            self.model.chat.decode(trace.ids[: answered.thinking]),
            cut=trace.end.cut,
            started=answered.started,
            prompt_tokens=len(trace.prompt_ids),
            think_tokens=drawn,
            probe_tokens=trace.probe_tokens,
            n_probes=answered.probes,
        )


async def bind_policy(
    policy: Policy, served: ServedModel, plan: ProbePlan, *, serving: ThinkingMode | None = None
) -> PolicyService:
    """Hold a policy against an opened model, and return what answers with the two.

    Raises
    ------
    PolicyError
        The policy is bound to another model, tokenizer, template or entropy, or to none.
    ModelError
        The server cannot resume thinking, or streams no token ids where overlap is asked for.
    """
    source, asked = entropy_at(served, policy)
    remarks = policy.check_source(served.identity(), source)
    mode = await choose_thinking_mode(served, policy, serving, remarks)
    plan = replace(plan, entropy=asked)
    return PolicyService(served, plan, policy, policy.on_stop, mode, remarks)
