"""Saved results, which feed sheets and JSON in milliseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from stopadvisor.assessment.assessed import AssessedRun
from stopadvisor.certification.check_policy import CheckedPolicy
from stopadvisor.certification.issue import CalibratedRun
from stopadvisor.collection.model_checks import PreflightReport
from stopadvisor.ground.results import from_document
from stopadvisor.policy.run_policies import Promotion
from stopadvisor.policy.shown import Expected
from stopadvisor.rules.serving_profile import ServingProfile
from stopadvisor.serving.answer_summary import AnswerSummary

__all__ = [
    "ANSWERED", "ASSESSED", "CALIBRATED", "EXPECTED", "PREFLIGHT", "PROFILE", "PROMOTION",
    "REFUSED", "VERIFIED",
]  # fmt: skip

_Result = TypeVar("_Result")
_FILES = Path(__file__).parent.parent / "testdata"


def _saved(kind: type[_Result], name: str) -> _Result:
    file = _FILES / "results" / f"{name}.json"
    return from_document(kind, json.loads(file.read_bytes()), file)


_LEARNED = _FILES / "assessments" / "learned.json"
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
PREFLIGHT = _saved(PreflightReport, "preflight")
PROMOTION = _saved(Promotion, "promotion")
VERIFIED = _saved(CheckedPolicy, "verified")
CALIBRATED = _saved(CalibratedRun, "calibrated")
REFUSED = _saved(CalibratedRun, "refused")
PROFILE = _saved(ServingProfile, "profile")
ANSWERED = _saved(AnswerSummary, "answered")
_EXPECTED = CALIBRATED.expected
assert _EXPECTED is not None
EXPECTED: Expected = _EXPECTED
