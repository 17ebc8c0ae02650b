"""Prices that the roofline computes for this machine beside those that a vLLM on it has.

Run from the repository root: ``python -m tests.benchmarks.roofline_here``; takes the environment of
`tests/integration/setup-vllm.sh`.  Two models: the bundled reasoner, and one of 38 M parameters
with weights of chance.  Bandwidth and multiplications are measured on one thread, as the server
runs.  Other work makes a measurement slower and never faster: the quickest of all rounds counts.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from stopadvisor.ground.progress import NullProgress
from stopadvisor.rules.model_shape import ModelShape, model_shape
from stopadvisor.rules.roofline import Accelerator, Prices, Roofline
from stopadvisor.serving.server_profile import measure_server
from tests.integration.server import NAME, TINY_REASONER, VllmServer, environment

BATCHES = (1, 8)
CONTEXT = 64
"""Mean tokens before one that the profile decodes."""
TIMED = 20
SIZES = (
    {
        "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 12, "head_dim": 64,
        "num_attention_heads": 8, "num_key_value_heads": 4, "layer_types": None,
    },
)  # fmt: skip
"""Of models with weights of chance."""


def _quickest(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(TIMED):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def this_machine() -> Accelerator:
    """Bandwidth of reading 512 MB and operations of a product in bfloat16, on one thread."""
    torch.set_num_threads(1)
    many, square = torch.ones(128 * 2**20), torch.randn(1024, 1024, dtype=torch.bfloat16)
    bandwidth = many.nbytes / _quickest(many.sum)
    compute = 2 * 1024**3 / _quickest(lambda: square @ square)
    return Accelerator("this machine", bandwidth, compute, compute, 64e9, "measured")


def made(folder: Path, sizes: Mapping[str, Any]) -> Path:
    """A model of these sizes with weights of chance and the bundled tokenizer."""
    torch.manual_seed(0)
    bundled = json.loads((TINY_REASONER / "config.json").read_bytes())
    model = Qwen3ForCausalLM(Qwen3Config(**{**bundled, **sizes}))
    shutil.copytree(TINY_REASONER, folder)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def shape_of(model: Path) -> ModelShape:
    """Sizes of a model in a folder."""
    return model_shape(json.loads((model / "config.json").read_bytes()))


def measured(model: Path, rounds: int) -> dict[str, float]:
    """Seconds of each kind at a vLLM here, each the lowest of the rounds."""
    home = environment()
    if home is None:
        sys.exit("run tests/integration/setup-vllm.sh first")
    lowest: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        server = VllmServer(home, Path(folder), ("--dtype", "bfloat16"), model=model)
        server.start()
        try:
            for _ in range(rounds):
                profile = measure_server(server.base_url, NAME, BATCHES, NullProgress())
                costs = profile.weights
                found = {
                    **{f"decoded at {row.batch}": row.seconds for row in profile.decoded_by_batch},
                    "prefilled": costs.prefilled,
                    "cached": costs.cached,
                    "request": costs.request,
                }
                lowest = {k: min(v, lowest.get(k, v)) for k, v in found.items()}
        finally:
            server.kill()
    return lowest


def computed(model: Path, machine: Accelerator) -> dict[str, float]:
    """Seconds of each kind by the formula."""
    engine = Roofline(shape_of(model), machine)
    prices = Prices.of(engine.weights(CONTEXT, BATCHES[-1]))
    decoded = {f"decoded at {b}": engine.step(b, CONTEXT) / b for b in BATCHES}
    rest = {"prefilled": prices.prefilled, "cached": prices.cached, "request": prices.request}
    return decoded | rest


def main() -> int:
    """Print both and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of profile-serving, a model")
    rounds = parser.parse_args().rounds
    machine = this_machine()
    print(f"{machine.bandwidth / 1e9:.1f} GB/s, {machine.compute / 1e9:.0f} billion operations/s")
    with tempfile.TemporaryDirectory() as folder:
        chance = (made(Path(folder) / f"made-{k}", sizes) for k, sizes in enumerate(SIZES, start=1))
        for model in (TINY_REASONER, *chance):
            shape = shape_of(model)
            print(
                f"{model.name}: {shape.active / 1e6:.2f} M parameters; µs: formula, measured, ratio"
            )
            formula = computed(model, machine)
            for kind, seconds in measured(model, rounds).items():
                here = formula[kind]
                ratio = f"{here / seconds:.2g}" if seconds else "none measured"
                print(f"  {kind:13} {1e6 * here:9.2f} {1e6 * seconds:9.2f} {ratio:>8}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
