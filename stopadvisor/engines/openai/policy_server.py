"""One frozen policy at one served model, for any number of prompts at once, within an event loop.

Opens the model and holds the policy against it; how prompts are answered is `early_exit`'s.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from stopadvisor.engines.openai.early_exit import PolicyService, choose_thinking_mode, entropy_at
from stopadvisor.engines.openai.opening import open_model, served_identity
from stopadvisor.engines.openai.served_model import ServedModel
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import (
    OnStop,
    PromptLike,
    Reply,
    ThinkingMode,
    make_requests,
    policy_plan,
)
from stopadvisor.probes.asking import ProbePlan
from stopadvisor.workload.questions import Question

__all__ = ["PolicyServer", "bind_policy", "connect"]


@asynccontextmanager
async def connect(
    policy: Policy,
    base_urls: Sequence[str],
    *,
    model: str | None = None,
    on_stop: OnStop | None = None,
    answer_cap: int | None = None,
    serving: ThinkingMode | None = None,
    **options: Any,
) -> AsyncIterator[PolicyServer]:
    """Open a served model and check that a frozen policy fits it, once for many prompts.

    Parameters
    ----------
    policy
        From `stopadvisor.load_policy`; cue, caps, sampling and templates are its own.
    model
        Its name at the server; by default the policy's.
    on_stop
        What a stopped prompt gets: with ``probe`` the forced answer, with ``answer`` a visible
        answer after the closed thinking.  The policy's own by default; its certificate covers no
        other.
    answer_cap
        Most tokens of a visible answer; by default what was certified.
    serving
        ``resume`` the thinking after each probe, or ``overlap``: it streams on while the probe
        runs.  The answer comes sooner, and what was thought meanwhile is wasted at a stop.  By
        default overlap where the policy was chosen for vllm and the server streams token ids.
    **options
        As `open_model` takes them, such as ``api_key_env`` or ``retry_timeout``.

    Raises
    ------
    PolicyError
        The policy is bound to another model, tokenizer, template or entropy, or to none.
    ModelError
        The server cannot be reached, cannot resume reasoning, or streams no token ids where
        overlap is asked for.

    Examples
    --------
    ::

        import asyncio

        from stopadvisor import load_policy
        from stopadvisor.engines.openai import connect

        async def main() -> None:
            policy = load_policy("policy.joblib")
            async with connect(policy, ["http://127.0.0.1:8000/v1"]) as server:
                reply = await server.answer("Compute 86 + 6 - 9 modulo 100.")
                print(reply.answer, reply.budget, reply.think_tokens, reply.probe_tokens)

        asyncio.run(main())
    """
    plan = policy_plan(policy, answer_cap=answer_cap, at_server=True)
    assert policy.terms.model is not None  # or there is no plan
    served = await open_model(
        model or policy.terms.model.name,
        base_urls,
        chat_template_kwargs=policy.terms.chat_template_kwargs,
        **options,
    )
    try:
        service = await bind_policy(policy, served, plan, on_stop=on_stop, serving=serving)
        yield PolicyServer(service, policy)
    finally:
        await served.aclose()


async def bind_policy(
    policy: Policy,
    served: ServedModel,
    plan: ProbePlan,
    *,
    on_stop: OnStop | None = None,
    serving: ThinkingMode | None = None,
) -> PolicyService:
    """Hold a policy against an opened model, and return what answers with the two."""
    source, asked = entropy_at(served, policy)
    remarks = policy.check_source(served_identity(served), source)
    mode = await choose_thinking_mode(served, policy, serving, remarks)
    plan = replace(plan, entropy=asked)
    return PolicyService(served, plan, policy, on_stop or policy.on_stop, mode, remarks)


_CONVERSATION = (
    "some prompts hold several turns or a system message: the certificate covers them only if the "
    "calibration questions were of that shape, which the policy does not record"
)


def _is_conversation(prompt: PromptLike) -> bool:
    """Whether a prompt is more than one message of a user."""
    if isinstance(prompt, str | Question):
        return False
    return [message.get("role") for message in prompt] != ["user"]


@dataclass(frozen=True)
class PolicyServer:
    """A frozen policy at a server; made by `connect`."""

    _service: PolicyService
    policy: Policy

    @property
    def remarks(self) -> tuple[str, ...]:
        """Differences from calibration that ask for a passing ``verify`` before this serves."""
        return tuple(self._service.remarks)

    @property
    def serving(self) -> ThinkingMode:
        """Whether thinking is resumed after each probe or overlaps with it."""
        return self._service.mode

    async def answer(self, prompt: PromptLike, *, task: str | None = None) -> Reply:
        """Answer one prompt, thinking only as long as the policy lets it.

        A text goes through the policy's prompt template; chat messages are sent as they stand, with
        a remark where they are more than one message of a user.  A prompt that is no `Question`
        needs a `task` where the policy's is ``mixed``.

        Any number of prompts may be on their way at once.

        Raises
        ------
        PolicyError
            The policy is for another task.
        ModelError
            The prompt does not fit the server's context.
        EngineError
            The server refuses, or fails for longer than its retry time-out.
        """
        if _is_conversation(prompt) and _CONVERSATION not in self._service.remarks:
            self._service.remarks.append(_CONVERSATION)
        (request,) = make_requests([prompt], self.policy, task=task)
        return await self._service.answer(request)
