"""Saved values of results, which feed sheets and JSON in milliseconds."""

from __future__ import annotations

from pathlib import Path

from stopadvisor.collection.cues import CueComparison, CueExample, CueRow
from stopadvisor.collection.markers import MarkerFindings, MarkerWord
from stopadvisor.collection.preflight import PreflightReport, WrongExample
from stopadvisor.collection.schedule import ProbeCost
from stopadvisor.policy.folder import Promotion
from stopadvisor.probes.plan import Check

__all__ = ["PREFLIGHT", "PROMOTION"]

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
    CueComparison(
        64, 0.75,
        (
            CueRow("paper", "Answer:", "pass", 0.75, (0.625, 0.875), 1.0, 2.0, 256.0, 1.0),
            CueRow("plain", "So", "fail", 0.5, (0.375, 0.625), 0.25, 3.5, 250.0, 0.75),
        ),
    ),
)  # fmt: skip
PROMOTION = Promotion(
    Path("runs/a/policy-a05-1a2b3c4d.joblib"), "1a2b3c4d" * 8, "stop", 0.05,
    Path("runs/a/policy.joblib"), "5e6f7a8b" * 8, Path("runs/a/policy-a15-5e6f7a8b.joblib"), (),
)  # fmt: skip
