"""What probing costs beside generating, and beside reading every prefix again.

Run from the repository root: ``python -m tests.benchmarks.probing`` (a processor, under six
minutes), or, where there is an NVIDIA GPU with 80 GB, ``python -m tests.benchmarks.probing --shape
qwen3-8b --device cuda`` (bfloat16, under eight minutes on an H100; that shape needs the GPU).

Weights are random, so that nothing is downloaded; a random model ends nothing by itself, so caps
alone give traces and answers their lengths.  Reading again is what the paper's scripts do: for
every budget one batch of prompt, prefix and suffix through plain transformers with its own cache
and attention, then the answer token by token; without the copying and checking of ``generate()``,
which would make it slower still.  Generating is the engine's own, under Qwen3's sampling.  Each
figure is the best of its repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stopadvisor.constants import PAPER_BUDGETS

if TYPE_CHECKING:
    import torch

    from stopadvisor.engines.hf.branch import Branch, Forced
    from stopadvisor.engines.hf.generate import Finished, Kept, TraceBatch
    from stopadvisor.engines.hf.runner import Runner

GOALS = {
    "short": {"÷ re-prefill": 0.08, "÷ generation": 0.06},
    "long": {"÷ re-prefill": 0.20, "÷ generation": 0.15},
}
LONG = 48
"""Answers of this many tokens or more are held against the goals for long ones."""
INLINE_GOAL = 0.05
EXACT = 5e-5
"""Most that a log-probability may differ in float32."""
SUFFIX = 7
"""Tokens of closer and cue: what ``</think>`` and the default cue are under Qwen3's tokenizer."""


@dataclass(frozen=True)
class Shape:
    """A Qwen3 of random weights, and what it is asked."""

    config: dict[str, Any]
    dtype: str
    questions: int
    prompt: int
    """Tokens of the longest prompt; the others are up to a quarter shorter."""
    trace: int
    repeats: int


def _qwen3(
    vocabulary: int, width: int, mlp: int, layers: int, heads: int, dim: int, kv: int
) -> Any:
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": dim,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": width < 4096,
    }


SHAPES = {
    "tiny": Shape(_qwen3(512, 64, 128, 2, 4, 16, 2), "float32", 4, 32, 60, 1),
    "30m": Shape(_qwen3(8192, 512, 1536, 8, 8, 64, 4), "float32", 8, 96, 1500, 2),
    "qwen3-8b": Shape(_qwen3(151936, 4096, 12288, 36, 32, 128, 8), "bfloat16", 32, 96, 1443, 1),
}


@dataclass(frozen=True)
class Row:
    """Figures for one length of answer."""

    answer_tokens: int
    reprefill_s: float
    packed_s: float
    to_reprefill: float
    to_generation: float
    goal_to_reprefill: float | None
    goal_to_generation: float | None
    equal_answers: float
    """Share of branches whose answer is the re-prefilled one, token by token."""
    max_difference: float
    """Largest difference of an answer's mean log-probability, equal answers only."""
    roofline: float
    """Share of the memory bandwidth that reading weights and caches once per step takes."""


@dataclass(frozen=True)
class Inline:
    """One request, stopped at each budget, probed and resumed."""

    answer_tokens: int
    probes: int
    generation_s: float
    with_probes_s: float
    probing_s: float
    to_generation: float
    resumed_unchanged: bool


@dataclass(frozen=True)
class Report:
    """Everything measured in one run."""

    machine: dict[str, Any]
    shape: str
    parameters: int
    dtype: str
    questions: int
    checkpoints: int
    trace_tokens: int
    generation_s: float
    bandwidth_gb_s: float
    peak_memory_gb: float
    rows: list[Row]
    inline: Inline


