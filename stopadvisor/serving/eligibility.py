"""Which chat requests a policy covers: those that ask as its calibration questions did.

A request is covered only if every field in it is known to leave the answer unchanged.  One that
the server would refuse is not: the gateway has to forward it for the server's own error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from stopadvisor.engines.sampling import Sampling
from stopadvisor.ground.fields import MOST_TOKENS
from stopadvisor.policy.frozen import MIXED_TASKS, Policy
from stopadvisor.policy.requests import Request, make_requests, prompt_templates
from stopadvisor.probes.asking import ProbePlan
from stopadvisor.workload.questions import TASKS

__all__ = ["TASK_HEADER", "VLLM_HEADERS", "Coverage", "CoveredRequest", "Reason"]

VLLM_HEADERS = ("X-data-parallel-rank", "X-Vllm-Priority")
"""Request headers that vLLM obeys: a replica, which it refuses if there is none, and a priority."""

TASK_HEADER = "X-StopAdvisor-Task"
"""Request header that names the task, for policies whose task is ``mixed``."""

Reason = Literal[
    "model",  # another model, or an adapter
    "n",  # several answers
    "tools",
    "format",  # a response format, or another limit on the text
    "logprobs",
    "logit-bias",
    "penalty",
    "stop",
    "messages",  # several turns, a system message, pictures
    "template",  # other text around the question, or other arguments of the chat template
    "thinking",  # switched off, hidden or budgeted by the request
    "sampling",
    "max-tokens",
    "task",
    "field",  # an unknown field, which may change the answer
    "room",  # the prompt leaves less context than the policy's cap
    "error",  # the server failed, or refused it before it was checked
]
"""Why a request is not covered: fixed words, for a header and for a metric's label."""


@dataclass(frozen=True)
class CoveredRequest:
    """A request to answer under the policy."""

    request: Request
    seed: int | None
    """Sampling seed in the request, if any."""
    stream: bool
    include_usage: bool
    """A stream ends with a usage chunk."""
    max_tokens: int | None = None
    """Limit on decoded tokens in the request, if any."""


def _neutral(*values: Any) -> Callable[[Any], bool]:
    """Return a test for values that change nothing."""
    return lambda given: any(type(given) is type(value) and given == value for value in values)


def _text(given: Any) -> bool:
    return isinstance(given, str)


_NO, _YES = _neutral(False), _neutral(True)

_FIELDS: dict[str, tuple[Reason, Callable[[Any], bool]]] = {
    "n": ("n", _neutral(1)),
    "best_of": ("n", _neutral(1)),
    "use_beam_search": ("n", _NO),
    "tools": ("tools", _neutral()),  # servers refuse an empty list
    "tool_choice": ("tools", _neutral("none")),
    "functions": ("tools", _neutral()),
    "function_call": ("tools", _neutral("none")),
    "parallel_tool_calls": ("tools", _neutral(True, False)),
    "response_format": ("format", _neutral({"type": "text"})),
    "structured_outputs": ("format", _neutral()),
    "modalities": ("format", _neutral(["text"])),
    "logprobs": ("logprobs", _NO),
    "top_logprobs": ("logprobs", _neutral(0)),
    "logit_bias": ("logit-bias", _neutral({})),
    "frequency_penalty": ("penalty", _neutral(0, 0.0)),
    "presence_penalty": ("penalty", _neutral(0, 0.0)),
    "stop": ("stop", _neutral([])),
    "stop_token_ids": ("stop", _neutral([])),
    "ignore_eos": ("stop", _NO),
    "min_tokens": ("stop", _neutral(0)),
    "reasoning_effort": ("thinking", _neutral()),
    "thinking_token_budget": ("thinking", _neutral()),
    "include_reasoning": ("thinking", _YES),
    "add_generation_prompt": ("template", _YES),
    "continue_final_message": ("template", _NO),
    # Bookkeeping.
    "user": ("field", _text),
    "metadata": ("field", lambda given: isinstance(given, dict)),
    "store": ("field", _NO),
    "safety_identifier": ("field", _text),
    "prompt_cache_key": ("field", _text),
    "service_tier": ("field", _neutral("auto", "default")),
}
"""By field: the reason for not covering it, and a test for non-null values that change nothing."""

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_READ_HERE = frozenset(
    (
        *("model", "messages", "stream", "stream_options", "seed"),
        *("max_tokens", "max_completion_tokens", "chat_template_kwargs", *_SAMPLING),
    )
)

_NEVER_NULL = frozenset(
    (
        *("add_generation_prompt", "add_special_tokens", "bad_words", "continue_final_message"),
        *("echo", "ignore_eos", "include_reasoning", "include_stop_str_in_output"),
        *("length_penalty", "min_tokens", "mm_payload", "priority", "request_id"),
        *("routed_experts_prompt_start", "skip_special_tokens", "spaces_between_special_tokens"),
        "use_beam_search",
    )
)
"""Fields that vLLM refuses where they are null."""

_IF_SAMPLED: dict[str, Callable[[float], bool]] = {
    "top_p": lambda value: 0 < value <= 1,
    "top_k": lambda value: value >= -1,
    "min_p": lambda value: 0 <= value <= 1,
}
"""Parameters that have no effect at temperature 0, and their valid ranges."""


