"""Files of runs: who may read them, what a write leaves behind, and what a lock says."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.ground.errors import OutputError, ProbeError
from stopadvisor.ground.progress import Progress, shown_on
from stopadvisor.runs.storage import (
    append,
    check_writable,
    finished_lines,
    finished_objects,
    json_lines,
    lock_directory,
    make_folder,
    remove_file,
    replace_file,
    set_aside_tail,
    write_json_atomically,
)


@pytest.fixture
def shared() -> Iterator[None]:
    """Files are made for all that the user lets read them."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("shared")
def test_whoever_the_user_lets_may_read_a_run(tmp_path: Path) -> None:
    replace_file(tmp_path / "manifest.json", b"{}")
    append(tmp_path / "probes.jsonl", b"{}\n")
    with lock_directory(tmp_path):
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("manifest.json", "probes.jsonl", ".lock"), 0o644)


def test_text_is_written_as_people_write_it(tmp_path: Path) -> None:
    row = {"answer": "é", "torn": "\ud800"}
    assert json_lines([row, row]) == '{"answer": "é", "torn": "\\ud800"}\n'.encode() * 2
    write_json_atomically(tmp_path / "x.json", row)
    text = (tmp_path / "x.json").read_text(encoding="utf-8")
    assert text.splitlines()[1].strip() == '"answer": "é",'


def test_a_folder_is_refused_before_the_work_goes_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_writable(tmp_path)
    check_writable(tmp_path / "not" / "yet")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="file is not a folder"):
        check_writable(tmp_path / "file" / "run")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(OutputError, match=f"{tmp_path} is not writable"):
        check_writable(tmp_path / "not" / "yet")


def test_folders_are_made_and_files_removed_where_need_be(tmp_path: Path) -> None:
    for _ in range(2):
        make_folder(tmp_path / "a" / "b")
    (tmp_path / "a" / "file").touch()
    with pytest.raises(OutputError, match=r"cannot make .*: Not a directory"):
        make_folder(tmp_path / "a" / "file" / "b")
    for _ in range(2):
        remove_file(tmp_path / "a" / "file")
    assert not (tmp_path / "a" / "file").exists()
    with pytest.raises(OutputError, match=r"cannot remove .*: Is a directory"):
        remove_file(tmp_path / "a")


def test_what_names_no_file_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputError, match="names no file"):
        replace_file(Path(), b"{}")
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "probes.jsonl")
    with pytest.raises(OutputError, match="not a plain file"):
        append(tmp_path / "probes.jsonl", b"{}\n")  # nobody reads it
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(OutputError, match="not a plain file"), lock_directory(tmp_path):
        pytest.fail("a pipe locks nothing")
    with pytest.raises(OutputError, match="No such file"):
        append(tmp_path / "none" / "probes.jsonl", b"{}\n")


@pytest.mark.parametrize(
    ("whole", "line"), [(b"", 1), (b"{}\n", 2), (b"{}\n{}\n", 3)], ids=["first", "second", "third"]
)
def test_what_is_set_aside_is_named_by_its_line(tmp_path: Path, whole: bytes, line: int) -> None:
    file, partial = tmp_path / "probes.jsonl", tmp_path / "probes.partial"
    assert set_aside_tail(file, partial.name) is None  # there is none yet
    for _ in range(2):
        file.write_bytes(whole + b'{"id')
        assert finished_lines(file) == (whole.splitlines(), True)
        remark = set_aside_tail(file, partial.name) or ""
        assert f"line {line} was half-written; moved to probes.partial" in remark
        assert file.read_bytes() == whole
    assert partial.read_bytes() == b'{"id\n' * 2
    assert set_aside_tail(file, partial.name) is None


def test_lines_are_counted_with_and_without_the_last_line_feed(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    assert finished_lines(file) == ([], False)
    file.write_bytes(b'{"a": 1}\n{"b": 2}')
    assert finished_lines(file) == ([b'{"a": 1}', b'{"b": 2}'], False)
    assert list(finished_objects(file)) == [(f"{file}:1", {"a": 1}), (f"{file}:2", {"b": 2})]
    with pytest.raises(ProbeError, match=r"cannot read .*: Is a directory"):
        finished_lines(tmp_path)


def test_reading_shows_its_progress_only_under_a_title(tmp_path: Path) -> None:
    class Titles(Progress):
        def count(self, title: str, items: Any, total: int) -> Any:
            shown.append((title, total))
            return iter(items)

    shown: list[tuple[str, int]] = []
    file = tmp_path / "x.jsonl"
    file.write_bytes(b"{}\n" * 3)
    with shown_on(Titles()):
        assert len(list(finished_objects(file))) == 3
        assert shown == []
        assert len(list(finished_objects(file, "reading"))) == 3
    assert shown == [("reading", 3)]


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made-again"])
def test_a_lock_that_its_holder_has_just_removed_locks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Else two processes would each hold a lock of one run, or one that of a folder not there."""
    run, own, held = tmp_path / "run", fcntl.flock, ExitStack()
    held.enter_context(lock_directory(run))

    def flock(file: Any, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", own)
        held.__exit__(ValueError, ValueError("no model"), None)  # between our open and our lock
        if again:
            run.mkdir()
            (run / ".lock").touch()
        own(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    refused = (ProbeError, "is writing this run") if again else (OutputError, "cannot lock")
    with pytest.raises(refused[0], match=refused[1]), lock_directory(run):
        pytest.fail("it is locked, and is not there")
    with lock_directory(run):
        assert (run / ".lock").exists()


def test_a_folder_that_somebody_removes_does_not_hide_why_work_failed(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def work() -> None:
        with lock_directory(run):
            shutil.rmtree(run)
            append(run / "probes.jsonl", b"{}\n")

    with pytest.raises(OutputError, match=r"cannot write .*No such file"):
        work()


def test_a_lock_names_its_holder(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    lock.write_text("4194304 was here\n", encoding="ascii")
    with lock_directory(tmp_path):
        assert lock.read_text(encoding="ascii") == f"{os.getpid()}\n"
    lock.write_bytes(b"")
    with open(lock, encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ProbeError, match="pid unknown") as refused, lock_directory(tmp_path):
            pytest.fail("the lock was given twice")
    assert "--out" not in str(refused.value), "calibrate's names a policy, and label has none"
