"""Cost of probing, relative to generating and to reading every prefix again.

Run from the repository root: ``python -m tests.benchmarks.probing``, on a processor, under six
minutes; or, where there is an NVIDIA GPU with 80 GB, ``python -m tests.benchmarks.probing --device
cuda --shape qwen3-8b``, in bfloat16, under eight minutes on an H100.  That shape needs the GPU.

Weights are random, so that nothing is downloaded.  Reading again is what the paper's scripts do:
for every budget one batch of all prompts, prefixes and suffixes through plain transformers with
its own cache and attention, then the answers token by token; what ``generate()`` adds to that in
time is left out.  Generating is the engine's own, under Qwen3's sampling.  Packed probing starts
from a cache without room to grow, and is the median of three runs; all else is run once.  Goals
are held against the clock; where other programs keep the cores busy, look at the CPU time.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from stopadvisor.engines.answer_end import ForcedAnswer
    from tests.benchmarks.random_qwen3 import RandomQwen3, Spent

SHAPES = ("30m", "qwen3-8b", "tiny", "tiny-bf16")
LONG = 48
"""Answers of this many tokens or more are held against the goals for long ones."""
REPREFILL_GOAL = {"short": 0.08, "long": 0.20}
GENERATION_GOAL = {"short": 0.06, "long": 0.15}
INLINE_GOAL = 0.05
EXACT = 5e-5
"""Most that a mean log-probability may differ in float32."""
REPEATS = 3


def measure(shape: str, device: str, questions: int | None, caps: Sequence[int]) -> bool:
    """Run everything once and print it; whether float32 gave what reading again gives."""
    from tests.benchmarks.random_qwen3 import SHAPES, RandomQwen3

    asked = SHAPES[shape]
    bench = RandomQwen3(asked, device, questions or asked.questions)
    goals = not shape.startswith("tiny")
    bandwidth = bench.bandwidth()
    bench.timed(lambda: bench.batch(1) if goals else bench.in_line(2))
    generation, group = bench.timed(lambda: bench.generate(bench.rows))
    print(", ".join(f"{name} {value}" for name, value in _machine(bench.device).items()))
    print(
        f"Qwen3 {shape}: {bench.parameters / 1e6:.1f} M random parameters, {asked.dtype}; "
        f"{bench.rows} questions x {len(asked.budgets)} checkpoints packed, traces of "
        f"{asked.trace} tokens, generated in {generation.seconds:.2f} s; memory bandwidth, "
        f"measured: {bandwidth / 1e9:.0f} GB/s"
    )
    exact = [_packed(bench, group, cap, generation, bandwidth, goals=goals) for cap in caps]
    del group
    exact.append(_in_line(bench, min(caps), goals=goals))
    return asked.dtype != "float32" or all(exact)


def _packed(
    bench: RandomQwen3, group: Any, cap: int, generation: Spent, bandwidth: float, *, goals: bool
) -> bool:
    """Print one length of answer; whether all answers are those of reading again."""
    import torch

    bench.timed(lambda: bench.packed(bench.copy(group.kept), 1))  # kernels are chosen at first use
    if bench.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(bench.device)
    runs: list[Spent] = []
    forced: list[ForcedAnswer] = []
    for _ in range(REPEATS):
        kept = bench.copy(group.kept)
        spent, forced = bench.timed(lambda at=kept: bench.packed(at, cap))  # type: ignore[misc]
        runs.append(spent)
        del kept  # before the next one is made
    packed = statistics.median(run.seconds for run in runs)
    peak = _peak_memory(bench.device)
    if bench.device.type == "cuda":
        peak -= bench.bytes_of(group.kept)  # kept for the next run only
    again, plain = bench.timed(lambda: bench.reprefill(group.traces, cap))
    pairs = zip(forced, plain, strict=True)
    gaps = [abs(f.mean_logprob - mean) for f, (ids, mean) in pairs if list(f.ids) == ids]
    kind = "long" if cap >= LONG else "short"
    print(
        f"answers of {cap} tokens: packed {packed:.3f} s, re-prefill {again.seconds:.2f} s\n"
        f"  packed / re-prefill {_held(packed / again.seconds, REPREFILL_GOAL[kind], goals)}, "
        f"packed / generation {_held(packed / generation.seconds, GENERATION_GOAL[kind], goals)}, "
        f"re-prefill / generation {again.seconds / generation.seconds:.2f}"
    )
    if bench.device.type == "cpu":  # which other programs on the machine distort less
        used = statistics.median(run.cpu_s for run in runs)
        print(f"  in CPU time {used / again.cpu_s:.3f}, {used / generation.cpu_s:.3f}")
    print(
        f"  equal answers {len(gaps) / len(forced):.1%}, log-probabilities within "
        f"{max(gaps, default=0):.1e}; peak memory {peak / 1e9:.2f} GB; least time at this "
        f"bandwidth {bench.least_bytes(cap) / bandwidth / packed:.0%} of it",
        flush=True,
    )
    return len(gaps) == len(forced) and max(gaps) <= EXACT


def _in_line(bench: RandomQwen3, cap: int, *, goals: bool) -> bool:
    """Print one request that is stopped at each budget, probed and resumed; whether unchanged."""
    generation, alone = bench.timed(lambda: bench.generate(1))
    together, probed = bench.timed(lambda: bench.in_line(cap))
    unchanged = bool(probed.trace.traces[0].ids == alone.traces[0].ids)
    spent = probed.spent
    print(
        f"one request, {probed.count} probes of {cap} tokens in line: {spent.seconds:.3f} s, of "
        f"{generation.seconds:.2f} s that generating alone takes: "
        f"{_held(spent.seconds / generation.seconds, INLINE_GOAL, goals)}; both together "
        f"{together.seconds:.2f} s; the trace, resumed after each probe, is "
        + ("the same, token by token" if unchanged else "another one")
    )
    return unchanged


def _held(value: float, goal: float, goals: bool) -> str:
    held = f" ({'meets' if value <= goal else 'misses'} {goal:g})" if goals else ""
    return f"{value:.3f}{held}"


def _peak_memory(device: torch.device) -> float:
    import torch

    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def _machine(device: torch.device) -> dict[str, Any]:
    import torch
    import transformers

    found: dict[str, Any] = {"cpu": platform.processor() or platform.machine()}
    if Path("/proc/cpuinfo").exists():
        entries = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [
            line.partition(":")[2].strip() for line in entries if line.startswith("model name")
        ]
        found["cpu"] = names[0] if names else found["cpu"]
    found |= {
        "cores": os.cpu_count(),
        "torch threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.probing",
        description="Cost of probing, relative to generating and to reading prefixes again.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--shape", choices=SHAPES, default="30m", help="qwen3-8b needs a GPU")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument(
        "--questions", type=int, help="packed at once; the shape's own if not given"
    )
    parser.add_argument("--answer-tokens", type=int, nargs="+", default=[5, LONG], metavar="N")
    options = parser.parse_args(argv)
    # Read when torch is first imported: threads that spin while they wait slow each other down.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    words = (options.shape, options.device, options.questions, options.answer_tokens)
    return 0 if measure(*words) else 1


if __name__ == "__main__":
    sys.exit(main())
