"""The engine over transformers: takes a batch of prompts, returns probed traces."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import torch

from stopadvisor.engines.answer_end import ForcedAnswer
from stopadvisor.engines.chat import ChatEngine
from stopadvisor.engines.hf.branch import MOST_AT_ONCE, Branch, probe_in_chunks
from stopadvisor.engines.hf.early_exit import serve_requests
from stopadvisor.engines.hf.local_model import (
    Finished,
    LocalModel,
    batch_memory,
    kv_bytes_per_token,
    within_memory,
)
from stopadvisor.engines.sampling import entropy_top_k, thinking_room
from stopadvisor.engines.trace import Trace, raw_trace, read_recorded
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import Reply, Request, policy_plan
from stopadvisor.policy.session import Rule
from stopadvisor.probes.asking import Capabilities, Check, ProbePlan, Prompt, RawTrace
from stopadvisor.probes.trigger import TracePositions, trace_positions

__all__ = ["HfEngine"]

_LARGEST_BATCH = 1024
"""Larger batches save little, and an interrupted batch is generated again."""
_ASSUMED_PROMPT = 512


class HfEngine(LocalModel, ChatEngine):
    """A loaded model that generates traces and probes them over their kept cache.

    Made by `load_engine`.  Implements `probes.asking.Engine` and
    `serving.answering.AnsweringEngine`, which document the methods.
    """

    def identity(self) -> dict[str, Any]:
        """Return all settings that determine the outcome, as plain values."""
        return {**self.model_identity, **self.chat.identity(self.stop_ids)}

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of a local model: everything."""
        return Capabilities()

    def temperature(self, plan: ProbePlan) -> float:
        """Return the sampling temperature of this plan's traces."""
        return self.sampling(plan).temperature

    def engine_checks(self, prompt: Prompt, plan: ProbePlan) -> list[Check]:
        """Return no further checks: loading has checked the model."""
        return []

    def close(self) -> None:
        """Do nothing: the model is freed with the engine."""

    def auto_batch_size(self, plan: ProbePlan) -> int:
        """Return how many traces with 512-token prompts fit into memory, and add a remark."""
        suffix = len(self.suffix_ids(plan.cue))
        # Outside a grid, a trace may have any number of probes.
        is_grid = plan.schedule == "grid"
        probes = min(len(plan.budgets), MOST_AT_ONCE) if is_grid else MOST_AT_ONCE
        branches = probes * (suffix + plan.cap)
        longest = _ASSUMED_PROMPT + plan.max_think + plan.answer_cap + branches
        longest = min(longest, (self.context or longest) + branches)
        per_token = kv_bytes_per_token(self.text_config, self.runner.dtype)
        # A quarter more: buffers grow by that much, and finished rows are copied.
        cache = int(1.25 * per_token * longest)
        if plan.on_stop == "answer":
            cache *= 2  # visible answers grow on a copy
        # Logits of every probe, in the model's format and as float32 log-probabilities.
        logits = 6 * max(1, probes) * self.vocabulary
        free = batch_memory(self.runner.device)
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
        """Generate one trace per prompt and probe it where the plan says; yield them as they end.

        Budgets at or beyond the trace's length share one probe, at its end.  With `plan.on_stop`
        ``answer`` every earlier one gets a visible answer too.  Thinking that ends at an EOS
        without a closer is complete (``finish="stop"``) but has no natural answer.  If prompt,
        thinking and answers exceed the model's context, thinking is cut earlier and a remark says
        so.  Raises `OutOfMemory` if the batch does not fit; fewer prompts may.
        """
        entropy_top_k(plan.entropy)  # fails before the traces are generated
        if not prompts:
            return
        traces = self.begin(prompts, plan)
        numbers = {trace: number for number, trace in enumerate(traces)}
        groups = self._groups(traces, on_tokens)

        @torch.inference_mode()
        def next_group() -> dict[int, RawTrace]:
            group = next(groups, None)
            if group is None:
                return {}
            positions = [
                trace_positions(plan, trace.ids[: trace.end.thinking]) for trace in group.traces
            ]
            # Before the forced answers, which destroy the cache.
            visible = self._visible_group(group, plan, positions)
            probed = self._probe_group(group, plan, positions)
            return {
                numbers[trace]: raw_trace(
                    self.stops, trace, positions[row], probed[row], visible[row]
                )
                for row, trace in enumerate(group.traces)
            }

        def give_up() -> str:
            groups.close()
            return f"a batch of {len(prompts)} does"

        while probed := within_memory(next_group, give_up):
            yield from probed.items()

    def _groups(
        self, traces: list[Trace], on_tokens: Callable[[int], None] | None
    ) -> Generator[Finished]:
        """Yield groups of traces as they finish, or all recorded ones after one prefill."""
        if traces[0].prompt.recorded is None:  # all have a recorded trace, or none
            yield from self.batch(traces).finished(on_tokens)
            return
        for trace in traces:
            read_recorded(self.chat, trace)
        thinking = [trace.ids[: trace.end.thinking] for trace in traces]
        kept, _ = self.runner.prefill([t.prompt_ids for t in traces], self.pad_id, thinking)
        yield Finished(traces, kept)

    def longest_thinking(self, prompts: Sequence[Prompt], plan: ProbePlan) -> int:
        """Return how many thinking tokens every prompt has room for, at most the plan's cap."""
        longest = max(len(self.chat.prompt_ids(prompt.messages)) for prompt in prompts)
        return thinking_room(self.context, longest, self.chat, plan)

    # --- Answering with a policy ---

    def policy_plan(self, policy: Policy, *, answer_cap: int | None = None) -> ProbePlan:
        """Return the policy's plan."""
        return policy_plan(policy, answer_cap=answer_cap)

    def entropy_for(self, policy: Policy) -> str:
        """Return the policy's own entropy source; every source is available here."""
        return policy.terms.entropy_source

    def serve(
        self,
        requests: Sequence[Request],
        plan: ProbePlan,
        rule: Rule | None,
        *,
        batch_size: int | None = None,
    ) -> Iterator[tuple[int, Reply]]:
        """Answer requests in batches; raises `OutOfMemory` if one is too large."""
        size = batch_size or self.auto_batch_size(plan)
        return serve_requests(self, requests, plan, rule, batch_size=size)

    # --- Parts of a batch ---

    def _probe_group(
        self, group: Finished, plan: ProbePlan, positions: Sequence[TracePositions]
    ) -> list[dict[int, ForcedAnswer]]:
        """Return, per row, the forced answer at each prefix length."""
        branches = [
            Branch(row, at)
            for row, (where, trace) in enumerate(zip(positions, group.traces, strict=True))
            for at in sorted({min(position, trace.end.thinking) for position in where.probed})
        ]
        answers = probe_in_chunks(self.runner, group.kept, branches, self.stops, plan)
        probed: list[dict[int, ForcedAnswer]] = [{} for _ in positions]
        for branch, answer in zip(branches, answers, strict=True):
            probed[branch.row][branch.tokens] = answer
        return probed

    def _visible_group(
        self, group: Finished, plan: ProbePlan, positions: Sequence[TracePositions]
    ) -> list[dict[int, list[int]]]:
        """Return, per row, the visible answer at each position before the trace's end.

        Samples exactly as serving with on-stop ``answer`` does.  Runs the first position of all
        rows together, then the second, and so on, so that only one copy of the cache exists.
        """
        written: list[dict[int, list[int]]] = [{} for _ in positions]
        if plan.on_stop == "probe":
            return written
        live = [
            [Branch(row, at) for at in where.probed if at < trace.end.thinking]
            for row, (where, trace) in enumerate(zip(positions, group.traces, strict=True))
        ]
        for number in range(max(map(len, live))):
            branches = [of_row[number] for of_row in live if number < len(of_row)]
            answers = self.write(group.kept, group.traces, branches)
            for branch, answer in zip(branches, answers, strict=True):
                written[branch.row][branch.tokens] = answer
        return written
