"""Holds policies against the engine that is about to serve them: before the first request.

What differs and matters is refused in one line; what a passing ``verify`` has to show is a remark.
Knows the engine's settings as plain values, tokenizers and policies; nothing of vLLM.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stopadvisor.engines.answer_end import AnswerStops
from stopadvisor.engines.chat import Chat
from stopadvisor.engines.model_files import LoadedTokenizer, content_revision
from stopadvisor.engines.sampling import Sampling, entropy_top_k, identity_settings
from stopadvisor.ground.errors import ModelError, PolicyError
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import policy_plan
from stopadvisor.probes.asking import ProbePlan, is_open_cue
from stopadvisor.serving.audits import Auditor
from stopadvisor.serving.eligibility import Coverage
from stopadvisor.serving.serve_settings import check_tasks
from stopadvisor.serving.vllm.adapter import EngineFacts, VllmEngine
from stopadvisor.serving.vllm.engine_model import EngineModel, Likeliest

__all__ = ["BoundPolicy", "bind_policies"]


@dataclass(frozen=True)
class BoundPolicy:
    """A policy that may serve, and what that takes."""

    policy: Policy
    model: EngineModel
    coverage: Coverage
    longest_prompt: int
    """Most tokens of a prompt that leaves room for thinking and an answer."""
    facts: EngineFacts
    remarks: tuple[str, ...]
    auditor: Auditor | None = None
    """Writes its requests down, and audits some."""

    def limit(self, prompt_tokens: int, asked: int | None) -> int:
        """Return how many tokens vLLM would let a request decode that asks for `asked`."""
        facts = self.facts
        default = facts.sampling.get("max_tokens")
        room = facts.context - prompt_tokens
        limits = (room, default if asked is None else asked, facts.max_output)
        return min(n for n in limits if n is not None)


def bind_policies(
    policies: Sequence[tuple[Path, Policy]],
    facts: EngineFacts,
    loaded: LoadedTokenizer,
    engine: VllmEngine,
    *,
    any_text: bool = False,
    audits: bool = False,
) -> tuple[BoundPolicy, ...]:
    """Return the policies that are for this engine, one or one for each of several tasks.

    `loaded` is the model's own tokenizer; with `audits` replies are audited.

    Raises
    ------
    PolicyError, ModelError
        None is for it, with the reason where there is but one; or two are for the same task.
    """
    if not facts.reasoning_parser:
        raise ModelError(
            "replies that are passed on would carry their thinking as content, and those under the "
            "policy as reasoning: add --reasoning-parser NAME (deepseek_r1 reads <think>…</think>; "
            "vLLM's documentation names each model's)"
        )
    if facts.replicas > 1:
        raise ModelError(
            "a probe must meet the cache of its thinking: expected --data-parallel-size 1, got "
            f"{facts.replicas}; start several servers and a load balancer instead"
        )
    if audits and facts.api_servers > 1:
        raise ModelError(
            "an audit log has one writer: expected --api-server-count 1 with --audit, got "
            f"{facts.api_servers}"
        )
    fitting: list[tuple[Path, BoundPolicy]] = []
    refused: list[str] = []
    for path, policy in policies:
        try:
            found = _bind(policy, facts, loaded, engine, any_text=any_text)
            fitting.append((path, found))
        except (PolicyError, ModelError) as error:
            refused.append(f"{path}: {error}")
    if not fitting:
        raise PolicyError("; ".join(refused))
    check_tasks([(path, bound.policy) for path, bound in fitting], facts.model)
    return tuple(bound for _, bound in fitting)


def _bind(
    policy: Policy,
    facts: EngineFacts,
    loaded: LoadedTokenizer,
    engine: VllmEngine,
    *,
    any_text: bool,
) -> BoundPolicy:
    terms, plan = policy.terms, policy_plan(policy, at_server=True)
    chat = Chat.of(loaded.tokenizer, template_kwargs=terms.chat_template_kwargs)
    logprobs, entropy = _probe_logprobs(policy, facts)
    identity = _identity(facts, loaded, chat)
    remarks = policy.check_source(identity, entropy)
    own = terms.engine
    if own is not None and own.dtype is not None:
        for name in ("dtype", "quantization"):
            calibrated, found = getattr(own, name), getattr(facts, name)
            if calibrated != found:
                raise PolicyError(
                    f"the policy was calibrated with {name} {calibrated!r}, got {found!r}"
                )
    if facts.chat_template not in (None, loaded.tokenizer.chat_template):
        raise PolicyError(
            "the policy was calibrated with the model's own chat template, got another by "
            "--chat-template"
        )
    arguments = dict(terms.chat_template_kwargs)
    if facts.chat_template_kwargs not in (None, arguments):
        raise PolicyError(
            f"the policy was calibrated with chat_template_kwargs {arguments!r}, got "
            f"{facts.chat_template_kwargs!r} by --default-chat-template-kwargs"
        )
    sampling = _sampling(policy, plan, facts, loaded)
    coverage = Coverage.of(
        policy,
        plan,
        names=facts.names,
        sampling=sampling,
        closer_tokens=len(chat.closer.ids),
        any_text=any_text,
    )
    if not facts.prefix_caching:
        remarks.append("prefix caching is off: each probe reads its whole prompt again")
    if not facts.by_priority:
        remarks.append(
            "requests are not scheduled by priority (--scheduling-policy priority): where they "
            "queue, probes queue after them, and traces think on in vain"
        )
    stops = AnswerStops.of(chat, loaded.stop_ids, len(loaded.tokenizer))
    # A closer that the model writes ends its forced answer where the cue stands in thinking.
    closing = chat.closer.ids[-1:] if is_open_cue(plan.cue) else ()
    likeliest = Likeliest(facts.vocabulary)
    # Where it tells little, the whole vocabulary is asked for at once.
    tells = 2 * likeliest.count < facts.vocabulary and math.isfinite(policy.rule.entropy_slope)
    model = EngineModel(
        engine,
        chat,
        loaded.stop_ids,
        stops,
        plan,
        drawn=asdict(sampling),
        logprobs=logprobs,
        likeliest=likeliest if logprobs == -1 and tells else None,
        by_priority=facts.by_priority,
        suffix=tuple(chat.suffix_ids(plan.cue)),
        answer_ends=tuple(sorted({*loaded.stop_ids, *stops.newline_ids(), *closing})),
    )
    most = max(coverage.most_tokens, plan.max_think + len(model.suffix) + plan.cap)
    if most >= facts.context:
        raise PolicyError(
            f"thinking and answer of the policy take {most} tokens, got a context of "
            f"{facts.context} (--max-model-len)"
        )
    return BoundPolicy(policy, model, coverage, facts.context - most, facts, tuple(remarks))


def _sampling(
    policy: Policy, plan: ProbePlan, facts: EngineFacts, loaded: LoadedTokenizer
) -> Sampling:
    """Return how the policy's traces are drawn, if the engine draws all others alike."""
    recorded = policy.terms.sampling
    drawn = None if recorded is None else recorded.drawn
    sampling = Sampling.of(loaded.generation, plan) if drawn is None else Sampling(**asdict(drawn))
    changes = sampling.changes_from(Sampling.of_server(facts.sampling))
    for name in ("presence_penalty", "frequency_penalty"):
        if facts.sampling.get(name):
            changes[name] = 0.0
    if changes:
        got = {name: facts.sampling.get(name, "vLLM's default") for name in changes}
        raise PolicyError(
            f"the policy was calibrated with {changes!r}, and a request that names nothing gets "
            f"{got!r} here: add --override-generation-config '{json.dumps(changes)}'"
        )
    return sampling


