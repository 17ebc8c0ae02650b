"""The simulations: a shortened run in the normal suite, all of it with ``pytest -m long``.

``python -m tests.long`` prints the same as a report.
"""

from __future__ import annotations

import os

import pytest

from tests.long.coverage import DELTA, Check, Found, ceiling
from tests.long.report import run, tasks

PARTS = (
    "coverage", "broken", "savings", "lower limit", "intervals", "bands", "loader", "labels",
    "losses", "two traces", "comparison",
)  # fmt: skip


def _short(part: str) -> list[Check]:
    mine = [task for task in tasks(short=True) if task.part == part]
    checks = [check for task in mine for check in task()]
    assert len(checks) >= len(mine) > 0
    if part == "coverage":
        # One cell has few calibrations; all of them together have many.
        found = [check.found or Found(0, 0) for check in checks]
        n, bad = sum(each.n for each in found), sum(each.violations for each in found)
        assert bad <= ceiling(n, 1), f"{bad} of {n} certificates are false, delta is {DELTA}"
    return checks


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_shortened(part: str) -> None:
    wrong = [check.line for check in _short(part) if not check.ok]
    assert not wrong, "\n".join(wrong)


@pytest.mark.long
def test_in_full() -> None:
    checks = run(tasks(short=False), os.cpu_count() or 1, print)
    wrong = [check.line for check in checks if not check.ok]
    assert not wrong, "\n".join(wrong)
