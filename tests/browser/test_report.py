"""The report in a real browser: silent console, no request, accessible, for any width."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stopadvisor.cli.main import main
from stopadvisor.workload.questions import read_workload
from tests.material import CERTIFY, write_archive
from tests.pages import HOSTILE, hostile_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.slow]

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports before and after calibration, and of an archive."""
    root = tmp_path_factory.mktemp("browser")
    run = hostile_run(root / "run")
    before = root / "before.html"
    assert main(["assess", str(run), "--no-report"]) == 0
    assert main(["report", str(run), "--out", str(before)]) == 0
    assert main(["calibrate", *CERTIFY, str(run)]) in (0, 3)
    assert main(["report", str(run)]) == 0
    archive = str(write_archive(root / "raw.npz"))
    words = ["--out", str(root / "archive")]
    assert main(["assess", archive, "--no-report", *words]) == 0
    assert main(["report", str(root / "archive")]) == 0
    return {
        "before": before,
        "after": run / "report.html",
        "archive": root / "archive" / "report.html",
    }


@contextmanager
def opened(browser: Browser, file: Path, **options: Any) -> Iterator[tuple[Page, list[str]]]:
    """A page, and everything that it said or asked for."""
    noise: list[str] = []
    options.setdefault("viewport", DESKTOP)
    page = browser.new_page(**options)
    page.on("console", lambda message: noise.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: noise.append(f"error: {error}"))
    page.on("dialog", lambda dialog: noise.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: noise.append(f"request: {request.url}"))
    page.goto(file.as_uri())
    assert noise.pop(0) == f"request: {file.as_uri()}"
    yield page, noise
    page.close()


@pytest.mark.parametrize("kind", ["before", "after", "archive"])
@pytest.mark.parametrize(
    ("viewport", "scheme"),
    [pytest.param(DESKTOP, "light", id="desktop"), pytest.param(PHONE, "dark", id="phone")],
)
def test_opens_in_silence_and_fits(
    browser: Browser, reports: dict[str, Path], kind: str, viewport: Any, scheme: str
) -> None:
    with opened(browser, reports[kind], viewport=viewport, color_scheme=scheme) as (page, noise):
        page.locator("summary").evaluate_all("all => all.forEach(one => one.click())")
        assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
        surface = page.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness = sum(int(v) for v in surface[4:-1].split(",")) / 3
        assert (brightness < 64) == (scheme == "dark")
        for picture in page.locator("figure svg").all():
            box = picture.bounding_box()
            assert box is not None
            assert box["width"] > 250
        if kind != "archive":
            lost_questions_are_text(page, reports["before"].parent / "run-hostile.jsonl")
        assert page.locator("script").count() == 0
        assert page.locator("img[src]").count() == 0
        assert noise == []


def lost_questions_are_text(page: Page, workload: Path) -> None:
    """Check that a script in a question stays text."""
    questions = read_workload(workload).questions
    asked = {question.id: question.messages[0]["content"] for question in questions}
    assert all(question.endswith(HOSTILE) for question in asked.values())
    lost = page.locator("#lost > details")
    assert lost.count() >= 1
    for question in lost.all():
        name = str(question.locator("summary").first.text_content()).partition(":")[0]
        assert question.locator("blockquote").all_text_contents() == [asked[name]]


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [
        ("before", "light"),
        ("archive", "light"),
        ("after", "light"),
        ("after", "dark"),  # of colours the scheme decides, and this page shows all of them
    ],
)
def test_axe_finds_nothing_serious(
    browser: Browser, reports: dict[str, Path], axe: str, kind: str, scheme: str
) -> None:
    # The page's own policy would refuse a script from outside, as it should.
    options = {"color_scheme": scheme, "bypass_csp": True}
    with opened(browser, reports[kind], **options) as (page, _):
        page.locator("summary").evaluate_all("all => all.forEach(one => one.click())")
        page.evaluate(axe)
        # Fetching all that it lists as passed would take longer than finding it.
        found = page.evaluate(
            "axe.run(document)"
            ".then(found => ({violations: found.violations, passes: found.passes.length}))"
        )
        grave = [
            (v["id"], v["help"], [n["html"][:120] for n in v["nodes"]][:3])
            for v in found["violations"]
            if v["impact"] in ("serious", "critical")
        ]
        assert grave == []
        assert found["passes"] > 20


@pytest.mark.parametrize("kind", ["before", "after"])
def test_lost_questions_open_by_keyboard_and_stay_text(
    browser: Browser, reports: dict[str, Path], kind: str
) -> None:
    with opened(browser, reports[kind], java_script_enabled=False) as (page, noise):
        lost = page.locator("#lost > details")
        assert lost.count() >= 1
        first = lost.first
        region = first.get_by_role("region", name="Thinking of")
        assert not region.is_visible()
        first.locator("summary").focus()
        page.keyboard.press("Enter")
        assert region.is_visible()
        thought = str(region.text_content())
        assert thought.startswith(HOSTILE)
        assert "\\u202etxet\\x1b]0;title" in thought
        assert "characters left out" in thought
        assert region.locator("mark.probe").first.is_visible()
        assert "stops: " in str(region.locator("mark.probe").first.text_content())
        assert page.locator("img[src]").count() == 0
        assert noise == []


def test_prints_in_black_on_white_with_its_tables(
    browser: Browser, reports: dict[str, Path], tmp_path: Path
) -> None:
    with opened(browser, reports["after"], color_scheme="dark") as (page, noise):
        page.emulate_media(media="print")
        assert page.locator("#part-frontier svg").is_visible(), "what a screen folds away"
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgb(255, 255, 255)"
        )
        assert len(page.pdf(format="A4")) > 50_000
        assert noise == []
