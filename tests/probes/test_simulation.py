"""The simulator: it draws the kinds it was asked for, and whatever it writes says what it is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from stopadvisor.answers.grading import Grader
from stopadvisor.collection.labels import regrade
from stopadvisor.ground.constants import PAPER_BUDGETS
from stopadvisor.ground.errors import OutputError, WorkloadError
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.probes.simulation import KINDS, PRESETS, Population, parse_profile
from stopadvisor.probes.table import Reference
from stopadvisor.probes.trajectories import TYPES, classify, trajectory
from stopadvisor.runs.archives import SIMULATED, read_archive
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.simulated import write_archive, write_run
from stopadvisor.runs.sources import open_source

RECORDED = Path(__file__).parents[2] / "samples" / "recorded"
REFERENCES: tuple[Reference, ...] = ("natural", "last-checkpoint")
COUNTED_AS = {"trap": "beneficial", "relapse": "early_solved"}


def counts(table: OpenQuestions) -> dict[str, int]:
    found = np.bincount(classify(trajectory(table)), minlength=len(TYPES))
    return dict(zip(TYPES, found.tolist(), strict=True))


# --- The law --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_checkpoints", [4, 10])
@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_law_of_one_kind_draws_that_kind_alone(
    kind: str, reference: Reference, n_checkpoints: int
) -> None:
    law = Population({kind: 1.0}, budgets=PAPER_BUDGETS[:n_checkpoints])
    table = law.draw(2000, np.random.default_rng(0), reference=reference)
    assert counts(table)[COUNTED_AS.get(kind, kind)] == 2000


@pytest.mark.parametrize("name", PRESETS)
def test_shares_are_those_of_the_law_up_to_chance(name: str) -> None:
    n = 40_000
    found = counts(PRESETS[name].draw(n, np.random.default_rng(1)))
    for kind, share in PRESETS[name].shares.items():
        spread = (share * (1 - share) / n) ** 0.5
        assert abs(found[kind] / n - share) < 4 * spread


def test_a_stronger_signal_ranks_right_answers_better() -> None:
    found = []
    for signal in (0.0, 1.0, 1.6, 2.2, 4.0):
        law = replace(PRESETS["free-form"], signal=signal)
        table = law.draw(5000, np.random.default_rng(2))
        live = ~table.ended
        found.append(roc_auc_score(table.correct[live], table.mean_logprob[live]))
    assert found == sorted(found)
    assert found[0] < 0.65
    assert found[2] == pytest.approx(0.85, abs=0.02)


def test_draws_follow_from_the_seed_and_are_independent_of_each_other() -> None:
    law = PRESETS["free-form"]
    once, again, other = (law.draw(300, np.random.default_rng(seed)) for seed in (3, 3, 4))
    np.testing.assert_array_equal(once.mean_entropy, again.mean_entropy)
    np.testing.assert_array_equal(once.answer_codes, again.answer_codes)
    assert not np.array_equal(once.correct, other.correct)


def test_what_is_drawn_is_what_a_probe_could_show() -> None:
    table = PRESETS["unsolved"].draw(3000, np.random.default_rng(5))
    assert (table.mean_logprob < 0).all()
    assert (table.mean_entropy > 0).all()
    np.testing.assert_array_equal(table.answer_codes == 0, table.correct)
    assert (np.diff(table.markers, axis=1) >= 0).all()
    assert not table.markers[:, 0].any()  # budget 0: nothing is thought yet
    behind = np.where(table.ended, table.answer_codes, -1)
    assert all(len(set(row[row >= 0])) <= 1 for row in behind)  # one and the same final answer


def test_a_profile_in_words() -> None:
    assert parse_profile("free-form") is PRESETS["free-form"]
    law = parse_profile("early=0.5, unsolved=0.25,trap=0.25")
    assert law.shares == {"early_solved": 0.5, "unsolved": 0.25, "trap": 0.25}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("freeform", "one of free-form, early-solved, unsolved"),
        ("", "got ''"),
        ("early=0.5", "add up to 1, got early_solved=0.5"),
        ("early=1.5,unsolved=-0.5", "from 0 to 1"),
        ("early=0.5,late=0.5", "got 'late'"),
        ("early=half,unsolved=0.5", "KIND=SHARE, got 'early=half'"),
        ("early=0.5,early_solved=0.5", "'early_solved' twice"),
        ("early=nan,unsolved=1", "from 0 to 1"),
    ],
)
def test_a_bad_profile_is_refused(text: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        parse_profile(text)


def test_an_oscillation_takes_four_checkpoints() -> None:
    with pytest.raises(WorkloadError, match="at least 4 checkpoints, got 3"):
        Population({"oscillating": 1.0}, budgets=PAPER_BUDGETS[:3])


# --- Files ----------------------------------------------------------------------------------------


def test_an_archive_holds_what_was_drawn(tmp_path: Path) -> None:
    law, path = PRESETS["free-form"], tmp_path / "new" / "raw.npz"
    write_archive(path, law, 200, seed=7)
    drawn = law.draw(200, np.random.default_rng(7), reference="last-checkpoint")
    table = read_archive(path)
    np.testing.assert_array_equal(table.correct, drawn.correct)
    np.testing.assert_array_equal(table.trace_tokens, drawn.trace_tokens)
    np.testing.assert_allclose(table.mean_logprob, drawn.mean_logprob, rtol=1e-6)
    np.testing.assert_allclose(table.mean_entropy, drawn.mean_entropy, rtol=1e-6)
    np.testing.assert_allclose(table.markers, drawn.markers, rtol=1e-5)
    for row, codes in zip(table.answer_codes, drawn.answer_codes, strict=True):
        np.testing.assert_array_equal(row[:, None] == row, codes[:, None] == codes)
    assert open_source(path, folder=tmp_path / "results").engine == SIMULATED


def test_a_run_holds_what_was_drawn(tmp_path: Path) -> None:
    law, path = PRESETS["unsolved"], tmp_path / "deep" / "run"
    write_run(path, law, 200, seed=7)
    drawn = law.draw(200, np.random.default_rng(7))
    source = open_source(path)
    assert source.engine == SIMULATED
    assert source.model is None
    table = source.table.unseal()
    for name in ("correct", "natural_correct", "mean_logprob", "mean_entropy", "trace_tokens"):
        np.testing.assert_array_equal(getattr(table, name), getattr(drawn, name))
    for name in ("prompt_tokens", "probe_tokens", "markers", "natural_tokens"):
        np.testing.assert_array_equal(getattr(table, name), getattr(drawn, name))
    assert counts(table) == counts(drawn)
    for row, codes in zip(table.answer_codes, drawn.answer_codes, strict=True):
        np.testing.assert_array_equal(row[:, None] == row, codes[:, None] == codes)


def test_the_texts_of_a_run_grade_to_its_labels(tmp_path: Path) -> None:
    write_run(tmp_path / "run", PRESETS["unsolved"], 60, seed=0)
    run = RunDirectory.load(tmp_path / "run")
    before = run.probes_path.read_bytes()
    with Grader() as grader:
        assert regrade(run, grader) == 0
    assert run.probes_path.read_bytes() == before


def test_runs_of_other_seeds_share_no_question(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / str(seed), PRESETS["free-form"], 50, seed=seed)
    first, second = (open_source(tmp_path / str(seed)).table.keys for seed in (0, 1))
    assert len(set(first) | set(second)) == 100


@pytest.mark.parametrize("write", [write_archive, write_run])
def test_nothing_is_overwritten(tmp_path: Path, write: object) -> None:
    assert callable(write)
    (tmp_path / "there").write_text("mine", encoding="utf-8")
    with pytest.raises(OutputError, match="exists already"):
        write(tmp_path / "there", PRESETS["free-form"], 10, seed=0)
    with pytest.raises(OutputError, match="cannot make"):
        write(tmp_path / "there" / "x" / "y", PRESETS["free-form"], 10, seed=0)
    assert (tmp_path / "there").read_text(encoding="utf-8") == "mine"


# --- The files that ship --------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_recorded_samples_are_drawn_again_from_their_seed(name: str, tmp_path: Path) -> None:
    write_archive(tmp_path / "again.npz", PRESETS[name], 1000, seed=0)
    with np.load(RECORDED / f"{name}.npz") as old, np.load(tmp_path / "again.npz") as new:
        assert set(old.files) == set(new.files)
        for array in set(old.files) - {SIMULATED}:
            if old[array].dtype.kind == "f":
                np.testing.assert_allclose(old[array], new[array], rtol=1e-5, atol=1e-12)
            else:
                np.testing.assert_array_equal(old[array], new[array])
        recipe = json.loads(str(old[SIMULATED]))
        assert recipe == json.loads(str(new[SIMULATED]))
    assert recipe["law"]["shares"] == PRESETS[name].shares


def test_recorded_samples_are_small() -> None:
    assert sum(file.stat().st_size for file in RECORDED.iterdir()) < 1_000_000
