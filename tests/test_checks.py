"""`python -m tests`: order of the checks, which failure is reported, exit codes; CI's jobs."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests import __main__ as checks
from tests.__main__ import FAST, REST, TIERS, Check, main
from tests.conftest import pytest_collection_modifyitems, pytest_ignore_collect
from tests.release import EXTRAS, HEAVY

WAITS = """
import pathlib, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
pathlib.Path("{begun}").touch()
try:
    time.sleep(600)
finally:
    pathlib.Path("{ended}").touch()
"""
FAILS = """
import pathlib, sys, time
while not pathlib.Path("{begun}").exists():
    time.sleep(0.01)
sys.exit("an int is no text")
"""


def says(shown: str, code: str = "", *, in_background: bool = False) -> Check:
    return Check(shown, ("-c", f"print('{shown} ran')\n{code}"), in_background)


def test_types_that_fail_end_the_tests_in_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    places = {"begun": tmp_path / "begun", "ended": tmp_path / "ended"}
    types = Check("types", ("-c", FAILS.format(**places)), in_background=True)
    monkeypatch.setitem(TIERS, "full", (types, Check("tests", ("-c", WAITS.format(**places)))))
    assert main([]) == 1
    assert places["ended"].exists(), "interrupted, not killed"
    out, err = capfd.readouterr()
    assert out == "$ types\n$ tests\nan int is no text\n"
    assert err.endswith("tests: 'types' failed with exit code 1\n")


@pytest.mark.parametrize(
    ("tests", "types", "code", "blamed"),
    [
        ("sys.exit(5)", "", 5, "tests"),
        ("", "", 0, None),
        ("sys.exit(5)", "sys.exit(2)", 2, "types"),
    ],
)
def test_a_failure_in_the_background_is_reported_before_the_tests(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tests: str,
    types: str,
    code: int,
    blamed: str | None,
) -> None:
    both = (
        says("types", f"import sys; {types}", in_background=True),
        says("tests", f"import sys; {tests}"),
    )
    monkeypatch.setitem(TIERS, "full", (says("style"), *both))
    assert main([]) == code
    out, err = capfd.readouterr()
    assert out.startswith("$ types\n$ style\nstyle ran\n$ tests\n")
    assert "types ran" in out
    assert err.endswith(f"tests: {blamed!r} failed with exit code {code}\n" if blamed else "")


def test_workers_begin_when_everything_is_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    compiled = tmp_path / "compiled"
    collects = f"import pathlib, time; time.sleep(0.3); pathlib.Path({str(compiled)!r}).touch()"
    looks = f"import pathlib, sys; sys.exit(not pathlib.Path({str(compiled)!r}).exists())"
    monkeypatch.setattr(checks, "COLLECT", says("collected", collects))
    tests = Check("tests", ("-c", looks), takes_arguments=True)
    monkeypatch.setitem(TIERS, "full", (says("style"), tests))
    assert main([]) == 0
    assert capfd.readouterr().out == "$ collected\n$ style\nstyle ran\n$ tests\n"


def test_after_a_check_that_fails_nothing_runs(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    style = says("style", "import sys; sys.exit(4)")
    types = says("types", "import time; time.sleep(600)", in_background=True)
    monkeypatch.setitem(TIERS, "full", (types, style, says("tests")))
    assert main([]) == 4
    out, err = capfd.readouterr()
    assert out == "$ types\n$ style\nstyle ran\n"
    assert err == "tests: 'style' failed with exit code 4\n"


@pytest.mark.parametrize(
    ("expression", "is_left_out"),
    [
        (FAST, True),
        (REST, None),
        ("not long", None),
        ("", None),
        ("vllm or not slow and not long", None),
        ("not (vllm and not slow and not long)", None),
    ],
)
def test_a_file_is_left_out_where_no_test_of_it_can_be_asked_for(
    tmp_path: Path, pytestconfig: pytest.Config, expression: str, is_left_out: bool | None
) -> None:
    file = tmp_path / "test_slow.py"
    file.write_text("pytestmark = [pytest.mark.vllm, pytest.mark.slow]\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytestconfig.option, "markexpr", expression)
        assert pytest_ignore_collect(file, pytestconfig) is is_left_out


def test_files_with_many_slow_tests_start_first() -> None:
    def item(name: str, *marks: str) -> Any:
        marker = {"get_closest_marker": lambda mark: mark if mark in marks else None}
        return SimpleNamespace(nodeid=name, path=Path(name.partition("::")[0]), **marker)

    names = ["tests/a.py::one", "tests/b.py::one", "tests/b.py::two", "tests/c.py::one"]
    first = ["integration/test_d.py", "engines/test_hf_probe.py", "long/test_e.py"]
    names += [f"tests/{name}::one" for name in reversed(first)]
    items = [item(name, *["slow"] * ("/b" in name or "/c" in name)) for name in names]
    pytest_collection_modifyitems(items)
    files = dict.fromkeys(str(item.path) for item in items)
    assert [*files] == [f"tests/{name}" for name in (*first, "b.py", "c.py", "a.py")]


# --- CI -------------------------------------------------------------------------------------------


def commands(job: str) -> list[str]:
    """What a job of the workflow runs, without what it installs."""
    workflow = yaml.safe_load((checks.ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
    steps = [step["run"] for step in workflow["jobs"][job]["steps"] if "run" in step]
    return [command for command in steps if not command.startswith("pip install")]


def test_lint_unit_and_integration_are_jobs_of_their_own() -> None:
    assert commands("lint") == ["python -m tests --lint"]
    assert commands("unit") == ["python -m tests --unit"]
    assert commands("integration") == [".ci/run --integration"]


def test_ci_hands_its_arguments_to_the_test_command() -> None:
    lines = (checks.ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert lines[-5:-1] == ["if [ $# != 0 ]; then", '  python -m tests "$@"', "  exit", "fi"]


def test_ci_tries_each_extra_that_no_other_job_installs() -> None:
    (command,) = commands("wheel")
    assert re.findall(r"--extra (\w+)", command) == [e for e in EXTRAS if e not in HEAVY]
