"""CPU seconds of every study over 1000 questions and 10 checkpoints, and of all together.

Run from the repository root: ``python -m tests.benchmarks.studies [--questions N] [--only
STUDY]``.  One process and one BLAS thread; `study all` spreads the same work over processes.
"""

from __future__ import annotations

import argparse
import os
import time

CHECKPOINTS = 10
GOAL_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--only", action="append", metavar="STUDY")
    words = parser.parse_args()
    questions = words.questions
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported
    import tempfile
    from pathlib import Path

    from stopadvisor.ground.errors import StopAdvisorError
    from stopadvisor.runs.sources import open_source
    from stopadvisor.studies.batch import together
    from stopadvisor.studies.registry import run_study
    from stopadvisor.studies.report import study_report
    from stopadvisor.studies.study import StudyOptions
    from stopadvisor.studies.write import write_study
    from tests.material import archive_arrays, write_archive

    with tempfile.TemporaryDirectory() as name:
        file = write_archive(Path(name) / "raw.npz", **archive_arrays(questions, CHECKPOINTS))
        sources, options = [open_source(file, root=Path(name))], StudyOptions()
        began = time.process_time()
        for study in words.only or together():
            start = time.process_time()
            try:
                result = run_study(study, sources, options)
                report = study_report(result, sources, options)
                write_study(report, sources[0].folder)
                said = ""
            except StopAdvisorError as error:
                said = f"  ({error})"
            print(f"{study:20} {time.process_time() - start:6.2f} s{said}")
        spent = time.process_time() - began
    print(
        f"all studies, {questions} x {CHECKPOINTS}, {options.resamples} resamples: "
        f"{spent:.1f} s CPU (goal {GOAL_S:g} s)"
    )


if __name__ == "__main__":
    main()
