"""Record which functions of the package each test enters, and how long it takes.

What runs in processes that tests start, as those of `tests/integration` do, is not seen.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import pickle
import re
import sys
import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from tests.mutants.modules import MODULES, ROOT

__all__ = ["Entering", "Importer", "Survey", "file_of", "record", "users"]

RECORDED = ROOT / "build" / "mutants.pickle"
_FIRST = 10
"""The quickest tests run first, this many."""
_LEAST_S = 20.0
"""CPU seconds that every test gets."""
_SLOWER = 5
"""A mutant counts as caught once a test takes this many times as long as without it."""


@dataclass(frozen=True)
class Survey:
    """What tests enter in the unchanged modules, by test id."""

    seconds: dict[str, float] = field(default_factory=dict)
    """Including the test's fixtures."""
    entered: dict[str, set[str]] = field(default_factory=dict)
    """Functions, as ``MODULE NAME``."""

    @classmethod
    def last(cls) -> Survey:
        """The last recording; empty if there is none."""
        return cls(*pickle.loads(RECORDED.read_bytes())) if RECORDED.exists() else cls()

    def running(self, function: str) -> list[str]:
        """Tests that enter a function, or any function of a module if the name ends with a space.

        The quickest come first, then the others by file, slow files last.  At the end come the
        files' remaining tests: what tests share is made and recorded with the first of them.
        """
        found = [
            name
            for name, entered in self.entered.items()
            if function in entered
            or (function.endswith(" ") and any(each.startswith(function) for each in entered))
        ]
        found.sort(key=self.seconds.__getitem__)
        files = {file_of(name) for name in found}
        others = [n for n in self.seconds if file_of(n) in files and n not in set(found)]
        return found[:_FIRST] + self._by_file(found[_FIRST:]) + self._by_file(others)

    def _by_file(self, names: Sequence[str]) -> list[str]:
        of_files: dict[str, float] = defaultdict(float)
        for name in names:
            of_files[file_of(name)] += self.seconds[name]
        return sorted(names, key=lambda name: (of_files[file_of(name)], file_of(name)))

    def longest_s(self, *names: str) -> float:
        """CPU seconds after which tests are too slow."""
        return _LEAST_S + _SLOWER * sum(self.seconds.get(name, 0.0) for name in names)


def file_of(test: str) -> str:
    """The file of a test, by its id."""
    return test.partition("::")[0]


def users(module: str) -> list[str]:
    """The module itself, and every one that imports from it."""
    folder, _, name = module.rpartition("/")
    package = ".".join(["stopadvisor", *folder.split("/")]).rstrip(".")
    imports = re.compile(rf"^ *from {package}(\.{name} import| import [^\n]*\b{name}\b)", re.M)
    texts = {m: (ROOT / "stopadvisor" / f"{m}.py").read_text() for m in MODULES}
    return [module, *(m for m, text in texts.items() if imports.search(text))]


def record(files: Sequence[str]) -> int:
    """Run the tests of `files`, or all, record what they enter, and return pytest's exit code."""
    recorder = _Recorder()
    sys.meta_path.insert(0, recorder)
    words = ["-q", "-n", "0", "--no-header", "-p", "no:cacheprovider", "--tb", "line"]
    words += ["-o", "python_files=test_*.py"]  # `self_test` is no test: it is imported here
    words += ["-m", "not long and not browser", "--ignore=tests/integration", *files]
    code = pytest.main(words, plugins=[recorder])
    before, found = Survey.last(), recorder.survey
    of_files = {file_of(name) for name in found.seconds}
    kept = [name for name in before.seconds if file_of(name) not in of_files]
    seconds = {name: before.seconds[name] for name in kept} | found.seconds
    entered = {name: before.entered[name] for name in kept} | found.entered
    RECORDED.parent.mkdir(exist_ok=True)
    RECORDED.write_bytes(pickle.dumps((seconds, entered)))
    return int(code)


# --- Modules with other trees ---------------------------------------------------------------------


class Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports modules of the package with other syntax trees than those of their files."""

    modules: Sequence[str] = MODULES

    @abstractmethod
    def tree(self, module: str) -> ast.Module:
        """The tree to run as this module."""

    def find_spec(
        self, fullname: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        module = fullname.removeprefix("stopadvisor.").replace(".", "/")
        if module == fullname or module not in self.modules:
            return None
        file = str(ROOT / "stopadvisor" / f"{module}.py")
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=file)
        spec.has_location = True
        return spec

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__.removeprefix("stopadvisor.").replace(".", "/")
        tree = ast.fix_missing_locations(self.tree(name))
        exec(compile(tree, str(module.__file__), "exec"), module.__dict__)


class Entering(Importer):
    """Imports modules so that entering their functions is noted."""

    def __init__(self) -> None:
        self.now: set[str] = set()
        """Functions entered so far."""

    def tree(self, module: str) -> ast.Module:
        tree = ast.parse((ROOT / "stopadvisor" / f"{module}.py").read_text())
        _say_entered(tree, module, "")
        return tree

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__entered__"] = lambda function: self.now.add(function)
        super().exec_module(module)


def _say_entered(node: ast.AST, module: str, outer: str) -> None:
    for child in ast.iter_child_nodes(node):
        name = outer
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{outer}.{child.name}".lstrip(".")
        _say_entered(child, module, name)
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            call = ast.parse(f"__entered__({f'{module} {name}'!r})").body[0]
            child.body.insert(ast.get_docstring(child) is not None, call)


class _Recorder(Entering):
    """A plugin that notes what each passing test enters, itself or through its fixtures."""

    def __init__(self) -> None:
        super().__init__()
        self.survey = Survey()
        self._failed: set[str] = set()
        self._of_fixtures: dict[str, set[str]] = {}
        self._fixture_seconds: dict[str, float] = {}
        self._setting_up_s = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._failed.add(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.now = set()
        self._setting_up_s = 0.0
        began = time.monotonic()
        found = yield
        took = time.monotonic() - began - self._setting_up_s
        for fixture in getattr(item, "fixturenames", ()):
            self.now |= self._of_fixtures.get(fixture, set())
            took += self._fixture_seconds.get(fixture, 0.0)
        if item.nodeid not in self._failed:
            self.survey.seconds[item.nodeid] = took
            self.survey.entered[item.nodeid] = self.now
        return found

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        """Count what a fixture enters towards every test that uses it."""
        outer, self.now = self.now, set()
        began = time.monotonic()
        try:
            return (yield)
        finally:
            took = time.monotonic() - began
            self._setting_up_s += took
            self._fixture_seconds[fixturedef.argname] = took
            self._of_fixtures.setdefault(fixturedef.argname, set()).update(self.now)
            self.now = outer
