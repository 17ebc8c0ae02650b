"""CPU seconds of the whole paper protocol: 900 questions, 10 checkpoints, 4 alphas, 5000 resamples.

Run from the repository root: ``python -m tests.benchmarks.paper_protocol [--questions N]``.  One
BLAS thread, as the command line sets it: with more, threads that wait for each other
count as CPU time.
"""

from __future__ import annotations

import argparse
import os
import time

CHECKPOINTS = 10
REPEATS = 5
GOAL_S = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=900)
    questions = parser.parse_args().questions
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported
    import tempfile
    from pathlib import Path

    from stopadvisor.ground.constants import PAPER_BOOTSTRAP_RESAMPLES
    from stopadvisor.ground.results import to_document
    from stopadvisor.paper.assess import assess_paper
    from stopadvisor.report.from_assessment import assessed
    from stopadvisor.runs.sources import open_source
    from tests.material import archive_arrays, write_archive

    with tempfile.TemporaryDirectory() as name:
        file = write_archive(Path(name) / "raw.npz", **archive_arrays(questions, CHECKPOINTS))
        seconds = []
        for _ in range(REPEATS):
            start = time.process_time()
            source = open_source(file, root=Path(name))
            assessment = assess_paper(source, alpha=0.15, delta=0.05)
            document = to_document(assessed(assessment))
            seconds.append(time.process_time() - start)
    rows = document["matched_risk"]
    print(
        f"paper protocol, {questions} x {CHECKPOINTS}, {len(rows)} alphas, "
        f"{PAPER_BOOTSTRAP_RESAMPLES} resamples: {min(seconds):.2f} s CPU, the first time "
        f"{seconds[0]:.2f} s (goal {GOAL_S:g} s)"
    )


if __name__ == "__main__":
    main()
