"""Long work says what it does, how much is done and how much time is left, in every command."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import pytest

from stopadvisor.answers.grading import Grader
from stopadvisor.ground.progress import shown_on, tracked
from stopadvisor.report.progress import LineProgress, progress_on, remark_first, time_left
from tests.cli.test_import import recorded
from tests.cli.test_monitor import LOGS, POLICY, write_log, write_policy
from tests.material import Call

Item = TypeVar("Item")
RUN = "runs/old"
CHOICE = {"reading probes", "measuring rules", "imitating calibrations"}


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """What was counted by its title: how many there were, and how many were done."""
    seen: dict[str, list[int]] = {}

    def count(_: object, title: str, items: Iterable[Item], total: int) -> Iterator[Item]:
        stage = seen.setdefault(title, [0, 0])
        stage[0] += total
        for item in items:
            yield item
            stage[1] += 1

    monkeypatch.setattr(LineProgress, "count", count)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "titles"),
    [
        ("assess RUN --families learned", {*CHOICE, "comparing promises", "fitting a rule"}),
        ("calibrate RUN --alpha 0.15", CHOICE),
        ("study frontier RUN", {"studying runs", "reading probes"}),
        ("study rivals RUN --set splits=2 --alpha 0.15", {"splits of old", "measuring rules"}),
        ("import probes r.jsonl --out new", {"reading r.jsonl"}),
        ("import csv t.csv --map question=q --out t.jsonl", {"reading t.csv"}),
        ("monitor policy.json logs", {"reading audits"}),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
def test_every_stage_is_counted_to_its_end(
    words: str,
    titles: set[str],
    stages: dict[str, list[int]],
    quickly_assessed_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    call: Call = Call(capsys)
    shutil.copytree(quickly_assessed_run, RUN)
    if "import" in words:
        recorded("r.jsonl", 60)
        Path("t.csv").write_text('q\n"one,\ntwo"\nthree\n')
    if "monitor" in words:
        write_log(write_policy(), lost_from=10**9, requests=50)
        words = f"monitor {POLICY} {LOGS}"
    code, _, err = call(*words.replace("RUN", RUN).split())
    assert code in (0, 3), err
    assert titles <= stages.keys()
    for title in titles:
        total, done = stages[title]
        assert done == total > 0, title


@pytest.mark.slow
def test_grading_formulas_is_counted(stages: dict[str, list[int]]) -> None:
    pytest.importorskip("math_verify")
    with progress_on(StringIO()), Grader() as grader:
        assert grader.grade_many([("math", r"\frac{1}{2}", "0.5"), ("math", "7", "x + 1")])[0]
    assert stages["grading"][0] == stages["grading"][1] > 0


def test_counted_work_speaks_after_five_seconds() -> None:
    err, now = StringIO(), iter([0.0, 2.0, 6.0, 8.0, 17.0, 18.0])
    with shown_on(LineProgress(err, clock=lambda: next(now))):
        assert list(tracked("measuring rules", "abcde")) == list("abcde")
    assert err.getvalue().splitlines() == [
        "measuring rules: 2/5, 20.0/min, about 9 s left",
        "measuring rules: 4/5, 14.1/min, about 4 s left",
    ]


@pytest.mark.parametrize(
    ("items", "every_s", "line"),
    [
        (5, 1.0, "5/5, 1.0/s"),
        (6, 1.0, "5/6, 1.0/s, about 1 s left"),
        (50, 0.1, "50/50, 10/s"),
        (3, 2.0, "3/3, 30.0/min"),
    ],
)
def test_rates_have_the_unit_that_people_read(items: int, every_s: float, line: str) -> None:
    err, now = StringIO(), iter(round(every_s * k, 9) for k in range(items + 1))
    with shown_on(LineProgress(err, clock=lambda: next(now))):
        list(tracked("reading", range(items)))
    assert err.getvalue() == f"reading: {line}\n"


def test_three_sentences_of_a_kind_are_named_and_the_others_counted() -> None:
    err = StringIO()
    for sentences in ("abc", "abcde", ""):
        remark_first(LineProgress(err), "left out", sentences)
    named = ["left out: a", "left out: b", "left out: c"]
    assert err.getvalue().splitlines() == [*named, *named, "left out: 2 more"]


def test_nobody_need_watch() -> None:
    assert list(tracked("measuring rules", iter("ab"), 2)) == ["a", "b"]


# --- As it is shown -------------------------------------------------------------------------------


def test_lines_come_every_ten_seconds_and_at_the_end() -> None:
    err, now = StringIO(), iter([0.0, 4.0, 12.0, 15.0, 30.0])
    progress = LineProgress(err, clock=lambda: next(now))
    progress.begin("probing", 100, 20)
    for _ in range(4):
        progress.advance(20, 600)
    assert err.getvalue().splitlines() == [
        "probing: 20/100 done",
        "probing: 60/100, 100 tokens/s, about 12 s left",
        "probing: 100/100, 80 tokens/s",
    ]


def test_the_first_traces_tell_no_time() -> None:
    err, now = StringIO(), iter([0.0, 11.0, 22.0])
    progress = LineProgress(err, clock=lambda: next(now))
    progress.begin("answering", 400)
    progress.advance(1, 20)
    progress.advance(19, 400)
    assert err.getvalue().splitlines()[1:] == [
        "answering: 1/400, 2 tokens/s",
        "answering: 20/400, 19 tokens/s, about 7 min left",
    ]


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("each_s", "shown"), [(0.25, False), (0.5, True)])
def test_a_terminal_gets_a_bar_for_work_that_takes_a_second(
    each_s: float, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def work() -> Iterator[int]:
        for number in range(3):
            now[0] += each_s
            yield number

    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("stopadvisor.report.progress.time", clock)
    err = Terminal()
    with progress_on(err):
        assert list(tracked("reading", work(), 3)) == [0, 1, 2]
    assert ("reading" in err.getvalue()) is shown


def test_a_terminal_gets_a_bar_and_no_colour_when_none_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    err = Terminal()
    with progress_on(err) as progress:
        progress.begin("probing", 4)
        progress.advance(4, 80)
        progress.remark("a remark with [brackets]")
    text = err.getvalue()
    assert "probing" in text
    assert "4/4" in text
    assert "a remark with [brackets]" in text
    assert not re.search(r"\x1b\[(\d+;)*(3[0-8]|4[0-8]|9\d)(;\d+)*m", text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (89, "89 s"), (90, "2 min"), (600, "10 min"), (5400, "1.5 h"), (7200, "2.0 h")],
)
def test_time_left_is_said_as_people_say_it(seconds: float, text: str) -> None:
    assert time_left(seconds) == text
