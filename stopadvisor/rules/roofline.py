"""Token prices inside an engine, computed from the model and the accelerator.

A step decodes one token for each request in flight.  It takes as long as its memory reads (weights
and KV cache) or its multiplications, whichever is longer, plus overheads.
`tests/benchmarks/roofline.py` compares the result with published measurements: most lie within a
factor of 1.5.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from stopadvisor.ground.errors import CalibrationError
from stopadvisor.rules.costs import PAPER_WEIGHTS, SECONDS, Weights
from stopadvisor.rules.model_shape import ModelShape

__all__ = [
    "ACCELERATORS", "DEFAULT_GPU", "DEFAULT_IN_FLIGHT", "PriceSource", "Prices", "Roofline",
    "accelerator", "recognised",
]  # fmt: skip


@dataclass(frozen=True)
class Accelerator:
    """Data sheet of one device."""

    name: str
    bandwidth: float
    """Memory bandwidth in bytes per second."""
    compute: float
    """Dense bfloat16 operations per second; a multiply-add counts as two."""
    compute_8bit: float
    """The same in 8 bits: fp8, or int8 where there is no fp8."""
    memory: float
    """Bytes."""
    source: str
    """Source of the figures; those given "with sparsity" are halved."""


_FIGURES = """
h100       3350  989   1979  80   NVIDIA H100 data sheet, SXM
h100-pcie  2000  756   1513  80   NVIDIA H100 PCIe data sheet
h100-nvl   3900  835   1671  94   NVIDIA H100 data sheet, NVL
h200       4800  989   1979  141  NVIDIA H200 data sheet, SXM
b200       8000  2250  4500  180  NVIDIA HGX B200 data sheet
a100-80    2039  312   624   80   NVIDIA A100 data sheet, SXM 80 GB
a100-40    1555  312   624   40   NVIDIA A100 data sheet, 40 GB
l40s       864   362   733   48   NVIDIA L40S data sheet
l4         300   121   242   24   NVIDIA L4 data sheet
a10g       600   70    140   24   NVIDIA A10G product brief for AWS G5
mi300x     5300  1307  2615  192  AMD Instinct MI300X data sheet
rtx-4090   1008  165.2 330.3 24   NVIDIA Ada GPU architecture, appendix A, FP32 accumulate
"""
"""Name, GB/s, dense teraoperations in 16 and in 8 bits, GB, source."""


def _read(line: str) -> Accelerator:
    name, bandwidth, compute, compute_8bit, memory, source = line.split(maxsplit=5)
    return Accelerator(
        name,
        float(bandwidth) * 1e9,
        float(compute) * 1e12,
        float(compute_8bit) * 1e12,
        float(memory) * 1e9,
        source,
    )


ACCELERATORS = {each.name: each for each in map(_read, _FIGURES.strip().splitlines())}

DEFAULT_GPU = "h100"
"""GPU used if none is named and this machine has none."""


def accelerator(name: str) -> Accelerator:
    """Look up an accelerator by name, in any case; CalibrationError for an unknown one."""
    if name.lower() not in ACCELERATORS:
        raise CalibrationError(
            f"gpu must be one of {', '.join(ACCELERATORS)}, got {name!r}; measure others with "
            "`stopadvisor profile-serving`"
        )
    return ACCELERATORS[name.lower()]


def recognised(words: str) -> str | None:
    """Name of the accelerator that a driver describes in these words; None if unknown."""
    parts = set(re.findall(r"[a-z0-9]+", words.lower()))
    parts |= {part.removesuffix("gb") for part in parts}  # "A100-SXM4-80GB"
    for name in sorted(ACCELERATORS, key=len, reverse=True):
        if set(name.split("-")) <= parts:
            return name
    return None


DEFAULT_IN_FLIGHT = 32
"""Default number of requests in flight."""
_BANDWIDTH, _COMPUTE = 0.75, 0.45
"""Shares of the data sheet's bandwidth and compute that engines reach."""
_STEP, _STEP_OF_REQUEST, _ALL_REDUCE, _REQUEST = 1.5e-3, 20e-6, 45e-6, 1e-3
"""Seconds per step, per request in a step, per all-reduce (two per layer), and per request."""
_FOR_ENGINE = 0.9
"""Share of the memory that engines use (vLLM's default)."""

PriceSource = Literal["measured", "roofline", "bill", "paper"]


