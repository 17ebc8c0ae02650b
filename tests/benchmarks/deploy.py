"""CPU seconds of `assess` and `calibrate` under the deploy protocol: 1000 questions, 10 points.

Run from the repository root: ``python -m tests.benchmarks.deploy [--questions N]``.  It
includes everything except starting Python and the page: reading probes, choosing family, schedule
and thresholds, the bootstrap that chooses again, the log of looks, the certificate, the policy with
its golden decisions, and writing files.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

BUDGETS = (0, 8, 16, 24, 32, 40, 48, 64, 80, 100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=1000)
    questions = parser.parse_args().questions
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported
    from dataclasses import replace

    from stopadvisor.cli.main import main as stopadvisor
    from tests.material import CERTIFY, PLAN, make_run

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "run"
        start = time.process_time()
        make_run(path, questions, plan=replace(PLAN, budgets=BUDGETS))
        print(f"probing with the scripted engine: {time.process_time() - start:.2f} s CPU")
        for order in ("first", "again"):
            for command, *words in (("assess", "--no-report"), ("calibrate", *CERTIFY)):
                start, screen = time.process_time(), StringIO()
                with redirect_stdout(screen):
                    code = stopadvisor([command, str(path), *words, "--quiet"])
                seconds = time.process_time() - start
                if code not in (0, 3):
                    raise SystemExit(f"{command} ended with {code}:\n{screen.getvalue()}")
                print(
                    f"{command:9} {questions} x {len(BUDGETS)}, {order}: {seconds:.2f} s CPU, "
                    f"exit code {code}"
                )


if __name__ == "__main__":
    main()
