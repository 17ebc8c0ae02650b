"""Study `calibration` against plain bins and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, roc_auc_score

from stopadvisor.studies.tables import StudyOptions
from tests.studies.material import NAMES, QUICK, Archive, row_of, rows_of, studied, study
from tests.studies.plain import load, scores_of

run = study("calibration")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", ["learned", "confidence"])
def test_ece_and_brier_are_their_definitions(name: str, family: str, archive: Archive) -> None:
    found = studied(run, [archive(name)], QUICK)
    data = load(name)
    chance, right = scores_of(data)[family].ravel(), data["correct"].ravel()
    ece = 0.0
    for k in range(10):
        inside = (chance >= k / 10) & ((chance < (k + 1) / 10) | (k == 9))
        if inside.any():
            ece += inside.mean() * abs(chance[inside].mean() - right[inside].mean())
    row = row_of(found, "scores", protocol="paper", score=family)
    assert row["ece"] == pytest.approx(ece)
    assert row["brier"] == pytest.approx(brier_score_loss(right, chance))
    assert row["auroc"] == pytest.approx(roc_auc_score(right, chance))
    assert row["brier_low"] < row["brier"] < row["brier_high"]
    assert (row["questions"], row["checkpoints"]) == (len(data["correct"]), right.size)
    bins = [r for r in rows_of(found, "bins") if (r["protocol"], r["score"]) == ("paper", family)]
    assert sum(int(str(r["count"])) for r in bins) == right.size


def test_scores_that_are_no_chances_are_only_ranked(archive: Archive) -> None:
    found = studied(run, [archive("mixed")], QUICK)
    data = load("mixed")
    row = row_of(found, "scores", protocol="paper", score="entropy")
    assert (row["ece"], row["brier"]) == (None, None)
    expected = roc_auc_score(data["correct"].ravel(), -data["conf_ent"].ravel())
    assert row["auroc"] == pytest.approx(expected)


def test_the_brier_interval_resamples_questions(archive: Archive) -> None:
    row = row_of(
        studied(run, [archive("mixed")], StudyOptions()),
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
