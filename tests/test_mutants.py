"""`tests.mutants` makes every kind of mistake, one at a time, and finds tests for each module."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from bisect import bisect_left
from functools import cache
from pathlib import Path

import pytest

from tests.mutants import mistakes
from tests.mutants.mistakes import mutants_of, sample
from tests.mutants.modules import EQUIVALENT, LEAST_CAUGHT, MODULES, ROOT, wing_of
from tests.mutants.recording import users

MODULE = '''
"""Text with an operator, in which no mistake is made: 1 < 2."""
def f(x: int = 3, *, name: str = "a" + "b") -> bool:
    if not x <= 0 and x in (1, 2.5):
        raise ValueError(f"{x + 1} is not 2")
    return x // 2 - -1 == 0 or True
'''

HAVE_EQUIVALENT = sorted({begins.partition(" ")[0] for begins in EQUIVALENT})
"""Modules with a mutant that changes nothing."""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with `MODULE` alone."""
    monkeypatch.setattr(mistakes, "ROOT", tmp_path)
    (tmp_path / "stopadvisor").mkdir()
    path = tmp_path / "stopadvisor" / "one.py"
    path.write_text(MODULE, encoding="utf-8")
    return path


def test_every_kind_of_mistake_is_made_and_words_are_left_alone(written: Path) -> None:
    found = {mutant.description.removeprefix("one ") for mutant in mutants_of("one")}
    assert found == {
        "f: x: int=3, *, name: str='a' + 'b' -> x: int=4, *, name: str='a' + 'b'",
        "f: not x <= 0 and x in (1, 2.5) -> not x <= 0 or x in (1, 2.5)",
        "f: not x <= 0 -> not not x <= 0",
        "f: x <= 0 -> x < 0",
        "f: x <= 0 -> x <= 1",
        "f: x in (1, 2.5) -> x not in (1, 2.5)",
        "f: (1, 2.5) -> (2, 2.5)",
        "f: (1, 2.5) -> (1, 2.75)",
        "f: x // 2 - -1 == 0 or True -> x // 2 - -1 == 0 and True",
        "f: x // 2 - -1 == 0 or True -> x // 2 - -1 == 0 or False",
        "f: x // 2 - -1 == 0 -> x // 2 - -1 != 0",
        "f: x // 2 - -1 == 0 -> x // 2 - -1 == 1",
        "f: x // 2 - -1 -> x // 2 + -1",
        "f: x // 2 - -1 -> x // 2 - +1",
        "f: x // 2 -> x * 2",
        "f: x // 2 -> x // 3",
        "f: -1 -> -2",
    }


def test_each_is_made_alone(written: Path) -> None:
    original = ast.unparse(ast.parse(MODULE))
    made = [ast.unparse(mutant.tree()) for mutant in mutants_of("one")]
    assert len(set(made)) == len(made)
    assert original not in made
    for text in made:
        changed = [a != b for a, b in zip(original.split("\n"), text.split("\n"), strict=True)]
        assert sum(changed) == 1


def test_a_sample_is_drawn_again_and_leaves_out_what_is_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mistakes, "mutants_of", each := cache(mutants_of))
    modules = ("stats/intervals", "runs/look_log")
    drawn = sample(40, 3, modules)
    assert drawn == sample(40, 3, modules) != sample(40, 4, modules)
    assert len({mutant.description for mutant in drawn}) == 40
    assert {mutant.module for mutant in drawn} == set(modules)
    every = sample(10**6, 0, HAVE_EQUIVALENT)
    assert not [m for m in every if m.description.startswith(tuple(EQUIVALENT))]
    known = sorted(mutant.description for module in HAVE_EQUIVALENT for mutant in each(module))
    for begins in EQUIVALENT:
        assert known[bisect_left(known, begins)].startswith(begins), begins


def test_each_that_is_listed_has_a_reason_and_each_wing_its_share() -> None:
    assert all(EQUIVALENT.values())
    assert {wing_of(module) for module in MODULES} == LEAST_CAUGHT.keys()
    assert min(LEAST_CAUGHT.values()) >= 0.85
    assert min(LEAST_CAUGHT[wing] for wing in ("stats", "policy", "runs", "serving")) >= 0.95


def test_a_mistake_is_in_the_line_where_its_statement_begins(written: Path) -> None:
    written.write_text("for x in range(1,\n 2):\n    y = (3 +\n 4)\n", encoding="utf-8")
    assert [mutant.line for mutant in mutants_of("one")] == [1, 1, 3, 3, 3]


def test_users_of_a_module_import_from_it() -> None:
    found = users("stats/sequential")
    assert found[0] == "stats/sequential"
    assert {"serving/monitoring", "serving/monitored"} < set(found)
    assert "serving/audits" not in found


ENTERED = (
    "ground/printable", "ground/results", "report/progress", "report/screen", "report/sheet",
    "studies/tables",
)  # fmt: skip
"""Modules that the recorded tests name; noting those that these import takes twice as long."""
_CAUGHT = "csv_cell: not isinstance(value, str) ->"
ENDS = {
    # By what is tried: a mistake, a test's seconds, whether it passes without it, how it ends.
    "in a function": (_CAUGHT, 300.0, True, "ok"),
    "at import": ("range(32) -> range(33)", 300.0, True, "ok"),
    # Nobody tries a text of just that length.
    "of no test": ("-> len(text) < _MOST_SHOWN", 300.0, True, "ALIVE"),
    "slow": (_CAUGHT, 0.0, True, "slow"),
    "of tests that fail anyway": (_CAUGHT, 300.0, False, "ALIVE"),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, int]]:
    """The command's verdicts and exit code, in a process that records in another."""
    cases = []
    for name, (mistake, seconds, sound, _) in ENDS.items():
        wanted = next(m for m in mutants_of("ground/printable") if mistake in m.description)
        cases.append((name, wanted.number, seconds, sound))
    recorded = tmp_path_factory.mktemp("recorded") / "mutants.pickle"
    program = f"""
import contextlib, io, json, os, sys
from pathlib import Path
from tests.mutants import __main__ as command, recording, running
recording.RECORDED = Path({str(recorded)!r})
recording.Entering.modules = {ENTERED!r}
running.warm()  # hypothesis too, whose asserts are then not rewritten
if not (recorder := os.fork()):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.environ["PYTEST_ADDOPTS"] = "-W ignore::pytest.PytestAssertRewriteWarning"
    os._exit(recording.record(["tests/ground/test_printable.py"]))
os.waitpid(recorder, 0)
found = {{}}
for name, number, seconds, sound in {cases!r}:
    recording._LEAST_S, recording._SLOWER = seconds, 0
    if not sound:
        running._changed_by = lambda mutant: []  # each in a process of its own
        running._Suite.is_sound = lambda suite, test: suite._sound.setdefault(test, False)
    sys.argv[1:] = ["--only", f"ground/printable:{{number}}"]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = command.main()
    found[name] = (said.getvalue(), code)
print(json.dumps(found))
"""
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    found: dict[str, tuple[str, int]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDS)
def test_only_a_failure_or_far_too_long_a_run_counts_as_caught(
    ended: dict[str, tuple[str, int]], name: str
) -> None:
    said = ENDS[name][-1]
    text, code = ended[name]
    assert text.startswith(f"{said:5} ground")
    assert code == (said == "ALIVE")


@pytest.mark.long
def test_each_wing_catches_as_many_as_it_has_to() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.mutants"], cwd=ROOT, check=False)
    assert done.returncode == 0
