"""What no study may do: show an outcome of a calibration question before anybody has looked."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stopadvisor.ground.constants import CUES
from stopadvisor.runs.sources import open_source
from stopadvisor.studies.registry import ALONE, STUDIES
from stopadvisor.studies.tables import StudyOptions
from tests.material import edit_records, flip_calibration
from tests.studies.material import probe, study

pytestmark = pytest.mark.slow

OPTIONS = StudyOptions(resamples=100, alpha=0.2)
RUNS: dict[str, tuple[str, ...]] = dict.fromkeys(STUDIES.keys() - {ALONE, "classifiers"}, ("one",))
"""By study; those left out take minutes, and are given what the others are given."""
RUNS |= {"transfer": ("one", "two"), "cues": ("one", "two"), "temperature": ("one", "warm")}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """A run as probed and the same run with its calibration outcomes turned around, twice."""
    root = tmp_path_factory.mktemp("closed")
    made = {}
    for name, cue in (("one", CUES["terse"]), ("two", CUES["no-reasoning"])):
        path = probe(root / "probed" / name, 150, cue=cue)
        flipped = root / "flipped" / name
        shutil.copytree(path, flipped)
        shutil.copy(root / "probed" / f"{name}-sums.jsonl", root / "flipped")
        edit_records(flipped, flip_calibration)
        made[name] = (path, flipped)
    path = probe(root / "probed" / "warm", 150, temperature=0.6)
    flipped = root / "flipped" / "warm"
    shutil.copytree(path, flipped)
    edit_records(flipped, flip_calibration)
    return {**made, "warm": (path, flipped)}


@pytest.mark.parametrize("name", sorted(RUNS))
def test_calibration_outcomes_change_nothing_before_a_look(
    name: str, pairs: dict[str, tuple[Path, Path]]
) -> None:
    probed, flipped = (
        study(name)([open_source(pairs[run][k]) for run in RUNS[name]], OPTIONS) for k in (0, 1)
    )
    assert any("fit questions alone" in remark for remark in probed.remarks)
    assert probed == flipped