@dataclass(frozen=True)
class Coverage:
    """Checks requests against one policy at one served model."""

    policy: Policy
    names: frozenset[str]
    """Served names of the model."""
    sampling: Mapping[str, float | None]
    """The policy's sampling parameters, by request field; None for the server's unknown default."""
    most_tokens: int
    """Limit on thinking, closer and visible answer together, in tokens."""
    any_text: bool
    """Accept any text, as calibration questions given as messages have no prompt template."""
    context: float = math.inf
    """The server's context length, beyond which vLLM refuses a limit; infinite if unknown."""

    @classmethod
    def of(
        cls,
        policy: Policy,
        plan: ProbePlan,
        *,
        names: Collection[str],
        sampling: Sampling,
        closer_tokens: int,
        any_text: bool = False,
        context: float | None = None,
    ) -> Coverage:
        """Coverage of a policy that stops traces, sampled with `sampling` under `plan`."""
        most = plan.max_think + closer_tokens + plan.answer_cap
        return cls(policy, frozenset(names), asdict(sampling), most, any_text, context or math.inf)

    @classmethod
    def of_ladder(cls, policy: Policy, *, any_text: bool = False) -> Coverage:
        """Coverage of a policy that climbs: requests as its reference was asked."""
        rung = policy.ladder[-1]
        sampling = dict.fromkeys(_SAMPLING) | {"temperature": rung.temperature}
        most = rung.max_tokens or MOST_TOKENS  # without a limit, calibration cut no reply
        return cls(policy, frozenset({rung.model or ""}), sampling, most, any_text)

    def check(self, body: Mapping[str, Any], *, task: str | None) -> CoveredRequest | Reason:
        """Return the covered request, or the reason; does not check that it fits the context."""
        reference = self.policy.ladder[-1] if self.policy.ladder else None
        for name, value in body.items():
            if name in _READ_HERE or (value is None and name not in _NEVER_NULL):
                continue
            if name == "reasoning_effort" and reference and value == reference.reasoning_effort:
                continue
            reason, changes_nothing = _FIELDS.get(name, ("field", _neutral()))
            if not changes_nothing(value):
                return reason
        options = body.get("stream_options")
        refused = self._refused(body, options)
        if refused is not None:
            return refused
        calibrated = self.policy.terms.task
        task = task or calibrated
        if task not in TASKS or calibrated not in (task, MIXED_TASKS):
            return "task"
        request = self._request(body.get("messages"), task)
        if not isinstance(request, Request):
            return request
        return CoveredRequest(
            request=request,
            seed=body.get("seed"),
            stream=bool(body.get("stream")),
            include_usage=bool(options and options.get("include_usage")),
            max_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
        )

    def _refused(self, body: Mapping[str, Any], options: Any) -> Reason | None:
        """Return why a field in `_READ_HERE` differs from calibration; None if none does."""
        if body.get("model") not in self.names:  # only the server knows its default model
            return "model"
        stream = body.get("stream")
        alone = options is not None and not (stream and isinstance(options, Mapping))
        if alone or not isinstance(stream, bool | None):
            return "field"
        for name, value in (options or {}).items():
            if name not in ("include_usage", "include_obfuscation"):
                return "field"
            if value is not None and type(value) is not bool:
                return "field"
        seed = body.get("seed")
        if seed is not None and (type(seed) is not int or not -(2**63) <= seed < 2**63):
            return "field"
        ladder = self.policy.ladder
        if seed is not None and ladder and self.sampling["temperature"] != 0:
            return "sampling"  # a ladder's replies are sampled without a seed
        terms = ladder[-1] if ladder else self.policy.terms
        arguments = body.get("chat_template_kwargs")
        if arguments is not None and arguments != dict(terms.chat_template_kwargs or {}):
            off = isinstance(arguments, Mapping) and arguments.get("enable_thinking") is False
            return "thinking" if off else "template"
        if not self._samples_alike(body):
            return "sampling"
        for limit in (body.get("max_tokens"), body.get("max_completion_tokens")):
            if limit is None:
                continue
            if type(limit) is not int or not self.most_tokens <= limit <= self.context:
                return "max-tokens"
        return None

    def _samples_alike(self, body: Mapping[str, Any]) -> bool:
        """Whether the request's sampling parameters, if any, match the policy's."""
        for name in _SAMPLING:
            value, calibrated = body.get(name), self.sampling[name]
            if value is None or (name == "top_k" and value == -1 and calibrated == 0):
                continue
            kinds = int if name == "top_k" else int | float
            if isinstance(value, bool) or not isinstance(value, kinds):
                return False
            in_range = _IF_SAMPLED.get(name)
            if self.sampling["temperature"] == 0 and in_range is not None:
                if not in_range(value):
                    return False
            elif value != calibrated:
                return False
        return True

    def _request(self, messages: Any, task: str) -> Request | Reason:
        """Return the request, if it is a single user message in the calibrated form, or why not."""
        if not isinstance(messages, list) or len(messages) != 1:
            return "messages"
        (message,) = messages
        if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
            return "messages"
        text = message["content"]
        if message["role"] != "user" or not isinstance(text, str):
            return "messages"
        try:
            text.encode()
        except UnicodeEncodeError:  # a lone surrogate
            return "messages"
        (request,) = make_requests([[{"role": "user", "content": text}]], self.policy, task=task)
        template = prompt_templates(self.policy.terms).get(task)
        if template is not None and not self.any_text:
            before, _, after = template.partition("{question}")
            room = len(text) - len(before) - len(after)
            if room <= 0 or not (text.startswith(before) and text.endswith(after)):
                return "template"
        return request
