"""Early exit on a loaded model with a policy from its file, in one call.

Knows what a policy is bound to; how requests are answered is `early_exit`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stopadvisor.engines.hf.assemble import wrap
from stopadvisor.engines.hf.engine import HfEngine
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import OnStop, PromptLike, Reply, make_requests

__all__ = ["generate"]


def generate(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[PromptLike],
    policy: Policy,
    *,
    task: str | None = None,
    batch_size: int | None = None,
    on_stop: OnStop | None = None,
    answer_cap: int | None = None,
) -> list[Reply]:
    """Answer prompts, each thinking only as long as a frozen policy lets it; replies in order.

    Parameters
    ----------
    model
        A loaded causal language model; its attention is set to the one that probes without
        copying.  Where `generate` is called again and again, give it the engine that
        `stopadvisor.engines.hf.load_engine` or `wrap` made once.
    tokenizer
        Not looked at with an engine.
    prompts
        Texts go through the policy's prompt template; chat messages are sent as they stand.
    policy
        From `stopadvisor.load_policy`; cue, caps, sampling and template are its own.
    task
        Task of prompts that are no `Question`; needed where the policy's is ``mixed``.
    batch_size
        Most prompts at once; by default what fits into memory.
    on_stop
        What a stopped prompt gets: with ``probe`` the forced answer, with ``answer`` a visible
        answer after the closed thinking.  The policy's own by default; its certificate covers no
        other.
    answer_cap
        Most tokens of a visible answer; by default what was certified.

    Raises
    ------
    PolicyError
        The policy is bound to another model, tokenizer or template, or to none.
    ModelError
        The model cannot be probed, or a prompt does not fit its context.
    OutOfMemory
        The batch is too large.

    Notes
    -----
    Traces are drawn from the same seeded stream per question as when probing, so that in float32
    a question stops where its recorded probes say.  Remarks about another dtype or device than at
    calibration are added to `HfEngine.remarks`.

    Examples
    --------
    ::

        from transformers import AutoModelForCausalLM, AutoTokenizer
        from stopadvisor import load_policy
        from stopadvisor.engines.hf import generate, wrap

        path = "samples/tiny-reasoner"
        model = AutoModelForCausalLM.from_pretrained(path, dtype="float32")
        engine = wrap(model, AutoTokenizer.from_pretrained(path))
        policy = load_policy("policy.joblib")
        for reply in generate(engine, None, ["Compute 86 + 6 - 9 modulo 100."], policy):
            print(reply.answer, reply.budget, reply.think_tokens, reply.probe_tokens)
    """
    engine = (
        model
        if isinstance(model, HfEngine)
        else wrap(model, tokenizer, chat_template_kwargs=policy.terms.chat_template_kwargs)
    )
    plan = engine.policy_plan(policy, answer_cap=answer_cap)
    requests = make_requests(prompts, policy, task=task)
    for remark in policy.check_source(engine.identity(), engine.entropy_for(policy)):
        engine.remark_once(remark)
    replies: list[Reply | None] = [None] * len(requests)
    how: OnStop = on_stop or policy.on_stop
    for index, reply in engine.serve(requests, plan, policy, batch_size=batch_size, on_stop=how):
        replies[index] = reply
    return [reply for reply in replies if reply is not None]
