"""`assess --protocol paper`: the published analysis, over all questions of a source.

It shows every outcome, so `runs.access` refuses a source with closed calibration questions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from stopadvisor.assessment.assessed import (
    AssessedRun,
    AssessedWorkload,
    AssessmentResult,
    PredictedRegime,
)
from stopadvisor.assessment.fit_assessment import check_labels, remarks_on_promise
from stopadvisor.assessment.recommendation import PolicyKind, Recommendation, profile_reason
from stopadvisor.ground.constants import PAPER_ALPHAS
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.paper.peaks import learned_peak, savings_at
from stopadvisor.paper.protocol import MatchedRisk, PaperRule, PaperSetting, match_risk, paper_split
from stopadvisor.probes.trajectories import Profile, profile, trajectory
from stopadvisor.runs.access import open_all
from stopadvisor.runs.sources import Source
from stopadvisor.workload.questions import PartCounts

__all__ = [
    "Assessed", "AssessedByPaper", "PaperSaving", "PaperStacks", "assess_paper", "recommend_paper",
]  # fmt: skip


@dataclass(frozen=True)
class PaperSaving:
    """Net saving on one of the paper's serving stacks."""

    saving_pct: float
    """Net saving."""


@dataclass(frozen=True)
class PaperStacks:
    """Net saving of the learned rule on each of the paper's serving stacks."""

    operating_point: str
    """The priced rule, in words."""
    kv_fork: PaperSaving = field(metadata={"alias": "kv-fork"})
    """The server keeps a request's whole cache."""
    prefix_cache: PaperSaving = field(metadata={"alias": "prefix-cache"})
    """The server caches prefixes in blocks."""
    black_box: PaperSaving = field(metadata={"alias": "black-box"})
    """Every request pays for its whole prefix again."""


@dataclass(frozen=True, kw_only=True)
class AssessedByPaper(AssessmentResult):
    """The published analysis, over all questions."""

    protocol: Literal["paper"] = "paper"
    """The published analysis."""
    matched_risk: tuple[MatchedRisk, ...]
    """A row for each alpha."""
    serving: PaperStacks
    """Net saving of one rule under each serving regime."""
    full_accuracy: float
    """Accuracy of full thinking."""

    @property
    def advised(self) -> PaperRule | None:
        """The advised rule; None for full thinking."""
        row = next(row for row in self.matched_risk if row.alpha == self.alpha)
        rules = (row.learned, row.scalar)
        return next((r for r in rules if r.family == self.recommendation.family), None)


Assessed = AssessedRun | AssessedByPaper
"""The result of either protocol."""


def assess_paper(
    source: Source, *, alpha: float, delta: float, serving: str = "kv-fork"
) -> AssessedByPaper:
    """Assess under the paper's protocol, over all questions.

    Raises CalibrationError: calibration questions are closed, there are too few questions, labels
    are all alike, or the paper has no such regime.

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
    best = learned_peak(setting)
    saved = savings_at(best, setting)
    row = next(r for r in rows if r.alpha == alpha)
    shape = profile(trajectory(table), rng=np.random.default_rng(source.seed))
    advice = recommend_paper(shape, row, serving, saved[serving])
    if advice.family is not None:
        # The paper probes at every checkpoint.
        advice = replace(advice, schedule=tuple(table.budgets.tolist()))
    accuracy = float(table.full_correct.mean())
    return AssessedByPaper(
        alpha=alpha,
        delta=delta,
        run=str(source.folder),
        workload=AssessedWorkload.of(source, table.n_questions, table, "gold"),
        split=PartCounts(fit=0, calibration=calibration.size, test=test.size),
        profile=shape.shares,
        regime=PredictedRegime(shape.predicted, shape.stability, "all"),
        recommendation=advice,
        remarks=tuple(remarks_on_promise(source, alpha, accuracy)),
        matched_risk=rows,
        serving=PaperStacks(
            f"learned at its peak-gain threshold {best.threshold:g}, probing at every "
            "checkpoint; all questions, out of fold",
            *map(PaperSaving, saved.values()),
        ),
        full_accuracy=accuracy,
    )


def recommend_paper(shape: Profile, row: MatchedRisk, regime: str, saving: float) -> Recommendation:
    """Recommend by the paper's protocol; `saving` is the learned rule's at peak gain, in %."""
    reasons = [profile_reason(shape)]
    spread = row.delta_saving_pp
    reasons.append(
        f"Evidence: {row.verdict} at alpha = {row.alpha:g} on test questions (the saving of all "
        f"signals together minus that of the best one is {spread.median:+.1f} points, 95 % "
        f"[{spread.low:+.1f}, {spread.high:+.1f}]); the paper's intervals treat thresholds as "
        "fixed and tell equal rules apart too often."
    )
    point = row.learned if row.verdict == "learned better" else row.scalar
    if row.verdict == "inconclusive" and row.learned.feasible:
        point = row.learned
    if not point.feasible:
        reasons.append("Certificate: no threshold passes the test, so full thinking stays.")
        return Recommendation("full-budget", None, None, None, regime, tuple(reasons))
    reasons.append(
        f"Serving: under {regime} the learned rule saves {saving:.1f} % at its peak-gain threshold."
    )
    if saving <= 0 or point.total_saving_pct <= 0:
        return Recommendation("full-budget", None, None, None, regime, tuple(reasons))
    side: PolicyKind = "learned" if point.family == "learned" else "scalar"
    return Recommendation(side, point.family, None, None, regime, tuple(reasons))
