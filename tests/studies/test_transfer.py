"""Study `transfer` against scikit-learn over two archives, and policies on other questions."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from stopadvisor.assessment.choice import choose
from stopadvisor.certification.calibration import calibrate
from stopadvisor.certification.transfer import calibrate_transfer, target_view
from stopadvisor.certification.verification import scorer_of
from stopadvisor.cli.main import main
from stopadvisor.ground.errors import PolicyError, StudyError
from stopadvisor.policy.frozen import load_policy
from stopadvisor.probes.grouping import calibration_rows
from stopadvisor.rules.losses import LOST
from stopadvisor.rules.outcomes import measure_rule
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.sources import open_source
from stopadvisor.stats.intervals import exact_interval
from stopadvisor.studies.registry import study_settings
from stopadvisor.studies.tables import StudyOptions
from stopadvisor.studies.transfer import fresh_test
from tests.frozen import with_groups
from tests.material import CERTIFY, forget_looks, make_run
from tests.studies.material import QUICK, Archive, row_of, rows_of, studied, study
from tests.studies.plain import SWEEP, gain, load, split

run = study("transfer")


@pytest.mark.parametrize(("source", "target"), [("mixed", "early"), ("early", "mixed")])
def test_gains_are_those_of_the_three_protocols(source: str, target: str, archive: Archive) -> None:
    found = studied(run, [archive(name) for name in (source, target)], QUICK)
    here, there = load(source), load(target)

    def inputs(data: dict[str, np.ndarray]) -> np.ndarray:
        x = data["X"][:, :8].astype(float)
        x[:, 0] /= data["budgets"][-1] / 1000  # the scripts divide by 1000, the text by the last
        return x

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    model.fit(inputs(here), here["correct"].ravel())
    moved = model.predict_proba(inputs(there))[:, 1].reshape(there["correct"].shape)
    own, rows = there["p_stop"], np.arange(len(here["correct"]))
    calibration, test = split(len(there["correct"]))

    def best(data: dict[str, np.ndarray], scores: np.ndarray, rows: np.ndarray) -> float:
        return float(max(SWEEP, key=lambda t: gain(data, scores, t, rows)))

    threshold = best(here, here["p_stop"], rows)
    row = row_of(found, "gains", source=row_label(found, 0))
    assert row["source_gain"] == pytest.approx(gain(here, here["p_stop"], threshold, rows))
    assert row["zero_shot_gain"] == pytest.approx(gain(there, moved, threshold, test))
    calibrated = best(there, moved, calibration)
    assert row["target_calibrated_gain"] == pytest.approx(gain(there, moved, calibrated, test))
    trained = best(there, own, calibration)
    assert row["target_trained_gain"] == pytest.approx(gain(there, own, trained, test))
    assert rows_of(found, "savings") == []


def row_label(found: object, index: int) -> object:
    """Name of a source, in the order given."""
    return rows_of(found, "gains")[index]["source"]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated run, and a calibrated run of questions that came later."""
    root = tmp_path_factory.mktemp("transfer")
    make_run(root / "old", 200)
    make_run(root / "new", 500)
    later = RunDirectory.load(root / "new")
    later.rewrite(later.records()[200:])
    for name in ("old", "new"):
        assert main(["calibrate", *CERTIFY, str(root / name), "--alpha", "0.2", "--quiet"]) in (
            0,
            3,
        )
    return root


@pytest.mark.slow
def test_policies_are_compared_on_the_targets_test_questions(material: Path) -> None:
    options = StudyOptions(alpha=0.2)
    found = run([open_source(material / name) for name in ("old", "new")], options)
    target, settings = open_source(material / "new"), study_settings(options)
    terms = load_policy(material / "old" / "policy.joblib").terms
    calibration = target.part("calibration").unseal()
    outside = target_view(target).part("calibration").unseal()
    choice = choose(target.part("fit"), calibration_rows(calibration).size, settings)
    moved = calibrate_transfer(terms, target, outside.as_calibration(), settings)
    trained = calibrate(choice, calibration.as_calibration())
    test = fresh_test(terms, target)
    rules = [(scorer_of(terms, test), terms.decision_threshold or 0.0)]
    for rule in (moved.rule, trained.rule):
        assert rule is not None
        rules.append((rule.scorer, rule.threshold))
    n = moved.first.n_questions
    rows = [r for r in rows_of(found, "savings") if r["target"] == "new"]
    assert [r["protocol"] for r in rows] == ["zero-shot", "target-calibrated", "target-trained"]
    assert [(r["would_certify"], r["labels"]) for r in rows] == [(False, 0), (True, n), (True, n)]
    for row, (scorer, threshold) in zip(rows, rules, strict=True):
        expected = measure_rule(scorer, threshold, test, settings.costing, loss=LOST)
        assert (row["family"], row["questions"]) == (scorer.family, test.n_questions)
        assert row["saving_pct"] == expected.total_saving_pct
        assert row["risk"] == expected.losses / test.n_questions
        interval = exact_interval(expected.losses, test.n_questions)
        assert (row["risk_low"], row["risk_high"]) == interval
    assert {r["type"] for r in rows_of(found, "gains")} == {"cross-task"}


def test_a_closed_target_shows_no_saving(material: Path, tmp_path: Path) -> None:
    for name in ("old", "new"):
        shutil.copytree(material / name, tmp_path / name)
    forget_looks(tmp_path / "new")
    found = run([open_source(tmp_path / name) for name in ("old", "new")], StudyOptions(alpha=0.2))
    assert "new" not in {row["target"] for row in rows_of(found, "savings")}
    assert any("calibration questions of new" in remark for remark in found.remarks)


@pytest.mark.slow
def test_questions_that_made_the_policy_are_not_transferred_to(
    material: Path, tmp_path: Path
) -> None:
    shutil.copytree(material / "old", tmp_path / "copy")
    found = run([open_source(material / "old"), open_source(tmp_path / "copy")], QUICK)
    assert rows_of(found, "savings") == []
    assert any("fitted or calibrated this policy" in remark for remark in found.remarks)
    assert any("share questions" in remark for remark in found.remarks)


def test_one_run_cannot_be_transferred(material: Path) -> None:
    with pytest.raises(StudyError, match="two runs or more, got 1"):
        run([open_source(material / "old")], QUICK)


def test_test_questions_are_those_that_the_source_has_not_seen(material: Path) -> None:
    terms = load_policy(material / "old" / "policy.joblib").terms
    target, split = open_source(material / "new"), terms.split
    assert split is not None
    table = with_groups(target.table.unseal(), 3).sealed()
    grouped = replace(target, table=table, parts=np.repeat(target.parts[::3], 3)[: len(table.ids)])
    assert fresh_test(terms, grouped).n_questions == len(set(grouped.part("test").groups))
    keys = target.part("test").keys
    for met in (keys[:4], keys):
        source = replace(terms, split=replace(split, calibration=(*split.calibration, *met)))
        if len(met) < len(keys):
            assert set(fresh_test(source, target).keys) == set(keys[4:])
            continue
        with pytest.raises(PolicyError, match="none of them fresh"):
            fresh_test(source, target)
