"""A model in this process, ready to draw traces: its tokenizer, its limits and its settings.

Knows no probes, no policy and no batch size.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from stopadvisor.engines.answer_end import AnswerStops
from stopadvisor.engines.chat import Chat
from stopadvisor.engines.errors import OutOfMemory, first_line
from stopadvisor.engines.hf.rolling import Limits, RollingBatch
from stopadvisor.engines.hf.runner import Runner
from stopadvisor.engines.hf.sampler import Sampler, uniforms
from stopadvisor.engines.sampling import Sampling, thinking_room
from stopadvisor.probes.asking import ProbePlan, Prompt

__all__ = ["LocalModel", "within_memory"]

_Result = TypeVar("_Result")


@dataclass
class LocalModel:
    """What drawing a trace takes, except the prompt."""

    name: str
    """The model's name, or the base name of its folder."""
    runner: Runner = field(repr=False)
    chat: Chat = field(repr=False)
    stop_ids: tuple[int, ...]
    """Ids that end the generation."""
    model_identity: Mapping[str, Any]
    """The part of `Engine.identity` that was found while loading."""
    remarks: list[str] = field(default_factory=list)
    """What the user should know, one line each, in the order it came up."""

    @property
    def model(self) -> Any:
        """The transformers model."""
        return self.runner.model

    @property
    def tokenizer(self) -> Any:
        """The transformers tokenizer."""
        return self.chat.tokenizer

    @property
    def context(self) -> int | None:
        """Most tokens a sequence may have, where the model's configuration says so."""
        value = getattr(self.text_config, "max_position_embeddings", None)
        return int(value) if value else None

    @cached_property
    def stops(self) -> AnswerStops:
        """The ending rule of forced answers."""
        return AnswerStops.of(self.chat, self.stop_ids, self.vocabulary)

    @property
    def vocabulary(self) -> int:
        """Tokens that the model's distribution is over."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def pad_id(self) -> int:
        """Fills the left of shorter prompts."""
        pad = self.tokenizer.pad_token_id
        return 0 if pad is None else int(pad)

    @property
    def text_config(self) -> Any:
        """The configuration of the language part, where a model has several."""
        return self.model.config.get_text_config(decoder=True)

    def sampling(self, plan: ProbePlan) -> Sampling:
        """Return how this plan's traces are drawn, or refuse as `Sampling.of`."""
        return Sampling.of(self.model.generation_config, plan)

    def max_think(self, prompts: list[list[int]], plan: ProbePlan) -> NDArray[np.int64]:
        """Return the plan's cap on thinking for each prompt, or less where the context is short."""
        context, chat = self.context, self.chat
        return np.array([thinking_room(context, len(ids), chat, plan) for ids in prompts])

    def limits(self, prompts: list[list[int]], plan: ProbePlan) -> Limits:
        """Return when each of these prompts' traces is over."""
        max_think = self.max_think(prompts, plan)
        if (max_think < plan.max_think).any():
            self.remark_once(
                f"thinking is cut before {plan.max_think} tokens for some questions: the "
                f"model's context is {self.context} tokens"
            )
        return Limits(self.chat.closer.ids, self.stop_ids, max_think, plan.answer_cap)

    def batch(
        self, prompts: Sequence[Prompt], ids: list[list[int]], limits: Limits, plan: ProbePlan
    ) -> RollingBatch:
        """Begin to draw a trace of each prompt, whose tokens are `ids`."""
        sampling = self.sampling(plan)
        streams = (
            uniforms(prompts, plan.seed, limits.steps)
            if sampling.temperature > 0
            else np.empty((len(prompts), 0))
        )
        sampler = Sampler(sampling, ids, streams, self.vocabulary, self.runner.device)
        return RollingBatch(self.runner, ids, sampler, limits, self.pad_id)

    def remark_once(self, remark: str) -> None:
        """Add a remark, unless it was made before."""
        if remark not in self.remarks:
            self.remarks.append(remark)


def within_memory(work: Callable[[], _Result], give_up: Callable[[], str]) -> _Result:
    """Do some work; what torch raises when memory runs out becomes `OutOfMemory`.

    `give_up` then frees what the work held, and says what did not fit.
    """
    try:
        return work()
    except RuntimeError as error:
        # On a processor torch says it in words alone.
        words = ("not enough memory", "out of memory", "can't allocate memory")
        if not (isinstance(error, torch.OutOfMemoryError) or any(w in str(error) for w in words)):
            raise
        # The frames that raised still hold tensors; whoever tries again needs that memory.
        traceback.clear_frames(error.__traceback__)
        reason = first_line(error)
    what = give_up()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    raise OutOfMemory(f"{what} not fit into memory: {reason}")
