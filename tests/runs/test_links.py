"""Run directories may come from somebody else: writing follows no link in them."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stopadvisor.ground.errors import OutputError
from stopadvisor.runs.storage import append, lock_directory, replace_file
from stopadvisor.studies.tables import StudyReport, write_study


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    file = tmp_path / "precious"
    file.write_text("kept")
    return file


def test_nothing_is_locked_or_appended_through_a_link(tmp_path: Path, precious: Path) -> None:
    link = tmp_path / "probes.jsonl"
    for place in (link, tmp_path / ".lock"):
        place.symlink_to(precious)
    with pytest.raises(OutputError, match="links in a run directory"), lock_directory(tmp_path):
        pytest.fail("another's file was locked")
    with pytest.raises(OutputError, match="links in a run directory"):
        append(link, b"{}\n")
    assert precious.read_text() == "kept"


def test_a_link_is_replaced_and_not_written_through(tmp_path: Path, precious: Path) -> None:
    link = tmp_path / "manifest.json"
    link.symlink_to(precious)
    replace_file(link, b"{}")
    assert precious.read_text() == "kept"
    assert not link.is_symlink()


def test_no_device_no_pipe_and_no_socket_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path has at most 108 bytes
    pipe, bound = Path("pipe"), Path("socket")
    os.mkfifo(pipe)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(bound))
    for path in (pipe, bound, Path("/dev/a-name-that-nothing-has")):
        with pytest.raises(OutputError, match="expected the name of a file, got a device or pipe"):
            replace_file(path, b"{}")
    assert pipe.is_fifo()
    assert bound.is_socket()


def test_studies_that_are_a_link_are_refused(tmp_path: Path) -> None:
    elsewhere, run = tmp_path / "elsewhere", tmp_path / "run"
    elsewhere.mkdir()
    run.mkdir()
    (run / "studies").symlink_to(elsewhere)
    with pytest.raises(OutputError, match="links in a run directory"):
        write_study(StudyReport.__new__(StudyReport), run)
    assert list(elsewhere.iterdir()) == []


def test_the_name_of_a_draft_cannot_be_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a link could be waiting there, or two writers could share a draft."""
    drafts: list[str] = []
    replace = os.replace

    def noted(draft: Path, target: Path) -> None:
        drafts.append(Path(draft).name)
        replace(draft, target)

    monkeypatch.setattr(os, "replace", noted)
    for _ in range(3):
        replace_file(tmp_path / "policy.joblib", b"x")
    assert len(set(drafts)) == 3
    assert not [name for name in drafts if str(os.getpid()) in name.split(".")]
    assert os.listdir(tmp_path) == ["policy.joblib"]


def test_many_threads_may_write_one_file(tmp_path: Path) -> None:
    contents = [bytes([k]) * 4096 for k in range(8)]
    path = tmp_path / "policy.joblib"
    with ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(replace_file, path, contents[k % 8]) for k in range(200)]:
            done.result()
    assert path.read_bytes() in contents
    assert os.listdir(tmp_path) == ["policy.joblib"]
