"""Which chat requests a policy covers: those asked as its calibration questions were.

Everything else is for the model as it stands, and the reason is one of a few fixed words, fit for a
header and for the label of a metric.  What is not known to be without effect is not covered.
Knows the fields of a request; no server, no tokenizer and no network.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from stopadvisor.engines.sampling import Sampling
from stopadvisor.ground.fields import MOST_TOKENS
from stopadvisor.policy.frozen import MIXED_TASKS, Policy
from stopadvisor.policy.requests import Request, make_requests, prompt_templates
from stopadvisor.probes.asking import ProbePlan
from stopadvisor.workload.questions import TASKS

__all__ = ["TASK_HEADER", "Coverage", "CoveredRequest", "NotCovered", "Reason"]

TASK_HEADER = "X-StopAdvisor-Task"
"""Header of a request that names its task, where the policy's is ``mixed``."""

Reason = Literal[
    "model",  # another model, or an adapter of it
    "n",  # several answers
    "tools",
    "format",  # a response format, or another bound on what may be written
    "logprobs",
    "logit-bias",
    "penalty",
    "stop",
    "messages",  # several turns, a system message, pictures
    "template",  # not the text around the question, or the chat template's arguments
    "thinking",  # switched off, hidden or budgeted by the request
    "sampling",
    "max-tokens",
    "task",
    "field",  # a field that may change the answer, and is not known here
    "room",  # the prompt leaves less than the policy's cap; found when it is rendered
    "error",  # the server refused it before it was looked at, or failed
]
"""Why a request is passed on."""


@dataclass(frozen=True)
class NotCovered:
    """The policy says nothing about the request."""

    reason: Reason


@dataclass(frozen=True)
class CoveredRequest:
    """A request to answer under the policy."""

    request: Request
    seed: int | None
    """Of its sampling; None where it names none."""
    stream: bool
    include_usage: bool
    """A stream ends with a chunk of counts."""
    max_tokens: int | None = None
    """Its own limit on what is decoded; None where it names none."""


def _neutral(*values: Any) -> Callable[[Any], bool]:
    """Whether a value is one of those that change nothing; None always is."""
    return lambda found: any(type(found) is type(value) and found == value for value in values)


def _any(found: Any) -> bool:
    return True


_NO, _YES, _NOTHING = _neutral(False), _neutral(True), _neutral([], {})

_FIELDS: dict[str, tuple[Reason, Callable[[Any], bool]]] = {
    "n": ("n", _neutral(1)),
    "best_of": ("n", _neutral(1)),
    "use_beam_search": ("n", _NO),
    "tools": ("tools", _NOTHING),
    "tool_choice": ("tools", _neutral("none", "auto")),  # among none
    "functions": ("tools", _NOTHING),
    "function_call": ("tools", _neutral("none", "auto")),
    "parallel_tool_calls": ("tools", _any),
    "response_format": ("format", _neutral({"type": "text"})),
    "structured_outputs": ("format", _neutral()),
    "modalities": ("format", _neutral(["text"])),
    "logprobs": ("logprobs", _NO),
    "top_logprobs": ("logprobs", _neutral(0)),
    "logit_bias": ("logit-bias", _NOTHING),
    "frequency_penalty": ("penalty", _neutral(0, 0.0)),
    "presence_penalty": ("penalty", _neutral(0, 0.0)),
    "stop": ("stop", _neutral([], "")),
    "stop_token_ids": ("stop", _NOTHING),
    "ignore_eos": ("stop", _NO),
    "min_tokens": ("stop", _neutral(0)),
    "reasoning_effort": ("thinking", _neutral()),
    "thinking_token_budget": ("thinking", _neutral()),
    "include_reasoning": ("thinking", _YES),
    "add_generation_prompt": ("template", _YES),
    "continue_final_message": ("template", _NO),
    # Names and bookkeeping.
    "user": ("field", _any),
    "metadata": ("field", _any),
    "store": ("field", _NO),
    "safety_identifier": ("field", _any),
    "prompt_cache_key": ("field", _any),
    "service_tier": ("field", _neutral("auto", "default")),
}
"""By field: the reason that it gives, and the values other than null that change no answer."""

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_READ_HERE = frozenset(
    (
        *("model", "messages", "stream", "stream_options", "seed"),
        *("max_tokens", "max_completion_tokens", "chat_template_kwargs", *_SAMPLING),
    )
)

_OF_CHANCE: dict[str, Callable[[float], bool]] = {
    "top_p": lambda value: 0 < value <= 1,
    "top_k": lambda value: value >= -1,
    "min_p": lambda value: 0 <= value <= 1,
}
"""Settings that change nothing where the likeliest token is taken, and their ranges."""


