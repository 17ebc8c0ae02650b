"""A model in this process, its memory, and batches of traces generated token by token.

Between two steps the cache holds exactly the prompts and the tokens after them, so probes can
branch off anywhere.  Finished rows move to the end at once, and leave the batch when they are half
of it, along with their cache if they will be probed.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stopadvisor.engines.answer_end import AnswerStops
from stopadvisor.engines.chat import Chat
from stopadvisor.engines.errors import OutOfMemory, first_line
from stopadvisor.engines.hf.branch import Branch, Grid
from stopadvisor.engines.hf.cache import KeptCache, Runner, additive
from stopadvisor.engines.hf.sampler import Sampler, uniforms
from stopadvisor.engines.hf.size import host_memory
from stopadvisor.engines.sampling import Sampling, thinking_room
from stopadvisor.engines.trace import Trace, TraceEnd
from stopadvisor.probes.asking import ProbePlan, Prompt

__all__ = [
    "Finished",
    "LocalModel",
    "RollingBatch",
    "batch_memory",
    "free_memory",
    "kv_bytes_per_token",
    "within_memory",
]

_Result = TypeVar("_Result")

_SMALLEST_SPLIT = 8
"""Smaller batches are not split when half of their rows are finished: it copies the cache."""
_FEWEST_ROWS = 16
"""Rows that go on together, finished or not: matrix kernels round differently for fewer, and a
trace must not depend on when others finish."""
_USABLE = {"cuda": 0.85, "mps": 0.6, "cpu": 0.5}
"""Share of the free memory that a batch may use; the rest is workspace."""


@dataclass
class LocalModel:
    """A loaded model and its chat template."""

    name: str
    """The model's name, or the base name of its folder."""
    runner: Runner = field(repr=False)
    chat: Chat = field(repr=False)
    stop_ids: tuple[int, ...]
    """Token ids that end a generation."""
    model_identity: Mapping[str, Any]
    """The part of `Engine.identity` known after loading."""
    remarks: list[str] = field(default_factory=list)
    """Notes for the user, one line each."""

    @property
    def model(self) -> Any:
        """The transformers model."""
        return self.runner.model

    @property
    def text_config(self) -> Any:
        """Configuration of the language model, also inside a multimodal one."""
        return self.model.config.get_text_config(decoder=True)

    @property
    def context(self) -> int | None:
        """Longest sequence; None if the configuration does not say."""
        value = getattr(self.text_config, "max_position_embeddings", None)
        return int(value) if value else None

    @property
    def vocabulary(self) -> int:
        """Width of the logits."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def pad_id(self) -> int:
        """Token id that pads shorter prompts."""
        return int(self.chat.tokenizer.pad_token_id or 0)

    @cached_property
    def stops(self) -> AnswerStops:
        """The rules that end a forced answer."""
        return AnswerStops.of(self.chat, self.stop_ids, self.vocabulary)

    def sampling(self, plan: ProbePlan) -> Sampling:
        """Return this plan's sampling settings; raises as `Sampling.of`."""
        return Sampling.of(self.model.generation_config, plan)

    def begin(self, prompts: Sequence[Prompt], plan: ProbePlan) -> list[Trace]:
        """Return empty traces; add a remark if the context cuts their thinking."""
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
        """Prefill the prompts of traces that are generated together."""
        begun = [(trace, trace.prompt_ids, 0) for trace in traces]
        sampler = self._sampler(begun, max(trace.end.most for trace in traces))
        return RollingBatch(self.runner, traces, sampler, self.pad_id)

    def write(
        self, kept: KeptCache, traces: Sequence[Trace], branches: Sequence[Branch]
    ) -> list[list[int]]:
        """Close the thinking on each branch and sample a visible answer; `kept` is unchanged.

        Traces and branches must be in the order of the cache's rows, with at most one branch per
        row.  Returns token ids, including the ending one.
        """
        closer, cap = self.chat.closer.ids, traces[0].plan.answer_cap
        begun = []
        for branch in branches:
            trace = traces[branch.row]
            seen = [*trace.prompt_ids, *trace.ids[: branch.tokens], *closer]
            begun.append((trace, seen, branch.tokens + len(closer)))
        sampler = self._sampler(begun, cap)
        grid = Grid(self.runner, kept, branches, len(closer), cap, consume=False)
        logits = grid.open(closer)
        answers: list[list[int]] = [[] for _ in branches]
        for step in range(cap):
            tokens = sampler.draw(logits[:, 0], step)
            for answer, token in zip(answers, tokens.tolist(), strict=True):
                if not (answer and answer[-1] in self.stop_ids):
                    answer.append(token)
            if step == cap - 1 or all(answer[-1] in self.stop_ids for answer in answers):
                break
            logits = grid.extend(tokens[:, None])
        return answers

    def _sampler(self, begun: Sequence[tuple[Trace, Sequence[int], int]], steps: int) -> Sampler:
        """Return a sampler that continues each (trace, ids so far, number generated)."""
        plan = begun[0][0].plan
        sampling, streams = self.sampling(plan), np.empty((len(begun), 0))
        if sampling.temperature > 0:
            drawn = [at for _, _, at in begun]
            whole = uniforms([trace.prompt for trace, _, _ in begun], plan.seed, max(drawn) + steps)
            streams = np.stack([row[at : at + steps] for row, at in zip(whole, drawn, strict=True)])
        ids = [seen for _, seen, _ in begun]
        return Sampler(sampling, ids, streams, self.vocabulary, self.runner.device)


