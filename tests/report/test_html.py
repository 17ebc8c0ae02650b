"""The page: its numbers are those of the documents, and nothing closed is on it."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.assessment.choice import Settings
from stopadvisor.assessment.fit_assessment import assess
from stopadvisor.cli.main import main
from stopadvisor.ground.errors import ProbeError
from stopadvisor.paper.analysis import assess_paper
from stopadvisor.report.html.page import render
from stopadvisor.report.saved import QuestionExample, ReportData, read_report, save_assessment
from stopadvisor.rules.costs import Weights
from stopadvisor.rules.roofline import Prices
from stopadvisor.runs.prices import default_settings
from stopadvisor.runs.sources import open_source
from tests.material import edit_records, flip_calibration, make_run, write_archive
from tests.pages import HOSTILE, Page, hostile_run, report_data
from tests.report.results import REFUSED

pytestmark = pytest.mark.slow

PICTURES = ("frontier", "prices", "alpha")
QUICK = ("learned", "entropy", "confidence")


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("small") / "run", 250)


@pytest.fixture
def small_copy(small_run: Path, tmp_path: Path) -> Path:
    """A copy of the small run, to change."""
    return shutil.copytree(small_run, tmp_path / "run")


@pytest.fixture
def spoilt(assessed_run: Path, tmp_path: Path) -> Path:
    """A copy of the run, to change."""
    return shutil.copytree(assessed_run, tmp_path / "run")


@pytest.fixture(scope="module")
def before(assessed_run: Path) -> ReportData:
    return read_report(assessed_run)


@pytest.fixture(scope="module")
def html(before: ReportData) -> str:
    return render(before)


def lost_of(data: ReportData) -> tuple[QuestionExample, ...]:
    """The lost questions that a page shows; there are some."""
    assert data.figures.lost is not None
    assert data.figures.lost.shown
    return data.figures.lost.shown


# --- Numbers --------------------------------------------------------------------------------------


def test_other_prices_of_a_cached_token_save_what_a_new_count_says(small_copy: Path) -> None:
    from stopadvisor.report.html.charts import CACHED_PRICES, saving_by_cached_price  # matplotlib

    source = open_source(small_copy)
    settings = Settings(families=("confidence",), **default_settings(source))
    shown = saving_by_cached_price(report_data(small_copy, settings).result)
    decoded = Prices.of(settings.weights).decoded
    prices = [replace(settings.weights, cached=price * decoded) for price in shown]
    by_load = assess(source, settings).result(prices).serving.by_load or ()
    counted = [row.saving_pct for row in by_load]
    assert set(CACHED_PRICES) < set(shown)
    assert list(shown.values()) == pytest.approx(counted, abs=1e-6)


@pytest.mark.usefixtures("undrawn")
def test_a_refusal_is_said_with_its_reason(before: ReportData) -> None:
    assert REFUSED.refusal is not None
    text = Page(render(replace(before, calibration=REFUSED))).text
    assert "Not certified" in text
    assert "Asked to promise that at most 15% are lost" in text
    assert REFUSED.refusal.reason in text


@pytest.mark.usefixtures("undrawn")
def test_a_page_of_two_alphas_says_which_is_which(calibrated_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(calibrated_run, tmp_path / "run")
    document = json.loads((run / "calibration.json").read_bytes()) | {"alpha": 0.1}
    (run / "calibration.json").write_text(json.dumps(document), encoding="utf-8")
    assert read_report(calibrated_run).remarks == ()
    assert read_report(run).remarks[0].startswith("Assessed at alpha = 0.15, calibrated at 0.1: ")
    shown = Page(render(read_report(run))).text
    assert shown.count("for a promise of 15%") == 2
    assert "Promise alpha 0.1, delta 0.05" in shown


@pytest.mark.usefixtures("undrawn")
def test_an_assessment_without_alpha_contradicts_no_calibration(
    calibrated_run: Path, tmp_path: Path
) -> None:
    """As by the README's first command: nothing was asked for, so that nothing is warned of."""
    run = shutil.copytree(calibrated_run, tmp_path / "run")
    document = json.loads((run / "assessment.json").read_bytes()) | {"alpha": None}
    document["matched_risk"][0]["alpha"] = 0.01
    text = json.dumps(document).encode()
    (run / "assessment.json").write_bytes(text)
    figures = json.loads((run / "figures.json").read_bytes())
    figures |= {"assessment": hashlib.sha256(text).hexdigest()}
    (run / "figures.json").write_text(json.dumps(figures), encoding="utf-8")
    assert read_report(run).remarks == ()
    shown = Page(render(read_report(run))).text
    assert shown.count("for a promise of 1%") == 2
    assert "Promise alpha 0.15, delta 0.05" in shown


