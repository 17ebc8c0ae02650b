"""Run tests on mutants of modules: those that run the mutant's lines, the quickest first.

A process of its own collects the tests once.  One child of it runs them all on the modules as they
are and notes which lines each runs; another child per mutant puts the mutant's code into the
functions that it changes and runs the tests of its lines until one fails.  A mutant of what runs
already at import, the tests' too, gets a process that imports it, and every test.

It does not know tests that run a module in a process of their own, nor slow ones.
"""

from __future__ import annotations

import ast
import gc
import importlib.abc
import importlib.machinery
import inspect
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import _lru_cache_wrapper, partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from tests.mutants import mistakes
from tests.mutants.mistakes import Mutant, parsed

__all__ = ["Outcome", "TestsFail", "outcomes", "warm"]

_SLOWER = 5
"""A mutant counts as caught after as many times the seconds that a test takes without it."""
_LEAST_S = 20.0
"""Seconds that a test gets in any case."""
_Place = tuple[str, int]
"""A module and a line of it."""
_FIRST = 10
"""Tests that are run by their seconds alone."""


class TestsFail(Exception):
    """Tests fail without a mutant, or none was run."""


class Outcome(Enum):
    """How tests ended on a mutant."""

    ALIVE = "ALIVE"
    """All passed, or none runs it."""
    CAUGHT = "ok"
    """A test failed, or the module could not be imported."""
    SLOW = "slow"
    """One, or all of them, took many times the seconds without the mistake: caught."""
    BROKEN = "BROKEN"
    """Nothing is known: no test was run, or the process died (killed, say, for its memory)."""


@dataclass(frozen=True)
class _Survey:
    """Results of tests on the unchanged modules, by the test's id."""

    seconds: dict[str, float] = field(default_factory=dict)
    """With all that its fixtures take."""
    lines: dict[str, set[_Place]] = field(default_factory=dict)

    def running(self, module: str, line: int | None) -> list[str]:
        """Tests that run a line, or any of a module: the quickest, then the others by file."""
        found = [
            name
            for name, run in self.lines.items()
            if ((module, line) in run if line else any(module == ran for ran, _ in run))
        ]
        found.sort(key=lambda name: self.seconds[name])
        # What the tests of a file share is made anew where another file's come between.
        return found[:_FIRST] + sorted(found[_FIRST:], key=lambda name: name.partition("::")[0])

    def longest_s(self, *names: str) -> float:
        return _LEAST_S + _SLOWER * sum(self.seconds[name] for name in names)


def outcomes(
    mutants: Sequence[Mutant], suite: str, folder: Path
) -> Iterator[tuple[Mutant, Outcome]]:
    """Run the tests of a suite on mutants, which are given back in some order.

    Raises
    ------
    TestsFail
        Where one fails on the module as it is.
    """
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)
    log = folder / "log.txt"
    here, there = Pipe(duplex=False)
    child = _fork(lambda: _tested(suite, log, _Warm(mutants, there)))
    there.close()
    later: list[Mutant] = []
    survey = _Survey()
    while True:
        try:
            found = here.recv()
        except EOFError:
            break
        match found:
            case _Survey():
                survey = found
            case (Mutant() as mutant, None):
                later.append(mutant)
            case _:
                yield found
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise TestsFail(f"{suite}: tests fail without a mutant\n{log.read_text()}")
    longest_s = survey.longest_s(*survey.seconds)
    for mutant in later:
        plugin = _Import(mutant, survey)
        yield mutant, _ended(_fork(partial(_tested, suite, log, plugin)), longest_s)


