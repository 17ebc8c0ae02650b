"""Assess a source under the paper's protocol, over all of its questions.

Every outcome is shown, so `runs.access` refuses a source with calibration questions still closed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stopadvisor.assessment.fit_assessment import Assessment, check_labels
from stopadvisor.assessment.recommendation import PolicyKind, Recommendation, profile_reason
from stopadvisor.ground.constants import PAPER_ALPHAS
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.paper.peaks import PaperServing, peak_serving
from stopadvisor.paper.protocol import MatchedRisk, PaperSetting, match_risk, paper_split
from stopadvisor.probes.table import GradedBy
from stopadvisor.probes.trajectories import Profile, profile, trajectory
from stopadvisor.runs.access import open_all
from stopadvisor.runs.sources import Source

__all__ = ["PaperAssessment", "assess_paper", "recommend_paper"]


@dataclass(frozen=True)
class PaperAssessment(Assessment):
    """An assessment with the figures of the paper's analysis."""

    matched_risk: tuple[MatchedRisk, ...]
    serving: PaperServing

    @property
    def graded_by(self) -> GradedBy:
        """What decides that an answer is right: under the paper's protocol, always gold."""
        return "gold"


def assess_paper(
    source: Source, *, alpha: float, delta: float, serving: str = "kv-fork"
) -> PaperAssessment:
    """Assess under the paper's protocol, over all questions.

    Raises
    ------
    CalibrationError
        Calibration questions are closed, there are too few questions or labels of one class only,
        or the paper has no such regime.

    References
    ----------
    Paper, Section "Discussion and Limitations": steps (1) to (4) of its decision procedure.
    """
    if serving not in ("kv-fork", "prefix-cache", "black-box"):
        raise CalibrationError(
            f"the paper's serving regimes are kv-fork, prefix-cache and black-box, got {serving!r}"
        )
    traces = open_all(source)
    # One trace per question: exact intervals need independent rows.
    table = traces.take(traces.samples == 0).with_reference("last-checkpoint")
    check_labels(table)
    levels = sorted({*PAPER_ALPHAS, alpha})
    setting, (calibration, test) = PaperSetting.build(table), paper_split(table.n_questions)
    rows = match_risk(setting, calibration, test, alphas=levels, delta=delta)
    priced = peak_serving(setting)
    row = next(r for r in rows if r.alpha == alpha)
    shape = profile(trajectory(table), rng=np.random.default_rng(source.seed))
    advice = recommend_paper(shape, row, priced, serving)
    if advice.family is not None:
        # The paper probes at every checkpoint.
        advice = replace(advice, schedule=tuple(table.budgets.tolist()))
    return PaperAssessment(
        "paper",
        source,
        alpha,
        delta,
        table.n_questions,
        table.reference,
        float(table.truncated.mean()),
        {"fit": 0, "calibration": calibration.size, "test": test.size},
        shape,
        "all",
        float(table.full_correct.mean()),
        advice,
        rows,
        priced,
    )


def recommend_paper(
    shape: Profile, row: MatchedRisk, serving: PaperServing, regime: str
) -> Recommendation:
    """Recommend by the figures of the paper's protocol."""
    reasons = [profile_reason(shape)]
    spread = row.delta_saving_pp
    reasons.append(
        f"Evidence: {row.verdict} at alpha = {row.alpha:g} on test questions (the saving of all "
        f"signals together minus that of the best one is {spread.median:+.1f} points, 95 % "
        f"[{spread.low:+.1f}, {spread.high:+.1f}]); the paper's intervals take thresholds for "
        "given and tell equal rules apart too often."
    )
    point = row.learned if row.verdict == "learned better" else row.scalar
    if row.verdict == "inconclusive" and row.learned.feasible:
        point = row.learned
    if not point.feasible:
        reasons.append("Certificate: the test passes no threshold, so full thinking stays.")
        return Recommendation("full-budget", None, None, None, regime, tuple(reasons))
    saving = serving.saving_pct[regime]
    reasons.append(
        f"Serving: under {regime} the learned rule saves {saving:.1f} % at its peak-gain threshold."
    )
    if saving <= 0 or point.total_saving_pct <= 0:
        return Recommendation("full-budget", None, None, None, regime, tuple(reasons))
    side: PolicyKind = "learned" if point.family == "learned" else "scalar"
    return Recommendation(side, point.family, None, None, regime, tuple(reasons))
