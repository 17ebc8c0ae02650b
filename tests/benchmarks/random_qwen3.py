"""A Qwen3 of random weights with prompts to think about: what `tests.benchmarks.probing` measures.

A random model ends nothing by itself, so caps alone give traces and answers their lengths.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, Qwen3Config

from stopadvisor.engines.answer_end import AnswerStops, ForcedAnswer
from stopadvisor.engines.hf.branch import Branch, probe_branches
from stopadvisor.engines.hf.cache import KeptCache, Runner, register_attention
from stopadvisor.engines.hf.local_model import Finished, RollingBatch, kv_bytes_per_token
from stopadvisor.engines.hf.sampler import Sampler, Sampling, uniforms
from stopadvisor.engines.trace import Trace, TraceEnd
from stopadvisor.ground.constants import PAPER_BUDGETS
from stopadvisor.probes.asking import ProbePlan, Prompt

__all__ = ["SHAPES", "RandomQwen3", "Shape", "Spent"]

SUFFIX = 7
"""Tokens of closer and cue: about what ``</think>`` and a cue are under Qwen3's tokenizer."""


@dataclass(frozen=True)
class Shape:
    """The model, and what it is asked."""

    config: dict[str, Any]
    dtype: str
    questions: int
    prompt: int
    """Tokens of the longest prompt; the others are up to a quarter shorter."""
    trace: int

    @property
    def budgets(self) -> list[int]:
        """Ten checkpoints; the last one is the end of the trace."""
        fits = self.trace > PAPER_BUDGETS[-2]
        budgets = PAPER_BUDGETS if fits else [self.trace * i // 9 for i in range(10)]
        return sorted({min(budget, self.trace) for budget in budgets})


def _qwen3(
    vocabulary: int, hidden: int, mlp: int, layers: int, heads: int, kv_heads: int, dim: int
) -> dict[str, Any]:
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": hidden < 4096,  # as in the family: its small members do
    }


SHAPES = {
    "30m": Shape(_qwen3(8192, 512, 1536, 8, 8, 4, 64), "float32", 8, 96, 1500),
    "qwen3-8b": Shape(_qwen3(151936, 4096, 12288, 36, 32, 8, 128), "bfloat16", 32, 96, 1443),
    "tiny": Shape(_qwen3(512, 64, 128, 2, 4, 2, 16), "float32", 4, 32, 60),
    "tiny-bf16": Shape(_qwen3(512, 64, 128, 2, 4, 2, 16), "bfloat16", 4, 32, 60),
}


@dataclass(frozen=True)
class Spent:
    """Time by the clock, and of all processor cores together."""

    seconds: float
    cpu_s: float

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.seconds + other.seconds, self.cpu_s + other.cpu_s)


@dataclass(frozen=True)
class Probes:
    """Costs of probing one request in line."""

    spent: Spent
    count: int
    trace: Finished


