"""What probing costs beside generating, and beside reading every prefix again.

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
import json
import os
import platform
import resource
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
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


@dataclass(frozen=True)
class Row:
    """Figures for one length of answer."""

    answer_tokens: int
    reprefill_s: float
    packed_s: float
    packed_to_reprefill: float
    packed_to_generation: float
    reprefill_to_generation: float
    cpu_to_reprefill: float | None
    """Packed ÷ re-prefill in processor time, which other programs on the machine distort less."""
    cpu_to_generation: float | None
    equal_answers: float
    """Share of branches whose answer is the re-prefilled one, token by token."""
    max_difference: float | None
    """Largest difference of the mean log-probabilities of equal answers."""
    bandwidth_share: float
    """Time to read weights and what is kept once per step, as a share of the time taken."""
    peak_memory_gb: float
    """On a GPU while probing, the model included; on a processor of the process so far."""


@dataclass(frozen=True)
class InLine:
    """One request, stopped at each budget, probed and resumed."""

    answer_tokens: int
    probes: int
    generation_s: float
    """Without any probe."""
    with_probes_s: float
    probing_s: float
    probing_to_generation: float
    cpu_to_generation: float | None
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
    rows: list[Row]
    in_line: InLine

    @property
    def exact(self) -> bool:
        """Whether float32 gave what reading again gives; half precision is not asked."""
        return self.dtype != "float32" or (
            self.in_line.resumed_unchanged
            and all(r.equal_answers == 1 and (r.max_difference or 0) <= EXACT for r in self.rows)
        )


def measure(shape: str, device: str, questions: int | None, caps: Sequence[int]) -> Report:
    """Run everything once."""
    from tests.benchmarks.random_qwen3 import SHAPES, RandomQwen3

    _say("making the model")
    asked = SHAPES[shape]
    bench = RandomQwen3(asked, device, questions or asked.questions)
    bandwidth = bench.bandwidth()
    bench.timed(lambda: bench.in_line(2) if shape.startswith("tiny") else bench.batch(1))
    _say("generating")
    generation, group = bench.timed(lambda: bench.generate(bench.rows))
    rows = []
    for cap in caps:
        _say(f"probing, answers of {cap} tokens")
        rows.append(_row(bench, group, cap, generation, bandwidth))
    del group
    _say("one request with probes in line")
    return Report(
        machine=_machine(bench.device),
        shape=shape,
        parameters=bench.parameters,
        dtype=asked.dtype,
        questions=bench.rows,
        checkpoints=len(asked.budgets),
        trace_tokens=asked.trace,
        generation_s=generation.seconds,
        bandwidth_gb_s=bandwidth / 1e9,
        rows=rows,
        in_line=_in_line(bench, min(caps)),
    )


def _row(bench: RandomQwen3, group: Any, cap: int, generation: Spent, bandwidth: float) -> Row:
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
    packed_s = statistics.median(run.seconds for run in runs)
    packed_cpu_s = statistics.median(run.cpu_s for run in runs)
    peak = _peak_memory(bench.device)
    if bench.device.type == "cuda":
        peak -= bench.bytes_of(group.kept)  # kept for the next run only
    again, plain = bench.timed(lambda: bench.reprefill(group.traces, cap))
    on_cpu = bench.device.type == "cpu"
    pairs = zip(forced, plain, strict=True)
    gaps = [abs(f.mean_logprob - mean) for f, (ids, mean) in pairs if list(f.ids) == ids]
    return Row(
        answer_tokens=cap,
        reprefill_s=again.seconds,
        packed_s=packed_s,
        packed_to_reprefill=packed_s / again.seconds,
        packed_to_generation=packed_s / generation.seconds,
        reprefill_to_generation=again.seconds / generation.seconds,
        cpu_to_reprefill=packed_cpu_s / again.cpu_s if on_cpu else None,
        cpu_to_generation=packed_cpu_s / generation.cpu_s if on_cpu else None,
        equal_answers=len(gaps) / len(forced),
        max_difference=max(gaps, default=None),
        bandwidth_share=bench.least_bytes(cap) / bandwidth / packed_s,
        peak_memory_gb=peak / 1e9,
    )


def _in_line(bench: RandomQwen3, cap: int) -> InLine:
    generation, alone = bench.timed(lambda: bench.generate(1))
    with_probes, probed = bench.timed(lambda: bench.in_line(cap))
    on_cpu = bench.device.type == "cpu"
    return InLine(
        answer_tokens=cap,
        probes=probed.count,
        generation_s=generation.seconds,
        with_probes_s=with_probes.seconds,
        probing_s=probed.spent.seconds,
        probing_to_generation=probed.spent.seconds / generation.seconds,
        cpu_to_generation=probed.spent.cpu_s / generation.cpu_s if on_cpu else None,
        resumed_unchanged=probed.trace.traces[0].ids == alone.traces[0].ids,
    )


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


def lines(report: Report) -> list[str]:
    """Return the report as a table."""
    goals = report.shape in ("30m", "qwen3-8b")
    out = [
        ", ".join(f"{name} {value}" for name, value in report.machine.items()),
        f"Qwen3 {report.shape}: {report.parameters / 1e6:.1f} M random parameters, {report.dtype}; "
        f"{report.questions} questions x {report.checkpoints} checkpoints packed, traces of "
        f"{report.trace_tokens} tokens",
        f"generating the traces: {report.generation_s:.2f} s; memory bandwidth, measured: "
        f"{report.bandwidth_gb_s:.0f} GB/s",
        "",
        "| answers | re-prefill | packed | packed ÷ re-prefill | packed ÷ generation "
        "| re-prefill ÷ generation | the first two in CPU time | equal answers "
        "| max Δ log-probability | peak memory | of bandwidth |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in report.rows:
        kind = "long" if row.answer_tokens >= LONG else "short"
        to_reprefill = _held(row.packed_to_reprefill, REPREFILL_GOAL[kind] if goals else None)
        to_generation = _held(row.packed_to_generation, GENERATION_GOAL[kind] if goals else None)
        gap = "none equal" if row.max_difference is None else f"{row.max_difference:.1e}"
        cells = (
            f"{row.answer_tokens} tokens",
            f"{row.reprefill_s:.2f} s",
            f"{row.packed_s:.3f} s",
            to_reprefill,
            to_generation,
            f"{row.reprefill_to_generation:.2f}",
            f"{_ratio(row.cpu_to_reprefill)}, {_ratio(row.cpu_to_generation)}",
            f"{row.equal_answers:.1%}",
            gap,
            f"{row.peak_memory_gb:.2f} GB",
            f"{row.bandwidth_share:.0%}",
        )
        out.append(f"| {' | '.join(cells)} |")
    one = report.in_line
    ratio = _held(one.probing_to_generation, INLINE_GOAL if goals else None)
    out += [
        "",
        f"one request, {one.probes} probes of {one.answer_tokens} tokens in line: "
        f"{one.probing_s:.3f} s, of {one.generation_s:.2f} s that generating alone takes: {ratio}, "
        f"in CPU time {_ratio(one.cpu_to_generation)}",
        f"both together took {one.with_probes_s:.2f} s; the trace, resumed after each probe, is "
        + ("the same, token by token" if one.resumed_unchanged else "another one"),
    ]
    return out


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _held(value: float, goal: float | None) -> str:
    if goal is None:
        return f"{value:.3f}"
    return f"{value:.3f} ({'meets' if value <= goal else 'misses'} {goal:g})"


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.probing",
        description="What probing costs beside generating, and beside reading prefixes again.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--shape", choices=SHAPES, default="30m", help="qwen3-8b needs a GPU")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument(
        "--questions", type=int, help="packed at once; the shape's own if not given"
    )
    parser.add_argument("--answer-tokens", type=int, nargs="+", default=[5, LONG], metavar="N")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(argv)
    # Read when torch is first imported: threads that spin while they wait slow each other down.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    report = measure(options.shape, options.device, options.questions, options.answer_tokens)
    print(json.dumps(asdict(report), indent=1) if options.json else "\n".join(lines(report)))
    return 0 if report.exact else 1


if __name__ == "__main__":
    sys.exit(main())
