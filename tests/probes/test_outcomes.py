"""No rule can be chosen on calibration outcomes: mypy refuses it, and so does the running code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stopadvisor.assessment.choice import Choice, Settings, choose
from stopadvisor.assessment.fit_assessment import advice_profile
from stopadvisor.assessment.sequences import FitData
from stopadvisor.certification.calibration import calibrate
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.probes.outcomes import (
    CalibrationQuestions,
    FitQuestions,
    GradedTable,
    SealedQuestions,
)
from stopadvisor.runs.access import hand_out, open_all, open_test, take_look
from stopadvisor.runs.look_log import Look, digests_of
from stopadvisor.runs.sources import open_source
from tests.material import make_run
from tests.populations import FREE_FORM

ROOT = Path(__file__).resolve().parents[2]


def calls_that_mypy_refuses(
    fit: FitQuestions, calibration: CalibrationQuestions, sealed: SealedQuestions, choice: Choice
) -> None:
    """Never called: a strict mypy reports every `ignore` that is not needed any more."""
    rng = np.random.default_rng(0)
    choose(fit, 100, Settings())
    choose(calibration, 100, Settings())  # type: ignore[arg-type]
    choose(sealed, 100, Settings())  # type: ignore[arg-type]
    advice_profile(fit, rng=rng)
    advice_profile(calibration, rng=rng)  # type: ignore[arg-type]
    FitData.build(fit, Settings())
    FitData.build(calibration, Settings())  # type: ignore[arg-type]
    calibrate(choice, calibration)
    calibrate(choice, fit)  # type: ignore[arg-type]
    calibrate(choice, sealed)  # type: ignore[arg-type]
    _ = sealed.correct  # type: ignore[attr-defined]
    _ = sealed.full_correct  # type: ignore[attr-defined]
    _ = sealed.outcomes  # type: ignore[attr-defined]
    calibration.as_fit()  # type: ignore[attr-defined]


def test_what_mypy_refuses_fails_at_run_time_too() -> None:
    table = FREE_FORM.draw(100, np.random.default_rng(0))
    calibration = table.as_calibration()
    rng = np.random.default_rng(0)
    message = "must be chosen on FitQuestions, got CalibrationQuestions"
    with pytest.raises(CalibrationError, match=message):
        choose(calibration, 100, Settings())  # type: ignore[arg-type]
    with pytest.raises(CalibrationError, match=message):
        advice_profile(calibration, rng=rng)  # type: ignore[arg-type]
    with pytest.raises(CalibrationError, match=message):
        FitData.build(calibration, Settings())  # type: ignore[arg-type]
    with pytest.raises(CalibrationError, match="got SealedQuestions"):
        choose(table.sealed(), 100, Settings())  # type: ignore[arg-type]
    choice = choose(table.as_fit(), 100, Settings(families=("confidence",)))
    with pytest.raises(CalibrationError, match="certified on CalibrationQuestions, got FitQuest"):
        calibrate(choice, table.as_fit())  # type: ignore[arg-type]


def test_only_runs_unseals() -> None:
    callers = {
        path.relative_to(ROOT / "stopadvisor").as_posix()
        for path in (ROOT / "stopadvisor").rglob("*.py")
        if ".unseal(" in path.read_text(encoding="utf-8")
    }
    assert callers == {"runs/access.py", "runs/sources.py"}


def test_a_look_opens_what_it_is_about(tmp_path: Path) -> None:
    source = open_source(make_run(tmp_path / "run", 60))
    sealed = source.part("calibration")
    assert not hasattr(sealed, "correct")
    assert "_outcomes" not in repr(sealed)
    assert type(source.part("fit")) is FitQuestions
    assert type(open_test(source)) is GradedTable
    look = take_look(source.folder, digests_of(sealed.keys[1:]), {}, delta=0.05)
    with pytest.raises(CalibrationError, match="look 1 does not cover 1 of these questions"):
        hand_out(sealed, look)
    with pytest.raises(CalibrationError, match="still closed"):
        open_all(source)
    look = take_look(source.folder, digests_of(sealed.keys), {"standing": {}}, delta=0.05)
    assert isinstance(look, Look)
    found = hand_out(sealed, look)
    assert type(found) is CalibrationQuestions
    assert found.keys == sealed.keys
    assert open_all(source).n_questions == source.table.n_questions


def test_outcomes_go_where_their_questions_go() -> None:
    table = FREE_FORM.draw(9, np.random.default_rng(1))
    rows, columns = np.array([4, 2]), [0, 3]
    for kind in (table, table.as_fit(), table.as_calibration()):
        part = kind.take(rows).select(columns)
        assert type(part) is type(kind)
        assert np.array_equal(part.correct, table.correct[rows][:, columns])
        assert part.outcomes.natural_code is not None
        assert table.outcomes.natural_code is not None
        assert np.array_equal(part.outcomes.natural_code, table.outcomes.natural_code[rows])
        assert part.positions.tolist() == table.positions[rows][:, columns].tolist()
    part = table.sealed().take(rows).unseal()
    assert np.array_equal(part.correct, table.correct[rows])
    with pytest.raises(ValueError, match="read-only"):
        part.correct[0, 0] = True
