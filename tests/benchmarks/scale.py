"""Time and memory of choosing and calibrating, by numbers of questions and positions.

``python -m tests.benchmarks.scale [N | NxM]…`` draws N questions with probes at M positions (10
where none is named) and prints time and memory of `choose` + `calibrate` on arrays that are there
already.  By default 400 × 250 and up to 1,000,000 × 10.
Each size runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "2")

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np  # noqa: E402

from stopadvisor.assessment.choice import Settings, choose  # noqa: E402
from stopadvisor.certification.calibration import calibrate  # noqa: E402
from tests.populations import FREE_FORM, renamed  # noqa: E402

SIZES = ("400x250", "1000", "10000", "100000", "1000000")
_STRIDE = 32
"""Thinking tokens from one of many positions to the next."""


def parse(text: str) -> tuple[int, int | None]:
    """Questions, and positions where they are named."""
    questions, times, positions = text.partition("x")
    return int(questions), int(positions) if times else None


def measure(n_questions: int, n_positions: int | None) -> tuple[float, float, float, float, str]:
    """Seconds of wall clock and CPU, GB of the arrays and of the whole process, the outcome."""
    rng = np.random.default_rng(n_questions)
    half = n_questions // 2
    population = FREE_FORM
    if n_positions is not None:
        budgets = tuple(range(_STRIDE, _STRIDE * n_positions + 1, _STRIDE))
        population = replace(FREE_FORM, budgets=budgets, median_trace=budgets[-1] / 3)
    parts = [population.draw(k, rng) for k in (half, n_questions - half)]
    fit, calibration = (renamed(t, p) for t, p in zip(parts, ("f", "c"), strict=True))
    del parts
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    wall, cpu = time.perf_counter(), time.process_time()
    choice = choose(fit.as_fit(), calibration.n_questions, Settings(alpha=0.10))
    found = calibrate(choice, calibration.as_calibration())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    outcome = found.rule.scorer.family if found.rule else "nothing certified"
    return wall, cpu, before, peak, outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", default=SIZES)
    print(
        f"{'questions':>10} {'wall s':>8} {'CPU s':>8} {'s per 1000':>11} {'peak GB':>8}  exported"
    )
    for size in parser.parse_args().sizes:
        n, _ = parse(size)
        with get_context("spawn").Pool(1) as pool:
            wall, cpu, _, peak, outcome = pool.apply(measure, parse(size))
        print(
            f"{size:>10} {wall:8.2f} {cpu:8.2f} {1000 * wall / n:11.5f} {peak:8.2f}  {outcome}",
            flush=True,
        )


if __name__ == "__main__":
    main()
