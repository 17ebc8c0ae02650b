"""From a workload to decisions in production, through the files alone; and the paper's numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.assessment.choice import Settings
from stopadvisor.assessment.fit_assessment import assess
from stopadvisor.certification.calibration import ExportedRule, calibrate
from stopadvisor.ground.constants import PAPER_BOOTSTRAP_RESAMPLES, PROBE_CAP
from stopadvisor.paper.protocol import PaperSetting, paper_split, threshold_grid
from stopadvisor.policy.frozen import load_policy
from stopadvisor.rules.costs import Weights
from stopadvisor.runs.access import open_all
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.sources import Source, open_source
from stopadvisor.workload.questions import PARTS
from tests.material import ARCHIVES, CERTIFY, Call, forget_looks, make_run
from tests.scripted import ScriptedEngine, write_sums

pytestmark = pytest.mark.slow

REPLAYED = [("learned", "joblib"), ("learned-keeps", "json"), ("run-stability", "joblib")]
"""Every kind of score, and both formats, which store floats differently."""
DECODED_ONLY = Weights(0.0, 0.0, 1.0, "money per million tokens")
"""The scripted traces are short: with prompts to pay for, the weakest rule saves nothing."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("end") / "run", 600)


# --- Replaying what was certified -----------------------------------------------------------------


def replay(path: Path, policy_path: str) -> tuple[list[int], int]:
    """Run each calibration question through the stepper, one raw probe at a time.

    Returns where each stopped (a position in the policy's budgets; their number for never), and
    how many were lost.
    """
    policy = load_policy(policy_path)
    found = RunDirectory.load(path)
    parts = found.parts(found.table().groups)
    stops, lost = [], 0
    for record, part in zip(found.records(), parts.tolist(), strict=True):
        if PARTS[part] != "calibration":
            continue
        probes = {c.budget: c for c in record.checkpoints}
        stepper, stop, right = policy.start(), len(policy.budgets), record.natural_correct
        for position, budget in enumerate(policy.budgets):
            if record.trace_tokens <= budget:
                break  # the trace ended by itself: the natural answer counts
            probe = probes[budget]
            decision = stepper.observe(
                answer=probe.answer,
                mean_logprob=probe.mean_logprob,
                mean_entropy=probe.mean_entropy,
                markers=probe.markers,
                think_tokens=min(budget, record.trace_tokens),
            )
            if decision.stop:
                stop, right = position, probe.correct
                break
        stops.append(stop)
        lost += bool(record.natural_correct) and not right
    return stops, lost


def certified_rule(source: Source, family: str, alpha: float) -> ExportedRule:
    """The rule as calibration holds it in memory."""
    choice = assess(source, Settings(alpha=alpha, families=(family,), weights=DECODED_ONLY)).choice
    rule = calibrate(choice, source.part("calibration").unseal().as_calibration()).rule
    assert rule is not None
    return rule


@pytest.mark.parametrize(("family", "format"), REPLAYED)
def test_the_file_decides_as_calibration_did(
    run: Path, tmp_path: Path, call: Call, family: str, format: str
) -> None:
    alpha = 0.25
    out = tmp_path / f"policy.{format}"
    asked = ("--families", family, "--alpha", str(alpha), "--price", "0/0/1")
    document = call.json("calibrate", *CERTIFY, run, *asked, "--out", out)
    assert document["kind"] == "stop"
    assert document["family"] == family
    forget_looks(run)  # this test does not count looks

    source = open_source(run)
    rule = certified_rule(source, family, alpha)
    table = source.part("calibration")
    view = rule.scorer.view(table)
    expected = rule.scorer.curve(view, np.array([rule.threshold])).stops(0)
    stops, lost = replay(run, str(out))
    assert stops == expected.tolist()
    assert len(set(stops)) > 1
    assert (len(stops), lost) == (document["certificate"]["n"], document["certificate"]["losses"])


def test_the_whole_way_through_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.setattr(
        "stopadvisor.engines.engine_settings.start_engine", lambda options: ScriptedEngine()
    )
    file = write_sums(tmp_path / "sums.jsonl", 300)
    assessment = call.json(
        *("assess", file, "--families", "entropy,confidence", "--max-think", "256"),
        *("--schedule", "grid"),  # `replay` reads only budgets
    )
    assert assessment["workload"]["budgets"][0] == 0
    calibration = call.json("calibrate", "--alpha", "0.15")
    assert calibration["run"] == assessment["run"]
    assert calibration["certified"]
    policy = call.json("inspect", calibration["policy"])
    assert policy["certificate"] == calibration["certificate"]
    assert policy["model"]["name"] == "tests/scripted"
    assert policy["max_think"] == 256
    stops, lost = replay(Path(calibration["run"]), calibration["policy"])
    assert (len(stops), lost) == (
        calibration["certificate"]["n"],
        calibration["certificate"]["losses"],
    )


# --- The paper's numbers --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ARCHIVES / "expected.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize(("name", "predicted"), [("mixed", "learned"), ("early", "scalar")])
def test_the_paper_protocol_equals_the_published_scripts(
    name: str, predicted: str, expected: dict[str, Any], tmp_path: Path, call: Call
) -> None:
    found = call.json("assess", ARCHIVES / f"{name}.npz", "--protocol", "paper")
    wanted = expected[name]
    source = open_source(ARCHIVES / f"{name}.npz", folder=tmp_path / "results")
    setting = PaperSetting.build(open_all(source).with_reference("last-checkpoint"))
    calibration, test = paper_split(source.table.n_questions)
    sizes = {f: len(threshold_grid(s[calibration])) for f, s in setting.scores.items()}
    assert sizes == wanted["K"]
    full = float((source.table.trace_tokens[test] + PROBE_CAP).mean())
    assert {t: row["count"] for t, row in found["profile"].items()} == wanted["profile"]
    assert found["regime"]["predicted"] == predicted
    assert [f"{row['alpha']:.2f}" for row in found["matched_risk"]] == list(wanted["alpha"])
    for row in found["matched_risk"]:
        at = wanted["alpha"][f"{row['alpha']:.2f}"]
        for side in ("learned", "scalar"):
            point, want = row[side], at[side]
            assert (point["family"], point["feasible"]) == (want["policy"], want["feasible"])
            assert point["candidates"] == want["K"]
            assert point["threshold"] == pytest.approx(want["tau"], abs=1e-9)
            assert point["test_risk"] == pytest.approx(want["risk"], abs=1e-12)
            assert point["test_accuracy"] == pytest.approx(want["acc"], abs=1e-12)
            assert point["total_saving_pct"] == pytest.approx(want["save"], abs=1e-9)
            mean = full * (1 - point["total_saving_pct"] / 100)
            assert mean == pytest.approx(want["total"], abs=1e-9)
            assert point["think_saving_pct"] == pytest.approx(want["think_save"], abs=1e-9)
        spread, want = row["delta_saving_pp"], at["delta_saving_pp"]
        assert spread["median"] == pytest.approx(want["median"], abs=0.3)
        assert spread["ci95"] == pytest.approx(want["ci95"], abs=0.3)
        assert row["verdict"] == at["verdict"]
    for regime in ("kv-fork", "prefix-cache", "black-box"):
        want = wanted["regimes"][regime.replace("-", "_")]
        assert found["serving"][regime]["saving_pct"] == pytest.approx(want, abs=1e-9)
    assert PAPER_BOOTSTRAP_RESAMPLES == 5000
    assert f"threshold {wanted['regimes']['tau']:g}," in found["serving"]["operating_point"]