def test_the_published_analysis_has_no_page(tmp_path: Path) -> None:
    source = open_source(write_archive(tmp_path / "raw.npz"), folder=tmp_path / "results")
    save_assessment(source, assess_paper(source, alpha=0.2, delta=0.05), None)
    with pytest.raises(ProbeError, match="assessed by the paper's protocol, which has no page"):
        read_report(source.folder)


@pytest.mark.parametrize(
    ("settings", "pictures"),
    [
        pytest.param(
            Settings(
                families=("learned",), weights=Weights(1.0, 0.1, 4.0, "money per million tokens")
            ),
            {"frontier", "alpha"},  # nothing is read from a cache
            id="learned only, money",
        ),
        pytest.param(
            Settings(families=("entropy", "confidence"), serving="vllm"), {*PICTURES}, id="scalar"
        ),
        pytest.param(
            Settings(alpha=0.001, families=QUICK), {"frontier", "alpha"}, id="nothing to certify"
        ),
    ],
)
def test_every_kind_of_assessment_has_its_page(
    small_run: Path, settings: Settings, pictures: set[str]
) -> None:
    data = report_data(small_run, settings)
    shown = Page(render(data))
    assert {a["id"] for t, a in shown.tags if t == "article"} == {f"part-{p}" for p in pictures}
    assert data.result.headline in shown.text


@pytest.mark.parametrize(
    "families", [(*QUICK, "run-stability"), ("run-stability",)], ids=["several", "one"]
)
def test_without_log_probabilities_none_are_shown(
    small_copy: Path, families: tuple[str, ...]
) -> None:
    def blind(row: dict[str, Any], part: str) -> None:
        for checkpoint in row["checkpoints"]:
            checkpoint.update(entropy_source="none", mean_logprob=0.0, mean_entropy=0.0)

    edit_records(small_copy, blind)
    data = report_data(small_copy, Settings(families=families))
    figures = data.figures
    assert figures.frontier is not None
    names = {rule.name for rule in figures.frontier.rules}
    readers = {"confidence", "confidence-leap", "entropy", "deer"}  # of log-probabilities
    assert names
    assert not names & readers
    assert (names == {"run-stability"}) == (len(families) == 1)
    if len(families) > 1:  # else nothing is lost
        assert {step.confidence for e in lost_of(data) for step in e.steps} == {None}


# --- What may be shown ----------------------------------------------------------------------------


def test_before_a_look_no_calibration_outcome_is_on_the_page(
    assessed_run: Path, spoilt: Path, html: str
) -> None:
    edit_records(spoilt, flip_calibration)
    assert main(["assess", str(spoilt), "--alpha", "0.15", "--no-report", "--quiet"]) == 0
    before, after = ((run / "assessment.json").read_text() for run in (assessed_run, spoilt))
    assert after.replace(str(spoilt), str(assessed_run)) == before
    flipped = render(read_report(spoilt))
    assert flipped.replace(str(spoilt), str(assessed_run)) == html


def test_a_damaged_line_of_thinking_is_an_error(spoilt: Path) -> None:
    file = spoilt / "thinking.jsonl"
    file.write_bytes(b'{"id": "q1"}\n' + file.read_bytes())
    with pytest.raises(ProbeError, match=r"thinking\.jsonl:1: not a line of thinking"):
        read_report(spoilt)


