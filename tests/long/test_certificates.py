"""The simulations: a shortened run in the normal suite, all of it with ``pytest -m long``.

``python -m tests.long`` prints the same as a report.
"""

from __future__ import annotations

import os

import pytest

from tests.long.coverage import DELTA, ceiling
from tests.long.report import Check, Result, judged, run, tasks

PARTS = (
    "coverage",
    "broken",
    "sequence",
    "paper",
    "few",
    "savings",
    "black box",
    "lower limit",
    "intervals",
    "loader",
    "labels",
    "losses",
    "two traces",
    "comparison",
)


def _short(part: str) -> list[Check]:
    mine = [task for task in tasks(short=True) if task.part == part]
    results = [Result(task, task.work(*task.arguments)) for task in mine]
    checks = judged(results)
    assert len(checks) >= len(mine) > 0
    if part == "coverage":
        # One cell has few calibrations; all of them together have many.
        n = sum(r.value.outcome.n for r in results)
        bad = sum(r.value.outcome.violations for r in results)
        assert bad <= ceiling(n, 1), f"{bad} of {n} certificates are false, delta is {DELTA}"
    return checks


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_shortened(part: str) -> None:
    wrong = [check.line for check in _short(part) if not check.ok]
    assert not wrong, "\n".join(wrong)


@pytest.mark.long
def test_in_full() -> None:
    checks = judged(run(tasks(short=False), os.cpu_count() or 1, print))
    wrong = [check.line for check in checks if not check.ok]
    assert not wrong, "\n".join(wrong)
