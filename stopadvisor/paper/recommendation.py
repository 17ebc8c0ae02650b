"""The recommendation under the paper's protocol, from the paper's own figures.

Takes finished results and computes nothing but the choice between them.
"""

from __future__ import annotations

from stopadvisor.assessment.recommendation import PolicyKind, Recommendation, profile_reason
from stopadvisor.paper.protocol import MatchedRisk, PaperServing
from stopadvisor.probes.trajectories import Profile

__all__ = ["recommend_paper"]


def recommend_paper(
    profile: Profile, row: MatchedRisk, serving: PaperServing, regime: str
) -> Recommendation:
    """Recommendation under the paper's protocol, from its own figures."""
    reasons = [profile_reason(profile)]
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
