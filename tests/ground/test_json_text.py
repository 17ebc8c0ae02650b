"""JSON from elsewhere: what is nested without end is refused in one line, wherever it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.collection import probing
from stopadvisor.ground.errors import StopAdvisorError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.rules.serving_profile import read_serving_profile
from stopadvisor.runs.sources import read_calibration
from stopadvisor.serving.answer_file import AnswerFile
from stopadvisor.serving.serve_settings import AuditSettings
from stopadvisor.workload.lines import read_rows

DEEP = "[" * 200_000


def _answers(file: Path) -> None:
    file.write_text(DEEP + "\n")
    with AnswerFile.open(file, "setting"):
        pass


READERS: dict[str, Callable[[Path], Any]] = {
    "calibration.json": lambda file: read_calibration(file.parent),
    "preflight.json": probing._passed,
    "answers.jsonl": _answers,
    "profile.json": read_serving_profile,
    "audits": lambda file: AuditSettings.of_json(file.read_text()),
    "work.jsonl": read_rows,
}


@pytest.mark.parametrize("name", READERS)
def test_nested_without_end_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    file = tmp_path / name.partition(" ")[0]
    file.write_text(DEEP)
    with pytest.raises(StopAdvisorError) as found:
        READERS[name](file)
    assert len(str(found.value).splitlines()) == 1


def test_it_is_a_value_error_like_all_that_is_no_json() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(DEEP)