def _probe_logprobs(policy: Policy, facts: EngineFacts) -> tuple[int | None, str]:
    """Return how many log-probabilities a probe asks for, and the entropy source that this is."""
    own, rule = policy.terms.entropy_source, policy.rule
    if not policy.reads_logprobs:
        return None, "none"
    if not rule.needs_entropy:
        return 0, own  # a token's own log-probability is the same in every source
    k = None if own == "none" else entropy_top_k(own)
    if not 0 <= facts.max_logprobs < facts.vocabulary:
        return (-1 if k is None else k), own
    if k is not None and k <= facts.max_logprobs:
        return k, own
    return facts.max_logprobs, f"top-k:{facts.max_logprobs}"


def _identity(facts: EngineFacts, loaded: LoadedTokenizer, chat: Chat) -> dict[str, Any]:
    """What decides the outcome, as `Engine.identity` gives it."""
    root = Path(facts.model)
    local = (root / "config.json").is_file()
    return {
        "engine": "vllm",
        "engine_version": facts.version,
        "model": root.resolve().name if local else facts.model,
        "model_revision": content_revision(root) if local else None,
        "dtype": facts.dtype,
        "attention": None,
        "device": None,
        "quantization": facts.quantization,
        "generation_config": identity_settings(loaded.generation),
        **chat.identity(loaded.stop_ids),
    }
