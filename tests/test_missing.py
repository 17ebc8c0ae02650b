"""A test that lacks a program is skipped and says what to install; in CI it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.__main__ import ROOT
from tests.missing import needs

LACKS = """
import pytest
from tests import missing

def test_that_asks_a_fixture():
    missing.skip_without("axe-core")

@pytest.mark.skipif(True, reason=missing.needs("openssl"))
def test_that_is_marked(): ...

@pytest.mark.parametrize("what", missing.MAY_BE_MISSING)
def test_that_needs_what_a_machine_may_lack(what):
    missing.skip_without(what)

@pytest.mark.xfail(strict=True)
def test_that_fails_on_purpose():
    assert False
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("in_ci", "end"),
    [("", "6 skipped, 1 xfailed"), ("true", "1 failed, 3 skipped, 1 xfailed, 2 errors")],
    ids=["here", "in CI"],
)
def test_what_is_not_installed(in_ci: str, end: str, tmp_path: Path) -> None:
    (tmp_path / "test_lacks.py").write_text(LACKS)
    (tmp_path / "test_file.py").write_text('import pytest\npytest.importorskip("no_such_package")')
    words = ("-q", "-c", ROOT / "pyproject.toml", "-n", "0", "--continue-on-collection-errors")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "-p", "tests.conftest", tmp_path],
        cwd=ROOT,
        env={**os.environ, "CI": in_ci, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1].startswith(end), done.stdout
    assert done.returncode == (1 if in_ci else 0)
    for what in ("axe-core", "openssl", "a CUDA device"):
        assert needs(what) in done.stdout
