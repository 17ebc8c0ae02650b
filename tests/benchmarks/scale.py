"""How choosing and calibrating grow with the number of questions.

``python tests/benchmarks/scale.py`` draws three sizes, the largest 1,000,000 questions × 10
checkpoints, and prints time and memory of `choose` + `calibrate` on arrays that are there already.
Each size runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from multiprocessing import get_context
from pathlib import Path

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "2")

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np  # noqa: E402

from stopadvisor.assessment.choice import Settings, choose  # noqa: E402
from stopadvisor.certification.calibration import calibrate  # noqa: E402
from tests.populations import FREE_FORM, renamed  # noqa: E402

SIZES = (1_000, 10_000, 100_000, 1_000_000)


def measure(n_questions: int) -> tuple[float, float, float, float, str]:
    """Seconds of wall clock and CPU, GB of the arrays and of the whole process, the outcome."""
    rng = np.random.default_rng(n_questions)
    half = n_questions // 2
    parts = [FREE_FORM.draw(k, rng) for k in (half, n_questions - half)]
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
    parser.add_argument("sizes", nargs="*", type=int, default=SIZES)
    print(
        f"{'questions':>10} {'wall s':>8} {'CPU s':>8} {'s per 1000':>11} {'peak GB':>8}  exported"
    )
    for n in parser.parse_args().sizes:
        with get_context("spawn").Pool(1) as pool:
            wall, cpu, _, peak, outcome = pool.apply(measure, (n,))
        print(
            f"{n:10d} {wall:8.2f} {cpu:8.2f} {1000 * wall / n:11.5f} {peak:8.2f}  {outcome}",
            flush=True,
        )


if __name__ == "__main__":
    main()
