"""The ledger of looks: what each look may still claim."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.errors import CalibrationError, ProbeError
from stopadvisor.runs.ledger import (
    CALIBRATION,
    LEDGER,
    Look,
    LookRequest,
    looks_at,
    read_ledger,
    take_looks,
)

ALPHA_10 = {"alpha": 0.1, "families": ("learned", "confidence")}
ALPHA_15 = {"alpha": 0.15, "families": ("learned", "confidence")}


def take_look(
    folder: Path,
    questions: Sequence[str],
    request: Mapping[str, Any],
    *,
    delta: float,
    planned: int | None = None,
) -> Look:
    (look,) = take_looks(folder, [LookRequest(questions, request, delta, planned)])
    return look


def test_every_further_look_costs_its_delta(tmp_path: Path) -> None:
    first = take_look(tmp_path, ["a", "b"], ALPHA_10, delta=0.05)
    second = take_look(tmp_path, ["a", "b"], ALPHA_15, delta=0.05)
    third = take_look(tmp_path, ["a", "b"], {"alpha": 0.2}, delta=0.01)
    assert [look.number for look in (first, second, third)] == [1, 2, 3]
    assert [look.test_delta for look in (first, second, third)] == [0.05, 0.05, 0.01]
    confidences = [look.confidence for look in (first, second, third)]
    assert confidences == pytest.approx([0.95, 0.90, 0.89])


def test_the_same_request_on_the_same_questions_is_the_same_look(tmp_path: Path) -> None:
    first = take_look(tmp_path, ["b", "a"], ALPHA_10, delta=0.05)
    take_look(tmp_path, ["a", "b"], ALPHA_15, delta=0.05)
    again = take_look(tmp_path, ["a", "b", "a"], ALPHA_10, delta=0.05)
    assert again == first
    assert again.confidence == 0.95
    assert len(read_ledger(tmp_path)) == 2
    assert take_look(tmp_path, ["a", "b"], ALPHA_10, delta=0.01).number == 3  # another delta


def test_planned_looks_share_delta_and_run_out(tmp_path: Path) -> None:
    looks = [
        take_look(tmp_path, ["a"], {"alpha": k / 10}, delta=0.06, planned=3) for k in (1, 2, 3)
    ]
    assert [look.test_delta for look in looks] == pytest.approx([0.02] * 3)
    assert [look.confidence for look in looks] == pytest.approx([0.94] * 3)
    with pytest.raises(CalibrationError, match="all 3 planned looks"):
        take_look(tmp_path, ["a"], {"alpha": 0.4}, delta=0.06)
    # A plan holds without being named again, and cannot be stretched.
    with pytest.raises(CalibrationError, match="must be declared with the first look"):
        take_look(tmp_path, ["a"], {"alpha": 0.4}, delta=0.06, planned=4)
    with pytest.raises(CalibrationError, match="share one delta"):
        take_look(tmp_path, ["a"], {"alpha": 0.4}, delta=0.05)


def test_a_plan_comes_before_the_first_look(tmp_path: Path) -> None:
    take_look(tmp_path, ["a"], ALPHA_10, delta=0.05)
    for request in (ALPHA_15, ALPHA_10):  # not even for the look that was taken already
        with pytest.raises(CalibrationError, match="must be declared with the first look"):
            take_look(tmp_path, ["a"], request, delta=0.05, planned=2)


def test_looks_count_where_questions_overlap(tmp_path: Path) -> None:
    take_look(tmp_path, ["a", "b"], ALPHA_10, delta=0.05)
    assert take_look(tmp_path, ["c", "d"], ALPHA_10, delta=0.05).confidence == 0.95
    more = take_look(tmp_path, ["b", "c"], ALPHA_10, delta=0.05)  # met both
    assert more.number == 3
    assert more.confidence == pytest.approx(0.85)
    assert [look.number for look in looks_at(tmp_path, ["a"])] == [1]
    assert len(looks_at(tmp_path, ["b"])) == 2


def test_sets_under_different_plans_do_not_mix(tmp_path: Path) -> None:
    take_look(tmp_path, ["a"], ALPHA_10, delta=0.05, planned=3)
    take_look(tmp_path, ["b"], ALPHA_10, delta=0.05)
    with pytest.raises(CalibrationError, match="declared with the first look"):
        take_look(tmp_path, ["a", "b"], ALPHA_10, delta=0.05)


def test_no_confidence_left_is_refused_and_not_recorded(tmp_path: Path) -> None:
    take_look(tmp_path, ["a"], ALPHA_10, delta=0.6)
    with pytest.raises(CalibrationError, match="leaves no confidence"):
        take_look(tmp_path, ["a"], ALPHA_15, delta=0.4)
    assert len(read_ledger(tmp_path)) == 1


def test_a_look_is_written_before_its_result_is_known(tmp_path: Path) -> None:
    look = take_look(tmp_path, ["a"], ALPHA_10, delta=0.05)
    (row,) = json.loads((tmp_path / LEDGER).read_text(encoding="utf-8"))["looks"]
    assert row["questions"] == ["a"]
    assert row["request"] == {"alpha": 0.1, "families": ["learned", "confidence"]}
    assert read_ledger(tmp_path) == [look]


@pytest.mark.parametrize("content", ["", "{", '{"looks": [{"number": 1}]}', '{"schema": 1}', "[]"])
def test_a_damaged_ledger_stops_everything(tmp_path: Path, content: str) -> None:
    (tmp_path / LEDGER).write_text(content, encoding="utf-8")
    with pytest.raises(ProbeError, match="the ledger of looks is damaged"):
        take_look(tmp_path, ["a"], ALPHA_10, delta=0.05)


def test_no_ledger_is_no_look(tmp_path: Path) -> None:
    assert read_ledger(tmp_path) == []


def test_looks_are_recorded_together_or_not_at_all(tmp_path: Path) -> None:
    asks = [LookRequest(["a"], ALPHA_10, 0.05, 1), LookRequest(["a"], ALPHA_15, 0.05, 1)]
    with pytest.raises(CalibrationError, match="all 1 planned looks"):
        take_looks(tmp_path, asks)
    assert read_ledger(tmp_path) == []
    assert [look.number for look in take_looks(tmp_path, asks[:1])] == [1]


def test_looks_at_other_questions_are_counted(tmp_path: Path) -> None:
    """Trying again on fresh questions until it passes leaves a trace."""
    for number, question in enumerate("abc"):
        look = take_look(tmp_path, [question], ALPHA_10, delta=0.05)
        assert (look.number, look.confidence, look.elsewhere) == (1, 0.95, number)
    (beside,) = take_looks(tmp_path, [LookRequest(["d"], ALPHA_10, 0.05, elsewhere=2)])
    assert beside.elsewhere == 5


def test_a_ledger_that_was_taken_away_is_missed(tmp_path: Path) -> None:
    (tmp_path / CALIBRATION).write_text("{}")
    with pytest.raises(ProbeError, match="the ledger of looks is missing"):
        read_ledger(tmp_path)
