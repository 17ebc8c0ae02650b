"""Several traces per question: one part, one unit everywhere, two of them in the certificate."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.assessment.choice import Settings
from stopadvisor.assessment.fit_assessment import assess
from stopadvisor.assessment.sequences import FitData
from stopadvisor.certification.looks import open_calibration
from stopadvisor.cli.main import main
from stopadvisor.paper.analysis import assess_paper
from stopadvisor.policy.frozen import load_policy
from stopadvisor.probes.asking import ProbePlan
from stopadvisor.probes.grouping import calibration_rows, group_numbers
from stopadvisor.rules.costs import Costing
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.look_log import read_log
from stopadvisor.runs.sources import Source, open_source
from tests.material import CERTIFY
from tests.scripted import ScriptedEngine, write_sums

N = 240
WORDS = ["--budgets", "0,8,16,32,64", "--max-think", "256", "--quiet", "--no-preflight"]
FAST = ["--families", "confidence"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workload with its runs `one` and `three`, named for the samples they hold."""
    made = tmp_path_factory.mktemp("samples")
    write_sums(made / "sums.jsonl", N)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "stopadvisor.engines.engine_settings.start_engine", lambda options: ScriptedEngine()
        )
        for name, samples in (("one", 1), ("three", 3)):
            words = ["--out", str(made / name), "--temperature", "0.6", "--samples", str(samples)]
            assert main(["probe", str(made / "sums.jsonl"), *WORDS, *words]) == 0
    return made


@pytest.fixture
def one(folder: Path) -> Source:
    return open_source(folder / "one")


@pytest.fixture
def three(folder: Path) -> Source:
    return open_source(folder / "three")


def test_each_question_has_three_traces_in_one_part(one: Source, three: Source) -> None:
    table = three.table
    assert set(Counter(table.ids).values()) == {3}
    assert Counter(table.samples.tolist()) == {0: N, 1: N, 2: N}
    parts: dict[str, set[int]] = {}
    for name, part in zip(table.ids, three.parts.tolist(), strict=True):
        parts.setdefault(name, set()).add(part)
    assert {len(found) for found in parts.values()} == {1}
    assert three.counts() == one.counts()
    assert sum(three.counts().values()) == N
    per_question: dict[str, set[int]] = {}
    for name, length in zip(table.ids, table.trace_tokens.tolist(), strict=True):
        per_question.setdefault(name, set()).add(length)
    assert sum(len(lengths) == 3 for lengths in per_question.values()) > 0.8 * N  # drawn anew


def test_the_samples_share_fold_and_unit_of_resampling(three: Source) -> None:
    fit = three.part("fit")
    data = FitData.build(fit, Costing())
    groups = group_numbers(fit)
    n_questions = three.counts()["fit"]
    assert groups.max() + 1 == data.n_blocks == n_questions
    for units in (data.folds, data.blocks):
        for group in range(n_questions):
            assert len(set(units[groups == group].tolist())) == 1
    np.testing.assert_array_equal(np.bincount(data.blocks), 3)


def test_one_trace_of_a_question_is_independent_of_the_others(one: Source, three: Source) -> None:
    alone, drawn = (s.part("calibration").unseal() for s in (one, three))
    entered = drawn.take(calibration_rows(drawn))
    assert entered.ids == alone.ids
    assert not entered.samples.any()
    np.testing.assert_array_equal(entered.correct, alone.correct)
    np.testing.assert_array_equal(entered.mean_logprob, alone.mean_logprob)


def test_figures_with_exact_intervals_count_questions(
    one: Source, three: Source, tmp_path: Path
) -> None:
    settings = Settings(alpha=0.3, families=("confidence",))
    several, single = assess(three, settings), assess(one, settings)
    assert several.profile == single.profile
    assert (several.n_questions, several.split) == (N, single.split)
    assert several.choice.n_fit == 3 * single.choice.n_fit  # all samples serve the choice
    assert several.choice.n_calibration == single.choice.n_calibration
    paper = []
    for source in (one, three):
        aside = replace(source, folder=tmp_path / source.folder.name)  # others calibrate the run
        aside.folder.mkdir()
        open_calibration(aside, {"test": "paper"}, delta=0.05)
        paper.append(assess_paper(aside, alpha=0.15, delta=0.05))
    assert paper[0].matched_risk == paper[1].matched_risk
    assert paper[0].serving == paper[1].serving


def test_certificate_and_expectation_count_questions(
    folder: Path, three: Source, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["assess", str(folder / "three"), "--alpha", "0.3", *FAST, "--quiet"]) == 0
    capsys.readouterr()
    assert main(["calibrate", *CERTIFY, str(folder / "three"), "--json", "--quiet"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    counts = three.counts()
    assert found["certified"]
    content = load_policy(folder / "three" / "policy.joblib").content
    certificate = content["certificate"]
    assert certificate["n"] == counts["calibration"]
    pairs = [certificate[name] for name in ("both", "one", "none")]
    assert (certificate["traces"], found["traces"], sum(pairs)) == (2, 2, certificate["n"])
    assert certificate["losses"] == 2 * pairs[0] + pairs[1]
    (look,) = read_log(folder / "three").looks
    assert look.asked["traces"] == 2
    lines = RunDirectory.load(folder / "three").line_digests()
    assert {*look.lines} == {
        line
        for line, key, sample in zip(lines, three.table.keys, three.table.samples, strict=True)
        if sample < 2 and key in three.part("calibration").keys
    }
    assert content["expected"]["calibration_n"] == counts["calibration"]
    assert content["expected"].get("test_n", 0) == counts["test"]
    for i, part in enumerate(("fit", "calibration", "test")):
        keys = {k for k, p in zip(three.table.keys, three.parts, strict=True) if p == i}
        assert content["split"][part] == sorted(keys)
    assert content["sampling"]["temperature"] == 0.6


def test_more_samples_continue_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, engine = write_sums(tmp_path / "sums.jsonl", 100), ScriptedEngine()
    monkeypatch.setattr("stopadvisor.engines.engine_settings.start_engine", lambda options: engine)
    words = ["probe", str(file), *WORDS, "--out", str(tmp_path / "run"), "--json"]
    assert main(words) == 0
    first = json.loads(capsys.readouterr().out)
    assert main([*words, "--samples", "3"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert (first["questions"], first["traces"], first["new"]) == (100, 100, 100)
    assert (second["questions"], second["traces"], second["new"]) == (100, 300, 200)
    assert first["split"] == second["split"]
    assert main([*[w for w in words if w != "--json"], "--samples", "3"]) == 0
    assert "Probed 100 questions in 300 traces, 0 of them now." in capsys.readouterr().out


def test_samples_of_a_model_that_never_draws_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Greedy(ScriptedEngine):
        def temperature(self, plan: ProbePlan) -> float:
            return plan.temperature or 0.0

    file = write_sums(tmp_path / "sums.jsonl", 100)
    monkeypatch.setattr(
        "stopadvisor.engines.engine_settings.start_engine", lambda options: Greedy()
    )
    words = ["probe", str(file), *WORDS, "--out", str(tmp_path / "run"), "--samples", "3"]
    assert main(words) == 2
    assert "got --samples 3: give --temperature" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert main([*words, "--temperature", "0.6"]) == 0
