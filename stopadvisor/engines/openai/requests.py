"""What a served model is asked: a prefix of token ids, sampling fields, and through which backend.

A client of ``/v1/completions`` is a `Backend` as it stands; `chat_backend` makes one of a chat.
Knows no server, no tokenizer and no answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, overload

from stopadvisor.engines.http.completion import Completion
from stopadvisor.engines.sampling import Sampling
from stopadvisor.probes.plan import ProbePlan, Prompt

__all__ = ["GREEDY", "Backend", "Kind", "Prefix", "RequestUsage", "meaningful", "sampling_params"]

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

Kind = Literal["trace", "probe", "answer"]


@dataclass(frozen=True)
class RequestUsage:
    """One request that was answered, as the serving regime is measured from it."""

    kind: Kind
    budget: int
    """Thinking tokens in its prompt."""
    prompt_tokens: int
    cached_tokens: int | None
    """None where the server does not say."""


class Backend(Protocol):
    """Continues token ids; `Client.complete` says what the parameters are."""

    @property
    def urls(self) -> tuple[str, ...]:
        """Base URLs of the servers."""
        ...

    @property
    def chat_form(self) -> str | None:
        """How a chat is asked to answer behind given reasoning; None where token ids are sent."""
        ...

    def assign_replica(self) -> int:
        """Give a question its server."""
        ...

    @property
    def complete(self) -> Callable[..., Awaitable[Completion]]:
        """Continues token ids; the `token_ids` of the answer are there."""
        ...

    @property
    def stream(self) -> Callable[..., Awaitable[Completion]]:
        """Does so and hands each token on as it comes; see `Client.stream`."""
        ...


@dataclass(frozen=True)
class Prefix(Sequence[int]):
    """A prompt, the thinking behind it, and what stands behind the thinking."""

    messages: tuple[Mapping[str, str], ...]
    """The conversation that was rendered."""
    prompt_ids: tuple[int, ...]
    """Thinking opened."""
    thinking: tuple[int, ...] = ()
    """Drawn behind the prompt; of a trace that is past its closer, all that was drawn."""
    after: tuple[int, ...] = ()
    """Closer, cue and what was answered so far; nothing while it thinks."""
    _ids: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ids", (*self.prompt_ids, *self.thinking, *self.after))

    @classmethod
    def of(
        cls, prompt: Sequence[int], thinking: Sequence[int] = (), after: Sequence[int] = ()
    ) -> Prefix:
        """Put thinking and what follows behind a prompt; plain ids belong to no conversation."""
        if isinstance(prompt, Prefix):
            return cls(prompt.messages, prompt.prompt_ids, tuple(thinking), tuple(after))
        return cls((), tuple(prompt), tuple(thinking), tuple(after))

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[int]: ...
    def __getitem__(self, at: int | slice) -> int | Sequence[int]:
        return self._ids[at]


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
    """Return the fields that say how a trace is drawn: all, or a server fills in the model's own.

    A part that continues a trace, behind `at` tokens, has a seed of its own.
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
