"""Sources of probes: runs, archives, and their split, which is never drawn again."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.ground.errors import OutputError, ProbeError
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.sources import (
    ARCHIVE,
    ASSESSMENT,
    newest_source,
    open_source,
    read_assessment,
    read_calibration,
)
from tests.material import archive_arrays, make_run, write_archive
from tests.populations import regraded


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of archives go under `runs/` here."""
    monkeypatch.chdir(tmp_path)


def archive(folder: Path, seed: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return write_archive(folder / "raw.npz", **archive_arrays(40, seed=seed))


def run_directory(path: Path) -> RunDirectory:
    return RunDirectory.load(make_run(path, 30))


# --- Runs -----------------------------------------------------------------------------------------


def test_second_traces_are_left_out_where_fit_questions_alone_have_them(tmp_path: Path) -> None:
    source = open_source(make_run(tmp_path / "run", 30, gold=False, repeated=5))
    assert source.table.samples.tolist().count(1) == 5
    once = source.without_repeats()
    assert once.counts() == source.counts()
    assert once.table.samples.tolist() == [0] * 30
    in_calibration = replace(source, parts=np.ones_like(source.parts))
    assert in_calibration.without_repeats() is in_calibration


def test_a_question_has_the_lines_of_its_first_two_traces(tmp_path: Path) -> None:
    run = RunDirectory.load(make_run(tmp_path / "run", 6, samples=3))
    source = open_source(run.path)
    traces = list(zip(source.table.keys, source.table.samples, run.line_digests(), strict=True))
    assert len(traces) == 18
    assert source.lines == {
        key: {digest for name, sample, digest in traces if name == key and sample < 2}
        for key in source.table.keys
    }


# --- Archives -------------------------------------------------------------------------------------


def test_an_archive_is_opened_and_its_split_noted(tmp_path: Path) -> None:
    path = archive(tmp_path / "data")
    found = open_source(path)
    assert found.is_archive
    assert (found.model, found.engine) == (None, None)
    assert found.folder.parent == Path("runs")
    assert json.loads((found.folder / ARCHIVE).read_text(encoding="utf-8")) == {
        "schema": 1,
        "path": str(path),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "split": {"seed": 0, "fractions": [0.4, 0.6, 0.0]},
    }
    assert sum(found.counts().values()) == 40


def test_the_split_is_a_pure_function_and_never_drawn_again(tmp_path: Path) -> None:
    path = archive(tmp_path / "data")
    first = open_source(path, seed=3, fractions=(0.5, 0.5, 0.0))
    again = open_source(path)
    by_folder = open_source(first.folder)
    for other in (again, by_folder):
        assert np.array_equal(first.parts, other.parts)
        assert (other.seed, other.fractions) == (3, (0.5, 0.5, 0.0))
    for change in ({"seed": 4}, {"fractions": (0.4, 0.4, 0.2)}):
        with pytest.raises(ProbeError, match="never drawn again"):
            open_source(path, **change)


def test_a_changed_archive_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "data")
    found = open_source(path)
    archive(tmp_path / "data", seed=1)
    with pytest.raises(ProbeError, match="gone or has changed"):
        open_source(found.folder)
    other = open_source(path)
    assert other.folder != found.folder
    with pytest.raises(ProbeError, match="gone or has changed"):
        open_source(path, folder=found.folder)


def test_the_fingerprint_covers_the_labels_of_fit_and_calibration_alone(tmp_path: Path) -> None:
    found = open_source(archive(tmp_path / "data"))

    def flipped(part: int) -> Any:
        rows = (found.parts == part)[:, None]
        table = found.table.unseal()
        correct = np.where(rows, ~table.correct, table.correct)
        return replace(found, table=regraded(table, correct=correct).sealed())

    assert flipped(0).fingerprint() != found.fingerprint()
    assert flipped(1).fingerprint() != found.fingerprint()
    assert flipped(2).fingerprint() == found.fingerprint()
    again = open_source(found.folder)
    assert again.fingerprint() == found.fingerprint()


def test_answers_are_in_the_fingerprint_where_a_loss_compares_them(tmp_path: Path) -> None:
    found = open_source(archive(tmp_path / "data"))
    table = found.table.unseal()
    codes = np.arange(table.n_questions)
    other = replace(found, table=regraded(table, natural_code=codes).sealed())
    assert other.fingerprint() == found.fingerprint()  # grades alone decide, as ever
    assert other.fingerprint(answers=True) != found.fingerprint(answers=True)
    assert found.fingerprint(answers=True) == found.fingerprint()  # archives hold none


