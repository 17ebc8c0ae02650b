"""The mistakes that `tests.mutants` makes: every kind, one at a time, and tests for each module."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests import mutants
from tests.mutants import EQUIVALENT, LEAST_CAUGHT, ROOT, TESTS, mutants_of, sample

MODULE = '''
"""A text with 1 < 2 and not a mistake."""
def f(x: int = 3, *, name: str = "a" + "b") -> bool:
    if not x <= 0 and x in (1, 2.5):
        raise ValueError(f"{x + 1} is not 2")
    return x // 2 - -1 == 0 or True
'''


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with `MODULE` alone."""
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
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


def test_a_sample_is_drawn_again_and_leaves_out_what_changes_nothing() -> None:
    modules = ("stats/intervals", "runs/chain")
    drawn = sample(40, 3, modules)
    assert drawn == sample(40, 3, modules) != sample(40, 4, modules)
    assert len({mutant.description for mutant in drawn}) == 40
    assert {mutant.module for mutant in drawn} == set(modules)
    every = sample(10**6, 0, tuple(TESTS))
    assert not [m for m in every if m.description.startswith(tuple(EQUIVALENT))]


def test_what_is_listed_exists() -> None:
    for names in TESTS.values():
        for name in names.split():
            assert (ROOT / "tests" / f"{name}.py").is_file(), name
    known = {mutant.description for module in TESTS for mutant in mutants_of(module)}
    for begins in EQUIVALENT:
        assert any(description.startswith(begins) for description in known), begins
    assert all(EQUIVALENT.values()), "each has a reason"
    assert 0.95 <= LEAST_CAUGHT < 1


@pytest.mark.slow
def test_a_mutant_is_caught_in_a_process_of_its_own() -> None:
    """A sign in the share of right answers: its test fails, and the module as it is passes."""
    wanted = next(m for m in mutants_of("stats/reliability") if "n_right == 0" in m.description)
    words = ("-m", "tests.mutants", "--only", f"{wanted.module}:{wanted.number}")
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("1 of 1 caught, 100.0%\n")
    assert wanted.description in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "seconds", "ends"),
    [
        ("stats/test_reliability", 300.0, "ALIVE"),
        ("stats/test_reliability", 0.0, "SLOW"),
        ("test_that_is_not_there", 300.0, "BROKEN"),
    ],
)
def test_only_a_failure_or_far_too_long_a_run_counts_as_caught(
    files: str, seconds: float, ends: str, tmp_path: Path
) -> None:
    program = f"""
from pathlib import Path
from tests import mutants
mutants.TESTS["stats/reliability"] = {files!r}
print(mutants.outcome(None, "stats/reliability", Path({str(tmp_path)!r}) / "log", {seconds}).name)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == (f"{ends}\n", "")


@pytest.mark.long
def test_nineteen_of_twenty_are_caught() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.mutants"], cwd=ROOT, check=False)
    assert done.returncode == 0
