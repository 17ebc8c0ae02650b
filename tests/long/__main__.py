"""Run every simulation and print the report.

``python -m tests.long [--short] [--jobs N] [--part NAME]``; exits with 1 where a statement does not
hold.
"""

from __future__ import annotations

import argparse
import os
import sys

# Before numpy is first imported, here and in the worker processes: one thread each.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

from tests.long.report import run, tasks  # noqa: E402

TITLES = {
    "coverage": "True risk of exported rules above alpha, among all calibrations (delta 0.05)",
    "broken": "Broken variants: false certificates (each must exceed its limit but the last)",
    "savings": "True saving of what is certified on few labels; of 400 and of 900 40 % choosing",
    "lower limit": "True saving below the advised rule's lower limit (at most 0.05)",
    "intervals": "95 % intervals of the saving on a test part that hold the true saving",
    "bands": "95 % bands of a policy's saving on calibration questions that hold the true saving",
    "loader": "Damaged policy files, each refused in one line or loaded as what it was",
    "monitor": "Audited streams: false alarms (at most 0.05, ever), and requests until an alarm",
    "losses": "Certificates of every loss: promises broken, among all calibrations (delta 0.05)",
    "two traces": "Certificates of two traces a question: promises broken (delta 0.05)",
    "labels": "Lost answers certified with few labels: net saving (percent) and labels asked for",
    "gateway": "Requests through one gateway without growth",
    "comparison": "Two equal families told apart (at most 0.05)",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.long", description=__doc__)
    parser.add_argument("--short", action="store_true", help="what the normal suite runs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--part", action="append", choices=TITLES, help="these parts alone")
    options = parser.parse_args()
    wanted = options.part or list(TITLES)

    def note(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    work = [task for task in tasks(short=options.short) if task.part in wanted]
    checks = run(work, options.jobs, note)
    for part in wanted:
        print(f"\n{TITLES[part]}")
        if part == "labels":
            print(
                f"     {'questions':22} alpha n_cal    none      60     150    full   labels"
                "  (in 9 of 10)  elsewhere violation"
            )
        for check in checks:
            if check.part == part:
                print(f"{'ok  ' if check.ok else 'FAIL'} {check.line}")
    failed = sum(not check.ok for check in checks)
    print(f"\n{len(checks)} statements, {failed} do not hold")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
