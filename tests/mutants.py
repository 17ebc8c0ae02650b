"""Mutants of the critical modules: each is one small mistake, and a test must fail on it.

``python -m tests.mutants [--count N] [--seed S] [--module NAME]`` draws mistakes at random, runs
on each the tests of its module, and exits with 1 where fewer than 95 % are caught.  A mistake: a
comparison or an and/or turned round, a `not` too many, one operator for another, a number that is
one off.  The tests of a module stand in `TESTS`, mutants that change nothing in `EQUIVALENT`.
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.machinery
import math
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType

__all__ = [
    "EQUIVALENT",
    "LEAST_CAUGHT",
    "TESTS",
    "Mutant",
    "Outcome",
    "mutants_of",
    "outcome",
    "sample",
]

ROOT = Path(__file__).resolve().parent.parent
LEAST_CAUGHT = 0.95
_SLOWER = 5
"""A mutant counts as caught after as many times the seconds that its module as it is takes."""
_LEAST_S = 60.0
"""Seconds that a mutant gets in any case."""

TESTS: dict[str, str] = {
    "stats/bootstrap": "stats/test_bootstrap",
    "stats/bounds": "stats/test_bounds certification/test_refusals",
    "stats/group_betting": "stats/test_group_betting",
    "stats/group_test": "stats/test_group_betting",
    "stats/intervals": "stats/test_intervals",
    "stats/reliability": "stats/test_reliability",
    "policy/claims": "policy/test_claims",
    "policy/file": "policy/test_frozen policy/test_hostile policy/test_load_limits",
    "policy/frozen": "policy/test_frozen policy/test_golden policy/test_signature",
    "policy/golden": "policy/test_golden policy/test_frozen",
    "policy/opcodes": "policy/test_load_limits policy/test_hostile",
    "policy/replay_cost": "policy/test_load_limits",
    "policy/session": "policy/test_session",
    "policy/stepper": "policy/test_stepper policy/test_golden",
    "policy/triggers": "policy/test_schema policy/test_golden policy/test_session",
    "policy/values": "policy/test_load_limits policy/test_frozen policy/test_hostile",
    "runs/chain": "runs/test_ledger",
    "runs/ledger": "runs/test_ledger certification/test_looks",
    "certification/calibration": (
        "certification/test_refusals certification/test_calibration certification/test_several "
        "certification/test_groups certification/test_transfer"
    ),
    "certification/expectation": "certification/test_expectation",
    "certification/looks": (
        "certification/test_looks studies/test_closed certification/test_groups"
    ),
    "certification/refusals": (
        "certification/test_refusals certification/test_several certification/test_groups"
    ),
    "certification/verdicts": (
        "certification/test_verification certification/test_several certification/test_groups"
    ),
    "certification/verification": (
        "certification/test_verification certification/test_several certification/test_groups"
    ),
}
"""The critical modules, each with the files of its tests: its own first."""

EQUIVALENT: dict[str, str] = {
    "stats/group_betting group_limit: excess(n_groups) >= 0 -> excess(n_groups) > 0": (
        "at exactly 0 the root that is searched for is n_groups"
    ),
    "stats/group_betting group_limit: excess(0.0) < 0 -> excess(0.0) <= 0": (
        "differs only where a sum of logarithms is exactly 0"
    ),
    "policy/session Session.__init__: self._cut = False -> self._cut = True": (
        "`end` sets it before anybody reads it"
    ),
    "policy/claims claim: certificate.get('confidence', 1.0) ->": (
        "it is not more than 1 - delta anyway"
    ),
    "policy/claims binomial_tail: term < 1e-18 ->": (
        "what such a term would add is below the precision that is claimed, 1e-10"
    ),
    "policy/claims _check_bets: factor > 0 -> factor > 1": (
        "where a factor is below 1 all are: too much was lost, whatever their logarithms add up to"
    ),
    "policy/golden : -30.0 -> -33": "so far is searched for examples at the threshold",
    "policy/golden : (0.0, 20.0) -> (0.0, 22": "so far is searched for examples at the threshold",
    "policy/golden : (0.0, 64.0) -> (0.0, 70": "so far is searched for examples at the threshold",
    "certification/expectation : _RESAMPLES = 1000 ->": "a resample more is as good",
    "certification/expectation : _MOST_BLOCKS = 1000 ->": "a block more is as good",
    "policy/claims binomial_tail: n + 1 -> n - 1": (
        "the sum begins at a neighbour of its largest term"
    ),
    "policy/frozen : {'answer': '', ": "stands where golden decisions will, until there is a rule",
}
"""Mutants that nothing can tell from the original, by how their description begins, and why."""

_OTHERS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.USub: ast.UAdd,
}
"""What stands for an operator or a comparison by mistake."""


@dataclass(frozen=True)
class Mutant:
    """One mistake in one module."""

    module: str
    number: int
    """Among the mistakes of its module."""
    line: int
    description: str
    """The function, and what is changed in it: the key in `EQUIVALENT`."""

    def tree(self) -> ast.Module:
        """The module with its mistake."""
        tree = _parsed(self.module)
        _Mistake.all_of(tree)[self.number].make()
        return tree


def _parsed(module: str) -> ast.Module:
    return ast.parse((ROOT / "stopadvisor" / f"{module}.py").read_text())


@dataclass(frozen=True)
class _Mistake:
    """A value to put into a field of a node, or into a place of a field that is a list."""

    node: ast.AST
    field: str
    place: int | None
    value: object
    shown: ast.AST
    """The expression or statement that shows it."""
    function: str

    def make(self) -> None:
        if self.place is None:
            setattr(self.node, self.field, self.value)
        else:
            getattr(self.node, self.field)[self.place] = self.value

    def describe(self) -> str:
        """Make it for a moment, and say what it changes."""
        old = getattr(self.node, self.field)
        before = ast.unparse(self.shown)
        self.make() if self.place is None else setattr(
            self.node, self.field, [*old[: self.place], self.value, *old[self.place + 1 :]]
        )
        after = ast.unparse(self.shown)
        setattr(self.node, self.field, old)
        return f"{self.function}: {before} -> {after}"

    @classmethod
    def all_of(cls, tree: ast.Module) -> list[_Mistake]:
        """Every mistake that can be made in a tree, in the order of its lines."""
        found: list[_Mistake] = []

        def visit(node: ast.AST, parent: ast.AST, function: str) -> None:
            if isinstance(node, (ast.JoinedStr, ast.Raise)):
                return  # words
            if isinstance(node, ast.keyword) and node.arg == "strict":
                return  # of `zip`: an assertion
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                function = f"{function}.{node.name}".lstrip(".")
            for field, place, value in _wrong(node):
                bare = isinstance(node, ast.Constant) or isinstance(value, ast.UAdd)
                shown = parent if bare and not hasattr(parent, "body") else node
                found.append(cls(node, field, place, value, shown, function))
            for name, child in ast.iter_fields(node):
                if name not in ("annotation", "returns", "decorator_list"):
                    for item in child if isinstance(child, list) else [child]:
                        if isinstance(item, ast.AST):
                            visit(item, node, function)

        visit(tree, tree, "")
        return found


def _wrong(node: ast.AST) -> Iterator[tuple[str, int | None, object]]:
    """Fields of a node with what may stand there by mistake."""
    match node:
        case ast.Compare(ops=ops):
            for place, op in enumerate(ops):
                yield "ops", place, _OTHERS[type(op)]()
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "operand", None, ast.UnaryOp(ast.Not(), operand)
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _OTHERS:
            if not any(_is_text(side) for side in (left, right)):
                yield "op", None, _OTHERS[type(op)]()
        case ast.BoolOp(op=op) | ast.UnaryOp(op=op) if type(op) in _OTHERS:
            yield "op", None, _OTHERS[type(op)]()
        case ast.Constant(value=bool(value)):
            yield "value", None, not value
        case ast.Constant(value=int(value)):
            yield "value", None, value + 1
        case ast.Constant(value=float(value)):
            # A tolerance that is a tenth larger is one that is as good.
            yield "value", None, value * (1.1 if abs(value) > 1e-3 else 1000) if value else 0.1


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, (ast.JoinedStr, ast.List, ast.Tuple)) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def mutants_of(module: str) -> list[Mutant]:
    """Every mutant of a module, by its name in `TESTS`."""
    tree = _parsed(module)
    seen: Counter[str] = Counter()
    found = []
    for number, mistake in enumerate(_Mistake.all_of(tree)):
        text = f"{module} {mistake.describe()}"
        seen[text] += 1
        if seen[text] > 1:
            text += f" ({seen[text]})"
        found.append(Mutant(module, number, getattr(mistake.node, "lineno", 0), text))
    return found


def sample(count: int, seed: int, modules: Sequence[str] = tuple(TESTS)) -> list[Mutant]:
    """Draw that many mutants that change something, each as likely; in the order of modules."""
    every = [mutant for module in modules for mutant in mutants_of(module)]
    known = [m for m in every if not m.description.startswith(tuple(EQUIVALENT))]
    drawn = random.Random(seed).sample(known, min(count, len(known)))
    return sorted(drawn, key=lambda mutant: (mutant.module, mutant.number))


# --- Running the tests on one ---------------------------------------------------------------------


class _Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives a mutant where its module is imported."""

    def __init__(self, name: str, tree: ast.Module, file: Path) -> None:
        self._name, self._tree, self._file = name, tree, file

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