def _fork(work: Callable[[], int]) -> int:
    """The id of a process that does the work and ends with its code."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # what it starts ends with it
        code = 70
        try:
            code = work()
        except BaseException:  # noqa: BLE001  the child ends here, whatever it was
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.setpgid(child, child)
    return child


def _ended(child: int, longest_s: float) -> Outcome:
    """Return how the tests in a process end."""
    ends = time.monotonic() + longest_s
    while time.monotonic() < ends:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            # Of pytest: 0 all passed, 1 a test failed, 2 a file could not be collected.
            ends_of = {0: Outcome.ALIVE, 1: Outcome.CAUGHT, 2: Outcome.CAUGHT}
            ends_of[-signal.SIGALRM] = Outcome.SLOW  # of `_run`
            return ends_of.get(os.waitstatus_to_exitcode(status), Outcome.BROKEN)
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return Outcome.SLOW


def _tested(suite: str, log: Path, plugin: object) -> int:
    with log.open("wb") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    if isinstance(plugin, _Import):
        sys.meta_path.insert(0, plugin)  # conftest may import the module
    tests = mistakes.ROOT / "tests"
    files = [str(file) for name in suite.split() for file in _files(tests, name)]
    words = ["-x", "-q", "-n", "0", "--no-header", "-p", "no:cacheprovider", "--tb", "line"]
    words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # what is warm is imported
    words += ["-o", "python_files=test_*.py"]  # pytest takes `group_test` for one, and rewrites it
    words += ["-m", "not slow and not long"]  # what simulations alone can tell is not counted
    return int(pytest.main([*words, *files], plugins=[_NoShrinking(), plugin]))


def _files(tests: Path, name: str) -> list[Path]:
    """A folder, a file by its name without the ending, or all that fit a pattern."""
    if (tests / name).is_dir():
        return [tests / name]
    return sorted(tests.glob(f"{name.removesuffix('.py')}.py")) or [tests / f"{name}.py"]


def _file(module: str) -> Path:
    return mistakes.ROOT / "stopadvisor" / f"{module}.py"


def _name(module: str) -> str:
    return f"stopadvisor.{module.replace('/', '.')}"


class _NoShrinking:
    """A plugin: an example that fails is enough, nobody reads the smallest one."""

    def pytest_collection(self) -> None:
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", settings.get_profile("repeatable"), phases=phases)
        settings.load_profile("mutants")


# --- Mutants of what runs at import -------------------------------------------------------------


class _Import(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A plugin that gives a mutant where its module is imported."""

    def __init__(self, mutant: Mutant, survey: _Survey) -> None:
        self._module = mutant.module
        self._file = _file(mutant.module)
        self._name = _name(mutant.module)
        self._tree = ast.fix_missing_locations(mutant.tree())
        self._survey = survey

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        # First what runs the module; the others may read its constants, or bear them in their
        # names, which are other ones then.
        names = self._survey.running(self._module, None)
        items[:] = _named(items, dict.fromkeys([*names, *(item.nodeid for item in items)]))

    def find_spec(
        self, fullname: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=str(self._file))
        spec.has_location = True
        return spec

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._tree, str(self._file), "exec"), module.__dict__)


# --- Mutants of functions -----------------------------------------------------------------------


class _Warm:
    """A plugin: the tests as collected are run by children."""

    def __init__(self, mutants: Sequence[Mutant], results: Connection) -> None:
        self._mutants, self._results = mutants, results
        self._modules = sorted({mutant.module for mutant in mutants})

    def pytest_collection(self) -> None:
        self._collecting: set[_Place] = set()
        self._plain = _note(self._modules, self._collecting)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for function, code in self._plain:
            function.__code__ = code
        here, there = Pipe(duplex=False)
        child = _fork(lambda: self._surveyed(session, there))
        there.close()
        try:
            survey = here.recv()
        except EOFError:
            session.testsfailed = 1
            return True
        finally:
            os.waitpid(child, 0)
        self._results.send(survey)
        for mutant in self._mutants:
            self._results.send((mutant, self._outcome(mutant, session, survey)))
        return True

    def _surveyed(self, session: pytest.Session, results: Connection) -> int:
        noting = _Noting(self._modules)
        session.config.pluginmanager.register(noting)
        code = _run(session, session.items)
        if code == 0:
            results.send(noting.survey)
        return code

    def _outcome(self, mutant: Mutant, session: pytest.Session, survey: _Survey) -> Outcome | None:
        """None where it changes what ran already, or nothing that is known to run."""
        swaps, names = _swaps(mutant), survey.running(mutant.module, mutant.line)
        if not swaps or not names or (mutant.module, mutant.line) in self._collecting:
            return None

        def work() -> int:
            for function, code in swaps:
                function.__code__ = code
            return _run(session, _named(session.items, names), survey)

        return _ended(_fork(work), survey.longest_s(*names))


def _named(items: Iterable[pytest.Item], names: Iterable[str]) -> list[pytest.Item]:
    by_name = {item.nodeid: item for item in items}
    return [by_name[name] for name in names if name in by_name]


def _run(
    session: pytest.Session, items: Sequence[pytest.Item], survey: _Survey | None = None
) -> int:
    """Run tests until one fails: 1, or 0; after a survey the process dies where one is too slow."""
    for item, after in zip(items, [*items[1:], None], strict=True):
        if survey is not None:
            signal.setitimer(signal.ITIMER_REAL, survey.longest_s(item.nodeid))
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        if session.testsfailed or session.shouldstop:
            return 1
    return 0


def _swaps(mutant: Mutant) -> list[tuple[FunctionType, CodeType]]:
    """Functions as they are with the code that the mutant gives them.

    None of them where it changes what runs at import.
    """
    file = str(_file(mutant.module))
    tree = ast.fix_missing_locations(mutant.tree())
    changed = _changed(compile(parsed(mutant.module), file, "exec"), compile(tree, file, "exec"))
    return _live(changed)