class Bench:
    """A random model with its prompts; every method measures one thing."""

    def __init__(self, shape: Shape, device: str, questions: int, threads: int | None) -> None:
        import numpy as np
        import torch
        from transformers import Qwen3Config, Qwen3ForCausalLM

        from stopadvisor.engines.hf.cache import register_attention
        from stopadvisor.engines.hf.runner import Runner
        from stopadvisor.engines.hf.stops import AnswerStops

        if threads is not None:
            torch.set_num_threads(threads)
        self.device = torch.device(device)
        self.shape = shape
        torch.manual_seed(0)
        before = torch.get_default_dtype()
        torch.set_default_dtype(getattr(torch, shape.dtype))
        with self.device:
            model = Qwen3ForCausalLM(Qwen3Config(**shape.config)).eval()
        torch.set_default_dtype(before)
        self.model: Any = model
        self.attention = register_attention()
        model.set_attn_implementation(self.attention)
        groups = shape.config["num_attention_heads"] // shape.config["num_key_value_heads"]
        self.runner: Runner = Runner(model, groups)

        rng = np.random.default_rng(0)
        self.vocabulary = int(shape.config["vocab_size"])
        lengths = rng.integers(shape.prompt * 3 // 4, shape.prompt + 1, questions)
        self.prompts = [rng.integers(0, self.vocabulary, n).tolist() for n in lengths]
        self.suffix: list[int] = rng.integers(0, self.vocabulary, SUFFIX).tolist()
        # Nothing ends an answer, so that its cap does.
        self.stops = AnswerStops(None, np.zeros(self.vocabulary, dtype=np.uint8))  # type: ignore[arg-type]
        # At and beyond the end of the trace there is one probe.
        scaled = (
            PAPER_BUDGETS if shape.trace > 1024 else range(0, 2 * shape.trace, shape.trace // 8)
        )
        self.budgets = sorted({min(budget, shape.trace) for budget in scaled})

    def timed(self, work: Callable[[], Any]) -> tuple[float, Any]:
        """Seconds that `work` takes, and what it returns."""
        import torch

        self._wait()
        start = time.perf_counter()
        with torch.inference_mode():
            result = work()
        self._wait()
        return time.perf_counter() - start, result

    def _wait(self) -> None:
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def batch(self, rows: int) -> TraceBatch:
        """Read the first prompts."""
        import numpy as np

        from stopadvisor.engines.hf.generate import Limits, TraceBatch
        from stopadvisor.engines.hf.sampling import Sampler, Sampling, uniforms
        from stopadvisor.probes import Prompt

        prompts, trace = self.prompts[:rows], self.shape.trace
        # A closer that is no token never comes, and no stop id is given.
        limits = Limits((self.vocabulary,), (), np.full(rows, trace), 1)
        settings = Sampling(temperature=0.6, top_k=20, top_p=0.95)
        names = [
            Prompt(key=str(i), messages=({"role": "user", "content": ""},)) for i in range(rows)
        ]
        streams = uniforms(names, 0, limits.steps)
        sampler = Sampler(settings, prompts, streams, self.vocabulary, self.device)
        return TraceBatch(self.runner, prompts, sampler, limits, pad_id=0)

    def generate(self, rows: int) -> Finished:
        """Traces of the first prompts."""
        (group,) = self.batch(rows).finished()
        return group

    def branches(self, rows: int) -> list[Branch]:
        from stopadvisor.engines.hf.branch import Branch

        return [Branch(row, budget) for row in range(rows) for budget in self.budgets]

    def copy(self, kept: Kept) -> Kept:
        """Return the same cache without room to grow, the worst that a probe can find."""
        import torch

        from stopadvisor.engines.hf.cache import KeptCache

        cache, rows = KeptCache(), torch.arange(len(kept.pads))
        cache.layers = [layer.take(rows, 0, layer.columns) for layer in kept.cache.layers]
        return replace(kept, cache=cache)

    def packed(
        self, kept: Kept, branches: Sequence[Branch], cap: int, *, consume: bool = True
    ) -> list[Forced]:
        """Answer every branch at once; `consume` as when traces are collected."""
        from stopadvisor.engines.hf.branch import probe_branches

        return probe_branches(
            self.runner, kept, branches, self.suffix, self.stops, cap=cap, consume=consume
        )

    def reprefill(self, traces: Any, cap: int) -> list[tuple[list[int], float]]:
        """The paper's way: ids and mean log-probability, in the order of `branches`."""
        import torch

        found: dict[tuple[int, int], tuple[list[int], float]] = {}
        self.model.set_attn_implementation("sdpa")
        for budget in self.budgets:
            texts = [
                [*prompt, *ids[:budget].tolist(), *self.suffix]
                for prompt, ids in zip(self.prompts, traces, strict=False)
            ]
            width = max(len(text) for text in texts)
            pads = torch.tensor([width - len(text) for text in texts], device=self.device)
            ids = torch.tensor([[0] * (width - len(t)) + t for t in texts], device=self.device)
            mask = (torch.arange(width, device=self.device) >= pads[:, None]).long()
            answers, logprobs = self._decode(ids, mask, cap)
            for row, answer in enumerate(answers.tolist()):
                found[row, budget] = (answer, float(logprobs[row].mean()))
        self.model.set_attn_implementation(self.attention)
        return [found[branch.row, branch.tokens] for branch in self.branches(len(traces))]

    def _decode(self, ids: Any, mask: Any, cap: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Greedy answers of plain transformers, with log-probabilities and entropies."""
        import torch
        from transformers import DynamicCache

        cache = DynamicCache(config=self.model.config)
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        answers, logprobs = [], []
        for step in range(cap):
            logits = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            distribution = logits.float().log_softmax(-1)
            best = distribution.max(-1)
            _ = -(distribution.exp() * distribution).sum(-1)
            answers.append(best.indices)
            logprobs.append(best.values)
            if step + 1 < cap:
                ids = best.indices[:, None]
                mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
                positions = positions[:, -1:] + 1
        return torch.stack(answers, 1), torch.stack(logprobs, 1).cpu()

    def inline(self, cap: int) -> tuple[float, int, Finished]:
        """One request: seconds spent on probes, how many, and the trace that was resumed."""
        from stopadvisor.engines.hf.branch import Branch

        batch, seconds, probes = self.batch(1), 0.0, 0
        for budget in self.budgets:
            batch.advance(budget)
            if budget >= self.shape.trace:
                break  # the question ends by itself
            spent, _ = self.timed(
                lambda b=budget: self.packed(batch.kept, [Branch(0, b)], cap, consume=False)
            )
            seconds, probes = seconds + spent, probes + 1
        (group,) = batch.finished()
        return seconds, probes, group

    def bandwidth(self) -> float:
        """Bytes a second of a large copy, read and written."""
        import torch

        size = 2**31 if self.device.type == "cuda" else 2**28
        source = torch.zeros(size, dtype=torch.uint8, device=self.device)
        target = torch.ones_like(source)
        best = min(self.timed(lambda: target.copy_(source))[0] for _ in range(5))
        return 2 * size / best

    def step_bytes(self, rows: int, cap: int) -> float:
        """Bytes that packed probing must read at least: weights and kept columns at each step."""
        from stopadvisor.engines.hf.memory import kv_bytes_per_token

        weights = sum(p.numel() * p.element_size() for p in self.model.parameters())
        if not self.shape.config["tie_word_embeddings"]:
            embedding = self.model.get_input_embeddings().weight
            weights -= embedding.numel() * embedding.element_size()
        per_token = kv_bytes_per_token(self.model.config, self.runner.dtype)
        prefix = sum(len(p) for p in self.prompts[:rows]) + rows * self.shape.trace
        own = sum(SUFFIX + step for step in range(cap)) * rows * len(self.budgets)
        return float(cap * (weights + per_token * prefix) + per_token * own)


def measure(
    name: str, device: str, questions: int | None, caps: Sequence[int], threads: int | None
) -> Report:
    """Run everything once."""
    import torch

    shape = SHAPES[name]
    rows = questions or shape.questions
    bench = Bench(shape, device, rows, threads)
    bandwidth = bench.bandwidth()
    bench.timed(lambda: bench.packed(bench.batch(rows).kept, [bench.branches(1)[0]], 2))  # warm

    print("generating", file=sys.stderr)
    generation_s, group = bench.timed(lambda: bench.generate(rows))
    branches, repeats = bench.branches(rows), range(shape.repeats)
    table, traces = [], torch.from_numpy(group.ids)
    for cap in caps:
        print(f"answers of {cap} tokens", file=sys.stderr)
        packed_s, again_s = float("inf"), float("inf")
        for _ in repeats:
            kept = bench.copy(group.kept)
            seconds, forced = bench.timed(lambda k=kept, c=cap: bench.packed(k, branches, c))
            packed_s = min(packed_s, seconds)
            seconds, plain = bench.timed(lambda c=cap: bench.reprefill(traces, c))
            again_s = min(again_s, seconds)
        pairs = list(zip(forced, plain, strict=True))
        equal = [f for f, (ids, _) in pairs if list(f.ids) == ids]
        gaps = [abs(f.mean_logprob - mean) for f, (ids, mean) in pairs if list(f.ids) == ids]
        goals = GOALS["long" if cap >= LONG else "short"] if name != "tiny" else {}
        table.append(
            Row(
                answer_tokens=cap,
                reprefill_s=again_s,
                packed_s=packed_s,
                to_reprefill=packed_s / again_s,
                to_generation=packed_s / generation_s,
                goal_to_reprefill=goals.get("÷ re-prefill"),
                goal_to_generation=goals.get("÷ generation"),
                equal_answers=len(equal) / len(branches),
                max_difference=max(gaps, default=float("nan")),
                roofline=bench.step_bytes(rows, cap) / bandwidth / packed_s,
            )
        )
    peak = _peak_memory_gb(bench.device)
    print("one request with probes in line", file=sys.stderr)
    return Report(
        machine=_machine(bench.device),
        shape=name,
        parameters=sum(p.numel() for p in bench.model.parameters()),
        dtype=shape.dtype,
        questions=rows,
        checkpoints=len(bench.budgets),
        trace_tokens=shape.trace,
        generation_s=generation_s,
        bandwidth_gb_s=bandwidth / 1e9,
        peak_memory_gb=peak,
        rows=table,
        inline=_inline(bench, min(caps)),
    )


def _inline(bench: Bench, cap: int) -> Inline:
    repeats = range(bench.shape.repeats)
    alone = [bench.timed(lambda: bench.generate(1)) for _ in repeats]
    probed = [bench.timed(lambda: bench.inline(cap)) for _ in repeats]
    generation_s = min(seconds for seconds, _ in alone)
    probing_s = min(spent for _, (spent, _, _) in probed)
    _, (_, probes, resumed) = probed[0]
    return Inline(
        answer_tokens=cap,
        probes=probes,
        generation_s=generation_s,
        with_probes_s=min(seconds for seconds, _ in probed),
        probing_s=probing_s,
        to_generation=probing_s / generation_s,
        resumed_unchanged=bool((resumed.ids == alone[0][1].ids).all()),
    )


def _peak_memory_gb(device: torch.device) -> float:
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9  # Linux: kilobytes


def _machine(device: torch.device) -> dict[str, Any]:
    import torch
    import transformers

    found: dict[str, Any] = {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        found["cpu"] = names[0].partition(":")[2].strip() if names else found["cpu"]
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    return found


def lines(report: Report) -> list[str]:
    """The report as a table."""
    machine = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    out = [
        machine,
        f"Qwen3 {report.shape}: {report.parameters / 1e6:.1f} M random parameters, {report.dtype}; "
        f"{report.questions} questions packed x {report.checkpoints} checkpoints, traces of "
        f"{report.trace_tokens} tokens",
        f"generating the traces: {report.generation_s:.2f} s; memory bandwidth "
        f"{report.bandwidth_gb_s:.0f} GB/s; peak memory {report.peak_memory_gb:.2f} GB",
        "",
        "| answer | re-prefill | packed | packed ÷ re-prefill | packed ÷ generation | re-prefill ÷ "
        "generation | equal answers | max Δ log-probability | of bandwidth |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    out += [
        (
            f"| {row.answer_tokens} tokens | {row.reprefill_s:.2f} s | {row.packed_s:.3f} s "
            f"| {_held(row.to_reprefill, row.goal_to_reprefill)} "
            f"| {_held(row.to_generation, row.goal_to_generation)} "
            f"| {row.reprefill_s / report.generation_s:.2f} "
            f"| {row.equal_answers:.1%} | {row.max_difference:.1e} | {row.roofline:.0%} |"
        )
        for row in report.rows
    ]
    one = report.inline
    goal = None if report.shape == "tiny" else INLINE_GOAL
    out += [
        "",
        f"one request, {one.probes} probes of {one.answer_tokens} tokens in line: "
        f"{one.probing_s:.3f} s beside {one.generation_s:.2f} s of generation, {_held(one.to_generation, goal)} "
        f"(both together took {one.with_probes_s:.2f} s); the trace it resumes is "
        + ("the same" if one.resumed_unchanged else "ANOTHER"),
    ]
    return out


def _held(value: float, goal: float | None) -> str:
    if goal is None:
        return f"{value:.3f}"
    return f"{value:.3f} ({'meets' if value <= goal else 'MISSES'} {goal:g})"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.probing", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), default="30m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--questions", type=int, help="packed at once; default: the shape's own")
    parser.add_argument(
        "--answer-tokens", type=int, nargs="+", default=[5, LONG], metavar="N", help="5 and 48"
    )
    parser.add_argument("--threads", type=int, help="of torch; default: its own choice")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(argv)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the engine sets it, before torch
    report = measure(
        options.shape, options.device, options.questions, options.answer_tokens, options.threads
    )
    print(json.dumps(asdict(report), indent=1) if options.json else "\n".join(lines(report)))
    exact = report.dtype != "float32" or all(
        row.equal_answers == 1.0 and row.max_difference <= EXACT for row in report.rows
    )
    return 0 if exact and (report.inline.resumed_unchanged or report.dtype != "float32") else 1


if __name__ == "__main__":
    sys.exit(main())
