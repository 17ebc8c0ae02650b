"""Studies of the learned rule and its proxies, against scikit-learn and plain loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pytest

from stopadvisor.ground.errors import CalibrationError
from stopadvisor.runs.sources import open_source
from stopadvisor.studies.learned_rule import classify_out_of_fold
from stopadvisor.studies.tables import StudyOptions
from tests.material import ARCHIVES
from tests.studies.material import NAMES, QUICK, Archive, row_of, rows_of, studied, study
from tests.studies.plain import load, peak_gain


def out_of_fold(data: Any, columns: list[int], model: Any) -> np.ndarray:
    """Grouped five-fold probabilities by scikit-learn on the archive's own feature matrix."""
    from sklearn.model_selection import GroupKFold  # slow to import, as below
    from sklearn.preprocessing import StandardScaler

    n, m = data["correct"].shape
    x, y = data["X"][:, columns], data["y"]
    chance = np.zeros(n * m)
    for train, held in GroupKFold(5).split(x, y, np.repeat(np.arange(n), m)):
        scaler = StandardScaler().fit(x[train])
        fitted = model.fit(scaler.transform(x[train]), y[train])
        chance[held] = fitted.predict_proba(scaler.transform(x[held]))[:, 1]
    return chance.reshape(n, m)


def test_ablation_is_logistic_regression_on_the_archives_own_columns(archive: Archive) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    found = studied(study("ablation"), [archive("mixed")], QUICK)
    data = load("mixed")
    for variant, columns in (
        ("confidence", [2]),
        ("entropy", [3]),
        ("confidence and entropy", [2, 3]),
        ("stability", [4, 5, 6]),
        ("all eight", list(range(8))),
        ("all ten", list(range(10))),
    ):
        chance = out_of_fold(data, columns, LogisticRegression(max_iter=1000))
        row = row_of(found, "peaks", variant=variant)
        assert row["peak_gain"] == pytest.approx(peak_gain(data, chance), abs=1e-9)
        assert row["auroc"] == pytest.approx(roc_auc_score(data["y"], chance.ravel()), abs=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_classifiers_are_scikit_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn import ensemble, neural_network
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from threadpoolctl import threadpool_limits

    whole = np.load(ARCHIVES / f"{NAMES[0]}.npz")
    n = len(whole["correct"])
    data = {
        key: value[: 20 * len(value) // n] if len(value) >= n else value
        for key, value in whole.items()
    }
    np.savez(tmp_path / "part.npz", **data)
    data["thinking"] = np.minimum(data["think_lens"][:, None], data["budgets"])
    models: dict[str, Any] = {"logistic": LogisticRegression(C=1.0, max_iter=1000)}
    made = []
    trees, steps = {"n_estimators": 10}, {"max_iter": 50}  # a tenth of what is asked for
    for kind, module, name, small, asked in (
        ("random-forest", ensemble, "RandomForestClassifier", trees, {"max_depth": 8}),
        ("gradient-boosting", ensemble, "GradientBoostingClassifier", trees, {"max_depth": 4}),
        ("mlp", neural_network, "MLPClassifier", steps, {"hidden_layer_sizes": (32, 16)}),
    ):
        full = {key: 10 * value for key, value in small.items()}
        models[kind] = getattr(module, name)(**asked, **small, random_state=42)
        made.append((Mock(return_value=models[kind]), call(**asked, **full, random_state=42)))
        monkeypatch.setattr(module, name, made[-1][0])
    found = study("classifiers")([open_source(tmp_path / "part.npz", folder=tmp_path)], QUICK)
    assert all(maker.call_args_list == [expected] * 5 for maker, expected in made)
    assert [row["variant"] for row in rows_of(found, "peaks")] == list(models)
    gains = {}
    with threadpool_limits(limits=1):  # the same sums in the same order
        for kind, model in models.items():
            chance = out_of_fold(data, list(range(8)), model)
            gains[kind] = peak_gain(data, chance)
            row = row_of(found, "peaks", variant=kind)
            assert row["peak_gain"] == pytest.approx(gains[kind], abs=1e-9)
            # Of all chances, at every checkpoint: one that moves past another is seen.
            assert row["auroc"] == pytest.approx(roc_auc_score(data["y"], chance.ravel()), abs=1e-9)
            if kind != "logistic":
                assert row["ahead"] == pytest.approx(gains[kind] - gains["logistic"], abs=1e-9)
    assert len(set(gains.values())) == 4


def test_one_class_of_labels_cannot_be_classified() -> None:
    features, folds = np.zeros((20, 3, 2)), np.arange(20) % 5
    with pytest.raises(CalibrationError, match="both right and wrong"):
        classify_out_of_fold("logistic", features, np.ones((20, 3), bool), folds)


# --- `calibration` --------------------------------------------------------------------------------


def test_the_brier_interval_resamples_questions(archive: Archive) -> None:
    row = row_of(
        studied(study("calibration"), [archive("mixed")], StudyOptions()),
        "scores",
        protocol="paper",
        score="confidence",
    )
    data = load("mixed")
    squares = (np.exp(data["conf_lp"]) - data["correct"]) ** 2
    rng = np.random.default_rng(1)
    n = len(squares)
    drawn = [squares[rng.integers(0, n, n)].mean() for _ in range(4000)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert (row["brier_low"], row["brier_high"]) == pytest.approx((low, high), abs=0.001)