class RandomQwen3:
    """A random model with its prompts; every method does one thing that can be timed."""

    def __init__(self, shape: Shape, device: str, questions: int) -> None:
        self.shape = shape
        self.device = torch.device(device)
        self.rows = questions
        torch.manual_seed(0)
        dtype = getattr(torch, shape.dtype)
        with self.device:
            model = AutoModelForCausalLM.from_config(Qwen3Config(**shape.config), dtype=dtype)
        self.model: Any = model.eval()
        self.attention = register_attention()
        self.model.set_attn_implementation(self.attention)
        groups = shape.config["num_attention_heads"] // shape.config["num_key_value_heads"]
        self.runner = Runner(self.model, groups)

        rng = np.random.default_rng(0)
        self.vocabulary = int(shape.config["vocab_size"])
        lengths = rng.integers(shape.prompt * 3 // 4, shape.prompt + 1, questions)
        self.prompts = [rng.integers(0, self.vocabulary, n).tolist() for n in lengths]
        self.suffix: list[int] = rng.integers(0, self.vocabulary, SUFFIX).tolist()
        # Nothing ends an answer, and no text is asked for: the cap alone counts.
        chat: Any = SimpleNamespace(
            decode=lambda ids, special=False: "", suffix_ids=lambda cue: self.suffix
        )
        self.stops = AnswerStops(chat, np.zeros(self.vocabulary, dtype=np.uint8))
        self.branches = [Branch(row, at) for row in range(questions) for at in shape.budgets]

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    def timed(self, work: Callable[[], Any]) -> tuple[Spent, Any]:
        """Time that `work` takes, and what it returns."""
        self._wait()
        start, cpu = time.perf_counter(), time.process_time()
        with torch.inference_mode():
            result = work()
        self._wait()
        return Spent(time.perf_counter() - start, time.process_time() - cpu), result

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    # --- The engine's way -------------------------------------------------------------------------

    def batch(self, rows: int) -> RollingBatch:
        """Read the first prompts."""
        prompts = self.prompts[:rows]
        settings = Sampling(temperature=0.6, top_k=20, top_p=0.95)  # Qwen3's own
        traces = []
        for row, prompt in enumerate(prompts):
            # A closer that is no token never comes, and no stop id is given.
            end = TraceEnd((self.vocabulary,), (), self.shape.trace, 1)
            name = Prompt(str(row), ({"role": "user", "content": ""},))
            traces.append(Trace(prompt, name, ProbePlan((), cue=""), None, end))
        streams = uniforms([t.prompt for t in traces], 0, traces[0].end.most)
        sampler = Sampler(settings, prompts, streams, self.vocabulary, self.device)
        return RollingBatch(self.runner, traces, sampler, pad_id=0)

    def generate(self, rows: int) -> Finished:
        """Return the traces of the first prompts."""
        (group,) = self.batch(rows).finished()
        return group

    def copy(self, kept: KeptCache) -> KeptCache:
        """Return the same cache without room to grow, the worst that a probe can find."""
        rows = np.arange(len(kept.pads))
        (copied,) = kept.fork().split((rows, kept.columns), trimmed=False)
        return copied

    def packed(
        self,
        kept: KeptCache,
        cap: int,
        branches: Sequence[Branch] | None = None,
        *,
        consume: bool = True,
    ) -> list[ForcedAnswer]:
        """Answer all branches at once; `consume` as when traces are collected."""
        at = self.branches if branches is None else branches
        plan = ProbePlan((), cue="", cap=cap)
        return probe_branches(self.runner, kept, at, self.stops, plan, consume=consume)

    def in_line(self, cap: int) -> Probes:
        """Stop one request at each budget, probe it and go on."""
        batch, spent, count = self.batch(1), Spent(0.0, 0.0), 0
        for budget in self.shape.budgets:
            if budget >= self.shape.trace:
                break  # the question ends by itself
            while batch.steps < budget:
                batch.step()
            branch = [Branch(0, budget)]
            took, _ = self.timed(
                lambda at=branch: self.packed(batch.kept, cap, at, consume=False)  # type: ignore[misc]
            )
            spent, count = spent + took, count + 1
        (trace,) = batch.finished()
        return Probes(spent, count, trace)

    # --- The paper's way --------------------------------------------------------------------------

    def reprefill(self, traces: Sequence[Trace], cap: int) -> list[tuple[list[int], float]]:
        """Read every prefix again; ids and mean log-probability, in the order of `branches`."""
        found: dict[tuple[int, int], tuple[list[int], float]] = {}
        self.model.set_attn_implementation("sdpa")
        for budget in self.shape.budgets:
            texts = [[*trace.prompt_ids, *trace.ids[:budget], *self.suffix] for trace in traces]
            width = max(len(text) for text in texts)
            ids = torch.tensor([[0] * (width - len(t)) + t for t in texts], device=self.device)
            pads = torch.tensor([width - len(text) for text in texts], device=self.device)
            mask = (torch.arange(width, device=self.device) >= pads[:, None]).long()
            answers, logprobs = self._decode(ids, mask, cap)
            for row, answer in enumerate(answers.tolist()):
                found[row, budget] = (answer, float(logprobs[row].mean()))
        self.model.set_attn_implementation(self.attention)
        return [found[branch.row, branch.tokens] for branch in self.branches]

    def _decode(self, ids: Tensor, mask: Tensor, cap: int) -> tuple[Tensor, Tensor]:
        """Greedy answers with log-probabilities and entropies, each of shape (rows, cap)."""
        cache = DynamicCache(config=self.model.config)
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        answers: list[Tensor] = []
        logprobs, entropies = [], []
        for step in range(cap):
            if step:
                ids = answers[-1][:, None]
                mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
                positions = positions[:, -1:] + 1
            logits = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                logits_to_keep=1,
                **{self.runner.cache_name: cache},
            ).logits[:, -1]
            distribution = logits.float().log_softmax(-1)
            best = distribution.max(-1)
            answers.append(best.indices)
            logprobs.append(best.values)
            entropies.append(-(distribution.exp() * distribution).sum(-1))
        return torch.stack(answers, 1), torch.stack(logprobs, 1).cpu()

    # --- The machine ------------------------------------------------------------------------------

    def bandwidth(self) -> float:
        """Bytes a second of a large copy, those read and those written."""
        size = 2**31 if self.device.type == "cuda" else 2**27
        source = torch.zeros(size, dtype=torch.uint8, device=self.device)
        target = torch.ones_like(source)
        best = min(self.timed(lambda: target.copy_(source))[0].seconds for _ in range(5))
        return 2 * size / best

    def bytes_of(self, kept: KeptCache) -> int:
        """Memory that a cache takes, its room to grow left out."""
        layers = kept.layers
        return sum(t.numel() * t.element_size() for a in layers for t in (a.keys, a.values))

    def least_bytes(self, cap: int) -> float:
        """Bytes that packed probing must read: weights and what is kept, once for every step."""
        weights = sum(p.numel() * p.element_size() for p in self.model.parameters())
        if not self.shape.config["tie_word_embeddings"]:
            embedding = self.model.get_input_embeddings().weight
            weights -= embedding.numel() * embedding.element_size()
        per_token = kv_bytes_per_token(self.model.config, self.runner.dtype)
        prefix = sum(len(prompt) for prompt in self.prompts) + self.rows * self.shape.trace
        own = sum(SUFFIX + step for step in range(cap)) * len(self.branches)
        return float(cap * (weights + per_token * prefix) + per_token * own)
