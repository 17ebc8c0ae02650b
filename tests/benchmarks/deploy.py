"""CPU seconds of `assess` and `calibrate` under the deploy protocol: 1000 questions, 10 points.

Run from the repository root: ``python -m tests.benchmarks.deploy``.  Everything is included but
starting Python: reading probes, choosing family, schedule and thresholds, the bootstrap with all
of it chosen anew, the ledger, the certificate, the policy with its golden decisions, the files.
"""

from __future__ import annotations

import os
import time

QUESTIONS = 1000
BUDGETS = (0, 8, 16, 24, 32, 40, 48, 64, 80, 100)


def main() -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported
    import tempfile
    from dataclasses import replace
    from io import StringIO
    from pathlib import Path

    from stopadvisor.cli import assess, calibrate
    from stopadvisor.cli.options import OutputOptions
    from stopadvisor.cli.probing import ProbeOptions
    from stopadvisor.collection.settings import ProbeSettings
    from tests.material import PLAN, make_run

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "run"

        def timed(what: str, step: int) -> None:
            start, out = time.process_time(), StringIO()
            if what == "assess":
                probing = ProbeOptions(ProbeSettings(path), output=OutputOptions(quiet=True))
                assess.run(assess.AssessOptions(probing, report=False), out, out)
            else:
                calibrate.run(calibrate.CalibrateOptions(path), out, out)
            seconds = time.process_time() - start
            order = "first" if step == 0 else "again"
            print(f"{what:9} {QUESTIONS} x {len(BUDGETS)}, {order}: {seconds:.2f} s CPU")

        start = time.process_time()
        make_run(path, QUESTIONS, plan=replace(PLAN, budgets=BUDGETS))
        print(f"probing with the scripted engine: {time.process_time() - start:.2f} s CPU")
        for step in range(2):
            for what in ("assess", "calibrate"):
                timed(what, step)


if __name__ == "__main__":
    main()
