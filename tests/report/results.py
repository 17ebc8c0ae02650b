"""Saved values of results, which feed sheets and JSON in milliseconds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from stopadvisor.assessment.assessed import AssessedRun
from stopadvisor.certification.check_policy import CheckedPolicy
from stopadvisor.certification.issue import CalibratedRun, CertificateRefusal, LookEntry, RuleTest
from stopadvisor.certification.verification import CategoryRisk
from stopadvisor.collection.markers import MarkerFindings, MarkerWord
from stopadvisor.collection.model_checks import CueExample, PreflightReport, WrongExample
from stopadvisor.collection.pilot import ProbeCost
from stopadvisor.ground.results import from_document
from stopadvisor.policy.run_policies import Promotion
from stopadvisor.policy.shown import Certificate, Expected
from stopadvisor.probes.asking import Check
from stopadvisor.rules.costs import Weights
from stopadvisor.rules.drift import Drift
from stopadvisor.rules.serving_profile import BatchSeconds, PerTokenSeconds, ServingProfile
from stopadvisor.runs.look_rules import PolicyCheck
from stopadvisor.serving.answer_summary import (
    AnswerSummary,
    FullComparison,
    MeanTokens,
    TimedComparison,
)

__all__ = [
    "ANSWERED", "ASSESSED", "CALIBRATED", "EXPECTED", "PREFLIGHT", "PROFILE", "PROMOTION",
    "REFUSED", "VERIFIED",
]  # fmt: skip

_LEARNED = Path(__file__).parent.parent / "testdata" / "assessments" / "learned.json"
ASSESSED = from_document(
    AssessedRun,
    {
        **json.loads(_LEARNED.read_bytes())["assessment"],
        "run": "runs/sums",
        "workload": {
            "n_questions": 240, "n_checkpoints": 4, "budgets": [0, 16, 32, 64],
            "full_reference": "natural", "graded_by": "gold", "truncated_share": 0.0,
            "model": "m", "engine": "hf 1.0", "sha256": "ab" * 32,
        },
    },
    _LEARNED,
)  # fmt: skip
PREFLIGHT = PreflightReport(
    "warn",
    (Check("markers", "pass", "every trace closes"), Check("cue", "warn", "seen", "do that")),
    0.5,
    (CueExample("q-1", natural="1", forced="2"),),
    0.25,
    (WrongExample("q-1", "What is 1 + 2?", "3", "1"), WrongExample("q-2", "?", "3", None)),
    16,
    MarkerFindings((MarkerWord("Wait", ((1, 2),), 3, 4.5, 0.25, 0.5, used=True),), 2, 9, 1.0),
    ProbeCost(8.0, 30.0, None),
)  # fmt: skip
PROMOTION = Promotion(
    Path("runs/a/policy-a05-1a2b3c4d.joblib"), "1a2b3c4d" * 8, "stop", 0.05,
    Path("runs/a/policy.joblib"), "5e6f7a8b" * 8, Path("runs/a/policy-a15-5e6f7a8b.joblib"), (),
)  # fmt: skip
VERIFIED = CheckedPolicy(
    policy="policy.joblib",
    digest="1a2b3c4d" * 8,
    run="runs/fresh",
    part="all",
    transfer=None,
    verdict="confirmed",
    alpha=0.15,
    delta=0.05,
    check=PolicyCheck(1, None, 0.05),
    n_left_out=3,
    n_met_before=2,
    n_repeated=1,
    n=300,
    losses=34,
    risk=0.1133,
    lower=0.085,
    upper=0.148,
    expected_risk=0.1,
    power_to_confirm=0.8,
    detectable_risk=0.21,
    graded_by="gold",
    accuracy=0.773,
    full_accuracy=0.83,
    accuracy_difference=-0.057,
    accuracy_difference_ci95=(-0.1, -0.01),
    serving="kv-fork",
    unit="paper-weighted tokens",
    total_saving_pct=18.3,
    total_saving_ci95=None,
    think_saving_pct=58.5,
    truncated_share=0.01,
    category_scope="marginal",
    categories=(
        CategoryRisk("algebra", 100, 20, (0.1, 0.3)),
        CategoryRisk(None, 200, 14, (0.03, 0.13)),
    ),
    drift=(Drift("position", 0.3, 0.001, 0.004), Drift("confidence", 0.05, 0.6, 0.6)),
    remarks=(),
)
EXPECTED = Expected(
    weights=Weights(1.0, 0.1, 1.0, "paper-weighted tokens"), cache_block=16,
    fit_total_saving_pct=24.3, fit_risk=0.08, calibration_n=565, calibration_risk=0.122,
    calibration_total_saving_pct=19.2, calibration_total_saving_band95=(15.3, 23.1),
    calibration_think_saving_pct=37.8, calibration_uncut_saving_pct=19.2,
    calibration_accuracy=0.82, calibration_full_accuracy=0.92,
)  # fmt: skip
CALIBRATED = CalibratedRun(
    run="runs/sums", alpha=0.15, delta=0.05, confidence=0.95,
    look=LookEntry(1, None, 0.05, 0, "7dc69a87" * 8, opened=True), certified=True,
    policy="runs/sums/policy-a15-1a2b3c4d.joblib", digest="1a2b3c4d" * 8,
    promoted="runs/sums/policy.joblib", kind="stop", family="learned", schedule=(32, 64),
    where="at 32 and 64 thinking tokens", threshold=0.87, serving="kv-fork",
    certificate=Certificate(
        alpha=0.15, delta=0.05, confidence=0.95, bound="exact", multiplicity="fixed-sequence",
        n=565, losses=69, upper=0.147, reference="natural", looks=1, looks_elsewhere=0,
        planned_looks=None, ledger_head="7dc69a87" * 8, chain_delta=0.05, conditional=False,
        alpha_over_full_accuracy=0.163, truncated_share=0.0, max_think=448,
        claim="With confidence 95 %, at most 15 % become wrong.",
    ),
    refusal=None,
    tested=(RuleTest("learned", True, 17, 565, 69, 0.147, None, None),), expected=EXPECTED,
    graded_by="gold", advised_family="learned", advised_schedule=(32, 64),
    advised_where="at 32 and 64 thinking tokens", advised_fit_total_saving_pct=24.3,
    changed=None, profile=None, remarks=(),
    headline="Certified. Saves 19% of the tokens for 10 points of accuracy.",
)  # fmt: skip
REFUSED = replace(
    CALIBRATED, certified=False, promoted=None, kind="full-budget", family=None, schedule=None,
    where=None, threshold=None, certificate=None, expected=None,
    refusal=CertificateRefusal("69 of 300 lost are too many", 900, 0.1),
    tested=(
        RuleTest("learned", False, None, 300, None, None, "69 of 300 lost are too many", 900),
        RuleTest("entropy", False, None, 300, None, None, "69 of 300 lost are too many", 900),
    ),
    headline="Not certified.",
)  # fmt: skip
PROFILE = ServingProfile(
    model="m", engine="vllm", device="http://gpu:8000/v1",
    per_token_seconds=PerTokenSeconds(3e-5, 1e-6, 2e-4),
    settings={},
    per_request_seconds=2e-3, at_batch=8, decoded_by_batch=(BatchSeconds(8, 2e-4),), misfit=0.05,
)  # fmt: skip
_SPENT: dict[str, Any] = {
    "decoded_tokens": 51930, "full_decoded_tokens": 78921, "think_tokens": 42660,
    "full_think_tokens": 71218, "token_saving_pct": 34.2, "think_saving_pct": 40.1,
}  # fmt: skip
ANSWERED = AnswerSummary(
    policy="runs/sums/policy.joblib",
    digest="1a2b3c4d" * 8,
    kind="stop",
    family="learned",
    workload="my sums.jsonl",
    model="samples/tiny-reasoner",
    out="runs/sums-6c815c28.jsonl",
    setting="6c815c28",
    on_stop="answer",
    serving=None,
    server_saving_pct=2.5,
    certified=True,
    alpha=0.15,
    loss="lost",
    questions=900,
    new=900,
    seconds=16.1,
    stopped=434,
    stopped_share=0.482,
    mean_tokens=MeanTokens(47.4, 7.1, 3.2),
    labelled=900,
    accuracy=0.84,
    full=TimedComparison(
        questions=900, differing=120, differing_share=0.133, differing_ci95=(0.11, 0.16),
        labelled=900, correct=756, full_correct=829, lost=93, accuracy=0.84, full_accuracy=0.921,
        risk=0.103, risk_ci95=(0.084, 0.125), timed_questions=900, seconds=16.1, full_seconds=18.1,
        time_saving_pct=11.0,
        unmet=FullComparison(
            questions=194, differing=25, differing_share=0.129, differing_ci95=(0.09, 0.18),
            labelled=194, correct=163, full_correct=179, lost=20, accuracy=0.84,
            full_accuracy=0.921, risk=0.103, risk_ci95=(0.064, 0.155), **_SPENT,
        ),
        **_SPENT,
    ),
    remarks=(),
)  # fmt: skip
