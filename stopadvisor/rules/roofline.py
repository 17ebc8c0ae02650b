"""What tokens cost inside an engine, computed from the model and the accelerator.

A step decodes one token for each request in flight.  It reads the weights once and the cache of
each request, or it multiplies, whichever takes longer; constants add what engines were also
seen to need.  `tests/benchmarks/roofline.py` holds these constants against published measurements:
most lie within a factor of 1.5.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from stopadvisor.ground.errors import CalibrationError
from stopadvisor.rules.costs import PAPER_WEIGHTS, SECONDS, Weights
from stopadvisor.rules.model_shape import ModelShape

__all__ = [
    "ACCELERATORS",
    "DEFAULT_GPU",
    "DEFAULT_IN_FLIGHT",
    "PriceSource",
    "Prices",
    "Roofline",
    "accelerator",
    "recognised",
]


@dataclass(frozen=True)
class Accelerator:
    """What a data sheet says of one device."""

    name: str
    bandwidth: float
    """Bytes that its memory delivers in a second."""
    compute: float
    """Dense bfloat16 operations in a second, multiplications and additions counted apart."""
    compute_8bit: float
    """The same in 8 bits: fp8, or int8 where there is no fp8."""
    memory: float
    """Bytes."""
    source: str
    """Where the figures are from; those that a data sheet gives "with sparsity" are halved."""


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
"""Where nobody names one and this machine has none."""


def accelerator(name: str) -> Accelerator:
    """Look an accelerator up by name, upper or lower case.

    Raises
    ------
    CalibrationError
        It is not in the table.
    """
    if name.lower() not in ACCELERATORS:
        raise CalibrationError(
            f"gpu must be one of {', '.join(ACCELERATORS)}, got {name!r}; measure others with "
            "`stopadvisor profile-serving`"
        )
    return ACCELERATORS[name.lower()]


def recognised(words: str) -> str | None:
    """Name of the accelerator that a driver calls by these words; None where it is not known."""
    parts = set(re.findall(r"[a-z0-9]+", words.lower()))
    parts |= {part.removesuffix("gb") for part in parts}  # "A100-SXM4-80GB"
    for name in sorted(ACCELERATORS, key=len, reverse=True):
        if set(name.split("-")) <= parts:
            return name
    return None


DEFAULT_IN_FLIGHT = 32
"""Requests in flight where nobody says."""
_BANDWIDTH, _COMPUTE = 0.75, 0.45
"""Shares of what the data sheet says that engines reach."""
_STEP, _STEP_OF_REQUEST, _ALL_REDUCE, _REQUEST = 1.5e-3, 20e-6, 45e-6, 1e-3
"""Seconds: of a step, of a step for each request, of one exchange between devices (two a layer), of
taking in a request."""
_FOR_ENGINE = 0.9
"""Share of the memory that engines take (vLLM's default)."""

PriceSource = Literal["measured", "roofline", "bill", "paper"]


@dataclass(frozen=True)
class Prices:
    """What tokens cost, and where that is known from.

    Seconds where measured or computed, money per million tokens of a bill, the paper's weights.
    """

    source: PriceSource
    """Where the prices are from."""
    gpu: str | None
    """Accelerators for which they were computed; None where they were not."""
    in_flight: int | None
    """Requests that decode together; None where that is not known."""
    prefilled: float
    """Of a token that is read for the first time."""
    cached: float
    """Of a token read back from the cache."""
    decoded: float
    """Of a token decoded at the mean context of the recorded questions."""
    request: float
    """Of a request, whatever it reads and decodes."""

    @classmethod
    def of(cls, weights: Weights) -> Prices:
        """Weights as people read them."""
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
    """A model on accelerators of one kind, split by tensor parallelism."""

    model: ModelShape
    gpu: Accelerator
    tensor_parallel: int = 1

    def __post_init__(self) -> None:
        if self.tensor_parallel < 1:
            raise CalibrationError(
                f"tensor_parallel must be at least 1, got {self.tensor_parallel!r}"
            )

    @property
    def _copies(self) -> float:
        """How often a cached value is kept: heads are copied where devices outnumber them."""
        return max(1.0, self.tensor_parallel / self.model.heads)

    @property
    def _byte(self) -> float:
        """Seconds of reading a byte that all devices share."""
        return 1 / (_BANDWIDTH * self.gpu.bandwidth * self.tensor_parallel)

    @property
    def _operation(self) -> float:
        compute = self.gpu.compute_8bit if self.model.eight_bit else self.gpu.compute
        return 1 / (_COMPUTE * compute * self.tensor_parallel)

    @property
    def cached(self) -> float:
        """Seconds of reading one cached token."""
        return self.model.cached * self._copies * self._byte

    def most_in_flight(self, context: float) -> int:
        """Requests of this context whose cache fits with the weights.

        Raises
        ------
        CalibrationError
            Not even one.
        """
        memory = _FOR_ENGINE * self.gpu.memory * self.tensor_parallel
        each = (self.model.cached * context + self.model.windowed(context)) * self._copies
        most = int((memory - self.model.held_bytes) / each)
        if most < 1:
            raise CalibrationError(
                f"weights of {self.model.held_bytes / 1e9:.0f} GB and one request of {context:.0f} "
                f"tokens do not fit on {self.tensor_parallel} x {self.gpu.name}: take more "
                "(--tensor-parallel) or another (--gpu)"
            )
        return most

    def step(self, in_flight: int, context: float) -> float:
        """Seconds of a step that decodes one token for each of N requests."""
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
        """Prices at a mean context, with as many requests in flight as fit, at most `in_flight`.

        A prefilled token attends to half of that context on average.  Its price is an upper limit:
        where steps wait for memory, some of its multiplications come free.
        """
        if in_flight < 1 or context <= 0:
            raise CalibrationError(
                "requests in flight and context must be at least 1, got "
                f"{in_flight!r} and {context!r}"
            )
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
