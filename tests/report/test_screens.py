"""What people see, held by golden files at 80 columns; pipes, terminals, ASCII, no colour."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from dataclasses import replace
from io import StringIO, TextIOWrapper
from pathlib import Path

import pytest

from stopadvisor import __version__
from stopadvisor.cli.main import main
from stopadvisor.policy.run_policies import calibration_of
from stopadvisor.report.screen import Screen, draw
from stopadvisor.report.sheet import Section, Sheet
from stopadvisor.report.sheets.run import run_sheet
from stopadvisor.runs.directory import RunDirectory
from tests.goldens import Goldens
from tests.material import archive_arrays, forget_looks, keep_records, make_run, write_archive
from tests.report.results import ANSWERED

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = ROOT / "tests" / "testdata" / "screens"
ASSESS = ["assess", "--no-report"]
ALPHA = ["--alpha", "0.15"]
SCREENS = {
    "assess": [*ASSESS, "runs/sums"],
    "assess-black-box": [
        *(*ASSESS, "runs/sums", *ALPHA, "--serving", "black-box", "--price", "1/0.1/4")
    ],
    "assess-paper": [*ASSESS, "raw.npz", "--protocol", "paper"],
    "assess-unlikely": [*ASSESS, "runs/sums", "--alpha", "0.01"],
    "calibrate": ["calibrate", "runs/sums", "--alpha", "0.15"],
    "calibrate-refused": ["calibrate", "runs/sums", "--alpha", "0.001"],
    "calibrate-from": ["calibrate", "runs/fresh", "--from", "policy.joblib", "--alpha", "0.15"],
    "inspect": ["inspect", "policy.joblib"],
    "verify": ["verify", "policy.joblib", "runs/fresh"],
    "plan": ["plan", "--alpha", "0.05"],
    "diff": ["inspect", "policy.joblib", "choice.joblib"],
    "promote": ["promote", "careful.joblib"],
    "study": ["study", "frontier", "runs/sums"],
    "import": ["import", "csv", "log.csv", "--map", "question=Q,gold=A", "-o", "mine.jsonl"],
}


WIDE = ("assess", "calibrate", "calibrate-refused", "verify", "run")
"""Screens that are held at 120 columns too."""


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, the second of questions that came after, an archive and a policy."""
    root = tmp_path_factory.mktemp("screens")
    make_run(root / "runs" / "sums", 300)
    fresh = RunDirectory.load(make_run(root / "runs" / "fresh", 600))
    keep_records(fresh, fresh.records()[300:])
    write_archive(root / "raw.npz", **archive_arrays(600))
    words = ["--alpha", "0.15", "--out", str(root / "policy.joblib"), "--quiet"]
    assert main(["calibrate", str(root / "runs" / "sums"), *words]) == 0
    forget_looks(root / "runs" / "sums")
    shutil.copy(ROOT / "policies" / "choice.joblib", root)
    shutil.copy(root / "policy.joblib", careful := root / "careful.joblib")
    (root / "log.csv").write_text("Q,A\n" + "".join(f"2 + {k}?,{2 + k}\n" for k in range(40)))
    (calibration,) = root.glob("*calibration.json")
    shutil.copy(calibration, calibration_of(careful))
    return root


