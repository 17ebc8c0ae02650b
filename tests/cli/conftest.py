"""Runs that several files of these tests read; whoever changes one copies it first."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stopadvisor.cli.main import main
from tests.material import Call, caller, make_run


@pytest.fixture(scope="session")
def probed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 sums, probed by the scripted engine; nobody has assessed them."""
    return make_run(tmp_path_factory.mktemp("probed") / "run", 300)


@pytest.fixture(scope="session")
def quickly_assessed_run(probed_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, assessed with two families: a report, and whatever fits again, takes a moment."""
    path = tmp_path_factory.mktemp("assessed") / "runs" / "old"
    shutil.copytree(probed_run, path)
    words = ["--families", "learned,confidence", "--no-report", "--quiet"]
    assert main(["assess", str(path), "--alpha", "0.15", *words]) == 0
    return path


@pytest.fixture
def call(
    tmp_path: Path,
    probed_run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Call:
    """Call a command in a folder with a run `runs/sums`."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(probed_run, "runs/sums")
    return caller(capsys)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without their pictures, which take most of a page's time."""
    from stopadvisor.report.html import page

    monkeypatch.setattr(page, "_pictures", lambda _: [])
