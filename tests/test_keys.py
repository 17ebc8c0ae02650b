"""Keys of all documents that `--json` prints: other programs read them, so none may be renamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.cli.main import main
from tests.goldens import Goldens

GOLDEN = Path(__file__).parent / "testdata" / "keys.txt"


def test_keys_stay_as_they_are(goldens: Goldens, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*words: str) -> Any:
        assert main(["schema", *words]) == 0
        return json.loads(capsys.readouterr().out)

    names = [row["name"] for row in printed("--json")["schemas"]]
    schemas = {name: printed(name) for name in names}
    lines = [f"{name} {path}\n" for name, whole in schemas.items() for path in paths(whole, whole)]
    goldens.check(GOLDEN, "".join(lines))


def paths(schema: Any, whole: Any) -> Iterator[str]:
    """Dotted keys of a schema, in printing order."""
    if "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].rpartition("/")[2]]
    for key, value in schema.get("properties", {}).items():
        yield key
        for path in dict.fromkeys(paths(value, whole)):
            yield f"{key}.{path}"
    for inner in schema.get("anyOf", []):
        yield from paths(inner, whole)
    for key, mark in (("items", "[]"), ("additionalProperties", "*")):
        if isinstance(inner := schema.get(key), dict):
            for path in dict.fromkeys(paths(inner, whole)):
                yield f"{mark}.{path}"