@dataclass(frozen=True)
class Prices:
    """Token prices and their source.

    In seconds where measured or computed, in money per million tokens for a bill; else the paper's
    weights.
    """

    source: PriceSource
    """Source of the prices."""
    gpu: str | None
    """Accelerators for which they were computed; None if they were not computed."""
    in_flight: int | None
    """Requests that decode together; None if unknown."""
    prefilled: float
    """A prompt token that is not cached."""
    cached: float
    """A prompt token read from the cache."""
    decoded: float
    """A token decoded at the mean context of the recorded questions."""
    request: float
    """A request, whatever it reads and decodes."""

    @classmethod
    def of(cls, weights: Weights) -> Prices:
        """Prices as shown to people."""
        computed: PriceSource = "measured" if weights.gpu is None else "roofline"
        return cls(
            {PAPER_WEIGHTS.unit: "paper", SECONDS: computed}.get(weights.unit, "bill"),
            weights.gpu,
            weights.in_flight,
            weights.prefilled,
            weights.cached,
            weights.decoded + weights.held * weights.context,
            weights.request,
        )


@dataclass(frozen=True)
class Roofline:
    """A model on one or more accelerators of one kind, with tensor parallelism."""

    model: ModelShape
    gpu: Accelerator
    tensor_parallel: int = 1

    @property
    def _copies(self) -> float:
        """Copies of a cached value: KV heads are copied if there are more devices than heads."""
        return max(1.0, self.tensor_parallel / self.model.heads)

    @property
    def _byte(self) -> float:
        """Seconds to read a byte with all devices."""
        return 1 / (_BANDWIDTH * self.gpu.bandwidth * self.tensor_parallel)

    @property
    def _operation(self) -> float:
        compute = self.gpu.compute_8bit if self.model.eight_bit else self.gpu.compute
        return 1 / (_COMPUTE * compute * self.tensor_parallel)

    @property
    def cached(self) -> float:
        """Seconds to read one cached token."""
        return self.model.cached * self._copies * self._byte

    def most_in_flight(self, context: float) -> int:
        """Number of requests of this context that fit into memory next to the weights.

        Raises
        ------
        CalibrationError
            Not even one fits.
        """
        memory = _FOR_ENGINE * self.gpu.memory * self.tensor_parallel
        each = (self.model.cached * context + self.model.windowed(context)) * self._copies
        most = int((memory - self.model.held_bytes) / each)
        if most < 1:
            raise CalibrationError(
                f"weights of {self.model.held_bytes / 1e9:.0f} GB and one request of {context:.0f} "
                f"tokens do not fit on {self.tensor_parallel} x {self.gpu.name}: use more of them "
                "(--tensor-parallel) or another kind (--gpu)"
            )
        return most

    def step(self, in_flight: int, context: float) -> float:
        """Seconds of a step, which decodes one token for each of N requests."""
        exchange = 2 * self.model.layers * _ALL_REDUCE if self.tensor_parallel > 1 else 0.0
        work = max(self._reading(in_flight, context), self._multiplying(in_flight))
        return _STEP + work + _STEP_OF_REQUEST * in_flight + exchange

    def _reading(self, in_flight: int, context: float) -> float:
        windowed = self.model.windowed(context) * self._copies * self._byte
        own = in_flight * (context * self.cached + windowed)
        return self.model.read_bytes(in_flight) * self._byte + own

    def _multiplying(self, in_flight: int) -> float:
        return 2 * self.model.active * in_flight * self._operation

    def weights(self, context: float, in_flight: int = DEFAULT_IN_FLIGHT) -> Weights:
        """Prices at a mean context, with `in_flight` requests or as many as fit.

        On average, a prefilled token attends to half of that context.  Its price is an upper limit:
        if steps are memory-bound, some of its operations are free.
        """
        here = min(in_flight, self.most_in_flight(context))
        step = self.step(here, context)
        reads = self._reading(here, context) >= self._multiplying(here)
        held = self.cached if reads else 0.0
        operations = 2 * self.model.active + self.model.attended * context / 2
        count = "" if self.tensor_parallel == 1 else f"{self.tensor_parallel} x "
        return Weights(
            operations * self._operation,
            self.cached,
            step / here - held * context,
            SECONDS,
            request=_REQUEST,
            round_trip=_REQUEST / step,
            held=held,
            context=context,
            gpu=count + self.gpu.name,
            in_flight=here,
        )
