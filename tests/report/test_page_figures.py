"""Every word of a report's page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from stopadvisor import __version__
from stopadvisor.cli.main import main
from tests.cli.test_ladder import recorded
from tests.goldens import Goldens
from tests.material import CERTIFY, make_run, write_archive

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parent.parent / "testdata" / "pages"
LIGHT = ("--families", "confidence,entropy")
CASES = {
    "sums": ("sums", "--alpha", "0.15", "--families", "learned,confidence"),
    "archive": ("raw.npz", "--alpha", "0.2", *LIGHT),
    "bare": ("bare", "--alpha", "0.2", *LIGHT),
    "ladder": ("ladder", "--alpha", "0.1"),
}
_OF_THE_DAY = r"\b[0-9a-f]{8,64}\b|\d{4}-\d\d-\d\d(T[\d:+]+)?|/\S+"


class Read(HTMLParser):
    """Words outside of pictures and the style."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._inside: list[str] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("svg", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._inside:
            self._inside.remove(tag)

    def handle_data(self, data: str) -> None:
        text = re.sub(_OF_THE_DAY, "…", " ".join(data.split())).replace(__version__, "1.2.3")
        if text and not self._inside:
            self.words.append(text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pages")
    make_run(root / "sums", 300)
    make_run(root / "bare", 300, gold=False, repeated=40)
    write_archive(root / "raw.npz")
    recorded(root / "rungs", 0).rename(root / "ladder")
    return root


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures with their words alone, since drawing takes most of a page's time."""
    from stopadvisor.report.html import charts  # matplotlib

    def picture(name: str, title: str, sentence: str, draw: object) -> charts.Picture:
        return charts.Picture(name, title, sentence, svg="")

    monkeypatch.setattr(charts, "_picture", picture)


@pytest.mark.usefixtures("unseen")
@pytest.mark.parametrize("name", CASES)
def test_no_word_moves(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, goldens: Goldens
) -> None:
    monkeypatch.chdir(folder)
    target, *words = CASES[name]
    out = ["--out", "archive"] if target == "raw.npz" else []
    run = folder / ("archive" if out else target)
    found = {}
    assert main(["assess", target, *words, *out, "--no-report", "--quiet"]) == 0
    for when in ("assessed", "calibrated"):
        if when == "calibrated":
            assert main(["calibrate", str(run), *CERTIFY[2:], *words[:2], "--quiet"]) in (0, 3)
        assert main(["report", str(run), "--quiet"]) == 0
        found[when] = Read((run / "report.html").read_text(encoding="utf-8")).words
    goldens.check_figures(GOLDEN / f"{name}.json", found)
