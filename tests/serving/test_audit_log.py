"""Audit logs: they survive what kills a process, and reading them again gives the same figures."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.ground.errors import OutputError, PolicyError
from stopadvisor.ground.progress import Progress, shown_on
from stopadvisor.serving.audit_log import AuditLog, _line, find_series, replay, reset
from stopadvisor.serving.monitoring import PromiseMonitor, WatchSettings

SETTINGS = WatchSettings("ab" * 32, "differs", 0.05, 0.05, 0.05, 0.1, 1e6)


class Clock:
    """A clock that tests set."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Counted(Progress):
    """Keeps how much work was announced, and how much there was."""

    def count(self, title: str, items: Iterable[Any], total: int) -> Iterator[Any]:
        found = list(items)
        self.counted = (total, len(found))
        yield from found


def fill(log: AuditLog, first: int, last: int, clock: Clock, *, step: float = 1.0) -> None:
    """Write requests, of which every third is audited and every seventh of those differs."""
    for k in range(first, last):
        clock.now += step
        audited = {} if k % 3 else {"share": 0.1}
        log.write("request", id=str(k), stop=43, tokens=50, prompt_tokens=k % 60, **audited)
        if not k % 3:
            log.write("result", id=str(k), differs=k % 21 == 0, tokens=10)


def figures(monitor: PromiseMonitor) -> list[float]:
    return [
        *(value for one in monitor.processes.values() for value in (one.e_value, one.detector)),
        *(one.capital for one in monitor.drift.values()),
        *monitor.counts.values(),
    ]


def read(*folders: Path, reference: dict[str, list[float]] | None = None) -> PromiseMonitor:
    return replay(find_series(folders, SETTINGS.digest), reference)[0]


def test_a_replay_gives_the_live_figures_to_the_last_digit(tmp_path: Path) -> None:
    reference = {"prompt_tokens": [float(k) for k in range(60)]}
    clock = Clock()
    log = AuditLog(tmp_path, SETTINGS, reference, max_bytes=4_000, clock=clock)
    fill(log, 0, 200, clock)
    assert len(find_series([tmp_path], SETTINGS.digest)[0]) > 3
    with shown_on(progress := Counted()):
        again = read(tmp_path, reference=reference)
    assert progress.counted == (267, 267)  # every third request has a result
    assert figures(again) == figures(log.monitor)
    assert again.alarms == log.monitor.alarms
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    restarted = AuditLog(tmp_path, SETTINGS, clock=clock)
    assert figures(restarted.monitor) == figures(log.monitor)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_was_deleted_stays_counted(tmp_path: Path) -> None:
    clock = Clock()
    log = AuditLog(tmp_path, SETTINGS, max_bytes=4_000, keep_days=1.0, clock=clock)
    fill(log, 0, 100, clock)
    *old, recent, _ = sorted(tmp_path.iterdir())
    for path, days in (*((path, 0.95) for path in old), (recent, 1.05)):  # two days later
        os.utime(path, (clock.now + days * 86_400,) * 2)
    clock.now += 2 * 86_400
    fill(log, 100, 200, clock)
    (series,) = find_series([tmp_path], SETTINGS.digest)
    assert old
    assert series[0] == recent
    assert json.loads(series[0].read_text().splitlines()[0])["state"]["requests" and "counts"]
    monitor, remarks = replay([series])
    assert figures(monitor) == figures(log.monitor)
    assert remarks == ("1 of 1 logs begin later than their server did",)


def test_an_audit_that_began_in_a_deleted_file_goes_on(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, SETTINGS, max_bytes=1)  # a file for each record
    log.write("request", id="a", stop=43, share=0.1)
    log.write("result", id="a", differs=True)
    first, *_ = sorted(tmp_path.iterdir())
    first.unlink()
    monitor, _ = replay(find_series([tmp_path], SETTINGS.digest))
    assert monitor.counts["resolved"] == 1
    assert figures(monitor) == figures(log.monitor)


def test_times_are_in_milliseconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(tmp_path, SETTINGS, clock=Clock(1000.12345))
    log.write("request", id="a", stop=43)
    with monkeypatch.context() as patch:
        patch.setattr("stopadvisor.serving.audit_log.time.time", lambda: 1000.12345)
        reset(find_series([tmp_path], SETTINGS.digest), "A. Smith")
    (path,) = tmp_path.iterdir()
    assert [json.loads(line)["t"] for line in path.read_text().splitlines()] == [1000.123] * 3


