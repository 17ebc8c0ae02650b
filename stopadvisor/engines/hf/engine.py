"""The transformers engine: prompts in, probed traces out.

Puts rendering, generation and branching together and turns token ids into `RawTrace`.  Knows no
workload, no gold answer and no file; which batches are run is the caller's business.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stopadvisor.engines.answer_end import AnswerStops, ForcedAnswer
from stopadvisor.engines.chat import Chat
from stopadvisor.engines.errors import OutOfMemory
from stopadvisor.engines.hf.branch import Branch, probe_branches
from stopadvisor.engines.hf.runner import Runner
from stopadvisor.engines.hf.sampler import Sampler, Sampling, uniforms
from stopadvisor.engines.hf.size import free_memory, kv_bytes_per_token
from stopadvisor.engines.hf.traces import Finished, Limits, TraceBatch
from stopadvisor.engines.hf.visible import StoppedTrace, visible_answers
from stopadvisor.engines.raw_trace import raw_trace
from stopadvisor.engines.sampling import entropy_top_k, thinking_room
from stopadvisor.probes.plan import Capabilities, Check, ProbePlan, Prompt, RawTrace

__all__ = ["HfEngine", "ran_out_of_memory"]

_LARGEST_BATCH = 64
_ASSUMED_PROMPT = 512


@dataclass
class HfEngine:
    """A loaded model that draws traces and probes them over the cache that they left.

    Made by `load_engine`; implements `probes.Engine`.
    """

    name: str
    """The model's name, or the base name of its folder."""
    runner: Runner = field(repr=False)
    chat: Chat = field(repr=False)
    stop_ids: tuple[int, ...]
    """Ids that end the generation."""
    model_identity: Mapping[str, Any]
    """The part of `identity` that was found while loading."""
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
        value = getattr(_text_config(self.model), "max_position_embeddings", None)
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

    def identity(self) -> dict[str, Any]:
        """Return what decides the outcome, as plain values."""
        return {**self.model_identity, **self.chat.identity(self.stop_ids)}

    def suffix_ids(self, cue: str) -> list[int]:
        """Return the ids that close the thinking and ask for the answer."""
        return self.chat.suffix_ids(cue)

    @property
    def capabilities(self) -> Capabilities:
        """What a model that runs here can do."""
        return Capabilities(vocabulary=self.vocabulary)

    def temperature(self, plan: ProbePlan) -> float:
        """Return the temperature under which this plan's traces are drawn."""
        return self.sampling(plan).temperature

    def prompt_checks(self, prompts: Sequence[Prompt]) -> list[Check]:
        """Check thinking markers and chat template on these prompts."""
        return self.chat.checks(prompts)

    def engine_checks(self, prompt: Prompt, plan: ProbePlan) -> list[Check]:
        """Check nothing further: the model was checked while it was loaded."""
        return []

    def status(self) -> str:
        """Say nothing: how many tokens were drawn says it all."""
        return ""

    def close(self) -> None:
        """Do nothing: the model goes with the engine."""

    def sampling(self, plan: ProbePlan) -> Sampling:
        """Return the settings under which this plan's traces are drawn.

        Raises
        ------
        ModelError
            The model's generation settings ask for something that is not applied here.
        """
        return Sampling.of(self.model.generation_config, plan)

    def auto_batch_size(self, plan: ProbePlan) -> int:
        """Return how many traces fit into memory, if all of them run to the cap.

        The prompt is taken to have 512 tokens, as it is not known yet.  One remark says how the
        number came about.
        """
        suffix = len(self.suffix_ids(plan.cue))
        branches = len(plan.budgets) * (suffix + plan.cap)
        longest = _ASSUMED_PROMPT + plan.max_think + plan.answer_cap + branches
        longest = min(longest, (self.context or longest) + branches)
        per_token = kv_bytes_per_token(_text_config(self.model), self.runner.dtype)
        # A quarter more: buffers grow by that much, and rows that leave are copied.
        cache = int(1.25 * per_token * longest)
        if plan.on_stop == "answer":
            cache *= 2  # visible answers grow on a copy
        # Logits of every checkpoint, in the model's format and as float32 log-probabilities.
        logits = 6 * max(1, len(plan.budgets)) * self.vocabulary
        free = free_memory({p.device for p in self.model.parameters()})
        size = max(1, min(_LARGEST_BATCH, free // (cache + logits)))
        self.remarks.append(
            f"batch size {size}: {(cache + logits) / 1e6:.0f} MB for a trace of up to "
            f"{longest} tokens, {free / 1e9:.1f} GB usable on {self.runner.device.type}"
        )
        return int(size)

    def probe_each(
        self,
        prompts: Sequence[Prompt],
        plan: ProbePlan,
        on_tokens: Callable[[int], None] | None = None,
    ) -> Iterator[tuple[int, RawTrace]]:
        """Do as `probe`; all traces come when the batch is finished."""
        yield from enumerate(self.probe(prompts, plan, on_tokens))

    def probe(
        self,
        prompts: Sequence[Prompt],
        plan: ProbePlan,
        on_tokens: Callable[[int], None] | None = None,
    ) -> list[RawTrace]:
        """Draw one trace per prompt and probe it at every budget; same order as `prompts`.

        Parameters
        ----------
        prompts : sequence of Prompt
            One batch.
        plan : ProbePlan
            Budgets, cue, caps, sampling and seed.
        on_tokens : callable, optional
            Called while traces are drawn with the number of new tokens.

        Returns
        -------
        list of RawTrace

        Raises
        ------
        OutOfMemory
            The batch is too large; fewer prompts at once may fit.
        ModelError
            A prompt or the generation settings do not fit the model.
        EngineError
            The model returned numbers that are not finite.

        Notes
        -----
        Budgets at or beyond the trace's length share one probe, at its end.  With `plan.on_stop`
        ``answer`` every earlier one has a visible answer too.  Thinking that ends
        at an EOS without having been closed is over (``finish="stop"``) and has no natural
        answer.  Where prompt, thinking and answers do not fit the model's context together, the
        thinking is cut earlier than the plan says, and a remark says so.
        """
        if not prompts:
            return []
        try:
            return self._probe(prompts, plan, on_tokens)
        except RuntimeError as error:
            if not ran_out_of_memory(error):
                raise
            # The frames that raised still hold the batch; the next one needs that memory.
            traceback.clear_frames(error.__traceback__)
            reason = str(error).strip().splitlines()[0]
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        raise OutOfMemory(f"a batch of {len(prompts)} does not fit into memory: {reason}")

    def _probe(
        self,
        prompts: Sequence[Prompt],
        plan: ProbePlan,
        on_tokens: Callable[[int], None] | None,
    ) -> list[RawTrace]:
        sampling = self.sampling(plan)
        entropy_top_k(plan.entropy)  # refused before, not after, the traces are drawn
        suffix = self.suffix_ids(plan.cue)
        ids = [self.chat.prompt_ids(prompt.messages) for prompt in prompts]
        limits = self.limits(ids, plan)
        traces: list[RawTrace | None] = [None] * len(prompts)
        with torch.inference_mode():
            streams = (
                uniforms(prompts, plan.seed, limits.steps)
                if sampling.temperature > 0
                else np.empty((len(prompts), 0))
            )
            sampler = Sampler(sampling, ids, streams, self.vocabulary, self.runner.device)
            batch = TraceBatch(self.runner, ids, sampler, limits, self.pad_id)
            for group in batch.finished(on_tokens):
                # Before the forced answers, which use the cache up.
                visible = self._visible_group(group, prompts, ids, plan)
                probed = self._probe_group(group, plan, suffix)
                for i, row in enumerate(group.rows.tolist()):
                    traces[row] = raw_trace(
                        self.stops,
                        plan,
                        prompt_tokens=len(ids[row]),
                        ids=group.ids[i, : group.total_tokens[i]].tolist(),
                        thinking=int(group.trace_tokens[i]),
                        closed=bool(group.closed[i]),
                        cut=bool(group.cut[i]),
                        forced=probed[i],
                        visible=visible[i],
                    )
        return [trace for trace in traces if trace is not None]

    def longest_thinking(self, prompts: Sequence[Prompt], plan: ProbePlan) -> int | None:
        """Return the thinking tokens that the context leaves to each of these prompts.

        None where the model's configuration names no context.

        Raises
        ------
        ModelError
            A prompt leaves no room at all.
        """
        if self.context is None:
            return None
        rendered = [self.chat.prompt_ids(prompt.messages) for prompt in prompts]
        # Whatever the plan's cap is.
        return int(self._max_think(rendered, replace(plan, max_think=self.context)).min())

    def _max_think(self, prompts: list[list[int]], plan: ProbePlan) -> NDArray[np.int64]:
        context, chat = self.context, self.chat
        return np.array([thinking_room(context, len(ids), chat, plan) for ids in prompts])

    def limits(self, prompts: list[list[int]], plan: ProbePlan) -> Limits:
        """Return when each of these prompts' traces is over."""
        max_think = self._max_think(prompts, plan)
        if (max_think < plan.max_think).any():
            self._remark_once(
                f"thinking is cut before {plan.max_think} tokens for some questions: the "
                f"model's context is {self.context} tokens"
            )
        return Limits(self.chat.closer.ids, self.stop_ids, max_think, plan.answer_cap)

    def _remark_once(self, remark: str) -> None:
        if remark not in self.remarks:
            self.remarks.append(remark)

    def _probe_group(
        self, group: Finished, plan: ProbePlan, suffix: list[int]
    ) -> list[dict[int, ForcedAnswer]]:
        """Probe a group's traces; per row, the forced answer at each prefix length."""
        lengths = [
            sorted({min(budget, length) for budget in plan.budgets})
            for length in group.trace_tokens.tolist()
        ]
        branches = [Branch(row, at) for row, places in enumerate(lengths) for at in places]
        answers = probe_branches(
            self.runner,
            group.kept,
            branches,
            suffix,
            self.stops,
            cap=plan.cap,
            entropy=plan.entropy,
            consume=True,
        )
        probed: list[dict[int, ForcedAnswer]] = [{} for _ in lengths]
        for branch, answer in zip(branches, answers, strict=True):
            probed[branch.row][branch.tokens] = answer
        return probed

    def _visible_group(
        self,
        group: Finished,
        prompts: Sequence[Prompt],
        ids: list[list[int]],
        plan: ProbePlan,
    ) -> list[dict[int, list[int]]]:
        """Per row, the visible answer at each budget before the trace's end, where asked for.

        Drawn just as serving with on-stop ``answer`` draws it.  One budget at a time, so that no
        more than one copy of the cache is made.
        """
        written: list[dict[int, list[int]]] = [{} for _ in group.rows]
        for budget in plan.budgets if plan.on_stop == "answer" else ():
            live = np.flatnonzero(group.trace_tokens > budget).tolist()
            asked = []
            for i in live:
                row = int(group.rows[i])
                seen = (*ids[row], *group.ids[i, :budget].tolist())
                asked.append(StoppedTrace(Branch(i, budget), prompts[row], seen, budget))
            if asked:
                answers = visible_answers(self, group.kept, asked, plan)
                for i, answer in zip(live, answers, strict=True):
                    written[i][budget] = answer
        return written


def ran_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch ran out of memory; on a processor it says so in words alone."""
    words = ("not enough memory", "out of memory", "can't allocate memory")
    return isinstance(error, torch.OutOfMemoryError) or any(w in str(error) for w in words)


def _text_config(model: Any) -> Any:
    """Return the configuration of the language part, where a model has several."""
    return model.config.get_text_config(decoder=True)
