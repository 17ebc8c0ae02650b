"""Mistakes in a module: small changes to its syntax tree, each of which makes a mutant.

Reversed comparisons, `and` for `or`, an extra `not`, one operator for another, numbers off by one.
"""

from __future__ import annotations

import ast
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.mutants.modules import EQUIVALENT, MODULES, ROOT

__all__ = ["ROOT", "Mutant", "mutants_of", "parsed", "sample"]

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
"""The wrong operator or comparison for each right one."""


@dataclass(frozen=True)
class Mutant:
    """One mistake in one module."""

    module: str
    number: int
    """Its number among the mistakes of its module."""
    line: int
    """First line of its statement."""
    function: str
    """Qualified name of the function or class that it is in; empty at the top level."""
    description: str
    """Module, function and change: the key in `EQUIVALENT`."""

    def tree(self) -> ast.Module:
        """The module with its mistake."""
        tree = parsed(self.module)
        _Mistake.all_of(tree)[self.number].make()
        return tree


def parsed(module: str) -> ast.Module:
    return ast.parse((ROOT / "stopadvisor" / f"{module}.py").read_text())


@dataclass(frozen=True)
class _Mistake:
    """A wrong value for a field of a node, or for one place in a field that is a list."""

    node: ast.AST
    field: str
    place: int | None
    value: object
    shown: ast.AST
    """The expression or statement that shows it."""
    function: str
    line: int

    def make(self) -> None:
        if self.place is None:
            setattr(self.node, self.field, self.value)
        else:
            getattr(self.node, self.field)[self.place] = self.value

    def describe(self) -> str:
        """Make it for a moment, and return what it changes."""
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
        """Every possible mistake in a tree, in the order of its lines."""
        found: list[_Mistake] = []

        def visit(node: ast.AST, parent: ast.AST, function: str, line: int) -> None:
            if isinstance(node, (ast.JoinedStr, ast.Raise)):
                return  # words
            if isinstance(node, ast.keyword) and node.arg in ("strict", "repr"):
                return  # an assertion of `zip`, and what debuggers see of a field
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                function = f"{function}.{node.name}".lstrip(".")
            if isinstance(node, ast.stmt):
                line = node.lineno
            for field, place, value in _wrong(node):
                bare = isinstance(node, ast.Constant) or isinstance(value, ast.UAdd)
                block = hasattr(parent, "body") and not isinstance(parent, ast.IfExp)
                shown = parent if bare and not block else node
                found.append(cls(node, field, place, value, shown, function, line))
            for name, child in ast.iter_fields(node):
                if name not in ("annotation", "returns", "decorator_list"):
                    for item in child if isinstance(child, list) else [child]:
                        if isinstance(item, ast.AST):
                            visit(item, node, function, line)

        visit(tree, tree, "", 0)
        return found


def _wrong(node: ast.AST) -> Iterator[tuple[str, int | None, object]]:
    """Fields of a node, each with a place in it and a wrong value."""
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
            # A tenth more makes no difference to a tolerance.
            yield "value", None, value * (1.1 if abs(value) > 1e-3 else 1000) if value else 0.1


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, (ast.JoinedStr, ast.List, ast.Tuple)) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def mutants_of(module: str) -> list[Mutant]:
    """Every mutant of a module of `MODULES`."""
    tree = parsed(module)
    seen: Counter[str] = Counter()
    found = []
    for number, mistake in enumerate(_Mistake.all_of(tree)):
        text = f"{module} {mistake.describe()}"
        seen[text] += 1
        if seen[text] > 1:
            text += f" ({seen[text]})"
        found.append(Mutant(module, number, mistake.line, mistake.function, text))
    return found


def sample(count: int, seed: int, modules: Sequence[str] = MODULES) -> list[Mutant]:
    """Draw `count` mutants that change something, all equally likely; sorted by module."""
    every = [mutant for module in modules for mutant in mutants_of(module)]
    known = [m for m in every if not m.description.startswith(tuple(EQUIVALENT))]
    drawn = random.Random(seed).sample(known, min(count, len(known)))
    return sorted(drawn, key=lambda mutant: (mutant.module, mutant.number))
