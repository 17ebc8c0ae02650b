"""Sampling settings from a plan and a model's generation settings, the same for every engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from stopadvisor.engines.chat import Chat
from stopadvisor.ground.errors import ModelError, ProbeError
from stopadvisor.probes.asking import ProbePlan

__all__ = ["Sampling", "entropy_top_k", "identity_settings", "thinking_room"]

_IDENTITY = ("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Generation settings that belong to an engine's identity."""

_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "num_beams": (None, 1),
    "typical_p": (None, 1, 1.0),
    "top_h": (None,),
    "epsilon_cutoff": (None, 0, 0.0),
    "eta_cutoff": (None, 0, 0.0),
    "no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1, 1.0),
    "bad_words_ids": (None,),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "sequence_bias": (None,),
    "exponential_decay_length_penalty": (None,),
    "guidance_scale": (None, 1, 1.0),
    "penalty_alpha": (None, 0, 0.0),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "stop_strings": (None, []),
    "watermarking_config": (None,),
}
"""Generation settings that change sampling but are not implemented here, each with the values that
turn it off."""


@dataclass(frozen=True)
class Sampling:
    """How the next token of a trace is sampled."""

    temperature: float
    """0 is greedy."""
    top_k: int = 0
    """Sample among the k likeliest tokens; 0 for all."""
    top_p: float = 1.0
    """Sample among the likeliest tokens that together have this probability."""
    min_p: float = 0.0
    """Sample among tokens with at least this share of the highest probability."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens already in the sequence."""

    @classmethod
    def of_server(cls, defaults: Mapping[str, Any]) -> Sampling:
        """Read a server's default sampling parameters.

        A missing temperature is 1, as in vLLM and OpenAI's API (transformers would be greedy).
        """
        return cls(
            temperature=float(defaults.get("temperature", 1.0)),
            top_k=max(0, int(defaults.get("top_k", 0))),
            top_p=float(defaults.get("top_p", 1.0)),
            min_p=float(defaults.get("min_p", 0.0)),
            repetition_penalty=float(defaults.get("repetition_penalty", 1.0)),
        )

    def changes_from(self, other: Sampling) -> dict[str, float]:
        """Return the settings that make this sample differently from `other`.

        If both are greedy, only the repetition penalty does.
        """
        mine, theirs = asdict(self), asdict(other)
        greedy = self.temperature == other.temperature == 0
        matter = ("repetition_penalty",) if greedy else tuple(mine)
        return {name: mine[name] for name in matter if mine[name] != theirs[name]}

    @classmethod
    def of(cls, generation_config: Any, plan: ProbePlan) -> Sampling:
        """Read a model's generation settings; those of the plan take precedence.

        A setting that the model does not name is off, as at servers (transformers' ``generate``
        would use top-k 50).  Raise `ModelError` for a setting not implemented here.
        """
        if plan.greedy:
            return cls(temperature=0.0)
        for name, neutral in _UNSUPPORTED.items():
            value = getattr(generation_config, name, None)
            if value not in neutral:
                raise ModelError(
                    f"the model's generation settings ask for {name}={value!r}, which is not "
                    "applied here; use --temperature 0"
                )

        def setting(name: str, default: float) -> float:
            value = getattr(generation_config, name, None)
            return default if value is None else float(value)

        temperature = plan.temperature
        if temperature is None:
            drawn = bool(getattr(generation_config, "do_sample", False))
            temperature = setting("temperature", 1.0) if drawn else 0.0
        return cls(
            temperature=temperature,
            top_k=int(setting("top_k", 0)),
            top_p=setting("top_p", 1.0),
            min_p=setting("min_p", 0.0),
            repetition_penalty=setting("repetition_penalty", 1.0),
        )


def thinking_room(context: int | None, prompt_tokens: int, chat: Chat, plan: ProbePlan) -> int:
    """Return the plan's cap on thinking, or less if the model's context leaves less room."""
    if context is None:
        return plan.max_think
    probe = len(chat.suffix_ids(plan.cue)) + plan.cap
    after = max(len(chat.closer.ids) + plan.answer_cap, probe)
    room = context - prompt_tokens - after
    if room < 1:
        raise ModelError(
            f"a prompt of {prompt_tokens} tokens leaves no room for thinking: prompt, thinking "
            f"and an answer of {after} tokens must fit the context of {context} tokens"
        )
    return min(room, plan.max_think)


def identity_settings(generation_config: Any) -> dict[str, Any]:
    """Return the generation settings that belong to an engine's identity."""
    return {name: getattr(generation_config, name, None) for name in _IDENTITY}


def entropy_top_k(entropy: str) -> int | None:
    """Parse ``full`` (None) or ``top-k:K``."""
    if entropy == "full":
        return None
    kind, _, k = entropy.partition(":")
    if kind == "top-k" and k.isdecimal() and int(k) > 0:
        return int(k)
    raise ProbeError(f"entropy must be 'full' or 'top-k:K' with K >= 1, got {entropy!r}")
