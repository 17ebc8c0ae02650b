"""Accelerators by name: memory bandwidth, dense 16-bit compute and memory, each from its maker.

Knows no model and asks no device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stopadvisor.ground.errors import CalibrationError

__all__ = ["ACCELERATORS", "DEFAULT_GPU", "Accelerator", "accelerator", "recognised"]


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
