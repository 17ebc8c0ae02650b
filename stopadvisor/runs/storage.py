"""Write files that survive interrupts, kills and full disks, and lock folders."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from stopadvisor.ground.errors import OutputError, ProbeError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.ground.printable import short_repr
from stopadvisor.ground.progress import tracked

__all__ = [
    "append", "check_writable", "encode", "finished_lines", "finished_objects", "json_lines",
    "lock_directory", "lock_neighbours", "make_folder", "no_follow", "remove_file",
    "replace_file", "set_aside_tail", "write_json_atomically",
]  # fmt: skip


def no_follow(path: str, flags: int) -> int:
    """Open a plain file, never a link or a pipe: the folder may come from somebody else."""
    try:
        # Without O_NONBLOCK, opening a named pipe would block forever.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(error.errno, "links in a run directory are not followed") from error
        if error.errno == errno.ENXIO:  # a pipe that nobody reads
            raise OSError(error.errno, _NOT_PLAIN) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, _NOT_PLAIN)
    return descriptor


_NOT_PLAIN = "not a plain file"


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written or made, before hours of work go into it."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise OutputError(f"cannot write to {folder}: {place} is not a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write to {folder}: {place} is not writable")


def make_folder(path: Path) -> None:
    """Make a folder and its parents where they are missing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make {path}: {error.strerror or error}") from error


def write_json_atomically(path: Path, content: Any) -> None:
    """Write a JSON file, all of it or nothing."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    replace_file(path, encode(text))


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically: at any moment either the old or the new one is there.

    Safe among threads and processes: the last writer wins.  A link is replaced, not followed.

    Raises
    ------
    OutputError
        The file cannot be written, or is a device, pipe or socket; the old one is still there.
    """
    # A name that nobody can guess: others may write to this folder.
    temporary = path.parent / f".{secrets.token_hex(16)}.tmp"
    try:
        if not path.name:
            raise OSError(errno.EINVAL, "names no file")
        try:
            mode = path.stat().st_mode  # read once: another thread may create the file
        except OSError:
            mode = stat.S_IFREG
        # A rename would replace a device with a file, for everybody; it refuses a folder by itself.
        if path.parent.resolve() == Path("/dev") or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise OSError(errno.EINVAL, "expected the name of a file, got a device or pipe")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        # Not tempfile, whose files only the writer may read: runs and policies are shared.
        descriptor = os.open(temporary, flags, 0o666)
        try:
            try:
                _write_all(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(path.parent)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def remove_file(path: Path) -> None:
    """Remove a file if it exists; durable, even through a power failure."""
    try:
        path.unlink(missing_ok=True)
        _sync_folder(path.parent)
    except OSError as error:
        raise OutputError(f"cannot remove {path}: {error.strerror or error}") from error


def _sync_folder(folder: Path) -> None:
    """Make a rename or removal durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def append(path: Path, data: bytes) -> None:
    """Append bytes to a file; all are on disk when this returns.

    Raises
    ------
    OutputError
        The disk is full or the file not writable; the file is as it was before.
    """
    try:
        with open(path, "ab", buffering=0, opener=no_follow) as file:
            size = file.seek(0, os.SEEK_END)
            try:
                _write_all(file.fileno(), data)
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)  # leave no half-written line
                raise
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}; finished work is kept, and the same "
            "command continues from there"
        ) from error


def set_aside_tail(path: Path, partial: str, again: str = "asked") -> str | None:
    """Move a half-written last line to the end of file `partial` next to it, before appending.

    Returns a remark if there was one; `again` says what happens to its question.
    """
    if not path.exists():
        return None
    try:
        whole, _, tail = path.read_bytes().rpartition(b"\n")
        if not tail:
            return None
        if _is_object(tail):  # only the line feed is missing
            append(path, b"\n")
            return None
        with open(path.with_name(partial), "ab", opener=no_follow) as file:
            file.write(tail + b"\n")
        with open(path, "r+b", opener=no_follow) as file:
            file.truncate(len(whole) + 1 if whole else 0)
    except OSError as error:
        raise OutputError(f"cannot repair {path}: {error.strerror or error}") from error
    number = whole.count(b"\n") + 1 + bool(whole)
    return (
        f"{path}: line {number} was half-written; moved to {partial}, its question is {again} again"
    )


def json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Write objects as JSON Lines."""
    return b"".join(encode(json.dumps(row, ensure_ascii=False) + "\n") for row in rows)


def finished_lines(path: Path) -> tuple[list[bytes], bool]:
    """Whole lines of a JSON Lines file, and whether a half-written one follows.

    A missing file has no lines.

    Raises
    ------
    ProbeError
        The file cannot be read.
    """
    try:
        # Not splitlines: answers may contain other line separators.
        *whole, tail = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], False
    except OSError as error:
        raise ProbeError(f"cannot read {path}: {error.strerror or error}") from error
    if _is_object(tail):
        return [*whole, tail], False
    return whole, bool(tail)


