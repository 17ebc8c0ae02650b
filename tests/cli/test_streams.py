"""Streams that are closed or take nothing: the documented exit code and one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

POLICY = Path(__file__).parents[2] / "policies" / "hard.joblib"


@pytest.mark.parametrize(
    ("words", "redirection", "code", "said"),
    [
        ("inspect POLICY --json", ">/dev/full", 1, "cannot write the output: No space left"),
        ("inspect POLICY", ">/dev/full", 1, "cannot write the output: No space left"),
        ("inspect POLICY", ">&-", 1, "cannot write the output: it is closed"),
        ("inspect POLICY --json", "2>&-", 0, ""),
        ("inspect nothing", "2>&-", 2, ""),
        ("inspect nothing --json", ">/dev/full", 2, ""),
    ],
)
def test_a_stream_that_takes_nothing(words: str, redirection: str, code: int, said: str) -> None:
    command = words.replace("POLICY", f"'{POLICY}'")
    done = subprocess.run(
        ["sh", "-c", f"'{sys.executable}' -m stopadvisor {command} {redirection}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") <= 1
