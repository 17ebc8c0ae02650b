"""Extras can share an environment: one set of versions satisfies them all, and so each pair."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib

import pytest

from tests.__main__ import ROOT
from tests.missing import skip_without

pytestmark = [pytest.mark.slow, pytest.mark.integration]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = sorted(PROJECT["optional-dependencies"].keys() - {"dev"})
PYTHONS = [
    words.rpartition(" ")[2]
    for words in PROJECT["classifiers"]
    if words.startswith("Programming Language :: Python :: 3.")
]


def _compile(requirements: str, python: str) -> subprocess.CompletedProcess[str]:
    """Resolve lines of requirements for a Python, without installing anything."""
    settings = {"UV_DEFAULT_INDEX": url} if (url := os.environ.get("PIP_INDEX_URL")) else {}
    words = ("--no-config", "--quiet", "--no-header", "--no-annotate", "--python-platform", "linux")
    return subprocess.run(
        [sys.executable, "-m", "uv", "pip", "compile", *words, "--python-version", python, "-"],
        input=requirements,
        env=settings | os.environ,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    "python", [PYTHONS[0], *(pytest.param(each, marks=pytest.mark.long) for each in PYTHONS[1:])]
)
def test_every_pair_of_extras_can_be_installed(python: str) -> None:
    assert {"hf", "vllm"} < set(EXTRAS)
    lines = [line for extra in EXTRAS for line in PROJECT["optional-dependencies"][extra]]
    done = _compile("\n".join([*PROJECT["dependencies"], *lines]), python)
    if done.returncode and (tried := _compile("click", python)).returncode:
        # Only the index failed.
        assert "click" in tried.stderr, tried.stderr
        skip_without("a package index")
    assert done.returncode == 0, done.stderr
    names = [line.partition("==")[0] for line in done.stdout.splitlines()]
    assert {"torch", "transformers", "vllm", "scikit-learn"} <= set(names)
