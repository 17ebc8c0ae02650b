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

from stopadvisor.engines.answer_end import AnswerStops
from stopadvisor.engines.chat import Chat
from stopadvisor.engines.errors import OutOfMemory, first_line
from stopadvisor.engines.hf.branch import Branch, write_on_branches
from stopadvisor.engines.hf.cache import Kept
from stopadvisor.engines.hf.rolling import RollingBatch
from stopadvisor.engines.hf.runner import Runner
from stopadvisor.engines.hf.sampler import Sampler, uniforms
from stopadvisor.engines.sampling import Sampling, thinking_room
from stopadvisor.engines.trace import Trace, TraceEnd
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
    def text_config(self) -> Any:
        """The configuration of the language part, where a model has several."""
        return self.model.config.get_text_config(decoder=True)

    @property
    def context(self) -> int | None:
        """Most tokens a sequence may have, where the model's configuration says so."""
        value = getattr(self.text_config, "max_position_embeddings", None)
        return int(value) if value else None

    @property
    def vocabulary(self) -> int:
        """Tokens that the model's distribution is over."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def pad_id(self) -> int:
        """Fills the left of shorter prompts."""
        return int(self.chat.tokenizer.pad_token_id or 0)

    @cached_property
    def stops(self) -> AnswerStops:
        """The ending rule of forced answers."""
        return AnswerStops.of(self.chat, self.stop_ids, self.vocabulary)

    def sampling(self, plan: ProbePlan) -> Sampling:
        """Return how this plan's traces are drawn, or refuse as `Sampling.of`."""
        return Sampling.of(self.model.generation_config, plan)

    def begin(self, prompts: Sequence[Prompt], plan: ProbePlan) -> list[Trace]:
        """Return traces of which nothing is drawn yet, each with the room that the context leaves.

        A remark says so where that is less than the plan's cap on thinking.
        """
        traces = []
        for prompt in prompts:
            ids = self.chat.prompt_ids(prompt.messages)
            room = thinking_room(self.context, len(ids), self.chat, plan)
            end = TraceEnd(self.chat.closer.ids, self.stop_ids, room, plan.answer_cap)
            traces.append(Trace(ids, prompt, plan, None, end))
        remark = (
            f"thinking is cut before {plan.max_think} tokens for some questions: the model's "
            f"context is {self.context} tokens"
        )
        if any(t.end.max_think < plan.max_think for t in traces) and remark not in self.remarks:
            self.remarks.append(remark)
        return traces

    def batch(self, traces: Sequence[Trace]) -> RollingBatch:
        """Read the prompts, to draw all these traces together."""
        begun = [(trace, trace.prompt_ids, 0) for trace in traces]
        sampler = self._sampler(begun, max(trace.end.most for trace in traces))
        return RollingBatch(self.runner, traces, sampler, self.pad_id)

    def write(
        self, kept: Kept, traces: Sequence[Trace], branches: Sequence[Branch]
    ) -> list[list[int]]:
        """Close the thinking on each branch, whose rows rise, and draw a visible answer after it.

        `traces` are by row of `kept`, which stays as it was.
        """
        closer, plan = self.chat.closer.ids, traces[0].plan
        begun = []
        for branch in branches:
            trace = traces[branch.row]
            seen = [*trace.prompt_ids, *trace.ids[: branch.tokens], *closer]
            begun.append((trace, seen, branch.tokens + len(closer)))
        sampler = self._sampler(begun, plan.answer_cap)
        stop_ids, cap = self.stop_ids, plan.answer_cap
        return write_on_branches(
            self.runner, kept, branches, closer, sampler, stop_ids=stop_ids, cap=cap
        )

    def _sampler(self, begun: Sequence[tuple[Trace, Sequence[int], int]], steps: int) -> Sampler:
        """Draw on with each trace's own stream: its ids so far, and how many of them were drawn."""
        plan = begun[0][0].plan
        sampling, streams = self.sampling(plan), np.empty((len(begun), 0))
        if sampling.temperature > 0:
            drawn = [at for _, _, at in begun]
            whole = uniforms([trace.prompt for trace, _, _ in begun], plan.seed, max(drawn) + steps)
            streams = np.stack([row[at : at + steps] for row, at in zip(whole, drawn, strict=True)])
        ids = [seen for _, seen, _ in begun]
        return Sampler(sampling, ids, streams, self.vocabulary, self.runner.device)


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
