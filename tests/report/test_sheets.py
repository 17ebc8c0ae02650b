"""Sheets of saved results, held by golden files at 80 columns; no command is run."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.assessment.fit_assessment import assess
from stopadvisor.assessment.settings import Settings
from stopadvisor.report.screen import draw
from stopadvisor.report.sheet import Sheet
from stopadvisor.report.sheets.assess import assess_sheet
from stopadvisor.report.sheets.calibrate import calibrate_sheet
from stopadvisor.report.sheets.files import preflight_sheet, profile_serving_sheet, promote_sheet
from stopadvisor.report.sheets.verify import verify_sheet
from tests.frozen import source_of, with_groups
from tests.goldens import Goldens
from tests.populations import POPULATIONS, renamed
from tests.report import results

FILES = Path(__file__).resolve().parent.parent / "testdata" / "sheets"
SHEETS = {
    "calibrate": calibrate_sheet(results.CALIBRATED, verbose=True),
    "calibrate-refused": calibrate_sheet(results.REFUSED),
    "profile-serving": profile_serving_sheet(results.PROFILE, Path("profile.json")),
    "preflight": preflight_sheet(results.PREFLIGHT),
    "promote": promote_sheet(results.PROMOTION),
    "verify": verify_sheet(results.VERIFIED),
    "verify-silent": verify_sheet(
        replace(results.VERIFIED, verdict="silent", drift=results.VERIFIED.drift[1:])
    ),
}


@pytest.mark.parametrize("name", SHEETS)
def test_a_sheet_on_the_screen(name: str, goldens: Goldens) -> None:
    goldens.check(FILES / f"{name}.txt", drawn(SHEETS[name]))


@pytest.mark.parametrize(
    ("changes", "few"),
    [({}, True), ({"traces": 2}, False), ({"loss": "drop", "gained": 3}, False)],
    ids=["few", "two traces", "drop"],
)
def test_questions_are_called_too_few_only_where_that_is_why(
    changes: dict[str, Any], few: bool
) -> None:
    """Of a drop and of two traces no detectable risk is computed, however many there are."""
    silent = replace(results.VERIFIED, verdict="silent", detectable_risk=None, **changes)
    words = " ".join(drawn(verify_sheet(silent)).split())
    assert "questions confirm with a probability of" in words
    assert ("too few to contradict anything" in words) == few


def test_without_gold_replies_differ_and_no_accuracy_is_shown() -> None:
    bare = replace(results.VERIFIED, loss="differs", graded_by="agreement")
    words = " ".join(drawn(verify_sheet(bare)).split())
    assert f" different {bare.losses} of {bare.n} questions" in words
    assert "no gold a reply counts as right if it is what full thinking answers" in words
    assert "accuracy" not in words


@pytest.mark.slow
def test_a_promise_is_rated_by_as_many_questions_as_its_column_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stopadvisor.assessment.promises.PROMISES", (0.15,))
    table = renamed(POPULATIONS[0].draw(400, np.random.default_rng(3)), "question ")
    source = source_of(with_groups(table, 3), "groups")
    assessment = assess(source, Settings(alpha=0.15, families=("confidence",)), propose=True)
    run, groups = assessment.result(), len(set(source.part("calibration").groups))
    assert run.counted == groups < run.split.calibration
    sheet = assess_sheet(run)
    assert f"certified by {groups}" in sheet.sections[0].header
    assert f"({groups} count: one of each group" in dict(sheet.facts)["based on"]
    alone = assess(source_of(table, "alone"), assessment.choice.settings).result()
    assert alone.counted is None


def drawn(sheet: Sheet) -> str:
    out = StringIO()
    draw(sheet, out)
    return out.getvalue()