class _NoShrinking:
    """A plugin: an example that fails is enough, nobody reads the smallest one."""

    def pytest_collection(self) -> None:
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", settings.get_profile("repeatable"), phases=phases)
        settings.load_profile("mutants")


class Outcome(Enum):
    """How the tests of a module ended on a mutant of it."""

    ALIVE = "ALIVE"
    """All passed."""
    CAUGHT = "ok"
    """A test failed, or the module could not be imported."""
    SLOW = "slow"
    """They did not end in many times the seconds that the module as it is takes: caught."""
    BROKEN = "BROKEN"
    """Nothing is known: no test was run, or the process died (killed, say, for its memory)."""


def outcome(mutant: Mutant | None, module: str, log: Path, longest_s: float) -> Outcome:
    """Run a module's tests on a mutant, or on the module as it is."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # what it starts ends with it
        code = 70
        try:
            code = _tested(mutant, module, log)
        except BaseException:  # noqa: BLE001  the child ends here, whatever it was
            log.write_text(traceback.format_exc())
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.setpgid(child, child)
    ends = time.monotonic() + longest_s
    while time.monotonic() < ends:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            # Of pytest: 0 all passed, 1 a test failed, 2 a file could not be collected.
            ends_of = {0: Outcome.ALIVE, 1: Outcome.CAUGHT, 2: Outcome.CAUGHT}
            return ends_of.get(os.waitstatus_to_exitcode(status), Outcome.BROKEN)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return Outcome.SLOW


def _tested(mutant: Mutant | None, module: str, log: Path) -> int:
    import pytest

    with log.open("wb") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    if mutant is not None:
        file = ROOT / "stopadvisor" / f"{module}.py"
        name = f"stopadvisor.{module.replace('/', '.')}"
        tree = ast.fix_missing_locations(mutant.tree())
        sys.meta_path.insert(0, _Loader(name, tree, file))
    files = [f"tests/{name}.py" for name in TESTS[module].split()]
    words = ["-x", "-q", "-n", "0", "--no-header", "-p", "no:cacheprovider", "--tb", "line"]
    words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # what is warm is imported
    words += ["-m", "not slow and not long"]  # what simulations alone can tell is not counted
    return int(pytest.main([*words, *files], plugins=[_NoShrinking()]))


def _warm() -> None:
    """Import what tests need and no mutant is in: every child has it already."""
    import hypothesis.strategies
    import joblib
    import numpy
    import pytest
    import scipy.stats
    import sklearn.ensemble
    import sklearn.linear_model
    import sklearn.pipeline

    assert all((hypothesis, joblib, numpy, pytest, scipy, sklearn))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--module", action="append", choices=TESTS, help="of these alone")
    parser.add_argument("--only", action="append", metavar="MODULE:NUMBER", help="these alone")
    parser.add_argument("--piece", metavar="I/N", help="the I-th of N pieces of the sample")
    options = parser.parse_args()
    os.chdir(ROOT)
    _warm()
    modules = options.module or tuple(TESTS)
    drawn = sample(options.count, options.seed, modules)
    if options.piece:
        piece, pieces = map(int, options.piece.split("/"))
        drawn = drawn[(piece - 1) * len(drawn) // pieces : piece * len(drawn) // pieces]
    if options.only:
        wanted = [place.rpartition(":") for place in options.only]
        drawn = [mutants_of(module)[int(number)] for module, _, number in wanted]
    alive = 0
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.txt"
        longest_s = 0.0
        for count, mutant in enumerate(drawn, start=1):
            if count == 1 or mutant.module != drawn[count - 2].module:
                began = time.monotonic()
                if outcome(None, mutant.module, log, math.inf) is not Outcome.ALIVE:
                    print(f"{mutant.module}: its tests fail without a mutant\n{log.read_text()}")
                    return 2
                longest_s = max(_LEAST_S, _SLOWER * (time.monotonic() - began))
            began = time.monotonic()
            ended = outcome(mutant, mutant.module, log, longest_s)
            if ended is Outcome.BROKEN:
                print(f"{mutant.description}: no test was run\n{log.read_text()}")
                return 2
            alive += ended is Outcome.ALIVE
            print(
                f"{ended.value:5} {mutant.module}:{mutant.number} line {mutant.line}, "
                f"{time.monotonic() - began:.0f} s, {count - alive} of {count}: "
                f"{mutant.description}",
                flush=True,
            )
    caught = len(drawn) - alive
    print(f"{caught} of {len(drawn)} caught, {caught / len(drawn):.1%}")
    return 0 if caught >= LEAST_CAUGHT * len(drawn) else 1


if __name__ == "__main__":
    sys.exit(main())
