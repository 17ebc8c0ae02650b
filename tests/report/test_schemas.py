"""JSON Schemas: every command has one, and `schema` prints it; their tests hold what they print."""

from __future__ import annotations

import json

import pytest

from stopadvisor.cli.main import COMMANDS
from stopadvisor.cli.schema import RESULTS
from tests.material import Call
from tests.schemas import check_valid, schema


def test_every_command_has_a_schema() -> None:
    # `schema` prints a schema, or the list; `serve` becomes a server.
    assert COMMANDS.keys() <= RESULTS.keys() | {"schema", "serve"}


def test_schema(call: Call) -> None:
    assert call.json("schema", "assess") == {"title": "assess", **schema("assess")}
    listed = call.json("schema")
    check_valid("schema-list", listed)
    assert {row["name"] for row in listed["schemas"]} == {*RESULTS}
    assert "calibration.json" in call.screen("schema")
    assert "expected one of assess, calibrate" in call.refused("schema", "nothing")


@pytest.mark.parametrize("words", [["inspect", "nothing"], ["plan", "--alpha", "2"]])
def test_errors(call: Call, words: list[str]) -> None:
    code, out, _ = call(*words, "--json")
    assert code == 2
    check_valid("error", json.loads(out))
