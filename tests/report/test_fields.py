"""Documents are filled by their types: by name, in order, with what is missing named."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NotRequired, TypedDict

import pytest

from stopadvisor.report.documents.fields import (
    FROM_POLICY_FILE,
    SCHEMA,
    Document,
    Field,
    fields_of,
    fill,
)


class Row(TypedDict):
    name: Annotated[str, "Its name."]
    ci95: Annotated[list[float] | None, "Its interval."]


class Extra(TypedDict, total=False):
    note: Annotated[str | None, "Only sometimes."]


class Page(Document, Extra):
    out: Annotated[str, "The file."]
    rows: Annotated[list[Row], "What it holds."]
    first: Annotated[Row | None, "The first of them.", FROM_POLICY_FILE]
    shares: Annotated[dict[str, float], "By name."]
    saving: NotRequired[Annotated[float, "Only where something is saved."]]


class Bare(TypedDict):
    bare: int


@dataclass(frozen=True)
class Result:
    name: str
    ci95: tuple[float, float] | None


A, B = Result("a", (0.1, 0.2)), Result("b", None)


def test_fields_are_read_from_the_type() -> None:
    found = {field.name: field for field in fields_of(Page)}
    assert list(found) == ["schema", "note", "out", "rows", "first", "shares", "saving"]
    assert found["out"] == Field("out", str, required=True, text="The file.", is_open=False)
    assert [name for name, field in found.items() if not field.required] == ["note", "saving"]
    assert [name for name, field in found.items() if field.is_open] == ["first"]
    with pytest.raises(TypeError, match="field 'bare' of Bare must have a description"):
        fields_of(Bare)


def test_names_find_their_values_parts_within_parts() -> None:
    page = fill(Page, {"rows": (A, B), "out": "unused"}, first=A, shares={"a": 1.0}, out=Path("o"))
    rows = [{"name": "a", "ci95": [0.1, 0.2]}, {"name": "b", "ci95": None}]
    expected = {"schema": SCHEMA, "out": "o", "rows": rows, "first": rows[0], "shares": {"a": 1.0}}
    assert page == expected
    assert list(page) == list(expected)
    assert fill(Row, B, A, {"name": "c"}) == rows[1]  # the first source that has it, None or not


def test_a_mapping_stays_what_it_is() -> None:
    """What a policy file holds is shown as it stands there, though another program wrote more."""
    written = {"name": "a", "of_another_program": 1}
    page = fill(Page, out="o", rows=[], first=written, shares={})
    assert page["first"] == written


def test_optional_fields_without_a_value_are_left_out() -> None:
    given: dict[str, object] = {"out": "o", "rows": [], "first": None, "shares": {}}
    page = fill(Page, given, note=None, saving=None)
    assert page.keys() == {"schema", "note", *given}  # a note may be null, a saving may not
    assert fill(Page, given, saving=0.0)["saving"] == 0.0


def test_what_does_not_fit_is_an_error() -> None:
    with pytest.raises(TypeError, match="Row requires field 'ci95', nothing gives it"):
        fill(Row, name="a")
    with pytest.raises(TypeError, match="Row has no field 'title'"):
        fill(Row, A, title="a")
