"""A headless Chromium of the system, driven by playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.missing import skip_without

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM_VARIABLE = "STOPADVISOR_CHROMIUM"
AXE_VARIABLE = "STOPADVISOR_AXE"
"""Path of an ``axe.min.js``, where it is not in the cache."""


def executable() -> str | None:
    """Path of a Chromium on this machine."""
    return os.environ.get(CHROMIUM_VARIABLE) or next(
        filter(None, map(shutil.which, BROWSERS)), None
    )


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """The browser; tests that ask for it are skipped where there is none.

    Not for the whole session: the driver keeps an event loop running in this thread, and tests of
    asynchronous code start their own.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (extra dev)")
    path = executable()
    if path is None:
        skip_without("Chromium")
    with playwright.sync_playwright() as driver:
        # A container's root has no sandbox; the page is our own file.
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """Source of axe-core."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    named = os.environ.get(AXE_VARIABLE)
    file = Path(named) if named else cache / "stopadvisor/axe/node_modules/axe-core/axe.min.js"
    if not file.is_file():
        skip_without("axe-core")
    return file.read_text(encoding="utf-8")
