"""Seconds of prompts read, probes and steps on this machine, each timed alone for `rules.cost_fit`.

Knows no policy and no file.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from stopadvisor.engines.hf.branch import Branch, probe_branches
from stopadvisor.engines.hf.engine import HfEngine
from stopadvisor.engines.hf.rolling import Kept
from stopadvisor.rules.serving_profile import Measurement

__all__ = ["device_name", "measure_tokens"]

_REPEATS = 5
_STEPS = 32
"""Single-token steps per measurement of decoding."""
_BRANCH_TOKENS = 8
"""Tokens of the answers by which reading the cache is measured."""


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