def test_policies_share_a_folder(tmp_path: Path) -> None:
    (tmp_path / f"audit-{SETTINGS.digest[:8]}-0-000000.old.jsonl").touch()  # somebody's copy
    for settings in (SETTINGS, replace(SETTINGS, digest="cd" * 32), SETTINGS):
        log = AuditLog(tmp_path, settings)
        log.write("request", id="1", stop=None)
    assert log.monitor.counts["requests"] == 2  # its own, before and after the restart
    assert len(list(tmp_path.iterdir())) == 3
    assert [len(one) for one in find_series([tmp_path], SETTINGS.digest)] == [1]


def test_a_restart_goes_on_and_gives_up_what_was_on_its_way(tmp_path: Path) -> None:
    clock = Clock()
    log = AuditLog(tmp_path, SETTINGS, clock=clock)
    fill(log, 0, 30, clock)
    log.write("request", id="open", stop=43, share=0.1)
    other = AuditLog(tmp_path, SETTINGS, clock=clock)
    assert other.monitor.processes["differs"].open_keys() == ()
    assert other.monitor.counts["shed"] == 1
    assert other.monitor.processes["differs"].e_value == log.monitor.processes["differs"].e_value
    fill(other, 30, 60, clock)
    assert figures(read(tmp_path)) == figures(other.monitor)


def test_an_alarm_outlives_a_restart_until_it_is_reset_by_name(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, SETTINGS)
    for k in range(40):
        log.write("request", id=str(k), stop=43, share=0.1)
        log.write("result", id=str(k), differs=True)
    assert log.monitor.alarms
    again = AuditLog(tmp_path, SETTINGS)
    assert again.monitor.alarms == log.monitor.alarms
    reset(find_series([tmp_path], SETTINGS.digest), "A. Smith")
    again.write("request", id="next", stop=None)  # a running server sees it at its next request
    assert not again.monitor.alarms
    assert not AuditLog(tmp_path, SETTINGS).monitor.alarms
    for nobody in (" ", "A.\nSmith"):
        with pytest.raises(PolicyError, match="--reset needs a name"):
            reset(find_series([tmp_path], SETTINGS.digest), nobody)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir], ids=["pipe", "folder"])
def test_a_log_is_a_plain_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """A pipe would be read for ever."""
    path = tmp_path / f"audit-{SETTINGS.digest[:8]}-0-000000.jsonl"
    make(path)
    (series,) = find_series([tmp_path], SETTINGS.digest)
    with pytest.raises(PolicyError, match="cannot be read: not a plain file"):
        replay([series])
    with pytest.raises(OutputError, match=r"not a plain file|Is a directory"):
        reset([series], "A. Smith")


def test_replicas_are_merged_by_time_and_clocks_may_differ(tmp_path: Path) -> None:
    one, two = Clock(1000.0), Clock(1001.0)
    logs = [
        AuditLog(tmp_path / name, SETTINGS, clock=clock) for name, clock in (("a", one), ("b", two))
    ]
    for k in range(0, 120, 2):
        fill(logs[0], k, k + 1, one)
        fill(logs[1], k + 1, k + 2, two, step=-0.3 if k % 10 == 0 else 1.2)
    monitor = read(tmp_path / "a", tmp_path / "b")
    assert monitor.counts["requests"] == 120
    assert monitor.counts["resolved"] == sum(log.monitor.counts["resolved"] for log in logs)
    expected = sum(log.monitor.processes["differs"].logs[0] for log in logs)
    assert monitor.processes["differs"].logs[0] == pytest.approx(expected, rel=1e-9)
    joined = PromiseMonitor.join(SETTINGS, [log.monitor.state() for log in logs], None)
    assert joined.processes["differs"].logs[0] == pytest.approx(expected, rel=1e-9)
    assert joined.counts["requests"] == 120


def test_two_servers_may_give_requests_the_same_id(tmp_path: Path) -> None:
    folders = tmp_path / "a", tmp_path / "b"
    for folder, differs in zip(folders, (True, False), strict=True):
        log = AuditLog(folder, SETTINGS, clock=(clock := Clock()))
        log.write("request", id="0", stop=43, share=0.1)
        clock.now += 1  # both requests are being audited
        log.write("result", id="0", differs=differs)
    counts = read(*folders).counts
    assert (counts["audits"], counts["resolved"], counts["differing"]) == (2, 2, 1)


