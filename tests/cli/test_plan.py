"""`plan`: its fields, its numbers against a brute-force search, what it says in words."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from stopadvisor.assessment.choice import Choice
from stopadvisor.assessment.limits import Shares
from stopadvisor.runs.sources import open_source
from stopadvisor.stats.trinomial import drop_power
from tests.material import Call, looks_of, make_run
from tests.schemas import check_valid

pytestmark = pytest.mark.usefixtures("few_draws")


def test_what_is_not_named_is_taken_for_granted(call: Call) -> None:
    found = call.json("plan", "--alpha", "0.05")
    check_valid("plan", found)
    assert (found["delta"], found["expected_risk"], found["power"]) == (0.05, 0.01, 0.8)
    assert found["split"] == [0.4, 0.6, 0.0]


def powers(alpha: float, delta: float, risk: float, upto: int) -> np.ndarray:
    """Chance to certify with 1 … upto labels, from the definition of an exact test."""
    out = np.zeros(upto)
    for n in range(1, upto + 1):
        passes = np.flatnonzero(stats.binom.cdf(np.arange(n + 1), n, alpha) <= delta)
        out[n - 1] = stats.binom.pmf(passes, n, risk).sum()
    return out


@pytest.mark.parametrize(
    ("alpha", "risk", "wanted", "upto"),
    [(0.05, 0.02, 0.8, 500), (0.05, 0.0, 0.8, 200), (0.3, 0.1, 0.95, 200), (0.6, 0.3, 0.5, 100)],
)
def test_from_there_on_every_number_reaches_the_power(
    call: Call, alpha: float, risk: float, wanted: float, upto: int
) -> None:
    words = ["--alpha", str(alpha), "--expected-risk", str(risk), "--power", str(wanted)]
    found = call.json("plan", *words)
    reached = powers(alpha, 0.05, risk, upto)
    needed = found["calibration_labels"]
    assert needed == int(np.flatnonzero(reached < wanted)[-1]) + 2
    assert found["power_reached"] == pytest.approx(reached[needed - 1])
    assert found["total_labels"] == math.ceil(round(needed / 0.6, 6))


@pytest.mark.parametrize("risk", ["0.05", "0.2"])
def test_null_where_the_expected_risk_is_not_below_alpha(call: Call, risk: str) -> None:
    words = ["--alpha", "0.05", "--expected-risk", risk]
    found = call.json("plan", *words)
    check_valid("plan", found)
    for name in ("calibration_labels", "total_labels", "power_reached"):
        assert found[name] is None
    assert "expected to be lost, which must be less than promised" in call.screen("plan", *words)


@pytest.mark.slow
def test_a_drop_takes_its_own_test(call: Call) -> None:
    drop = ("--alpha", "0.1", "--loss", "drop", "--expected-risk", "0.05")
    found = call.json("plan", *drop)
    check_valid("plan", found)
    assert found["loss"] == "drop"
    n = found["calibration_labels"]
    assert found["power_reached"] == pytest.approx(drop_power(n, 0.1, 0.05, 0.05, 0.0))
    assert 0.8 <= found["power_reached"] < 0.86
    assert call.json("plan", *drop, "--expected-risk", "0.15")["calibration_labels"] is None
    screen = call.screen("plan", "--loss", "drop", "--alpha", "0.05", "--expected-risk", "0.02")
    assert "promise that accuracy falls by at most 5%" in screen
    needed = int(re.findall(r"(\d+) calibration labels certify", screen)[0])
    assert drop_power(needed, 0.05, 0.05, 0.02, 0.0) > 0.8 > drop_power(285, 0.05, 0.05, 0.02, 0.0)
    assert needed < 285
    assert "with more labels hardly ever below 80.0%" in screen


@pytest.mark.slow
def test_a_run_says_what_more_labels_would_buy_at_its_alpha(
    quickly_assessed_run: Path, probed_run: Path, call: Call
) -> None:
    found = call.json("plan", quickly_assessed_run)
    check_valid("plan", found)
    assert found["alpha"] == 0.15
    rows = found["label_savings"]
    (here,) = (row for row in rows if row["is_here"])
    assert here["calibration"] == open_source(quickly_assessed_run).counts()["calibration"]
    assert [row["labels"] for row in rows] == sorted(row["labels"] for row in rows)
    assert rows[-1]["saving_pct"] > rows[0]["saving_pct"]
    assert looks_of(quickly_assessed_run) == []  # nothing was opened
    assert "say --alpha" in call.refused("plan")
    assert "say --alpha" in call.refused("plan", shutil.copytree(probed_run, "fresh"))


@pytest.mark.slow
def test_where_no_rule_saves_anything_no_label_would_help(tmp_path: Path, call: Call) -> None:
    run = make_run(tmp_path / "run", 120)
    dear = ("--serving", "black-box", "--price", "1/1/0.001", "--families", "confidence")
    call.json("assess", run, "--alpha", "0.1", *dear)
    screen = call.screen("plan", run)
    assert screen == "No rule saves anything here, so no number of labels would help."
    found = call.json("plan", run)
    check_valid("plan", found)
    assert (found["calibration_labels"], found["total_labels"]) == (None, None)
    # Asked at a risk of one's own, it counts for some other rule.
    assert call.json("plan", run, "--expected-risk", "0.01")["calibration_labels"]


@pytest.mark.slow
def test_everybody_counts_the_same_labels(probed_run: Path, tmp_path: Path, call: Call) -> None:
    run = shutil.copytree(probed_run, tmp_path / "run")
    promises = call.json("assess", run, "--families", "confidence")["promises"]
    offered = {row["alpha"]: row for row in promises}
    found = call.json("plan", run, "--alpha", "0.02", "--power", "0.9")
    assert found["calibration_labels"] == offered[0.02]["labels_for_90"]
    # Where nothing is certified, the refusal names what `plan` says.
    refusal = call.json("calibrate", run, "--alpha", "0.01", code=3)["refusal"]
    found = call.json("plan", run, "--alpha", "0.01")
    assert found["calibration_labels"] == refusal["labels_needed"]
    assert found["expected_risk"] == refusal["assumed_risk"]


@pytest.mark.slow
def test_a_drop_measured_on_a_run_counts_what_is_gained_too(
    probed_run: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(probed_run, tmp_path / "run")
    call.json("assess", run, "--alpha", "drop=0.1", "--families", "fixed-budget")
    for name, value in (("risk_to_expect", 0.02), ("shares_to_expect", (Shares(0.07, 0.05),))):
        monkeypatch.setattr(Choice, name, value)
    found = call.json("plan", run)
    check_valid("plan", found)
    assert (found["loss"], found["gained"]) == ("drop", 0.05)  # as the run was assessed
    n, reached = found["calibration_labels"], found["power_reached"]
    assert reached == pytest.approx(drop_power(n, 0.1, 0.05, 0.07, 0.05))
    assert reached >= 0.8 > drop_power(n // 2, 0.1, 0.05, 0.07, 0.05)
    assert "if 7.0% are lost and 5.0% gained" in call.screen("plan", run)
