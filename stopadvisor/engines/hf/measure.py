"""Seconds and memory of serving with probes, measured on this machine.

Per question: batches are answered with and without probes in turn, so that other work on the
machine slows all of them alike.  Per token: prompts read, probes and steps, each timed alone for
`rules.cost_fit`.  Knows no policy and no file.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from stopadvisor.engines.hf.branch import Branch, probe_branches
from stopadvisor.engines.hf.engine import HfEngine
from stopadvisor.engines.hf.rolling import Kept
from stopadvisor.policy.requests import Reply, Request
from stopadvisor.policy.stepper import Decision
from stopadvisor.probes.plan import ProbePlan
from stopadvisor.probes.trigger import GridTrigger
from stopadvisor.rules.cost_fit import Measurement
from stopadvisor.rules.serving_profile import ProfileRow

__all__ = ["device_name", "measure_questions", "measure_tokens", "spread_budgets"]

_REPEATS = 5
_STEPS = 32
"""Single-token steps per measurement of decoding."""
_BRANCH_TOKENS = 8
"""Tokens of the answers by which reading the cache is measured."""
_GB = 1e9


def spread_budgets(count: int, last: int) -> tuple[int, ...]:
    """Return `count` budgets, evenly spaced from 0 to `last`; fewer where tokens are too few."""
    return tuple(sorted({int(b) for b in np.rint(np.linspace(0, last, count))}))


# --- Per question ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Never:
    """A rule that probes everywhere and never stops."""

    trigger: GridTrigger
    needs_markers: bool = True
    """As the dearest of rules do."""

    def start(self, task: str | None = None) -> _Never:
        """Begin a question."""
        return self

    def observe(self, **answer: object) -> Decision:
        """Go on."""
        return Decision(False, 0.0, 0, False)


def measure_questions(
    engine: HfEngine,
    requests: Sequence[Request],
    plan: ProbePlan,
    schedules: Mapping[int, tuple[int, ...]],
    batches: Sequence[int],
    done: Callable[[Sequence[Reply]], None] = lambda replies: None,
) -> list[ProfileRow]:
    """Answer the requests under every schedule and batch size; rows by batch, then by checkpoints.

    `schedules` holds budgets by their number, none for no probe; `done` gets each batch's
    replies.
    """
    seconds: dict[tuple[int, int], list[float]] = {}
    memory: dict[tuple[int, int], float] = {}
    for size in batches:
        groups = [requests[i : i + size] for i in range(0, len(requests), size)]
        # A last batch that is not full would tell of another batch size.
        groups = [group for group in groups if len(group) == size] or [list(requests)]
        for turn, group in enumerate(groups):
            names = sorted(schedules)
            for count in names[turn % len(names) :] + names[: turn % len(names)]:
                rule = _Never(GridTrigger(schedules[count])) if schedules[count] else None
                with _peak_memory(engine) as peak:
                    began = _now(engine)
                    replies = dict(engine.serve(group, plan, rule, batch_size=size))
                    spent = _now(engine) - began
                seconds.setdefault((size, count), []).append(spent / len(group))
                memory[size, count] = max(memory.get((size, count), 0.0), peak[0])
                done(list(replies.values()))
    return [
        ProfileRow(
            batch=size,
            checkpoints=count,
            seconds_per_question=statistics.fmean(values),
            std=statistics.stdev(values) if len(values) > 1 else None,
            peak_memory_gb=memory[size, count],
        )
        for (size, count), values in sorted(seconds.items())
    ]


# --- Per token ------------------------------------------------------------------------------------


@torch.inference_mode()
def measure_tokens(engine: HfEngine, length: int, batches: Sequence[int]) -> list[Measurement]:
    """Time work that tells what a token costs: prefilled, read from the cache, decoded.

    `length` is that of the shorter of two prefixes; the longer has twice as many tokens.

    Returns
    -------
    list of Measurement
        For each batch, of both prefixes: reading that many new prompts, and forcing an answer of
        eight tokens after a prefix that is kept, as a probe does; and single-token steps over the
        shorter prefix.  Medians of five.  A probe here is a branch and no request.
    """
    short, long = (_ids(engine, n) for n in (length, 2 * length))
    stops = replace(
        engine.stops, flags=np.zeros(engine.vocabulary, dtype=np.uint8)
    )  # answers never end
    suffix = engine.suffix_ids(" ")
    found = []
    for size in batches:
        for ids in (short, long):

            def fill(ids: list[int] = ids, size: int = size) -> None:
                engine.runner.prefill([ids] * size, engine.pad_id)

            kept = _prefix(engine, ids, size)
            branches = [Branch(row, 0) for row in range(size)]

            def ask(kept: Kept = kept, branches: list[Branch] = branches) -> None:
                probe_branches(engine.runner, kept, branches, suffix, stops, cap=_BRANCH_TOKENS)

            tokens = size * len(ids)
            found.append(Measurement(size, size, tokens, 0, 0, _median(engine, fill)))
            found.append(
                Measurement(
                    size, 0, size * len(suffix), tokens, size * _BRANCH_TOKENS, _median(engine, ask)
                )
            )
        seconds = _median(engine, lambda size=size: _decode(engine, short, size))  # type: ignore[misc]
        found.append(Measurement(size, 0, 0, 0, size * _STEPS, seconds))
    return found


def _ids(engine: HfEngine, length: int) -> list[int]:
    prompt = engine.chat.prompt_ids([{"role": "user", "content": "What is 17 times 23?"}])
    return (prompt * (length // len(prompt) + 1))[:length]


def _prefix(engine: HfEngine, ids: list[int], batch: int) -> Kept:
    cache, pads, _ = engine.runner.prefill([ids] * batch, engine.pad_id)
    return Kept(cache, pads, cache.columns)


def _decode(engine: HfEngine, ids: list[int], batch: int) -> float:
    """Return the seconds of the steps alone, without the prefill before them."""
    kept = _prefix(engine, ids, batch)
    device = kept.pads.device
    token = torch.full((batch, 1), ids[-1], device=device)
    places = torch.arange(len(ids) + _STEPS, device=device).expand(batch, -1)
    needs_mask = engine.runner.window is not None
    began = _now(engine)
    for step in range(len(ids), len(ids) + _STEPS):
        mask = torch.zeros((batch, 1, step + 1), dtype=engine.runner.dtype, device=device)
        logits = engine.runner.forward(
            token,
            places[:, step : step + 1],
            kept.cache,
            mask if needs_mask else None,
            places[:, : step + 1] if needs_mask else None,
        )
        # Generation waits for each token before it goes on.
        logits[:, -1].argmax(dim=-1).cpu()
    return _now(engine) - began


def _median(engine: HfEngine, call: Callable[[], object]) -> float:
    """Seconds of a call, or what it returns where that is a number of seconds."""
    times = []
    for _ in range(_REPEATS + 1):
        began = _now(engine)
        own = call()
        spent = _now(engine) - began
        times.append(own if isinstance(own, float) else spent)
    return statistics.median(times[1:])  # the first one warms up


# --- The machine ----------------------------------------------------------------------------------


def device_name(engine: HfEngine) -> str:
    """Return what the model runs on, as its maker calls it."""
    device = engine.runner.device
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    threads = torch.get_num_threads()
    return f"{names[0] if names else 'cpu'}, {threads} thread{'s' if threads > 1 else ''}"


def _now(engine: HfEngine) -> float:
    """Return the time, when everything that was asked of the device is done."""
    if engine.runner.device.type == "cuda":
        for device in _devices(engine):
            torch.cuda.synchronize(device)
    return time.perf_counter()


def _devices(engine: HfEngine) -> set[torch.device]:
    return {parameter.device for parameter in engine.model.parameters()}


@contextmanager
def _peak_memory(engine: HfEngine) -> Iterator[list[float]]:
    """Fill in the most memory held meanwhile, weights included, in GB of 10^9 bytes."""
    found = [0.0]
    devices = [device for device in _devices(engine) if device.type == "cuda"]
    for device in devices:
        torch.cuda.reset_peak_memory_stats(device)
    if not devices:
        _reset_resident_peak()
    yield found
    if devices:
        found[0] = sum(torch.cuda.max_memory_allocated(device) for device in devices) / _GB
    else:
        found[0] = _resident_peak() / _GB


def _reset_resident_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return  # then the peak is the process's since it began: too high, never too low


def _resident_peak() -> int:
    """Return the peak of the process's resident memory in bytes."""
    with suppress(OSError):  # not Linux, which keeps its peak elsewhere
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
