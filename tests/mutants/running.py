"""Run tests on mutants: those that enter the mutant's function, the quickest first.

One process collects the tests.  For each mutant it forks a child that swaps the mutant's code into
the functions it changes and runs the tests until one fails.  A mutant of code that runs at import,
even the tests', gets a process that imports it.  A failure counts only if the test passes without
the mutant.

Tests that run a module in a process of their own are not seen.
"""

from __future__ import annotations

import ast
import gc
import inspect
import os
import signal
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from tests.mutants.mistakes import Mutant, parsed
from tests.mutants.modules import ROOT
from tests.mutants.recording import Entering, Importer, Survey, file_of, users

__all__ = ["Outcome", "outcomes", "warm"]

_PATIENCE = 10
"""Tests may wait or share a busy machine: their wall time is this many times their CPU time."""


class Outcome(Enum):
    """How tests ended on a mutant."""

    ALIVE = "ALIVE"
    """All tests passed, or none runs it."""
    CAUGHT = "ok"
    """A test failed, or the module could not be imported."""
    SLOW = "slow"
    """A test, or all together, took far longer than without the mistake: caught."""
    BROKEN = "BROKEN"
    """Nothing is known: no test ran, or the process died (killed for its memory, say)."""


def outcomes(
    mutants: Sequence[Mutant], recorded: Survey, folder: Path
) -> Iterator[tuple[Mutant, Outcome]]:
    """Run the recorded tests on mutants; yields in any order."""
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)
    suite = _Suite(recorded, folder)
    entering = {m: recorded.running(f"{m.module} {m.function}") for m in mutants if m.function}
    files = {file_of(name) for names in entering.values() for name in names}
    tried: set[Mutant] = set()
    if files:  # without any, pytest would collect all
        here, there = Pipe(duplex=False)
        child = _fork(partial(suite.tests, sorted(files), _Warm(entering, suite, there)))
        there.close()
        while True:
            try:
                mutant, outcome = here.recv()
            except EOFError:
                break
            tried.add(mutant)
            yield mutant, outcome
        os.waitpid(child, 0)
    for mutant in mutants:
        if mutant not in tried:
            yield mutant, suite.outcome(mutant, entering.get(mutant) or [])


class _Suite:
    """The tests of the suite, run in processes of their own."""

    def __init__(self, recorded: Survey, folder: Path) -> None:
        self.recorded = recorded
        self._folder = folder
        self._sound: dict[str, bool] = {}

    def failed(self) -> str | None:
        """Return the test that failed last, and forget it."""
        file = self._folder / "failed"
        if not file.exists():
            return None  # the mutant could not be imported
        name = file.read_text()
        file.unlink()
        return name

    def is_sound(self, name: str) -> bool:
        """Whether a test passes without a mutant."""
        if name not in self._sound:
            self._sound[name] = self._ended([name], _Chosen([name])) is Outcome.ALIVE
        return self._sound[name]

    def outcome(self, mutant: Mutant, names: Sequence[str]) -> Outcome:
        """Import a mutant and run tests: these, or all of its module and then of its users."""
        of_modules = [f"{module} " for module in users(mutant.module)]
        for found in [names] if names else map(self.recorded.running, of_modules):
            left = [name for name in found if self._sound.get(name, True)]
            while left:
                outcome = self._ended(left, _Import(mutant, left))
                failed = self.failed() if outcome is Outcome.CAUGHT else None
                if failed is None or self.is_sound(failed):
                    break
                left.remove(failed)
            if left and outcome is not Outcome.ALIVE:
                return outcome
        return Outcome.ALIVE

    def _ended(self, names: Sequence[str], plugin: _Chosen) -> Outcome:
        files = list(dict.fromkeys(map(file_of, names)))
        return ended(_fork(partial(self.tests, files, plugin)), self.recorded.longest_s(*names))

    def tests(self, files: Sequence[str], plugin: object) -> int:
        """Run pytest on files, and return its exit code."""
        with (self._folder / "log.txt").open("wb") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        if isinstance(plugin, Importer):
            sys.meta_path.insert(0, plugin)  # conftest may import the module
        words = ["-x", "-q", "-n", "0", "--no-header", "-p", "no:cacheprovider", "--tb", "line"]
        words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of modules imported before
        words += ["-o", "python_files=test_*.py"]  # `group_test` is no test: do not rewrite it
        words += ["-m", "not long", *(file for file in files if (ROOT / file).exists())]
        return int(
            pytest.main(words, plugins=[_Watch(self._folder / "failed", self.recorded), plugin])
        )