@dataclass(frozen=True)
class Coverage:
    """What a request must be like, for one policy at one model."""

    policy: Policy
    names: frozenset[str]
    """The model's names at the server."""
    sampling: Mapping[str, float | None]
    """How the policy's replies are drawn there, by the names of a request's fields; None where the
    server's own settings decide, which are not known here."""
    most_tokens: int
    """Tokens that thinking, closer and visible answer may need."""
    any_text: bool
    """The calibration questions were given as messages, which a policy does not record: no text is
    around them."""

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
    ) -> Coverage:
        """Take from a policy and its plan what a request is held against.

        `sampling` is that of the model's generation settings under the plan.
        """
        most = plan.max_think + closer_tokens + plan.answer_cap
        return cls(policy, frozenset(names), asdict(sampling), most, any_text)

    @classmethod
    def of_ladder(cls, policy: Policy, *, any_text: bool = False) -> Coverage:
        """Take from a policy that climbs what a request is held against: the reference's rung."""
        rung = policy.ladder[-1]
        sampling = dict.fromkeys(_SAMPLING) | {"temperature": rung.temperature}
        most = rung.max_tokens or MOST_TOKENS  # without one calibration cut no reply
        return cls(policy, frozenset({rung.model or ""}), sampling, most, any_text)

    def check(self, body: Mapping[str, Any], *, task: str | None) -> CoveredRequest | NotCovered:
        """Say whether a request is covered; whether it fits the context shows once rendered."""
        reference = self.policy.ladder[-1] if self.policy.ladder else None
        for name, value in body.items():
            if value is None or name in _READ_HERE:
                continue
            if name == "reasoning_effort" and reference and value == reference.reasoning_effort:
                continue
            reason, changes_nothing = _FIELDS.get(name, ("field", _neutral()))
            if not changes_nothing(value):
                return NotCovered(reason)
        options = body.get("stream_options") or {}
        refused = self._refused(body, options)
        if refused is not None:
            return NotCovered(refused)
        own = self.policy.terms.task
        task = task or own
        if task not in TASKS or own not in (task, MIXED_TASKS):
            return NotCovered("task")
        request = self._request(body.get("messages"), task)
        if not isinstance(request, Request):
            return NotCovered(request)
        return CoveredRequest(
            request=request,
            seed=body.get("seed"),
            stream=bool(body.get("stream")),
            include_usage=bool(options.get("include_usage")),
            max_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
        )

    def _refused(self, body: Mapping[str, Any], options: Any) -> Reason | None:
        """Why the fields that are read here are not those of calibration; None where they are."""
        if body.get("model") not in self.names:  # a request without a name is the server's to read
            return "model"
        if not isinstance(body.get("stream") or False, bool) or not isinstance(options, Mapping):
            return "field"
        for name, value in options.items():
            if name not in ("include_usage", "include_obfuscation"):
                return "field"
            if value is not None and type(value) is not bool:
                return "field"
        seed = body.get("seed")
        if seed is not None and type(seed) is not int:
            return "field"
        ladder = self.policy.ladder
        if seed is not None and ladder and self.sampling["temperature"] != 0:
            return "sampling"  # replies of a ladder are drawn without one
        own = ladder[-1].chat_template_kwargs if ladder else self.policy.terms.chat_template_kwargs
        arguments = body.get("chat_template_kwargs")
        if arguments is not None and arguments != dict(own or {}):
            off = isinstance(arguments, Mapping) and arguments.get("enable_thinking") is False
            return "thinking" if off else "template"
        if not self._samples_alike(body):
            return "sampling"
        limits = (body.get("max_tokens"), body.get("max_completion_tokens"))
        for limit in limits:
            if limit is not None and (type(limit) is not int or limit < self.most_tokens):
                return "max-tokens"
        return None

    def _samples_alike(self, body: Mapping[str, Any]) -> bool:
        """Whether the request names no other sampling than the policy's."""
        for name in _SAMPLING:
            value, own = body.get(name), self.sampling[name]
            if value is None or (name == "top_k" and value == -1 and own == 0):
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                return False
            in_range = _OF_CHANCE.get(name)
            if self.sampling["temperature"] == 0 and in_range is not None:
                if not in_range(value):
                    return False
            elif value != own:
                return False
        return True

    def _request(self, messages: Any, task: str) -> Request | Reason:
        """Take the one message of a user, if it is in the form that was calibrated."""
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
        except UnicodeEncodeError:  # half a surrogate pair is no letter
            return "messages"
        (request,) = make_requests([[{"role": "user", "content": text}]], self.policy, task=task)
        template = prompt_templates(self.policy.terms).get(task)
        if template is not None and not self.any_text:
            before, _, after = template.partition("{question}")
            room = len(text) - len(before) - len(after)
            if room <= 0 or not (text.startswith(before) and text.endswith(after)):
                return "template"
        return request
