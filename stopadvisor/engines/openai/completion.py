"""An answer of ``/v1/completions``, read strictly: what does not look like one is no answer.

Knows the JSON that servers send; nothing of sending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Completion", "read_completion"]


@dataclass(frozen=True)
class Completion:
    """One answer of ``/v1/completions``."""

    token_ids: tuple[int, ...] | None
    """Decoded tokens, the ending one included where the server counts it; None if not returned."""
    text: str
    """The decoded text as the server gives it."""
    logprobs: tuple[float, ...] | None
    """Log-probability (nats) of each decoded token; None if not asked or not returned."""
    top_logprobs: tuple[tuple[float, ...], ...] | None
    """Per token, log-probabilities of the likeliest tokens, highest first."""
    finish_reason: str
    """``stop`` or ``length``."""
    prompt_tokens: int
    decoded_tokens: int
    cached_tokens: int | None
    """Prompt tokens that the server took from its cache; None where it does not say."""
    seconds: float
    """Wall-clock of the attempt that succeeded."""


def read_completion(data: Mapping[str, Any], seconds: float) -> Completion:
    """Read an answer that took `seconds`.

    Raises
    ------
    KeyError, TypeError, ValueError, IndexError, AttributeError
        It does not look like one, or the server gave it up halfway, as some do when they are shut
        down; the client asks again.
    """
    choice, usage = data["choices"][0], data.get("usage") or {}
    given = choice.get("logprobs") or {}
    finish = choice["finish_reason"]
    if finish not in ("stop", "length"):
        raise ValueError(f"finish_reason must be 'stop' or 'length', got {finish!r}")
    ids = choice.get("token_ids")
    if ids is None:
        ids = _ids_of_names(given.get("tokens"))
    logprobs, top = given.get("token_logprobs"), given.get("top_logprobs")
    details = usage.get("prompt_tokens_details") or {}
    return Completion(
        token_ids=None if ids is None else tuple(int(i) for i in ids),
        text=str(choice["text"]),
        logprobs=None if logprobs is None else tuple(float(x) for x in logprobs),
        top_logprobs=(
            None
            if top is None
            else tuple(tuple(sorted(map(float, t.values()), reverse=True)) for t in top)
        ),
        finish_reason=finish,
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        decoded_tokens=int(usage.get("completion_tokens") or (len(ids) if ids else 0)),
        cached_tokens=details.get("cached_tokens"),
        seconds=seconds,
    )


def _ids_of_names(tokens: Sequence[str] | None) -> list[int] | None:
    """Read ids out of ``token_id:N``, as ``return_tokens_as_token_ids`` names tokens."""
    prefix = "token_id:"
    if not tokens or not all(token.startswith(prefix) for token in tokens):
        return None
    return [int(token[len(prefix) :]) for token in tokens]
