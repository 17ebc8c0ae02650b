"""Figures of the deploy protocol: fit questions out of fold, calibration questions after a look.

Words and shapes what `assessment` and `certification` computed.  Outcomes of calibration questions
come in as a `CalibratedRisk` or not at all.
"""

from __future__ import annotations

from stopadvisor.assessment.choice import Choice
from stopadvisor.assessment.diagnostics import (
    accuracy_at_cost,
    displayed,
    fit_curves,
    fit_reliability,
    fit_risk,
    fit_signals,
    fixed_curve,
    savings_by_alpha,
    stops_of,
)
from stopadvisor.assessment.sequences import ThresholdSequence
from stopadvisor.assessment.signals import checkpoint_accuracy
from stopadvisor.certification.calibrated_risk import CalibratedRisk
from stopadvisor.errors import ProbeError
from stopadvisor.report.figures.data import (
    AlphaFigure,
    CheckpointFigure,
    Figures,
    FrontierFigure,
    ReliabilityFigure,
    RiskFigure,
)
from stopadvisor.report.figures.examples import Texts, examples
from stopadvisor.rules.families import FIXED_BUDGET
from stopadvisor.rules.schedules import grid_view

__all__ = ["deploy_figures"]


def deploy_figures(
    choice: Choice, calibrated: CalibratedRisk | None, texts: Texts | None
) -> Figures:
    """Everything that a report on a deploy assessment shows."""
    if choice.nothing is not None:
        raise ProbeError(f"there are no pictures where no rule was measured: {choice.nothing}")
    fit = choice.fit
    learned = next((r for r in choice.compared if r.scorer.is_learned), None)
    rule, index = _shown(choice, calibrated)
    basis = f"{fit.table.n_questions} fit questions, out of fold"
    table, stops, stopped = grid_view(fit.table), None, ""
    if rule is not None:
        exported = calibrated is not None and calibrated.exported is not None
        stopped = f"; stops are those of the {'exported' if exported else 'advised'} rule"
        stops = stops_of(rule, index)
    savings = savings_by_alpha(choice)
    scores = fit_reliability(learned, fit)
    return Figures(
        _frontier(choice, rule, index, calibrated, basis),
        _risk(choice, calibrated, basis),
        AlphaFigure(
            savings.alphas, savings.savings, savings.probabilities, choice.settings.alpha, basis
        ),
        ReliabilityFigure(scores, basis) if scores else None,
        CheckpointFigure(checkpoint_accuracy(table), f"{fit.table.n_questions} fit questions"),
        fit_signals(learned, fit),
        basis,
        examples(table if rule is None else rule.view, stops, texts),
        f"fit questions, scored out of fold{stopped}",
    )


def _shown(
    choice: Choice, calibrated: CalibratedRisk | None
) -> tuple[ThresholdSequence | None, int]:
    """The rule and threshold to point at: the exported ones, or before a look the advised ones."""
    if calibrated is not None and calibrated.exported is not None:
        same = calibrated.sequence_in(choice)
        if same is not None:
            return same, calibrated.exported
    return choice.advised, choice.advised_index


def _frontier(
    choice: Choice,
    shown: ThresholdSequence | None,
    index: int,
    calibrated: CalibratedRisk | None,
    basis: str,
) -> FrontierFigure:
    rules = [r for r in choice.compared if r.scorer.family != FIXED_BUDGET or r is shown]
    curves, fixed = fit_curves(choice.fit, rules), fixed_curve(choice.fit)
    chosen = None
    if shown is not None:
        family = shown.scorer.family
        curve = next(c for c in curves if c.name == family)
        chosen = (family, float(curve.cost[index]), float(curve.accuracy[index]))
    exported = calibrated is not None and calibrated.exported is not None
    return FrontierFigure(
        curves,
        fixed,
        chosen,
        "exported point" if exported else "advised point",
        accuracy_at_cost(fixed, None if chosen is None else chosen[1]),
        choice.full_accuracy,
        f"cost per question under {choice.fit.costing.serving}",
        basis,
    )


def _risk(choice: Choice, calibrated: CalibratedRisk | None, basis: str) -> RiskFigure:
    if calibrated is None:
        found = fit_risk(choice)
        return RiskFigure(
            found.family,
            found.thresholds,
            found.risk,
            None,
            None,
            choice.settings.alpha,
            found.limit,
            f"most that {choice.n_calibration} calibration questions can still certify",
            choice.advised_index if choice.advised is not None else None,
            "advised",
            choice.n_fit,
            basis,
            choice.settings.loss,
            found.family != FIXED_BUDGET,
        )
    family = calibrated.scorer.family
    limit, n = calibrated.limit, calibrated.n
    most = f"most that passes the test ({round(limit * n)} of {n})"
    return RiskFigure(
        family,
        displayed(family, calibrated.order),
        calibrated.risk_on_fit(choice),
        calibrated.risk,
        calibrated.upper_limits(),
        calibrated.alpha,
        limit if limit >= 0 else None,
        most,
        calibrated.exported,
        "exported",
        calibrated.n,
        f"{calibrated.n} calibration questions, opened by calibrate",
        calibrated.loss.name,
        family != FIXED_BUDGET,
    )
