"""Every figure of the studies that one run suffices for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stopadvisor.cli.main import main
from stopadvisor.studies.registry import STUDIES
from tests.goldens import Goldens
from tests.material import archive_arrays, make_run, write_archive

GOLDEN = Path(__file__).parent.parent / "testdata" / "studies"
ELSEWHERE = {"classifiers", "rivals", "alpha-grid", "split-sensitivity"}
"""The first two take long; the others are held against published figures."""
AT_EQUAL_RISK = {"failure-cases", "map", "proxies"}
"""At their default promise no rule is feasible in an archive this small, and all never stop."""
ONE_RUN = [n for n, s in STUDIES.items() if s.needs == "one run" and n not in ELSEWHERE]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("studied")
    make_run(root / "sums", 150)
    write_archive(root / "raw.npz", **archive_arrays(120))
    return root


@pytest.mark.parametrize("source", ["raw.npz", "sums"])
@pytest.mark.parametrize("name", ONE_RUN)
def test_no_figure_moves(
    name: str,
    source: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    goldens: Goldens,
) -> None:
    monkeypatch.chdir(folder)
    promise = ("--alpha", "0.4") if name in AT_EQUAL_RISK else ()
    assert main(["study", name, source, *promise, "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    goldens.check_figures(GOLDEN / f"{name}-{Path(source).stem}.json", found)