def test_kill_9_loses_no_line(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from stopadvisor.serving.audit_log import AuditLog\n"
        "from tests.serving.test_audit_log import SETTINGS\n"
        "log = AuditLog(Path(sys.argv[1]), SETTINGS)\n"
        "for k in range(50):\n"
        "    log.write('request', id=str(k), stop=43)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert done.returncode == -9
    assert AuditLog(tmp_path, SETTINGS).monitor.counts["requests"] == 50


def test_a_log_has_one_writer(tmp_path: Path) -> None:
    """A second server would give up the audits of the first, whose results are then refused."""
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from stopadvisor.ground.errors import OutputError\n"
        "from stopadvisor.serving.audit_log import AuditLog\n"
        "from tests.serving.test_audit_log import SETTINGS\n"
        "try:\n"
        "    AuditLog(Path(sys.argv[1]), SETTINGS)\n"
        "except OutputError as error:\n"
        "    print(error)\n"
    )
    log = AuditLog(tmp_path, SETTINGS)
    log.write("request", id="open", stop=43, share=0.1)
    command = [sys.executable, "-c", program, str(tmp_path)]
    second = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "another server is writing it; each needs its own --audit-log" in second.stdout
    log.write("result", id="open", differs=False)
    assert read(tmp_path).counts["resolved"] == 1


def test_a_file_system_without_locks_takes_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lockf(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", lockf)
    AuditLog(tmp_path, SETTINGS).write("request", id="0", stop=43)
    assert read(tmp_path).counts["requests"] == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_not_written(bad: float) -> None:
    for value in (bad, [bad]):
        with pytest.raises(ValueError, match="compliant"):
            _line({"t": value})


def test_a_torn_line_is_said_and_ended(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, SETTINGS)
    log.write("request", id="0", stop=43)
    (path,) = tmp_path.iterdir()
    with path.open("a") as file:
        file.write('{"kind":"requ')
    again = AuditLog(tmp_path, SETTINGS)
    again.write("request", id="1", stop=43)
    monitor, remarks = replay(find_series([tmp_path], SETTINGS.digest))
    assert monitor.counts["requests"] == 2
    assert remarks == (f"{path}, line 3: torn, left out",)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[]", "line 2: expected a record with a time 't'"),
        ('{"kind":"request","t":"x"}', "line 2: expected a record with a time 't'"),
        ('{"kind":"shed","t":1e13,"id":"0"}', "line 2: expected a record with a time 't'"),
        ('{"kind":"shed","t":-1e13,"id":"0"}', "line 2: expected a record with a time 't'"),
        ('{"kind":"shed","t":1,"id":"0","tokens":1e13}', "field 'tokens': expected a number, got"),
        ('{"kind":"shed","t":1,"id":"0","tokens":"6"}', "field 'tokens': expected a number, got"),
        ('{"kind":"other","t":1}', "line 2: field 'kind': expected one of request, result"),
        ('{"kind":"request","t":1,"id":"a"}', "line 2: field 'stop': expected int, got None"),
        ('{"kind":"result","t":1,"id":"a","differs":1}', "field 'differs': expected bool, got 1"),
        ('{"kind":"result","t":1,"id":"a","differs":true,"cut":0}', "field 'cut': expected bool"),
        ('{"kind":"request","t":1,"id":"a","stop":1,"share":7}', "share must lie in"),
        ('{"kind":"reset","t":1,"by":"A","by":"B:C"}', "line 2: field 'by': expected once, got it"),
        ('{"kind":"shed","t":1,"id":"0","x":{"a":1,"a":2}}', "field 'a': expected once, got it"),
    ],
)
def test_damaged_records(tmp_path: Path, line: str, words: str) -> None:
    AuditLog(tmp_path, SETTINGS)
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(Exception, match=words):
        read(tmp_path)


def test_a_result_of_no_audit_is_left_out_and_said(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, SETTINGS)
    for key in ("0", "1"):
        log.write("request", id=key, stop=43)
        log.write("result", id=key, differs=True)
    log.write("shed", id="of a request in a deleted file")
    monitor, (remark,) = replay(find_series([tmp_path], SETTINGS.digest))
    assert remark.endswith("results without a request that was to be audited, left out: 2")
    assert monitor.counts["resolved"] == 0


def test_other_files_and_settings(tmp_path: Path) -> None:
    AuditLog(tmp_path, SETTINGS)
    (path,) = tmp_path.iterdir()
    assert find_series([path], SETTINGS.digest)[0] == (path,)
    with pytest.raises(PolicyError, match=r"a log of another policy; this one is cdcdcdcd"):
        find_series([tmp_path], "cd" * 32)
    (notes := tmp_path / "notes.jsonl").touch()
    with pytest.raises(PolicyError, match="not named like an audit log"):
        find_series([notes], SETTINGS.digest)
    with pytest.raises(PolicyError, match=r"nowhere: no such file or directory"):
        find_series([tmp_path, tmp_path / "nowhere"], SETTINGS.digest)
    changed = WatchSettings("ab" * 32, "differs", 0.05, 0.05, 0.05, 0.2, 1e6)
    with pytest.raises(PolicyError, match="written under other settings"):
        AuditLog(tmp_path, changed)
    AuditLog(tmp_path / "b", changed)
    with pytest.raises(PolicyError, match="one test has one alpha"):
        read(tmp_path, tmp_path / "b")
    header = json.loads(path.read_text())
    assert header["schema"] == 2, "logs of before this version go on"
    stateless = {name: value for name, value in header.items() if name != "state"}
    for other in ({}, header | {"schema": 1}, header | {"kind": "request"}, stateless):
        path.write_text(json.dumps(other) + "\n")
        with pytest.raises(PolicyError, match="line 1: expected the header"):
            read(tmp_path)


