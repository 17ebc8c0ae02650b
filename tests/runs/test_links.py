"""Run directories may come from somebody else: no link in them is followed when writing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stopadvisor.errors import OutputError
from stopadvisor.runs.storage import append, lock_directory, replace_file
from stopadvisor.studies.study import StudyResult
from stopadvisor.studies.write import write_study


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    file = tmp_path / "precious"
    file.write_text("kept")
    return file


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path, precious: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").symlink_to(precious)
    with pytest.raises(OutputError, match="links in a run directory"), lock_directory(run):
        pass
    assert precious.read_text() == "kept"


def test_nothing_is_appended_through_a_link(tmp_path: Path, precious: Path) -> None:
    link = tmp_path / "probes.jsonl"
    link.symlink_to(precious)
    with pytest.raises(OutputError, match="links in a run directory"):
        append(link, b"{}\n")
    assert precious.read_text() == "kept"


def test_a_link_is_replaced_and_not_written_through(tmp_path: Path, precious: Path) -> None:
    link = tmp_path / "manifest.json"
    link.symlink_to(precious)
    replace_file(link, b"{}")
    assert precious.read_text() == "kept"
    assert not link.is_symlink()


def test_no_device_and_no_pipe_is_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/a-name-that-nothing-has")):
        with pytest.raises(OutputError, match="expected the name of a file, got a device or pipe"):
            replace_file(path, b"{}")
    assert pipe.is_fifo()


def test_studies_that_are_a_link_are_refused(tmp_path: Path) -> None:
    elsewhere, run = tmp_path / "elsewhere", tmp_path / "run"
    elsewhere.mkdir()
    run.mkdir()
    (run / "studies").symlink_to(elsewhere)
    with pytest.raises(OutputError, match="links in a run directory"):
        write_study(StudyResult.__new__(StudyResult), {}, run)
    assert list(elsewhere.iterdir()) == []