@pytest.fixture
def folder(tmp_path: Path, material: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the material, to be in."""
    shutil.copytree(material, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def sheet_of(name: str, monkeypatch: pytest.MonkeyPatch) -> Sheet:
    """What a command draws."""
    if name == "run":
        return run_sheet(ANSWERED)
    drawn: list[Sheet] = []
    monkeypatch.setattr("stopadvisor.report.screen.draw", lambda sheet, out: drawn.append(sheet))
    assert main(SCREENS[name]) in (0, 3)
    (sheet,) = drawn
    return sheet


def shown(sheet: Sheet) -> str:
    """A screen as text, without what differs from one time to the next."""
    draw(sheet, out := StringIO())
    text = out.getvalue()
    text = re.sub(r"\b[0-9a-f]{16}\.\.\.", "0123456789abcdef...", text)
    text = re.sub(r"archive-[0-9a-f]{8}\b", "archive-01234567", text)
    text = re.sub(r"\b(policy-a\d+)-[0-9a-f]{8}\b", r"\1-01234567", text)
    text = text.replace(f"stopadvisor {__version__}\n", "stopadvisor 1.2.3\n")
    text = re.sub(r"digest [0-9a-f]{8}\b", "digest 01234567", text)
    text = re.sub(r"(policy-a\d+)-[0-9a-f]{8}\b", r"\1-01234567", text)
    text = re.sub(r"digest 01234567, of \d{4}-\d\d-\d\d", "digest 01234567, of 2026-01-02", text)
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:]{8}\+00:00", "2026-01-02T03:04:05+00:00", text)


def golden(name: str) -> str:
    return (FILES / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*SCREENS, "run"])
def test_the_screen_is_the_golden_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, goldens: Goldens, name: str
) -> None:
    sheet = sheet_of(name, monkeypatch)
    for width in (80, 120) if name in WIDE else (80,):
        monkeypatch.setenv("COLUMNS", str(width))
        text = shown(sheet)
        goldens.check(FILES / (f"{name}.txt" if width == 80 else f"{name}-{width}.txt"), text)
        commands = [line for line in text.splitlines() if line.lstrip().startswith("next ")]
        lines = [line for line in text.splitlines() if line not in commands]
        assert max(map(len, lines)) <= width
        assert width == 80 or max(map(len, lines)) > 80
        assert not [line for line in lines if line != line.rstrip()]


@pytest.mark.parametrize("width", range(20, 90, 5))
def test_no_width_of_a_table_tears_a_figure(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    header = ("rule", "lost", "saves of it all", "saves of all", "saves")
    rows = (
        ("signals combined (learned)", "-166.98%", "29.6%", "-105.24%", "-115.25%"),
        ("one", "9%", "-105.2%", "0.5%", "7%"),
    )
    Screen(out := StringIO()).section(Section("Savings", header, rows))
    words = out.getvalue().split()
    assert all(words.count(figure) == 1 for row in rows for figure in row[1:])
    lines = out.getvalue().splitlines()
    # The widest that all words have room in: 9, 8, 7, 8 and 8 characters, and gaps.
    assert max(map(len, lines)) <= max(width, 2 + 40 + 4 * 3)


def test_there_is_no_golden_file_without_its_screen() -> None:
    names = [*SCREENS, "run", *(f"{name}-120" for name in WIDE)]
    assert {path.name for path in FILES.iterdir()} == {f"{name}.txt" for name in names}


# --- Where it is read -----------------------------------------------------------------------------

ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(StringIO):
    """A terminal to write to."""

    def isatty(self) -> bool:
        return True


def summary(out: StringIO | TextIOWrapper) -> None:
    draw(run_sheet(ANSWERED), out)
    screen = Screen(out)
    screen.section(Section("Models", ("name", "share"), (("Qwen/Qwen3-8B", "50%"),)))


def test_a_terminal_gets_colour_and_the_same_text(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    plain, coloured = StringIO(), Terminal()
    summary(plain)
    summary(coloured)
    assert "\x1b[2m" in coloured.getvalue()
    assert ANSI.sub("", coloured.getvalue()) == plain.getvalue()
    Screen(hue := Terminal()).headline("Certified.", "good")
    assert hue.getvalue() == "\x1b[1;32mCertified.\x1b[0m\n"
    monkeypatch.setenv("NO_COLOR", "1")
    Screen(bare := Terminal()).headline("Certified.", "good")
    assert bare.getvalue() == "\x1b[1mCertified.\x1b[0m\n"
    monkeypatch.setenv("TERM", "dumb")
    summary(dumb := Terminal())
    assert "\x1b" not in dumb.getvalue()


def test_run_sends_nobody_to_a_server_where_the_policy_costs() -> None:
    draw(run_sheet(replace(ANSWERED, server_saving_pct=-5.7)), out := StringIO())
    assert "stopadvisor serve" not in out.getvalue()
    assert "costs 5.7% more than full thinking" in " ".join(out.getvalue().split())


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_a_stream_cannot_encode_is_escaped(folder: Path, encoding: str) -> None:
    with TextIOWrapper((folder / "out").open("wb"), encoding=encoding) as out:
        screen = Screen(out)
        facts = [("model", "modèle-数"), ("rule", "α ≥ 0.1 → stop … 2 – 3")]
        screen.facts(facts, "stopadvisor assess 数")
        screen.section(Section("", ("rule", "saves"), (("one", "5%"),)))
    text = (folder / "out").read_text(encoding=encoding)
    model = "mod\\xe8le" if encoding == "ascii" else "modèle"
    assert text == (
        "  next   stopadvisor assess \\u6570\n"
        f"  model  {model}-\\u6570\n  rule   alpha >= 0.1 -> stop ... 2 - 3\n"
        "\n\n  rule   saves\n  ------------\n  one       5%\n"
    )


def environment(**more: str) -> dict[str, str]:
    """Of a process that knows nothing of ours but the package."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


UNSTABLE = re.compile(r"  (workload|probes|labels|look +\w+\.{3}|written by|digest|created)( |$)")
INSPECT = [sys.executable, "-m", "stopadvisor", "inspect", "policy.joblib"]


@pytest.mark.integration
def test_a_real_terminal_shows_the_golden_text_in_its_width(folder: Path) -> None:
    control, terminal = pty.openpty()
    width = 120
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    process = subprocess.Popen(
        INSPECT, stdout=terminal, stdin=terminal, stderr=terminal,
        env=environment(TERM="xterm-256color", LANG="C.UTF-8"),
    )  # fmt: skip
    os.close(terminal)
    text = b""
    while chunk := _read(control):
        text += chunk
    assert process.wait() == 0
    lines = ANSI.sub("", text.decode()).replace("\r\n", "\n").splitlines()
    found = [line for line in lines if not UNSTABLE.match(line)]
    wanted = [line for line in golden("inspect").splitlines() if not UNSTABLE.match(line)]
    # The same words, on fewer and longer lines.
    assert " ".join(found).split() == " ".join(wanted).split()
    assert len(found) < len(wanted)
    assert 80 < max(len(line) for line in found if "stopadvisor serve" not in line) <= width
    assert b"\x1b[1m" in text


def _read(control: int) -> bytes:
    """What the terminal was sent; nothing more once its last writer has gone."""
    try:
        return os.read(control, 65536)
    except OSError:
        return b""