def test_links_are_not_followed(tmp_path: Path) -> None:
    clock = Clock()
    log = AuditLog(tmp_path, SETTINGS, clock=clock)
    (path,) = tmp_path.iterdir()
    victim = tmp_path / "victim"
    path.rename(victim)
    path.symlink_to(victim)
    clock.now += 1  # it looks once a second; until then it writes into the file that it holds
    with pytest.raises(OutputError, match="cannot write"):
        log.write("request", id="0", stop=43)
    with pytest.raises(PolicyError, match="cannot be read"):
        AuditLog(tmp_path, SETTINGS)


def rotate(path: Path) -> None:
    """As logrotate does by default: rename, and create an empty file."""
    path.rename(path.with_name(f"{path.name}.1"))
    path.touch()


@pytest.mark.parametrize("take", [Path.unlink, partial(os.truncate, length=0), rotate])
def test_a_log_that_is_taken_away_takes_no_evidence_along(
    tmp_path: Path, take: Callable[[Path], None]
) -> None:
    clock = Clock()
    log = AuditLog(tmp_path, SETTINGS, clock=clock)
    fill(log, 0, 30, clock, step=0.01)
    (path,) = tmp_path.iterdir()
    take(path)
    log.take_in_resets()
    fill(log, 30, 60, clock)
    ((found,),) = find_series([tmp_path], SETTINGS.digest)
    assert found != path
    assert figures(read(tmp_path)) == figures(log.monitor)
    assert log.monitor.counts["requests"] == 60


def test_a_reset_counts_where_it_stands(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, SETTINGS)
    log.write("request", id="0", stop=43, share=0.1)
    reset(find_series([tmp_path], SETTINGS.digest), "A. Smith")
    log.write("request", id="1", stop=43, share=0.1)
    assert log.monitor.counts == read(tmp_path).counts
    assert (log.monitor.counts["requests"], log.monitor.counts["resets"]) == (1, 1)
    reset(find_series([tmp_path], SETTINGS.digest), "A. Smith")
    log.take_in_resets()
    assert (log.monitor.counts["requests"], log.monitor.counts["resets"]) == (0, 2)
    (path,) = tmp_path.iterdir()
    with path.open("a") as file:  # whatever somebody writes, only a reset is taken in
        file.write('5\n{"kind":"request","t":1,"id":"x","stop":43}\n')
    log.take_in_resets()
    assert log.monitor.counts["requests"] == 0


@contextmanager
def full_beyond(size: int) -> Iterator[None]:
    """No file may grow beyond this size."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_no_file_without_a_header(tmp_path: Path) -> None:
    """Else the next start would refuse it, and monitor too."""
    with full_beyond(20), pytest.raises(OutputError, match="no space left"):
        AuditLog(tmp_path, SETTINGS)
    assert list(tmp_path.iterdir()) == []
    clock = Clock()
    log = AuditLog(tmp_path, SETTINGS, clock=clock, max_bytes=600)
    (first,) = tmp_path.iterdir()
    with full_beyond(650):  # room for one more line, and not for a header with a state
        for k in range(20):
            with suppress(OutputError):
                log.write("request", id=str(k), stop=43, tokens=1, share=0.1)
    assert list(tmp_path.iterdir()) == [first]
    log.write("result", id="0", differs=True)
    assert log.monitor.counts["differing"] == 1
    assert figures(read(tmp_path)) == figures(log.monitor)
    again = AuditLog(tmp_path, SETTINGS, clock=clock).monitor
    assert again.counts["differing"] == 1


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, SETTINGS)
    (path,) = tmp_path.iterdir()
    before = path.read_bytes()
    with full_beyond(len(before) + 20), pytest.raises(OutputError, match="no space left"):
        log.write("request", id="0", stop=43)
    assert path.read_bytes() == before
    assert log.monitor.counts["requests"] == 0
    log.write("request", id="0", stop=43, tokens=None)
    assert figures(read(tmp_path)) == figures(log.monitor)
