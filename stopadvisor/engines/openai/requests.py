"""The sampling fields of a request to a served model.

Knows no server, no tokenizer and no answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from stopadvisor.engines.sampling import Sampling
from stopadvisor.probes.plan import ProbePlan, Prompt

__all__ = ["GREEDY", "sampling_params"]

GREEDY: Mapping[str, Any] = {
    "temperature": 0.0,
    "top_k": -1,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""All said, as a server would fill in the model's own."""


def sampling_params(sampling: Sampling, plan: ProbePlan, prompt: Prompt, at: int) -> dict[str, Any]:
    """Return the fields that say how a trace is drawn: all, or a server fills in the model's own.

    A part that continues a trace, after `at` tokens, has a seed of its own.
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
