"""Nobody chooses by calibration outcomes: the type checker refuses it, and so does the run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stopadvisor.assessment.choice import Settings, choose
from stopadvisor.assessment.fit_assessment import advice_profile
from stopadvisor.assessment.sequences import FitData
from stopadvisor.certification.calibration import calibrate
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.probes.outcomes import CalibrationQuestions, FitQuestions, GradedTable
from stopadvisor.rules.costs import Costing
from stopadvisor.runs.access import hand_out, open_all, open_test, take_look
from stopadvisor.runs.look_log import Look, digests_of
from stopadvisor.runs.sources import open_source
from tests.material import make_run
from tests.populations import FREE_FORM

ROOT = Path(__file__).resolve().parents[2]

HEAD = """
from typing import cast
import numpy as np
from stopadvisor.assessment.fit_assessment import advice_profile
from stopadvisor.assessment.choice import Choice, Settings, choose
from stopadvisor.assessment.sequences import FitData
from stopadvisor.certification.calibration import calibrate
from stopadvisor.probes.outcomes import CalibrationQuestions, FitQuestions, SealedQuestions
from stopadvisor.rules.costs import Costing

fit = cast(FitQuestions, None)
calibration = cast(CalibrationQuestions, None)
sealed = cast(SealedQuestions, None)
choice = cast(Choice, None)
rng = np.random.default_rng(0)
"""
BUILD = "FitData.build({}, Costing(), most_blocks=9)"
LINES = {
    "choose(fit, 100, Settings())": None,
    "advice_profile(fit, rng=rng)": None,
    BUILD.format("fit"): None,
    "calibrate(choice, calibration)": None,
    "choose(calibration, 100, Settings())": "arg-type",
    "choose(sealed, 100, Settings())": "arg-type",
    "advice_profile(calibration, rng=rng)": "arg-type",
    BUILD.format("calibration"): "arg-type",
    "calibrate(choice, fit)": "arg-type",
    "calibrate(choice, sealed)": "arg-type",
    "sealed.correct": "attr-defined",
    "sealed.full_correct": "attr-defined",
    "sealed.outcomes": "attr-defined",
    "calibration.as_fit()": "attr-defined",
}


@pytest.mark.slow
def test_the_type_checker_refuses_to_choose_by_calibration_outcomes(tmp_path: Path) -> None:
    file = tmp_path / "snippet.py"
    file.write_text(HEAD + "\n".join(LINES) + "\n", encoding="utf-8")
    checker = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary"]
    cache = ["--cache-dir", str(ROOT / ".mypy_cache")]
    done = subprocess.run(
        [*checker, *cache, str(file)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    first = HEAD.count("\n") + 1
    found = {
        int(number) - first: code
        for number, code in re.findall(r"snippet\.py:(\d+): error: .*\[(.*)\]", done.stdout)
    }
    expected = {i: code for i, code in enumerate(LINES.values()) if code is not None}
    assert found == expected, done.stdout + done.stderr


def test_the_run_refuses_it_too() -> None:
    table = FREE_FORM.draw(100, np.random.default_rng(0))
    calibration = table.as_calibration()
    rng = np.random.default_rng(0)
    message = "must be chosen on FitQuestions, got CalibrationQuestions"
    with pytest.raises(CalibrationError, match=message):
        choose(calibration, 100, Settings())  # type: ignore[arg-type]
    with pytest.raises(CalibrationError, match=message):
        advice_profile(calibration, rng=rng)  # type: ignore[arg-type]
    with pytest.raises(CalibrationError, match=message):
        FitData.build(
            calibration,  # type: ignore[arg-type]
            Costing(),
            most_blocks=9,
        )
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
    with pytest.raises(CalibrationError, match="look 1 is not about 1 of these questions"):
        hand_out(sealed, look)
    with pytest.raises(CalibrationError, match="nobody has seen"):
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
