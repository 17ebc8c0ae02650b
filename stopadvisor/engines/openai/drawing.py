"""The fields of a request that say how its tokens are drawn.

Knows a plan and the model's own settings; no server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from stopadvisor.engines.sampling import Sampling
from stopadvisor.probes.plan import ProbePlan, Prompt

__all__ = ["GREEDY", "meaningful", "sampling_params"]

GREEDY: Mapping[str, Any] = {
    "temperature": 0.0,
    "top_k": -1,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""All said, as a server would fill in the model's own."""


_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "max_tokens": (None,),
    "temperature": (None,),
    "top_p": (None, 1.0),
    "top_k": (None, -1),
    "min_p": (None, 0.0),
    "repetition_penalty": (None, 1.0),
    "seed": (None,),
}
"""Fields of drawing, with the values under which they change nothing."""


def meaningful(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those fields of drawing that say something.

    Some endpoints refuse what they do not know, as OpenAI's own knows neither ``top_k``, ``min_p``
    nor ``repetition_penalty``.
    """
    return {
        name: options[name]
        for name, neutral in _NEUTRAL.items()
        if name in options and options[name] not in neutral
    }


def sampling_params(sampling: Sampling, plan: ProbePlan, prompt: Prompt, at: int) -> dict[str, Any]:
    """Return the fields that say how a trace is drawn.

    Parameters
    ----------
    sampling : Sampling
        All of it is sent, as a server would fill in the model's own.
    plan : ProbePlan
        Its seed.
    prompt : Prompt
    at : int
        Tokens that were drawn before; a part that continues a trace has a seed of its own.
    """
    fields: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or -1,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
    }
    if fields["temperature"] != 0:
        name = f"{plan.seed}:{prompt.key}:{prompt.sample}:{at}".encode()
        fields["seed"] = int.from_bytes(hashlib.sha256(name).digest()[:4], "big") >> 1
    return fields