class _Watch:
    """A plugin that notes which test failed, and ends the process if a test is too slow."""

    def __init__(self, failed: Path, recorded: Survey) -> None:
        self._failed, self._recorded = failed, recorded

    def pytest_collection(self) -> None:
        # A failing example is enough: nobody reads the smallest one.
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", settings.get_profile("repeatable"), phases=phases)
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        signal.setitimer(signal.ITIMER_PROF, self._recorded.longest_s(item.nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.write_text(report.nodeid)


# --- Processes ----------------------------------------------------------------------------------


def _fork(work: Callable[[], int]) -> int:
    """Start a process that does the work and exits with its code; return its id."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # so that what it starts ends with it
        code = 70
        try:
            code = work()
        except BaseException:  # noqa: BLE001  the child ends here, whatever happened
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.setpgid(child, child)
    return child


def ended(child: int, longest_s: float) -> Outcome:
    """Wait for the tests in a process that may take `longest_s` CPU seconds."""
    ends = time.monotonic() + _PATIENCE * longest_s
    while time.monotonic() < ends:
        over, status = os.waitpid(child, os.WNOHANG)
        if over:
            # From pytest: 0 all passed, 1 a test failed, 2 a file could not be collected.
            ends_of = {0: Outcome.ALIVE, 1: Outcome.CAUGHT, 2: Outcome.CAUGHT}
            ends_of[-signal.SIGPROF] = Outcome.SLOW
            return ends_of.get(os.waitstatus_to_exitcode(status), Outcome.BROKEN)
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return Outcome.SLOW


# --- Mutants of code that runs at import ----------------------------------------------------------


class _Chosen:
    """A plugin that runs only these tests, in this order."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = _named(items, self._names)


class _Import(_Chosen, Importer):
    """A plugin that imports a mutant in place of its module."""

    def __init__(self, mutant: Mutant, names: Sequence[str]) -> None:
        super().__init__(names)
        self.modules = (mutant.module,)
        self._mutant = mutant

    def tree(self, module: str) -> ast.Module:
        return self._mutant.tree()


def _named(items: Iterable[pytest.Item], names: Iterable[str]) -> list[pytest.Item]:
    by_name = {item.nodeid: item for item in items}
    return [by_name[name] for name in names if name in by_name]


# --- Mutants of functions -------------------------------------------------------------------------


class _Warm(Entering):
    """A plugin whose children run the collected tests."""

    def __init__(
        self, entering: dict[Mutant, list[str]], suite: _Suite, results: Connection
    ) -> None:
        super().__init__()
        self._entering, self._suite, self._results = entering, suite, results

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        gc.unfreeze()  # conftest froze the functions that we look for
        live: dict[tuple[str, int, str], list[FunctionType]] = defaultdict(list)
        for found in gc.get_objects():
            if type(found) is FunctionType:  # isinstance reads `__class__`, where some objects warn
                live[_place(found.__code__)].append(found)
        gc.freeze()
        for mutant, names in self._entering.items():
            swaps = [(f, code) for code in _changed_by(mutant) for f in live[_place(code)]]
            if not swaps or not names:
                continue
            outcome = self._outcome(session, names, swaps)
            failed = self._suite.failed() if outcome is Outcome.CAUGHT else None
            if failed is not None and self._outcome(session, [failed], []) is not Outcome.ALIVE:
                continue
            # A function that ran during collection must be imported with its mistake.
            if outcome is not Outcome.ALIVE or f"{mutant.module} {mutant.function}" not in self.now:
                self._results.send((mutant, outcome))
        return True

    def _outcome(
        self,
        session: pytest.Session,
        names: Sequence[str],
        swaps: Sequence[tuple[FunctionType, CodeType]],
    ) -> Outcome:
        def work() -> int:
            for function, code in swaps:
                function.__code__ = code
            items = _named(session.items, names)
            for item, after in zip(items, [*items[1:], None], strict=True):
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                if session.testsfailed or session.shouldstop:
                    return 1
            return 0

        return ended(_fork(work), self._suite.recorded.longest_s(*names))


def _place(code: CodeType) -> tuple[str, int, str]:
    return code.co_filename, code.co_firstlineno, code.co_qualname


def _changed_by(mutant: Mutant) -> list[CodeType]:
    """Functions of the mutant that differ; none if it changes code that runs at import."""
    file = str(ROOT / "stopadvisor" / f"{mutant.module}.py")
    trees = (parsed(mutant.module), ast.fix_missing_locations(mutant.tree()))
    plain, changed = (compile(tree, file, "exec") for tree in trees)
    return _changed(plain, changed)


def _changed(old: CodeType, new: CodeType) -> list[CodeType]:
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
    """Whether code is a function's, not a class body's."""
    return bool(code.co_flags & inspect.CO_NEWLOCALS)


def warm() -> None:
    """Import what tests need and no mutant changes, once for all children."""
    import hypothesis.strategies
    import joblib
    import numpy
    import scipy.stats
    import sklearn.ensemble
    import sklearn.linear_model
    import sklearn.pipeline

    assert all((hypothesis, joblib, numpy, scipy, sklearn))
