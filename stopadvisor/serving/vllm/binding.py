"""Check policies against the engine that will serve them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from stopadvisor.engines.answer_end import AnswerStops
from stopadvisor.engines.chat import Chat
from stopadvisor.engines.model_files import LoadedTokenizer, served_identity
from stopadvisor.engines.sampling import Sampling, entropy_top_k
from stopadvisor.ground.errors import ModelError, PolicyError
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import policy_plan
from stopadvisor.probes.asking import ProbePlan, is_open_cue
from stopadvisor.serving.eligibility import Coverage
from stopadvisor.serving.serve_settings import ServeSettings, check_tasks
from stopadvisor.serving.vllm.adapter import EngineFacts, VllmEngine
from stopadvisor.serving.vllm.engine_model import EngineModel, Likeliest

__all__ = ["BoundPolicy", "bind_policies"]


@dataclass(frozen=True)
class BoundPolicy:
    """A policy checked against the engine."""

    policy: Policy
    model: EngineModel
    coverage: Coverage
    longest_prompt: int
    """Limit on prompt tokens that leaves room for thinking and an answer."""
    remarks: tuple[str, ...]
    """Tolerated differences."""


def bind_policies(
    policies: Sequence[tuple[Path, Policy]],
    facts: EngineFacts,
    loaded: LoadedTokenizer,
    engine: VllmEngine,
    settings: ServeSettings,
) -> tuple[BoundPolicy, ...]:
    """Return the policies that fit this engine: one, or one for each task.

    `loaded` is the model's own tokenizer.

    Raises
    ------
    PolicyError, ModelError
        No policy fits, or two are for the same task.
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
    if settings.audit is not None and facts.api_servers > 1:
        raise ModelError(
            "an audit log has one writer: expected --api-server-count 1 with --audit, got "
            f"{facts.api_servers}"
        )
    fitting: list[tuple[Path, BoundPolicy]] = []
    refused: list[str] = []
    for path, policy in policies:
        try:
            fitting.append((path, _bind(policy, facts, loaded, engine, settings)))
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
    settings: ServeSettings,
) -> BoundPolicy:
    terms, plan = policy.terms, policy_plan(policy, at_server=True)
    chat = Chat.of(loaded.tokenizer, template_kwargs=terms.chat_template_kwargs)
    logprobs, entropy = _probe_logprobs(policy, facts)
    identity = served_identity(
        "vllm",
        facts.version,
        facts.model,
        generation=loaded.generation,
        dtype=facts.dtype,
        quantization=facts.quantization,
    )
    remarks = policy.check_source(identity | chat.identity(loaded.stop_ids), entropy)
    if terms.engine is not None and terms.engine.dtype is not None:
        for name in ("dtype", "quantization"):
            calibrated, actual = getattr(terms.engine, name), getattr(facts, name)
            if calibrated != actual:
                raise PolicyError(
                    f"the policy was calibrated with {name} {calibrated!r}, got {actual!r}"
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
        any_text=settings.any_text,
        context=facts.context,
    )
    if not facts.prefix_caching:
        remarks.append("prefix caching is off: each probe reads its whole prompt again")
    if not facts.by_priority:
        remarks.append(
            "requests are not scheduled by priority (--scheduling-policy priority): where they "
            "queue, probes queue after them, and traces think on in vain"
        )
    stops = AnswerStops.of(chat, loaded.stop_ids, len(loaded.tokenizer))
    # If the cue leaves thinking open, the model may end its forced answer by closing it.
    closing = chat.closer.ids[-1:] if is_open_cue(plan.cue) else ()
    likeliest = Likeliest(facts.vocabulary)
    # If the likeliest tokens help too little, a probe asks for the whole vocabulary at once.
    helps = 2 * likeliest.count < facts.vocabulary and math.isfinite(policy.rule.entropy_slope)
    model = EngineModel(
        engine,
        chat,
        loaded.stop_ids,
        stops,
        plan,
        drawn=asdict(sampling),
        logprobs=logprobs,
        likeliest=likeliest if logprobs == -1 and helps else None,
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
    return BoundPolicy(policy, model, coverage, facts.context - most, tuple(remarks))


def _sampling(
    policy: Policy, plan: ProbePlan, facts: EngineFacts, loaded: LoadedTokenizer
) -> Sampling:
    """Return the policy's sampling parameters; refuse an engine whose defaults differ."""
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
    """Return how many log-probabilities a probe requests, and the resulting entropy source."""
    source = policy.terms.entropy_source
    if not policy.reads_logprobs:
        return None, "none"
    if not policy.rule.needs_entropy:
        return 0, source  # a token's own log-probability is the same for every source
    k = None if source == "none" else entropy_top_k(source)
    if not 0 <= facts.max_logprobs < facts.vocabulary:
        return (-1 if k is None else k), source
    if k is not None and k <= facts.max_logprobs:
        return k, source
    return facts.max_logprobs, f"top-k:{facts.max_logprobs}"