def finished_objects(path: Path, title: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a JSON Lines file with their ``FILE:LINE``, without a half-written one.

    A `title` shows the progress under that name.

    Raises
    ------
    ProbeError
        The file cannot be read, or a whole line is not a JSON object.
    """
    lines, _ = finished_lines(path)
    for number, line in enumerate(lines if title is None else tracked(title, lines), start=1):
        where = f"{path}:{number}"
        try:
            data = parse_json(line, parse_constant=_refuse_constant)
        except ValueError as error:
            raise ProbeError(f"{where}: not a line of JSON: {error}") from error
        if not isinstance(data, dict):
            raise ProbeError(f"{where}: expected an object, got {short_repr(data)}")
        yield where, data


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number; write null for an unknown value")


def _is_object(tail: bytes) -> bool:
    """Whether an unterminated line is a whole record that lacks only its line feed."""
    try:
        return isinstance(parse_json(tail), dict)
    except ValueError:
        return False


def encode(text: str) -> bytes:
    """Encode JSON text as UTF-8; it may hold lone surrogates from the workload's escapes."""
    # UTF-8 cannot hold them; their backslash form is the escape that JSON uses.
    return text.encode("utf-8", "backslashreplace")


@contextmanager
def lock_directory(path: Path) -> Iterator[None]:
    """Lock a folder for writing, and make it if it is missing; the lock ends with the process.

    If the work fails, a folder made here is removed again, provided it is empty.

    Raises
    ------
    ProbeError
        Another process is writing this run.
    OutputError
        The folder cannot be made or written.
    """
    is_new = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = path / ".lock"
        file = open(lock, "a+", encoding="ascii", opener=no_follow)  # noqa: SIM115  closed below
    except OSError as error:
        raise OutputError(f"cannot write to {path}: {error.strerror or error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last holder may just have removed it, and somebody else made another.
            if not os.path.samestat(os.lstat(lock), os.fstat(file.fileno())):
                raise BlockingIOError
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
        except BlockingIOError as error:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            raise ProbeError(
                f"{path}: another process (pid {owner}) is writing this run; "
                "wait for it, or take another folder"
            ) from error
        except OSError as error:
            raise OutputError(f"cannot lock {path}: {error.strerror or error}") from error
        try:
            yield
        except BaseException:
            with suppress(OSError):  # it was removed, or another process comes in
                if is_new and [file.name for file in path.iterdir()] == [lock.name]:
                    lock.unlink()
                    path.rmdir()
            raise


@contextmanager
def lock_neighbours(path: Path) -> Iterator[None]:
    """Lock the folder that holds a run and its neighbours, waiting while another process does."""
    place = path.resolve().parent
    with ExitStack() as held:
        try:
            folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
            held.callback(os.close, folder)
            fcntl.flock(folder, fcntl.LOCK_EX)
        except OSError as error:
            raise OutputError(f"cannot lock {place}: {error.strerror or error}") from error
        yield
