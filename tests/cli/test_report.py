"""`stopadvisor report`: from a run's files, without the model, and what it refuses."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from stopadvisor.report.html.page import refresh_report, write_report
from stopadvisor.runs.sources import ASSESSMENT
from tests.material import CERTIFY, Call

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_draws")]

FAST = ("--families", "confidence", "--alpha", "0.15")


@pytest.fixture
def run(quickly_assessed_run: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    path = tmp_path / "runs" / "run"
    shutil.copytree(quickly_assessed_run, path)
    return path


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    capsys.readouterr()  # of the fixtures
    return Call(capsys, "report")


@pytest.mark.usefixtures("undrawn")
def test_writes_the_page_of_the_run_assessed_last_and_says_where(
    run: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent.parent)
    code, out, err = call()
    assert code == 0
    assert err == "reporting on runs/run, the run assessed last\n"
    assert out.startswith("Report written.")
    assert "not calibrated yet" in out
    assert (run / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.usefixtures("undrawn")
def test_json_names_the_file_and_its_state(run: Path, tmp_path: Path, call: Call) -> None:
    target = tmp_path / "for-the-team.html"
    code, out, _ = call(run, "--json", "--out", target)
    assert code == 0
    document = json.loads(out)
    assert document == {
        "schema": 2,
        "run": str(run),
        "report": str(target),
        "bytes": target.stat().st_size,
        "protocol": "deploy",
        "certified": None,
        "remarks": [],
    }
    assert not (run / "report.html").exists()


@pytest.mark.usefixtures("undrawn")
def test_a_page_is_written_again_without_a_command_line(run: Path) -> None:
    assert refresh_report(run) == [], "a run without a page gets none"
    written = write_report(run)
    assert (written.report, written.report.stat().st_size) == (run / "report.html", written.bytes)
    (run / ASSESSMENT).unlink()
    (said,) = refresh_report(run)
    assert said.startswith(f"{run / 'report.html'} is out of date and could not be written again")


@pytest.mark.usefixtures("undrawn")
def test_after_calibrate_the_certificate_is_on_the_page(run: Path, call: Call) -> None:
    (run / "report.html").write_text("a page from before", encoding="utf-8")
    code, _, err = call(run, *FAST, *CERTIFY, command="calibrate")
    assert code == 0
    assert f"wrote {run / 'report.html'} again" in err
    page = (run / "report.html").read_bytes()
    text = page.decode()
    assert "Certified" in text
    assert "provisional" not in text.lower()
    code, out, _ = call(run, "--json")
    assert code == 0
    assert json.loads(out)["certified"] is True
    assert (run / "report.html").read_bytes() == page
    elsewhere = run.parent / "elsewhere.joblib"  # no page of this run will show it
    code, _, err = call(run, *FAST, *CERTIFY, "--out", elsewhere, command="calibrate")
    assert code == 0
    assert "report.html" not in err
    assert (run / "report.html").read_bytes() == page


# --- assess writes it too -------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn")
def test_assess_writes_the_same_page(
    run: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOPADVISOR_REPORT", "1")
    code, _, err = call(run, *FAST, command="assess")
    assert code == 0
    assert f"wrote {run / 'report.html'}" in err
    written = (run / "report.html").read_bytes()
    assert call(run)[0] == 0
    assert (run / "report.html").read_bytes() == written


@pytest.mark.parametrize("words", [("--no-report",), ()], ids=["option", "environment"])
def test_assess_can_leave_it(
    run: Path, call: Call, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("STOPADVISOR_REPORT", "1" if words else "0")
    code, _, err = call(run, *FAST, *words, command="assess")
    assert code == 0
    assert "report" not in err
    assert not (run / "report.html").exists()


def test_without_its_extra(run: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOPADVISOR_REPORT", "1")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    code, out, err = call(run, *FAST, command="assess")
    assert code == 0
    assert out
    missing = "the report needs jinja2, which is not installed: pip install 'stopadvisor[report]'"
    assert f"note: no report.html: {missing}\n" in err
    code, out, err = call(run)
    assert code == 2
    assert missing in err


def test_assess_stands_where_the_page_cannot_be_written(
    run: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOPADVISOR_REPORT", "1")
    (run / "calibration.json").write_text("{", encoding="utf-8")
    code, out, err = call(run, *FAST, command="assess")
    assert code == 0
    assert out
    assert "no report.html: " in err
    assert "calibrate again" in err


# --- What it refuses ------------------------------------------------------------------------------


def test_figures_of_another_assessment_or_of_none(run: Path, call: Call) -> None:
    document = json.loads((run / ASSESSMENT).read_bytes())
    document["profile"]["unsolved"]["count"] += 1
    (run / ASSESSMENT).write_text(json.dumps(document), encoding="utf-8")
    assert "belongs to another assessment.json" in call.refused(run)
    (run / "figures.json").write_text("[", encoding="utf-8")
    assert "figures.json: not JSON" in (said := call.refused(run))
    assert "; assess again" in said
    (run / ASSESSMENT).unlink()
    assert f"not assessed yet: run `stopadvisor assess {run}` first" in call.refused(run)