def test_hostile_texts_are_escaped_and_cut(tmp_path: Path) -> None:
    data = report_data(hostile_run(tmp_path / "run"), Settings(families=QUICK))
    text = render(replace(data, remarks=(HOSTILE,), result=replace(data.result, run=HOSTILE)))
    assert "<script" not in text
    assert "</script" not in text
    assert "<img" not in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e\u2028]", text)
    shown = Page(text)
    asked = {example.question for example in lost_of(data)}
    assert len(asked) == len(lost_of(data)) >= 2
    assert all(question in shown.texts for question in asked)
    section = text.partition('<section id="lost">')[2].partition("</section>")[0]
    assert "&lt;/script&gt;&lt;/think&gt;\\u202etxet\\x1b]0;title\\x07\\u2028aaa" in section
    (left_out, *_) = map(int, re.findall(r"(\d+) characters left out", section))
    assert left_out > 20_000
    assert len(section) < 12 * 20_000


# --- The page as a file ---------------------------------------------------------------------------


def test_the_same_results_give_the_same_page(before: ReportData, html: str) -> None:
    assert render(before) == html


def test_the_page_refers_to_nothing_outside_itself(html: str) -> None:
    shown = Page(html)
    for tag, attributes in shown.tags:
        for name in ("src", "href", "xlink:href", "action", "srcset", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, name, value)
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)


def test_ids_are_unique_and_pictures_have_their_text(html: str) -> None:
    shown = Page(html)
    assert len(shown.ids) == len(set(shown.ids))
    pictures = [attributes for tag, attributes in shown.tags if tag == "svg"]
    assert len(pictures) == len(PICTURES)
    for picture in pictures:
        assert picture["role"] == "img"
        assert picture["aria-labelledby"] in shown.ids
        assert picture["aria-describedby"] in shown.ids
    for name in PICTURES:
        description = re.search(rf'<desc id="{name}-desc">([^<]+)</desc>', html)
        assert description is not None
        assert re.search(r"\d", description[1])


def test_pictures_name_their_axes_and_lines_and_mark_round_places(html: str) -> None:
    frontier, prices, alpha = (
        re.findall(r"<text[^>]*>([^<]*)</text>", svg)
        for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    )
    assert frontier == [
        *("40%", "60%", "80%", "100%", "120%"),
        "cost per question under vllm, % of full thinking",
        *("40%", "50%", "60%", "70%", "80%", "90%", "accuracy"),
        *("learned", "confidence", "agreement-scaled", "fixed budget", "full thinking"),
        "advised point",
    ]
    assert prices == [
        *("1", "8", "32", "128", "requests in flight"),
        *("0", "20", "40", "net saving in percent"),
        *("0", "0.001", "0.01", "0.1", "1", "price of a cached token", "at the prices used"),
    ]
    assert alpha == [
        *("0%", "10%", "20%", "30%", "alpha: most questions that may be lost"),
        *("-20%", "0%", "20%", "40%", "net saving"),
        *("learned", "confidence", "fixed-budget", "agreement-scaled", "asked for"),
    ]


def test_no_colour_of_a_picture_escapes_the_theme(html: str) -> None:
    for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        assert not re.search(r"#[0-9a-f]{6}\b", svg)
        assert "<text" in svg  # text is text, not outlines


def test_without_the_workload_s_file_lost_questions_show_no_text(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", 200)
    (tmp_path / "run-sums.jsonl").unlink()
    data = report_data(path, Settings(families=QUICK))
    assert all(example.question is None for example in lost_of(data))
    assert any("workload file is gone" in remark for remark in data.remarks)


def test_a_damaged_calibration_is_an_error(spoilt: Path) -> None:
    for content in (b"{", b"[]", b'{"alpha": 0.15}'):  # not JSON, no object, fields missing
        (spoilt / "calibration.json").write_bytes(content)
        with pytest.raises(ProbeError, match=r"calibration\.json.*calibrate again"):
            read_report(spoilt)
