"""Figures of the deploy protocol: fit questions out of fold, calibration questions after a look.

Words and shapes what `assessment` and `certification` computed.  Outcomes of calibration questions
come in as a `CalibratedRisk` or not at all.
"""

from __future__ import annotations

from stopadvisor.assessment.choice import Choice
from stopadvisor.assessment.diagnostics import (
    accuracy_at_cost,
    checkpoint_accuracy,
    displayed,
    endings_of,
    fit_curves,
    fit_risk,
    fixed_curve,
    savings_by_alpha,
    stops_of,
)
from stopadvisor.assessment.sequences import ThresholdSequence
from stopadvisor.certification.issue import CalibratedRisk
from stopadvisor.ground.arrays import Numbers, numbers
from stopadvisor.report.figures.data import (
    AlphaFigure,
    CalibratedFigures,
    CheckpointFigure,
    Figures,
    FrontierFigure,
    LostQuestions,
    RiskFigure,
    Texts,
    lost_questions,
)
from stopadvisor.rules.families import FIXED_BUDGET
from stopadvisor.rules.schedules import grid_view

__all__ = ["calibrated_figures", "deploy_figures"]


def deploy_figures(choice: Choice, texts: Texts, assessment: str) -> Figures:
    """Everything that a report on a deploy assessment shows; little where no rule was measured."""
    fit, is_measured = choice.fit, choice.nothing is None
    basis = f"{fit.table.n_questions} fit questions, out of fold"
    alpha = None
    if is_measured:
        of = savings_by_alpha(choice)
        alpha = AlphaFigure(of.alphas, of.savings, of.probabilities, choice.settings.alpha, basis)
    climbs = fit.table.rungs is not None  # whole replies, not positions of one trace
    return Figures(
        assessment,
        _frontier(choice, choice.advised, choice.advised_index, "advised") if is_measured else None,
        _risk(choice, basis) if is_measured else None,
        alpha,
        None
        if climbs
        else CheckpointFigure(
            checkpoint_accuracy(grid_view(fit.table)), f"{fit.table.n_questions} fit questions"
        ),
        _lost(choice, choice.advised, choice.advised_index, "advised", texts),
        texts.remarks,
    )


def calibrated_figures(
    choice: Choice | None, risk: CalibratedRisk | None, texts: Texts
) -> CalibratedFigures:
    """What a calibration changes; `choice` is None where it chose on other fit questions."""
    if risk is None:
        return CalibratedFigures(None, None, None)
    rule = None if choice is None else risk.sequence_in(choice)
    expected = None
    if rule is not None and choice is not None:
        expected = numbers(rule.losses / choice.n_fit)
    observed = _calibrated_risk(risk, expected)
    if choice is None or rule is None or risk.exported is None:
        return CalibratedFigures(None, observed, None)
    return CalibratedFigures(
        _frontier(choice, rule, risk.exported, "exported"),
        observed,
        _lost(choice, rule, risk.exported, "exported", texts),
    )


def _lost(
    choice: Choice, rule: ThresholdSequence | None, index: int, called: str, texts: Texts
) -> LostQuestions | None:
    if rule is None or choice.fit.table.rungs is not None:
        return None
    basis = f"fit questions, scored out of fold; stops are those of the {called} rule"
    others = [each for each in endings_of(choice) if each.family != rule.scorer.family]
    return lost_questions(rule.view, stops_of(rule, index), texts, basis, others)


def _frontier(
    choice: Choice, shown: ThresholdSequence | None, index: int, called: str
) -> FrontierFigure:
    rules = [r for r in choice.compared if r.scorer.family != FIXED_BUDGET or r is shown]
    curves, fixed = fit_curves(choice.fit, rules), fixed_curve(choice.fit)
    chosen = None
    if shown is not None:
        family = shown.scorer.family
        curve = next(c for c, r in zip(curves, rules, strict=True) if r is shown)
        chosen = (family, curve.cost[index], curve.accuracy[index])
    return FrontierFigure(
        curves,
        fixed,
        chosen,
        f"{called} point",
        accuracy_at_cost(fixed, None if chosen is None else chosen[1]),
        choice.full_accuracy,
        f"cost per question under {choice.fit.costing.serving}",
        f"{choice.fit.table.n_questions} fit questions, out of fold",
        None if choice.fit.table.rungs is None else True,
    )


def _risk(choice: Choice, basis: str) -> RiskFigure:
    found = fit_risk(choice)
    return RiskFigure(
        found.family,
        numbers(found.thresholds),
        numbers(found.risk),
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


def _calibrated_risk(calibrated: CalibratedRisk, expected: Numbers | None) -> RiskFigure:
    family, limit, n = calibrated.scorer.family, calibrated.limit, calibrated.n
    upper = calibrated.upper_limits()
    return RiskFigure(
        family,
        numbers(displayed(family, calibrated.order)),
        expected,
        numbers(calibrated.risk),
        None if upper is None else numbers(upper),
        calibrated.alpha,
        limit if limit >= 0 else None,
        f"most that passes the test ({round(limit * n)} of {n})",
        calibrated.exported,
        "exported",
        n,
        f"{n} calibration questions, opened by calibrate",
        calibrated.loss.name,
        family != FIXED_BUDGET,
    )