def _live(codes: Iterable[CodeType]) -> list[tuple[FunctionType, CodeType]]:
    """Every function that was made from the same lines, with its new code."""
    by_place = {(c.co_filename, c.co_firstlineno, c.co_qualname): c for c in codes}
    found = []
    for function in gc.get_objects():
        if type(function) is FunctionType:  # to ask for its class makes some objects warn
            old = function.__code__
            code = by_place.get((old.co_filename, old.co_firstlineno, old.co_qualname))
            if code is not None:
                found.append((function, code))
    return found


def _changed(old: CodeType, new: CodeType) -> list[CodeType]:
    """Functions that differ; none where what is around them does."""
    inner = [[c for c in code.co_consts if isinstance(c, CodeType)] for code in (old, new)]
    around = [
        code.replace(co_consts=tuple(c for c in code.co_consts if not isinstance(c, CodeType)))
        for code in (old, new)
    ]
    found: list[CodeType] = []
    if around[0] != around[1] or len(inner[0]) != len(inner[1]):
        return found
    for one, other in zip(*inner, strict=True):
        if one != other:
            found += [other] if _is_function(other) else _changed(one, other)
    return found


def _is_function(code: CodeType) -> bool:
    """Not the body of a class."""
    return bool(code.co_flags & inspect.CO_NEWLOCALS)


def _noting(module: str) -> list[CodeType]:
    """The functions of a module, each calling `__ran__` with its line before every statement."""
    tree = parsed(module)
    for node in list(ast.walk(tree)):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and not isinstance(node, (ast.Module, ast.ClassDef)):
                calls = [ast.parse(f"__ran__({inner.lineno})").body[0] for inner in block]
                pairs = zip(calls, block, strict=True)
                setattr(node, name, [each for pair in pairs for each in pair])
    found: list[CodeType] = []

    def visit(code: CodeType) -> None:
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                found.append(inner) if _is_function(inner) else visit(inner)

    visit(compile(tree, str(_file(module)), "exec"))
    return found


def _note(modules: Sequence[str], lines: set[_Place]) -> list[tuple[FunctionType, CodeType]]:
    """Have functions of modules note which lines they run; gives their code as it was."""
    for module in modules:
        importlib.import_module(_name(module))
    _note_into(modules, lines)
    swaps = _live(code for module in modules for code in _noting(module))
    plain = [(function, function.__code__) for function, _ in swaps]
    for function, code in swaps:
        function.__code__ = code
    return plain


def _note_into(modules: Sequence[str], lines: set[_Place]) -> None:
    for module in modules:

        def ran(line: int, module: str = module) -> None:
            lines.add((module, line))

        vars(sys.modules[_name(module)])["__ran__"] = ran


class _Noting:
    """A plugin that notes which lines of modules each test runs, and how long it takes."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.survey = _Survey()
        self._modules = modules
        self._of_fixtures: dict[str, set[_Place]] = {}
        self._seconds: dict[str, float] = {}
        self._setting_up_s = 0.0
        self._lines: set[_Place] = set()
        _note(modules, self._lines)

    def _start(self, lines: set[_Place]) -> None:
        self._lines = lines
        _note_into(self._modules, lines)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        for found in gc.get_objects():  # what an earlier test has left is made again
            if type(found) is _lru_cache_wrapper and found.__module__.startswith("tests."):
                found.cache_clear()
        self._start(set())
        self._setting_up_s = 0.0
        began = time.monotonic()
        try:
            return (yield)
        finally:
            took = time.monotonic() - began - self._setting_up_s
            for fixture in getattr(item, "fixturenames", ()):
                self._lines |= self._of_fixtures.get(fixture, set())
                took += self._seconds.get(fixture, 0.0)
            self.survey.seconds[item.nodeid] = took
            self.survey.lines[item.nodeid] = self._lines

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        """Count the lines that a fixture runs for every test that uses it."""
        outer = self._lines
        self._start(set())
        began = time.monotonic()
        try:
            return (yield)
        finally:
            took = time.monotonic() - began
            self._setting_up_s += took
            self._seconds[fixturedef.argname] = took
            self._of_fixtures.setdefault(fixturedef.argname, set()).update(self._lines)
            self._start(outer)


def warm() -> None:
    """Import what tests need and no mutant is in: every child has it already."""
    import hypothesis.strategies
    import joblib
    import numpy
    import scipy.stats
    import sklearn.ensemble
    import sklearn.linear_model
    import sklearn.pipeline

    assert all((hypothesis, joblib, numpy, scipy, sklearn))
