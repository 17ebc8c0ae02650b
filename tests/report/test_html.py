"""The page: its numbers are those of the documents, and nothing closed is on it."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.assessment.choice import Settings
from stopadvisor.assessment.fit_assessment import assess
from stopadvisor.assessment.measured import savings_by_load
from stopadvisor.cli.main import main
from stopadvisor.ground.errors import ProbeError
from stopadvisor.ground.results import to_document, to_json
from stopadvisor.paper.analysis import assess_paper
from stopadvisor.report.assessed import AssessedRun
from stopadvisor.report.figures.data import QuestionExample, RiskFigure
from stopadvisor.report.html import page
from stopadvisor.report.html.captions import CACHED_PRICES, risk_caption, saving_by_cached_price
from stopadvisor.report.html.lost import lost_question
from stopadvisor.report.html.page import render
from stopadvisor.report.saved import ReportData, read_report
from stopadvisor.report.sheets.assess import assess_sheet
from stopadvisor.report.words import percent, risk_difference, share
from stopadvisor.rules.costs import Weights
from stopadvisor.rules.families import rule_name
from stopadvisor.rules.roofline import Prices
from stopadvisor.runs.prices import default_settings
from stopadvisor.runs.sources import open_source
from stopadvisor.stats.bounds import upper_limit
from tests.material import CERTIFY, edit_records, flip_calibration, make_run, write_archive
from tests.pages import HOSTILE, Page, hostile_run, report_data, saved

pytestmark = pytest.mark.slow

PICTURES = (*("kinds", "profile", "frontier", "risk", "prices", "alpha", "checkpoints"),)
SIMULATED_PROBES = Path(__file__).parents[2] / "samples" / "recorded" / "free-form.npz"
QUICK = ("learned", "entropy", "confidence")


@pytest.fixture(scope="module")
def run(assessed_run: Path) -> Path:
    return assessed_run


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
def certified(calibrated_run: Path) -> ReportData:
    """What the page of the calibrated run shows."""
    return read_report(calibrated_run)


@pytest.fixture(scope="module")
def certified_html(certified: ReportData) -> str:
    return render(certified)


@pytest.fixture(scope="module")
def before(run: Path) -> ReportData:
    return read_report(run)


@pytest.fixture(scope="module")
def html(before: ReportData) -> str:
    return render(before)


def lost_of(data: ReportData) -> tuple[QuestionExample, ...]:
    """The lost questions that a page shows; there are some."""
    assert data.figures.lost is not None
    assert data.figures.lost.shown
    return data.figures.lost.shown


def lost_at_mark(risk: RiskFigure) -> int:
    """Calibration questions lost at the exported threshold."""
    assert risk.observed is not None
    assert risk.marked is not None
    share = risk.observed[risk.marked]
    assert share is not None
    return round(share * risk.n)


# --- Numbers --------------------------------------------------------------------------------------


def test_other_prices_of_a_cached_token_save_what_a_new_count_says(small_copy: Path) -> None:
    source = open_source(small_copy)
    settings = Settings(families=("confidence",), **default_settings(source))
    found = assess(source, settings)
    shown = saving_by_cached_price(to_document(saved(found).result))
    decoded = Prices.of(settings.weights).decoded
    prices = [replace(settings.weights, cached=price * decoded) for price in shown]
    counted = [row.saving_pct for row in savings_by_load(found.choice, prices)]
    assert set(CACHED_PRICES) < set(shown)
    assert list(shown.values()) == pytest.approx(counted, abs=1e-6)


def test_what_comes_next_asks_for_the_loss_that_was_assessed(before: ReportData) -> None:
    assert isinstance(before.result, AssessedRun)
    settings = replace(before.result.settings, loss="drop")
    result = replace(before.result, settings=settings, run="my runs/sums")
    command = "stopadvisor calibrate 'my runs/sums' --alpha drop=0.15"
    assert assess_sheet(result).command == command


def test_pictures_agree_with_the_assessment(before: ReportData) -> None:
    document, figures = to_document(before.result), before.figures
    (row,) = document["matched_risk"]
    advised = document["recommendation"]["family"]
    point = next(p for p in (row["learned"], row["scalar"]) if p["family"] == advised)
    frontier, risk, alpha = figures.frontier, figures.risk, figures.alpha
    assert frontier is not None
    assert frontier.chosen is not None
    name, cost, accuracy = frontier.chosen
    assert name == advised
    assert cost == pytest.approx(100 - point["fit_total_saving_pct"])
    assert accuracy == pytest.approx(point["fit_accuracy"])
    assert frontier.full_accuracy == document["fit_full_accuracy"]
    assert risk is not None
    assert risk.expected is not None
    assert risk.marked is not None
    assert risk.thresholds[risk.marked] == pytest.approx(point["threshold"])
    assert risk.expected[risk.marked] == pytest.approx(point["fit_risk"])
    table = risk_caption(risk).table
    assert table is not None
    first, *others = table.rows
    assert first[:2] == ("none stops by it", 0.0)
    assert len(others) == len(risk.thresholds) - 1
    assert all(at is not None and at <= 1 for at in risk.thresholds), (
        "a probability, or a confidence"
    )
    assert alpha is not None
    at = alpha.alphas.index(document["alpha"])
    for side in ("learned", "scalar"):
        found = row[side]
        saving = alpha.savings[found["family"]][at]
        assert saving == pytest.approx(found["fit_total_saving_pct"])
    assert alpha.probabilities[at] == pytest.approx(document["chance_to_certify"])
    accuracies = figures.checkpoints
    assert accuracies is not None
    assert accuracies.data.full_accuracy == document["fit_full_accuracy"]


def test_the_certificate_is_the_calibration_s(
    calibrated_run: Path, certified: ReportData, certified_html: str
) -> None:
    calibration = json.loads((calibrated_run / "calibration.json").read_text(encoding="utf-8"))
    data = certified
    assert data.calibration is not None
    assert json.loads(to_json(data.calibration)) == calibration
    text = Page(certified_html).text
    certificate, expected = calibration["certificate"], calibration["expected"]
    for words in (
        certificate["claim"].replace(" %", "%"),
        f"{certificate['losses']} of {certificate['n']} calibration questions lost",
        f"Saves {percent(expected['test_total_saving_pct'])}",
        f"{share(expected['test_risk'])} [",
        calibration["headline"],
        f"Accuracy {share(expected['test_full_accuracy'])} -> ",
    ):
        assert words in text
    risk, frontier = data.figures.risk, data.figures.frontier
    assert risk is not None
    assert lost_at_mark(risk) == certificate["losses"]
    assert risk.upper is not None
    assert risk.marked is not None
    assert risk.upper[risk.marked] == pytest.approx(certificate["upper"])
    assert risk.thresholds[risk.marked] == pytest.approx(calibration["threshold"])
    assert frontier is not None
    assert frontier.chosen is not None
    assert frontier.chosen_name == "exported point"
    assert frontier.chosen[1] == pytest.approx(100 - expected["fit_total_saving_pct"])


def test_no_difference_is_taken_from_a_rule_that_is_not_feasible(before: ReportData) -> None:
    (row,) = to_document(before.result)["matched_risk"]
    learned, scalar = row["learned"], row["scalar"]
    for sides, words in (
        ((True, True), "Combining the signals saves "),
        ((True, False), "Only the signals combined may stop anything"),
        ((False, True), "Only one signal may stop anything"),
        ((False, False), "Neither one signal nor all combined may stop anything"),
    ):
        found = row | {
            "learned": learned | {"feasible": sides[0]},
            "scalar": scalar | {"feasible": sides[1]},
        }
        note = risk_difference(found)
        assert words in note
        assert ("points" in note) == all(sides)


def test_a_refusal_is_said_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--families", "entropy,confidence")
    path = make_run(tmp_path / "run", 400)

    def lose(row: dict[str, Any], part: str) -> None:
        if part == "calibration":
            row["natural_correct"] = True
            for checkpoint in row["checkpoints"]:
                checkpoint["correct"] = False

    edit_records(path, lose)
    assert main(["assess", str(path), "--alpha", "0.15", "--no-report", *words]) == 0
    asked = ("--alpha", "0.03", "--looks", "1")
    assert main(["calibrate", *CERTIFY, str(path), *asked]) == 3
    capsys.readouterr()
    data = read_report(path)
    assert data.calibration is not None
    assert data.calibration.refusal is not None
    text = Page(render(data)).text
    assert "Not certified. Keep full thinking." in text
    assert "Asked to promise that at most 3% are lost" in text
    assert data.calibration.refusal.reason in text
    assert "Assessed at alpha = 0.15, calibrated at 0.03" in text
    # The rule that was tested.
    risk, n = data.figures.risk, data.calibration.tested[0].n
    assert risk is not None
    assert risk.observed is not None
    assert risk.upper is not None
    assert risk.marked is None
    losses = [round(n * float(share or 0)) for share in risk.observed]
    assert list(risk.upper) == [upper_limit(k, n, 0.05) for k in losses]


def test_without_alpha_the_page_is_of_the_promise_proposed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--families", "entropy,confidence")
    path = make_run(tmp_path / "run", 300)
    assert main(["assess", str(path), "--no-report", *words]) == 0
    text = Page(render(read_report(path))).text
    assert "What each promise would buy (no --alpha was given)" in text
    assert main(["calibrate", *CERTIFY, str(path)]) == 0
    capsys.readouterr()
    data = read_report(path)
    taken = data.result.matched_risk[0].alpha
    assert f"Assessed at alpha = {taken:g}, calibrated at 0.15" in Page(render(data)).text


def test_of_several_looks_the_calibration_s_own_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--families", "entropy,confidence")
    path = make_run(tmp_path / "run", 250)
    assert main(["assess", str(path), "--alpha", "0.15", "--no-report", *words]) == 0
    assert main(["calibrate", *CERTIFY, str(path), *words]) == 0
    kept = {name: (path / name).read_bytes() for name in ("calibration.json", "policy.joblib")}
    make_run(path, 500)
    assert main(["assess", str(path), "--alpha", "0.15", "--no-report", *words]) == 0
    assert main(["calibrate", *CERTIFY, str(path), "--fresh", *words]) == 0
    capsys.readouterr()
    sizes = set()
    for step in range(2):
        certificate = json.loads((path / "calibration.json").read_bytes())["certificate"]
        risk = read_report(path).figures.risk
        assert risk is not None
        assert lost_at_mark(risk) == certificate["losses"]
        sizes.add(risk.n)
        if step == 0:
            for name, data in kept.items():
                (path / name).write_bytes(data)
    assert len(sizes) == 2


def test_a_transferred_rule_is_shown_on_what_it_was_calibrated_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--families", "entropy,confidence")
    first, second = make_run(tmp_path / "old", 200), make_run(tmp_path / "new", 400)
    edit_records(second, lambda row, part: row.update(key=f"new-{row['key']}"))
    assert main(["calibrate", *CERTIFY, str(first), *words]) == 0
    assert main(["assess", str(second), "--alpha", "0.15", "--no-report", *words]) == 0
    policy = str(first / "policy.joblib")
    assert main(["calibrate", *CERTIFY, str(second), "--from", policy]) in (0, 3)
    capsys.readouterr()
    data = read_report(second)
    risk, calibration = data.figures.risk, data.calibration
    assert calibration is not None
    assert risk is not None
    assert calibration.certificate is not None
    assert risk.expected is None
    assert lost_at_mark(risk) == calibration.certificate.losses


def test_the_published_analysis_has_no_page(tmp_path: Path) -> None:
    source = open_source(write_archive(tmp_path / "raw.npz"), root=tmp_path / "runs")
    with pytest.raises(ProbeError, match="assessed by the paper's protocol, which has no page"):
        saved(assess_paper(source, alpha=0.2, delta=0.05))


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(
            Settings(
                families=("learned",), weights=Weights(1.0, 0.1, 4.0, "money per million tokens")
            ),
            id="learned only, money",
        ),
        pytest.param(
            Settings(families=("entropy", "confidence"), serving="vllm"), id="scalar only, overlap"
        ),
        pytest.param(Settings(alpha=0.001, families=QUICK), id="nothing to certify"),
        pytest.param(Settings(serving="black-box", alpha=0.2, families=QUICK), id="black-box"),
    ],
)
def test_every_kind_of_assessment_has_its_page(small_run: Path, settings: Settings) -> None:
    data = report_data(small_run, settings)
    shown = Page(render(data))
    pictures = {a["id"] for t, a in shown.tags if t == "article" and "id" in a}
    expected = {f"part-{name}" for name in PICTURES}
    if data.result.serving.operating_point is None:
        expected -= {"part-prices"}
    if settings.serving != "vllm":  # the others here read nothing from a cache, or nobody advises
        expected -= {"part-prices"}
    assert pictures == expected
    assert data.result.headline in shown.text


def test_simulated_probes_are_called_so(tmp_path: Path) -> None:
    source = open_source(SIMULATED_PROBES, root=tmp_path / "runs")
    assessment = assess(source, Settings(families=QUICK))
    data = saved(assessment)
    text = Page(render(data)).text
    assert "StopAdvisor report · simulated probes · 1000 questions" in text
    assert "Simulated probes have no texts" in text
    assert "published archive" not in text


@pytest.mark.parametrize("families", [Settings().families, ("run-stability",)], ids=["all", "one"])
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
    run: Path, spoilt: Path, html: str
) -> None:
    edit_records(spoilt, flip_calibration)
    assert main(["assess", str(spoilt), "--alpha", "0.15", "--no-report", "--quiet"]) == 0
    flipped = render(read_report(spoilt))
    assert flipped.replace(str(spoilt), str(run)) == html


@pytest.mark.parametrize("page_of", ["before", "certified"])
def test_lost_questions_with_their_thinking(
    page_of: str, run: Path, request: pytest.FixtureRequest
) -> None:
    data: ReportData = request.getfixturevalue(page_of)
    lost = data.figures.lost
    assert lost is not None
    assert len(lost.shown) == min(12, lost.n) > 2
    source = open_source(run)
    assert {example.id for example in lost.shown} <= set(source.part("fit").ids)
    lines = (run / "thinking.jsonl").read_text(encoding="utf-8").splitlines()
    thought = {row["id"]: row["thinking"] for row in map(json.loads, lines)}
    shown = Page(render(data)).text
    assert f"{len(lost.shown)} of {lost.n}, in the order of the run" in shown
    for example in lost.shown:
        assert example.full_correct
        assert example.question is not None
        assert example.question.startswith("What is ")
        stop = example.steps[example.stop]
        assert not stop.correct
        question = lost_question(example, data.thinking)
        text = "".join(piece.head for piece in question.pieces)
        assert text == thought[example.id]
        marks = [piece.probe for piece in question.pieces if piece.stops]
        assert any(mark.startswith(f"{stop.budget} tokens, ") for mark in marks)
        assert f"stopped at {stop.budget} of {example.trace_tokens} thinking tokens" in shown
        for other in example.others:
            at = other.position
            ends = "thinks to the end" if at is None else f"stops at {at}"
            verdict = "right" if other.correct else "wrong"
            assert f"{rule_name(other.family)} {ends} ({verdict})" in shown


def test_a_run_without_thinking_shows_its_probes(spoilt: Path) -> None:
    (spoilt / "thinking.jsonl").unlink()
    shown = Page(render(read_report(spoilt)))
    assert "This run keeps no thinking: probes alone are shown." in shown.text
    assert len(shown.table("lost-1")) >= 2


def test_a_damaged_line_of_thinking_is_an_error(spoilt: Path) -> None:
    file = spoilt / "thinking.jsonl"
    file.write_bytes(b'{"id": "q1"}\n' + file.read_bytes())
    with pytest.raises(ProbeError, match=r"thinking\.jsonl:1: not a line of thinking"):
        read_report(spoilt)


def test_hostile_thinking_is_escaped_and_cut(tmp_path: Path) -> None:
    text = render(report_data(hostile_run(tmp_path / "run"), Settings(families=QUICK)))
    assert len(re.findall("</script>", text)) == 1, "the page's own"
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e\u2028]", text)
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


def test_no_colour_of_a_picture_escapes_the_theme(html: str) -> None:
    for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        assert not re.search(r"#[0-9a-f]{6}\b", svg)
        assert "<text" in svg  # text is text, not outlines


def test_texts_of_questions_stay_text(tmp_path: Path) -> None:
    data = report_data(hostile_run(tmp_path / "run"), Settings(families=QUICK))
    text = render(replace(data, remarks=(HOSTILE,), result=replace(data.result, run=HOSTILE)))
    assert "alert(1)</script>" not in text
    assert "<img" not in text
    shown = Page(text)
    asked = {example.question for example in lost_of(data)}
    assert len(asked) == len(lost_of(data)) >= 2
    assert all(question in shown.texts for question in asked)


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


def test_cells_are_words() -> None:
    from stopadvisor.studies.tables import Column

    cases: list[tuple[Any, str, str]] = [
        (None, "", "–"), (True, "", "yes"), (0.123456, "share", "12.3%"), (12.34, "%", "12.3%"),
        (1.0, "chance", "> 99.9%"),
        (66.328, "tokens", "66.3"), (7, "tokens", "7"), (0.523149, "", "0.5231"), ("x", "", "x"),
    ]  # fmt: skip
    for value, unit, words in cases:
        assert page._cell(value, Column("c", "c", unit)) == words
