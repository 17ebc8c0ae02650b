"""Blocks about the policy file: its fields, as the classes that read them say."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType
from typing import Any, get_args, get_type_hints

from stopadvisor.ground.fields import kind_of
from stopadvisor.policy.terms import PolicyTerms
from stopadvisor.runs.ladder import Rung
from tests.generate import Block, table

__all__ = ["BLOCKS", "field_rows"]


def _meanings(cls: type[Any]) -> dict[str, str]:
    """The sentence under each field of a class."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, sentence in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(sentence, ast.Expr):
            assert isinstance(field.target, ast.Name)
            assert isinstance(sentence.value, ast.Constant)
            found[field.target.id] = " ".join(str(sentence.value.value).split())
    return found


def _inside(annotation: Any) -> tuple[str, Any]:
    """The class that a field holds, and what its fields' names get: ``[]`` for each list."""
    suffix = ""
    while not is_dataclass(annotation):
        arguments = [each for each in get_args(annotation) if each not in (NoneType, ...)]
        if not arguments or isinstance(arguments[0], str):
            return suffix, None
        if getattr(annotation, "__origin__", None) is tuple:
            suffix += "[]"
        annotation = arguments[-1 if "Mapping" in str(annotation)[:40] else 0]
    return suffix, annotation


def field_rows(cls: type[Any], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Name, value and meaning of each field, and of those inside."""
    hints, meanings = get_type_hints(cls, include_extras=True), _meanings(cls)
    for field in fields(cls):
        if cls is Rung and field.name in Rung.UNSHOWN:
            continue  # refused in a policy file
        name = f"{prefix}{field.name}"
        value = kind_of(hints[field.name]).expected
        if field.default is not MISSING:
            value += "; may be missing"
        yield f"`{name}`", value, meanings[field.name]
        suffix, inner = _inside(hints[field.name])
        if inner is not None:
            yield from field_rows(inner, f"{name}{suffix}.")


def _fields() -> str:
    return table(("field", "value", "meaning"), list(field_rows(PolicyTerms)))


BLOCKS: dict[str, Block] = {"policy-fields": _fields}