@dataclass(frozen=True)
class Finished:
    """Finished traces and the cache rows that hold them."""

    traces: list[Trace]
    kept: KeptCache


class RollingBatch:
    """Traces that are generated together, one token per step."""

    def __init__(
        self, runner: Runner, traces: Sequence[Trace], sampler: Sampler, pad_id: int
    ) -> None:
        self._runner = runner
        self._sampler = sampler
        self.traces = list(traces)
        """By row."""
        self._n_active = len(self.traces)  # the first rows, which take part in the next step
        self.steps = 0
        """Number of tokens generated after each prompt."""
        kept, self._logits = runner.prefill([t.prompt_ids for t in traces], pad_id)
        self._keep(kept)

    def _keep(self, kept: KeptCache) -> None:
        self.kept = kept
        """The current cache, for probes between two steps."""
        # Kernels run faster without a mask.
        self._is_masked = self._runner.window is not None or bool(kept.pads.any())

    @property
    def unfinished(self) -> int:
        """Number of unfinished rows."""
        return sum(not trace.end.over for trace in self.traces[: self._n_active])

    def is_split_worthwhile(self) -> bool:
        """Whether enough rows are finished for copying the rest to pay off."""
        rows = len(self.traces)
        return rows >= _SMALLEST_SPLIT and 2 * self.unfinished <= rows

    def step(self) -> None:
        """Generate a token in each unfinished row."""
        self._logits = self._set_aside(self._logits)
        tokens = self._sampler.draw(self._logits, self.steps)
        for trace, token in zip(self.traces[: self._n_active], tokens.tolist(), strict=True):
            if not trace.end.over:
                trace.ids.append(token)
                trace.end.see(trace.ids)
        self.steps += 1
        tokens = self._set_aside(tokens)
        if not self.unfinished:
            return  # the next logits are never used
        kept = self.kept
        places = torch.arange(kept.columns + 1, device=kept.pads.device)
        key_positions = places[None, :] - kept.pads[: self._n_active, None]
        mask = additive(key_positions >= 0, self._runner.dtype)[:, None]
        logits = self._runner.forward(
            tokens[:, None],
            key_positions[:, -1:],
            kept,
            mask if self._is_masked else None,
            key_positions,
        )
        self._logits = logits[:, -1]

    def finished(self, on_tokens: Callable[[int], None] | None = None) -> Iterator[Finished]:
        """Generate to the end; yield rows and their cache as they leave the batch.

        `on_tokens` is called after each step with the number of unfinished rows.
        """
        while self.traces:
            if live := self.unfinished:
                self.step()
                if on_tokens is not None:
                    on_tokens(live)
            if not self.unfinished or self.is_split_worthwhile():
                yield self._remove_finished()

    def _set_aside(self, of_rows: Tensor) -> Tensor:
        """Move finished rows to the end; return `of_rows` for those that go on."""
        over = np.array([t.end.over for t in self.traces[: self._n_active]], dtype=np.bool_)
        going = max(int((~over).sum()), min(len(over), _FEWEST_ROWS))
        if going == len(over):
            return of_rows
        gaps, fillers = np.flatnonzero(over[:going]), going + np.flatnonzero(~over[going:])
        gaps = gaps[: len(fillers)]  # the other finished rows there stay
        order = np.arange(len(over))
        order[gaps], order[fillers] = fillers, gaps
        self.traces[: len(over)] = [self.traces[row] for row in order.tolist()]
        self.kept.swap(gaps, fillers)
        self._n_active = going
        self._sampler.keep(order[:going])
        return of_rows[torch.from_numpy(order[:going]).to(of_rows.device)]

    def _remove_finished(self) -> Finished:
        """Remove finished rows, keeping the columns that their probes need."""
        over, kept = self._over(), self.kept
        gone = [trace for trace in self.traces if trace.end.over]
        stop = kept.start + max(trace.end.thinking for trace in gone)
        if over.all():
            self.traces, self._n_active = [], 0
            self._keep(KeptCache(kept.pads[:0], 0))  # hold no memory
            return Finished(gone, kept.fork(stop))
        staying = np.flatnonzero(~over)
        taken, rest = kept.split((np.flatnonzero(over), stop), (staying, kept.columns))
        self._continue_with(staying, rest)
        return Finished(gone, taken)

    def drop(self) -> None:
        """Drop finished rows and their cache; at least one row must stay."""
        staying = np.flatnonzero(~self._over())
        (rest,) = self.kept.split((staying, self.kept.columns))
        self._continue_with(staying, rest)

    def _over(self) -> NDArray[np.bool_]:
        return np.array([trace.end.over for trace in self.traces], dtype=np.bool_)

    def _continue_with(self, staying: NDArray[np.int64], kept: KeptCache) -> None:
        self.traces, self._n_active = [self.traces[row] for row in staying.tolist()], len(staying)
        self._logits = self._logits[torch.from_numpy(staying).to(self._logits.device)]
        self._keep(kept)
        self._sampler.keep(staying)


# --- Memory --------------------------------------------------------------------------------------


def free_memory(device: torch.device) -> int:
    """Return the free bytes of this device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return host_memory()


def batch_memory(device: torch.device) -> int:
    """Return the bytes that a batch may use; the rest is workspace."""
    return int(free_memory(device) * _USABLE.get(device.type, 0.5))


def kv_bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    """Return the KV cache's bytes per token, over all layers."""
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    return 2 * int(config.num_hidden_layers) * kv_heads * dim * dtype.itemsize


def within_memory(work: Callable[[], _Result], give_up: Callable[[], str]) -> _Result:
    """Call `work`; raise `OutOfMemory` if torch runs out of memory.

    `give_up` then frees the memory of the work and describes what did not fit.
    """
    try:
        return work()
    except RuntimeError as error:
        # On a CPU only the message shows it.
        words = ("not enough memory", "out of memory", "can't allocate memory")
        if not (isinstance(error, torch.OutOfMemoryError) or any(w in str(error) for w in words)):
            raise
        # The frames of the traceback still hold tensors, and the next attempt needs their memory.
        traceback.clear_frames(error.__traceback__)
        reason = first_line(error)
    what = give_up()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    raise OutOfMemory(f"{what} not fit into memory: {reason}")
