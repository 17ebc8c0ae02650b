"""Results as JSON and JSON Schema: what is written is read back, and mypy sees swapped fields."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from stopadvisor.certification.issue import CalibratedRun
from stopadvisor.cli.schema import RESULTS
from stopadvisor.ground.errors import ProbeError
from stopadvisor.ground.results import from_document, schema_of, sentences_of, to_document, to_json
from stopadvisor.policy.run_policies import Promotion
from stopadvisor.report.sheet import Sheet
from tests.generate import ROOT
from tests.schemas import schema


@dataclass(frozen=True)
class Part:
    """One part."""

    count: int
    """How many
    there are."""
    ci95: tuple[float, float] | None
    """Its interval."""


@dataclass(frozen=True)
class Whole:
    """A result."""

    path: Path
    """Where it is."""
    parts: tuple[Part, ...]
    """All of them."""
    savings: Mapping[str, Part | None]
    """By name."""
    kv_fork: float = field(metadata={"alias": "kv-fork"})
    """A key that is no name."""
    on_stop: str | None = None
    """Only where asked for."""
    groups: int = 0
    """Always written."""
    saving: float | None = field(default=None, metadata={"present_with": "on_stop"})
    """Null or not, where `on_stop` is."""


WHOLE = Whole(Path("a/b"), (Part(2, (0.1, 0.5)), Part(0, None)), {"x": Part(1, None), "y": None}, 3)


def test_a_result_becomes_plain_values_and_comes_back() -> None:
    document = to_document(WHOLE)
    assert document == {
        "schema": 2, "path": "a/b",
        "parts": [{"count": 2, "ci95": [0.1, 0.5]}, {"count": 0, "ci95": None}],
        "savings": {"x": {"count": 1, "ci95": None}, "y": None}, "kv-fork": 3, "groups": 0,
    }  # fmt: skip
    assert from_document(Whole, document, "whole.json") == WHOLE
    Draft202012Validator(schema_of(Whole)).validate(document)


def test_an_optional_field_is_written_where_it_is_something() -> None:
    document = to_document(Whole(Path("a"), (), {}, 0.0, "answer"))
    assert (document["on_stop"], document["saving"]) == ("answer", None)
    Draft202012Validator(schema_of(Whole)).validate(document)


def test_a_schema_says_what_is_required_and_what_each_field_means() -> None:
    found = schema_of(Whole)
    assert found["required"] == ["schema", "path", "parts", "savings", "kv-fork", "groups"]
    assert found["properties"]["on_stop"] == {
        "type": "string", "description": "Only where asked for."
    }  # fmt: skip
    assert found["$defs"]["Part"]["properties"]["count"]["description"] == "How many there are."


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_no_result_prints_what_is_no_number(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(Whole(Path("a"), (), {}, value))


def test_arrays_become_lists_and_objects_are_refused() -> None:
    assert to_document(Part(np.arange(2), None))["count"] == [0, 1]  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="type object is not JSON serializable"):
        to_json(Whole(Path("a"), (), {}, object()))  # type: ignore[arg-type]


def test_what_does_not_fit_is_named_with_its_place() -> None:
    damaged = {**to_document(WHOLE), "parts": [{"count": "many", "ci95": None}]}
    with pytest.raises(ProbeError, match=r"^run/a.json: not a Whole: parts\.0\.count: .*'many'$"):
        from_document(Whole, damaged, "run/a.json")


# --- Every result there is ------------------------------------------------------------------------


def _fields(schema: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(schema, Mapping):
        for key, value in schema.items():
            if key == "properties":
                yield from ((f"{path}.{name}", shown) for name, shown in value.items())
            yield from _fields(value, f"{path}.{key}")


@pytest.mark.parametrize("name", RESULTS)
def test_every_field_of_every_result_is_described(name: str) -> None:
    found = schema(name)
    Draft202012Validator.check_schema(found)
    for path, shown in _fields(found, name):
        assert shown.get("description", "").endswith((".", ":")), path


def test_sentences_of_a_parent_hold_for_its_children() -> None:
    @dataclass(frozen=True)
    class Child(Part):
        """A part."""

        more: int
        """More."""

    assert sentences_of(Child) == {
        "count": "How many there are.", "ci95": "Its interval.", "more": "More."
    }  # fmt: skip


def test_nothing_that_prints_a_result_loads_pydantic() -> None:
    code = (
        "import sys; from stopadvisor.ground.results import to_json; "
        "from stopadvisor.stats.intervals import Interval; to_json(Interval(0.1, (0.2, 0.3))); "
        "import stopadvisor.cli.promote, stopadvisor.policy.frozen; "
        "sys.exit('pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def swapped(promotion: Promotion, run: CalibratedRun) -> Iterator[Sheet]:
    """Never called: where mypy takes a swapped field, it says that these lines ignore nothing."""
    yield Sheet(promotion.promise, command=promotion.digest)  # type: ignore[arg-type]
    yield Sheet(run.promoted, command=run.headline)  # type: ignore[arg-type]


def test_mypy_refuses_a_line_that_ignores_nothing() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert settings["strict"]
    assert settings.get("warn_unused_ignores", True)
