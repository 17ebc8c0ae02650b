"""Lines of a file as a kill leaves them."""

from __future__ import annotations

from pathlib import Path

import pytest

from stopadvisor.runs.storage import finished_lines


@pytest.mark.parametrize(
    ("content", "lines", "torn"),
    [
        (None, [], False),
        (b"", [], False),
        (b'{"a": 1}\n', [b'{"a": 1}'], False),
        (b'{"a": 1}\n{"b": 2}', [b'{"a": 1}', b'{"b": 2}'], False),
        (b'{"a": 1}\n{"b": ', [b'{"a": 1}'], True),
    ],
    ids=["no file", "empty", "whole", "whole without its line end", "torn"],
)
def test_whole_lines_are_told_from_torn_ones(
    tmp_path: Path, content: bytes | None, lines: list[bytes], torn: bool
) -> None:
    path = tmp_path / "lines.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert finished_lines(path) == (lines, torn)
