"""What tests need that `pip install -e '.[hf,dev]'` does not bring, and how to install it.

Without it a test is skipped, and pytest's last lines repeat why and what to install.  With CI=true
such a test fails, unless a machine may well lack what it needs.
"""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

__all__ = ["INSTALL", "MAY_BE_MISSING", "failed_in_ci", "needs", "skip_without"]

INSTALL = {
    "Chromium": "apt-get install chromium, or name its path in STOPADVISOR_CHROMIUM",
    "axe-core": (
        "npm install --prefix ~/.cache/stopadvisor/axe axe-core, or name the path of its "
        "axe.min.js in STOPADVISOR_AXE"
    ),
    "openssl": "apt-get install openssl",
    "a package index": "none could be reached; name one in UV_DEFAULT_INDEX",
    "a vLLM environment": "tests/integration/setup-vllm.sh",
    "SmolLM2": "tests/long/setup-smollm2.sh",
    "a CUDA device": "run it where there is one",
    "a user other than root": "run it as one",
}
"""How to get what a test needs."""

MAY_BE_MISSING = ("a vLLM environment", "a CUDA device", "a user other than root")
"""Even CI may skip a test that lacks one of these."""


def needs(what: str) -> str:
    """Why a test is skipped."""
    return f"needs {what}: {INSTALL[what]}"


def skip_without(what: str) -> NoReturn:
    """Skip the running test, or the tests that use the fixture."""
    pytest.skip(needs(what))


def failed_in_ci(report: pytest.TestReport | pytest.CollectReport) -> None:
    """With CI=true, fail a test that was skipped for something that can be installed."""
    reason = _reason(report)
    allowed = tuple(map(needs, MAY_BE_MISSING))
    if reason is not None and os.environ.get("CI") == "true" and reason not in allowed:
        report.outcome = "failed"
        report.longrepr = f"skipped although CI=true: {reason}"


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    """Why a test was skipped; None if it was not, or is expected to fail."""
    if not report.skipped or hasattr(report, "wasxfail") or not isinstance(report.longrepr, tuple):
        return None
    return str(report.longrepr[2]).removeprefix("Skipped: ")
