"""Published times between tokens, against those that the roofline of prices computes.

Run from the repository root: ``python -m tests.benchmarks.roofline``.  Reads 808 cells of other
people's benchmarks from ``serving-figures.csv``: ``nim`` is NVIDIA's performance page of NIM 1.0
(TensorRT-LLM, Llama 3), to which the constants were partly fitted; the others are lmdeploy's and
four users' figures of vLLM, which were not used for fitting.

A published time between tokens is that of a server under steady load, which also prefills prompts
of new requests between the steps: per token the ratio of prompt to reply length.  That is added
where both lengths are known; "steps alone" is the share without it.  Requests that do not fit into
memory wait, so that fewer are in flight than were sent.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stopadvisor.rules.model_shape import PRESETS, model_shape
from stopadvisor.rules.roofline import Roofline, accelerator

FIGURES = Path(__file__).with_name("serving-figures.csv")
FACTOR = 1.5
"""A computed time counts as right up to this factor, either way."""

_SHAPES = {  # layers, hidden, heads, heads of keys, width, vocabulary, tied
    "Llama-3-8B": (32, 4096, 32, 8, 14336, 128256, False),
    "Llama-3.1-8B": (32, 4096, 32, 8, 14336, 128256, False),
    "Llama-3-70B": (80, 8192, 64, 8, 28672, 128256, False),
    "Llama-2-7B": (32, 4096, 32, 32, 11008, 32000, False),
    "Llama-2-70B": (80, 8192, 64, 8, 28672, 32000, False),
    "Qwen3-0.6B": (28, 1024, 16, 8, 3072, 151936, True),
    "Qwen3-1.7B": (28, 2048, 16, 8, 6144, 151936, True),
    "Qwen3-4B": (36, 2560, 32, 8, 9728, 151936, True),
}


def config(name: str, bits: int = 16) -> dict[str, Any]:
    """The config of a published model, its weights and products in 16 or 8 bits."""
    layers, hidden, heads, groups, width, vocabulary, tied = _SHAPES[name]
    return {
        **PRESETS["8b"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": width,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
        "quantization_config": {"quant_method": "fp8"} if bits == 8 else None,
    }


@dataclass(frozen=True)
class Cell:
    """A published time between tokens, and what is computed for it."""

    group: str
    measured: float
    """Seconds."""
    step: float
    prefill: float
    """Seconds of other requests' prompts in each step."""

    def is_within(self, *, alone: bool = False) -> bool:
        """Whether the computed time is right up to `FACTOR`."""
        ratio = self.measured / (self.step if alone else self.step + self.prefill)
        return 1 / FACTOR <= ratio <= FACTOR


def cells() -> list[Cell]:
    """All published cells."""
    with FIGURES.open(encoding="utf-8", newline="") as file:
        return [_cell(row) for row in csv.DictReader(file)]


def _cell(row: dict[str, str]) -> Cell:
    shape = model_shape(config(row["model"], int(row["weight_bits"])))
    engine = Roofline(shape, accelerator(row["gpu"]), int(row["gpus"]))
    context = float(row["context"])
    prices = engine.weights(context, int(row["in_flight"]))
    assert prices.in_flight is not None
    turnover = float(row["prompt"]) / float(row["reply"]) if row["prompt"] else 0.0
    return Cell(
        f"{row['source']}, {row['model']}, {row['gpus']} x {row['gpu']}, {row['weight_bits']} bits",
        float(row["step_ms"]) / 1000,
        engine.step(prices.in_flight, context),
        prices.in_flight * turnover * prices.prefilled,
    )


def share(of: list[Cell], *, alone: bool = False) -> float:
    """Part of cells that are computed within the factor."""
    return sum(cell.is_within(alone=alone) for cell in of) / len(of)


def main() -> int:
    """Print the shares."""
    groups = defaultdict(list)
    for cell in cells():
        groups[cell.group].append(cell)
    fitted = [c for name in groups for c in groups[name] if name.startswith("nim")]
    others = [c for name in groups for c in groups[name] if not name.startswith("nim")]
    print(f"within a factor of {FACTOR:g}: share of cells (steps alone), cells")
    for name, found in [*groups.items(), ("all of nim", fitted), ("all others", others)]:
        print(f"{share(found):7.1%} ({share(found, alone=True):.1%}) {len(found):5d}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
