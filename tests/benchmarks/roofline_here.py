"""Prices computed for this machine, against those measured in vLLM on it.

Run from the repository root: ``python -m tests.benchmarks.roofline_here``; takes the environment of
`tests/integration/setup-vllm.sh`.  Two models: the bundled reasoner, and one of 38 M parameters
with weights of chance.  Bandwidth and multiplications are measured on one thread, as the server
runs.  Other work makes a measurement slower and never faster: the quickest of all rounds counts.

With ``--server URL --model MODEL --gpu NAME`` a server that runs already is held against the data
sheet of its GPU: ``vllm serve MODEL``, where weights of chance do (``--load-format dummy``).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, Qwen3Config, Qwen3ForCausalLM

from stopadvisor.ground.progress import Progress
from stopadvisor.rules.model_shape import ModelShape, model_shape
from stopadvisor.rules.roofline import DEFAULT_GPU, Accelerator, Prices, Roofline, accelerator
from stopadvisor.serving.server_profile import measure_server
from tests.integration.server import NAME, TINY_REASONER, VllmServer, environment

BATCHES = (1, 8)
GPU_BATCHES = (1, 8, 32)
CONTEXT = 64
"""Mean tokens before one that the profile decodes."""
TIMED = 20
SIZES = (
    {
        "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 12, "head_dim": 64,
        "num_attention_heads": 8, "num_key_value_heads": 4, "layer_types": None,
    },
)  # fmt: skip
"""Shapes of models with random weights."""


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


def measured(url: str, name: str, batches: Sequence[int], rounds: int) -> dict[str, float]:
    """Seconds of each kind at a server, each the lowest of the rounds."""
    lowest: dict[str, float] = {}
    for _ in range(rounds):
        profile = measure_server(url, name, batches, Progress())
        costs = profile.weights
        found = {
            **{f"decoded at {row.batch}": row.seconds for row in profile.decoded_by_batch},
            "prefilled": costs.prefilled,
            "cached": costs.cached,
            "request": costs.request,
        }
        lowest = {k: min(v, lowest.get(k, v)) for k, v in found.items()}
    return lowest


def measured_here(model: Path, rounds: int) -> dict[str, float]:
    """Seconds of each kind at a vLLM that is started for it."""
    home = environment()
    if home is None:
        sys.exit("run tests/integration/setup-vllm.sh first")
    with tempfile.TemporaryDirectory() as folder:
        server = VllmServer(home, Path(folder), ("--dtype", "bfloat16"), model=model)
        server.start()
        try:
            return measured(server.base_url, NAME, BATCHES, rounds)
        finally:
            server.kill()


def compare(
    name: str, shape: ModelShape, machine: Accelerator, measured: Mapping[str, float]
) -> None:
    """Print what the formula says, what was measured, and their ratio."""
    engine = Roofline(shape, machine)
    batches = [int(kind.split()[-1]) for kind in measured if kind.startswith("decoded")]
    prices = Prices.of(engine.weights(CONTEXT, batches[-1]))
    decoded = {f"decoded at {b}": engine.step(b, CONTEXT) / b for b in batches}
    rest = {"prefilled": prices.prefilled, "cached": prices.cached, "request": prices.request}
    print(f"{name}: {shape.active / 1e6:.2f} M parameters; µs: formula, measured, ratio")
    for kind, here in (decoded | rest).items():
        seconds = measured[kind]
        ratio = f"{here / seconds:.2g}" if seconds else "none measured"
        print(f"  {kind:13} {1e6 * here:9.2f} {1e6 * seconds:9.2f} {ratio:>8}")


def main() -> int:
    """Print both and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of profile-serving, a model")
    parser.add_argument("--server", metavar="URL", help="a server that runs, of --model on --gpu")
    parser.add_argument("--model", help="a folder or a name, as the server was started with it")
    parser.add_argument("--gpu", default=DEFAULT_GPU)
    options = parser.parse_args()
    if options.server is not None:
        shape = model_shape(AutoConfig.from_pretrained(options.model).to_dict())
        seconds = measured(options.server, options.model, GPU_BATCHES, options.rounds)
        compare(options.model, shape, accelerator(options.gpu), seconds)
        return 0
    machine = this_machine()
    print(f"{machine.bandwidth / 1e9:.1f} GB/s, {machine.compute / 1e9:.0f} billion operations/s")
    with tempfile.TemporaryDirectory() as folder:
        chance = (made(Path(folder) / f"made-{k}", sizes) for k, sizes in enumerate(SIZES, start=1))
        for model in (TINY_REASONER, *chance):
            compare(model.name, shape_of(model), machine, measured_here(model, options.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
