"""Sources that the tests of studies share: opened or probed once a session, never changed."""

from __future__ import annotations

from functools import cache

import pytest

from stopadvisor.runs.sources import Source, open_source
from tests.material import ARCHIVES, make_run
from tests.studies.material import Archive, Sums


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """The paper's archives, by name."""
    root = tmp_path_factory.mktemp("archives")

    @cache
    def opened(name: str) -> Source:
        return open_source(ARCHIVES / f"{name}.npz", folder=root / name)

    return opened


@pytest.fixture(scope="session")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Sums:
    """Runs of sums, by their number of questions; each is called `run`."""

    @cache
    def probed(n_questions: int) -> Source:
        folder = tmp_path_factory.mktemp("sums") / "run"
        return open_source(make_run(folder, n_questions))

    return probed
