"""The README's picture of a report: the first screen on a desk, light, and on a phone, dark.

Run from the repository root: ``python -m tests.browser.picture RUN samples/pictures/report.png``,
where ``stopadvisor report`` has written RUN/report.html.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.browser.conftest import executable

DESK, PHONE = (1280, 1240), (390, 844)


def main(run: Path, target: Path) -> None:
    file = executable()
    assert file is not None, "no Chromium here"
    page = (run / "report.html").resolve().as_uri()
    shots = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=file, args=["--no-sandbox"])
        for (width, height), scheme in ((DESK, "light"), (PHONE, "dark")):
            tab = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme="dark" if scheme == "dark" else "light",
            )
            tab.goto(page)
            shots.append(Image.open(io.BytesIO(tab.screenshot())))
        browser.close()
    desk, phone = shots
    gap = 24
    whole = Image.new("RGB", (DESK[0] + gap + PHONE[0], DESK[1]), "white")
    whole.paste(desk, (0, 0))
    whole.paste(phone, (DESK[0] + gap, (DESK[1] - PHONE[1]) // 2))
    target.parent.mkdir(parents=True, exist_ok=True)
    # A palette halves the file; the means bring its colours back to those of the page.
    whole.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=2).save(target, optimize=True)
    print(f"{target}: {target.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