def test_the_labels_have_a_hash_of_their_own(tmp_path: Path) -> None:
    found = open_source(archive(tmp_path / "data"))
    table = found.table.unseal()
    for part, changes in ((0, True), (1, True), (2, False)):
        correct = np.where((found.parts == part)[:, None], ~table.correct, table.correct)
        other = replace(found, table=regraded(table, correct=correct).sealed())
        assert (other.labels_fingerprint() != found.labels_fingerprint()) is changes
    # The probes may change where their grades do not.
    other = replace(found, table=replace(table, mean_logprob=table.mean_logprob - 1).sealed())
    assert other.labels_fingerprint() == found.labels_fingerprint()
    assert other.fingerprint() != found.fingerprint()


# --- Runs -----------------------------------------------------------------------------------------


def test_a_run_is_opened_with_the_split_of_its_manifest(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "runs" / "one")
    found = open_source(run.path)
    assert not found.is_archive
    assert found.engine == run.manifest["engine"]["engine"]
    assert found.model == run.manifest["engine"]["model"]
    assert np.array_equal(found.parts, run.parts(found.table.groups))
    assert found.table.reference == "natural"


def test_the_newest_assessed_run_is_taken() -> None:
    root = Path("runs")
    with pytest.raises(ProbeError, match="no assessed run under"):
        newest_source()
    old, new, never = (run_directory(root / name) for name in ("old", "new", "never"))
    for k, run in enumerate((old, new)):
        (run.path / ASSESSMENT).write_text("{}", encoding="utf-8")
        os.utime(run.path / ASSESSMENT, (1000 + k, 1000 + k))
    assert never.path.exists()
    assert newest_source().folder == new.path


def test_results_are_read_where_they_were_written(tmp_path: Path) -> None:
    assert read_assessment(tmp_path) is read_calibration(tmp_path) is None
    for name in ("assessment", "calibration"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"of": name}), encoding="utf-8")
    assert read_assessment(tmp_path) == {"of": "assessment"}
    assert read_calibration(tmp_path) == {"of": "calibration"}


# --- What is refused ------------------------------------------------------------------------------


def test_anything_but_a_run_or_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="no such file or directory"):
        open_source(tmp_path / "none")
    with pytest.raises(ProbeError, match="not a run directory"):
        open_source(tmp_path)
    (tmp_path / "x.npz").write_text("no archive", encoding="utf-8")
    with pytest.raises(ProbeError, match="not a readable"):
        open_source(tmp_path / "x.npz")
    assert not (tmp_path / "runs").exists()  # nothing was noted of it


@pytest.mark.parametrize("content", ["{", "[]", '{"path": 3}', '{"path": "x"}'])
def test_a_damaged_note_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / ARCHIVE).write_text(content, encoding="utf-8")
    with pytest.raises(ProbeError, match="not readable as the note of an archive"):
        open_source(tmp_path)


def test_a_results_folder_that_cannot_be_made_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file", encoding="utf-8")
    with pytest.raises(OutputError, match="cannot make"):
        open_source(archive(tmp_path / "data"))


@pytest.mark.parametrize(
    ("written", "served"),
    [
        (None, "scripted"),
        ('[assess]\nmodel = "models/scripted"\n', "models/scripted"),
        ('[assess]\nmodel = "models/another"\n', "scripted"),
        ("[assess]\nmodel = 3\n", "scripted"),
        ("[assess", "scripted"),
        ("assess = 5", "scripted"),
        ("a = " + "[" * 3000, "scripted"),
    ],
    ids=["none", "its folder", "another", "a number", "broken", "no table", "nested"],
)
def test_a_server_loads_the_folder_that_was_assessed(
    tmp_path: Path, written: str | None, served: str
) -> None:
    run = run_directory(tmp_path / "run")
    if written is not None:
        (run.path / "stopadvisor.toml").write_text(written, encoding="utf-8")
    engine = run.manifest["engine"] | {"model": "scripted"}
    source = replace(open_source(run.path), manifest={**run.manifest, "engine": engine})
    assert source.model_to_serve == served
