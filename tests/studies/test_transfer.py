"""Study `transfer`, against scikit-learn over two archives."""

from __future__ import annotations

import numpy as np
import pytest

from tests.studies.material import QUICK, Archive, Sums, rows_of, studied, study
from tests.studies.plain import SWEEP, gain, load, split

run = study("transfer")


@pytest.mark.parametrize(("source", "target"), [("mixed", "early"), ("early", "mixed")])
def test_gains_are_those_of_the_three_protocols(source: str, target: str, archive: Archive) -> None:
    from sklearn.linear_model import LogisticRegression  # slow to import
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

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
    row = rows_of(found, "gains")[0]
    assert row["source_gain"] == pytest.approx(gain(here, here["p_stop"], threshold, rows))
    assert row["zero_shot_gain"] == pytest.approx(gain(there, moved, threshold, test))
    calibrated = best(there, moved, calibration)
    assert row["target_calibrated_gain"] == pytest.approx(gain(there, moved, calibrated, test))
    trained = best(there, own, calibration)
    assert row["target_trained_gain"] == pytest.approx(gain(there, own, trained, test))


def test_runs_over_the_same_questions_are_named(sums: Sums) -> None:
    found = studied(run, [sums(300), sums(500)], QUICK)
    assert {row["type"] for row in rows_of(found, "gains")} == {"same task and model"}
    assert any("share questions" in remark for remark in found.remarks)
