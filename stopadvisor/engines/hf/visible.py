"""Visible answers of traces that were stopped: thinking is closed and the model writes its answer.

They grow on a copy of the stopped rows' cache, where tokens drawn after the stop are hidden.  The
same stream of random numbers is used, as if the model had closed its thinking there.  Knows tokens
and caches; no policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from stopadvisor.engines.hf.branch import Branch
from stopadvisor.engines.hf.cache import KeptCache, additive
from stopadvisor.engines.hf.local_model import LocalModel
from stopadvisor.engines.hf.rolling import Kept
from stopadvisor.engines.hf.sampler import Sampler, uniforms
from stopadvisor.probes.plan import ProbePlan, Prompt

__all__ = ["StoppedTrace", "visible_answers"]


@dataclass(frozen=True)
class StoppedTrace:
    """Where a visible answer begins."""

    branch: Branch
    prompt: Prompt
    """Whose stream of random numbers is continued."""
    ids: tuple[int, ...]
    """Prompt and thinking up to the stop."""
    budget: int
    """Thinking tokens among them."""


def visible_answers(
    model: LocalModel, kept: Kept, traces: Sequence[StoppedTrace], plan: ProbePlan
) -> list[list[int]]:
    """Close the thinking and decode a visible answer after each trace; `kept` stays as it was.

    Returns token ids, the ending one included, where there is one.
    """
    closer, cap, runner = list(model.chat.closer.ids), plan.answer_cap, model.runner
    device, size = kept.pads.device, len(closer)
    # No stopped row sees a column after the last stop.
    first = kept.start + max(trace.branch.tokens for trace in traces)
    index = torch.tensor([trace.branch.row for trace in traces], device=device)
    pads = kept.pads[index]
    cache = KeptCache()
    cache.layers = [layer.take(index, 0, first) for layer in kept.cache.layers]
    seen = kept.start + torch.tensor([trace.branch.tokens for trace in traces], device=device)

    places = torch.arange(first + size + cap, device=device)
    allowed = (places >= pads[:, None]) & ((places < seen[:, None]) | (places >= first))
    start = seen - pads  # position of the closer in each sequence
    answer = start[:, None] + places - first
    key_positions = torch.where(places < first, places - pads[:, None], answer)

    step = torch.arange(size, device=device)
    causal = places[None, : first + size] <= first + step[:, None]  # (size, columns)
    logits = runner.forward(
        torch.tensor([closer] * len(traces), device=device),
        start[:, None] + step,
        cache,
        additive(allowed[:, None, : first + size] & causal, runner.dtype),
        key_positions[:, : first + size],
    )[:, -1]

    mask = additive(allowed, runner.dtype)[:, None]
    sampler = _sampler(model, traces, plan)
    over = np.zeros(len(traces), dtype=np.bool_)
    answers: list[list[int]] = [[] for _ in traces]
    for at in range(cap):
        tokens = sampler.draw(logits, at)
        for i, token in enumerate(tokens.tolist()):
            if not over[i]:
                answers[i].append(token)
                over[i] = token in model.stop_ids
        if over.all() or at == cap - 1:
            break
        stop = first + size + at + 1
        logits = runner.forward(
            tokens[:, None],
            (start + size + at)[:, None],
            cache,
            mask[:, :, :stop],
            key_positions[:, :stop],
        )[:, -1]
    return answers


def _sampler(model: LocalModel, traces: Sequence[StoppedTrace], plan: ProbePlan) -> Sampler:
    """Continue each question's stream after the closer."""
    sampling, closer = model.sampling(plan), model.chat.closer.ids
    streams = np.empty((len(traces), 0))
    if sampling.temperature > 0:
        begins = [trace.budget + len(closer) for trace in traces]
        whole = uniforms([t.prompt for t in traces], plan.seed, max(begins) + plan.answer_cap)
        streams = np.stack(
            [row[b : b + plan.answer_cap] for row, b in zip(whole, begins, strict=True)]
        )
    sequences = [[*trace.ids, *closer] for trace in traces]
    return Sampler(sampling, sequences, streams, model.vocabulary, model.runner.device)
