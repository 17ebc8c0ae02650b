"""How many audited requests a second the monitor takes in, live and from a log.

Run from the repository root: ``python -m tests.benchmarks.monitor [--requests N]``.  Every request
is audited and has a result; drift is watched in three features.  Live writes each record to the
disk, too.  The same in plain float arithmetic, one product a stake, is what formulas alone cost.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from stopadvisor.serving.audit_log import AuditLog, replay
from stopadvisor.serving.audit_records import find_series
from stopadvisor.serving.watch_settings import WatchSettings
from stopadvisor.stats.sequential import AuditProcess, AuditTest

SETTINGS = WatchSettings("ab" * 32, "differs", 0.05, 0.05, 0.05, 0.02, 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    n: int = parser.parse_args().requests

    def rate(work: Callable[[], None]) -> float:
        """Audited requests a second of CPU time."""
        start = time.process_time()
        work()
        return n / (time.process_time() - start)

    rng = np.random.default_rng(0)
    lost = (rng.random(n) < 0.001).tolist()
    prompts = rng.integers(20, 400, n).tolist()
    reference = {
        "stop": [43.0, 87.0] * 100,
        "prompt_tokens": [float(v) for v in prompts[:200]],
        "first_logprob": [-0.1, -0.2] * 100,
    }
    test = AuditTest(0.05, 0.05, 0.02)

    def formulas() -> None:
        products = [1.0] * len(test.stakes)
        for loss in lost:
            for k, stake in enumerate(test.stakes):
                products[k] *= 1 + stake * (loss / 0.02 - 0.05)

    def process() -> None:
        watched = AuditProcess(test)
        for number, loss in enumerate(lost):
            watched.audit(number, 0.02)
            watched.resolve(number, int(loss))
            _ = watched.is_broken, watched.has_changed

    with tempfile.TemporaryDirectory() as folder:

        def live() -> None:
            log = AuditLog(Path(folder), "a", SETTINGS, reference)
            for number, loss in enumerate(lost):
                name = f"{number:032x}"
                log.write(
                    "request", id=name, stop=43 + 44 * (number % 2), tokens=90, share=0.02,
                    prompt_tokens=prompts[number], first_logprob=-0.1,
                )  # fmt: skip
                log.write("result", id=name, differs=loss, tokens=30)

        def read_again() -> None:
            replay(find_series([Path(folder)], SETTINGS.digest), reference)

        rates = {
            "the formulas alone, in floats": rate(formulas),
            "the process: e-value, detector, alarm": rate(process),
            "live: records written, drift": rate(live),
            "replay of that log": rate(read_again),
        }
    for name, value in rates.items():
        print(f"{name:40} {value:10,.0f} audited requests a second of CPU time")


if __name__ == "__main__":
    main()
