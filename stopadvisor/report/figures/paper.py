"""Figures of the paper's protocol: all questions, its own split, bound and costs.

Whoever asks for these has opened every question.  The functions are those of
`stopadvisor.paper.protocol`, so that pictures and documents give the same numbers.
"""

from __future__ import annotations

import math

import numpy as np

from stopadvisor.assessment.frontier import Frontier, fixed_budget_frontier, grid_frontier
from stopadvisor.paper.assess import PaperAssessment
from stopadvisor.paper.protocol import (
    MatchedRisk,
    OperatingPoint,
    PaperSetting,
    first_stops,
    paper_split,
    threshold_grid,
)
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.report.figures.data import (
    AlphaFigure,
    Curve,
    Figures,
    FrontierFigure,
    ReliabilityFigure,
    RiskFigure,
    fixed_at,
)
from stopadvisor.report.figures.signals import (
    Stops,
    Texts,
    checkpoint_accuracy,
    examples,
    signal_figures,
)
from stopadvisor.runs.access import open_all
from stopadvisor.stats.reliability import reliability

__all__ = ["paper_figures"]


def paper_figures(assessment: PaperAssessment, texts: Texts | None) -> Figures:
    """Everything that a report on an assessment under the paper's protocol shows."""
    result = assessment.paper
    table = open_all(assessment.source)
    table = table.take(table.samples == 0).with_reference("last-checkpoint")
    setting = PaperSetting.build(table)
    row = next(r for r in result.matched_risk if r.alpha == assessment.alpha)
    advised = assessment.recommendation.family
    point = next((p for p in (row.learned, row.scalar) if p.family == advised), None)
    every = tuple(range(table.n_checkpoints))
    basis = f"all {table.n_questions} questions, out of fold"
    stops = None
    if point is not None:
        scores = setting.scores[point.family]
        at = first_stops(scores, point.threshold)
        # The last checkpoint is no early stop.
        at = np.where(at == every[-1], len(every), at)
        stops = Stops(point.family, every, scores, point.threshold, at)
    return Figures(
        _frontier(table, setting, point, basis),
        _risk(assessment, setting, row, point),
        _alphas(assessment, f"{result.n_test} test questions"),
        ReliabilityFigure(
            {
                name: reliability(np.clip(setting.scores[name], 0.0, 1.0), table.correct)
                for name in ("learned", "confidence")
            },
            basis,
        ),
        checkpoint_accuracy(table, f"all {table.n_questions} questions"),
        signal_figures(table, setting.scores["learned"], every),
        basis,
        examples(table, stops, texts),
        "all questions are open here, scored out of fold; stops are those of the chosen rule",
    )


def _frontier(
    table: GradedTable, setting: PaperSetting, point: OperatingPoint | None, basis: str
) -> FrontierFigure:
    thinking = setting.costs.thinking
    full = float(setting.costs.full_thinking.mean())

    def curve(name: str, frontier: Frontier) -> Curve:
        return Curve(name, frontier.at, 100 * frontier.cost / full, frontier.accuracy)

    rules = [
        curve(name, grid_frontier(scores, thinking, setting.correct, threshold_grid(scores)[::-1]))
        for name, scores in setting.scores.items()
    ]
    fixed = curve("fixed budget", fixed_budget_frontier(thinking, setting.correct, table.budgets))
    chosen = None
    if point is not None:
        chosen = (
            f"{point.family} on test questions",
            100 - point.think_saving_pct,
            point.test_accuracy,
        )
    return FrontierFigure(
        tuple(rules),
        fixed,
        chosen,
        "chosen point",
        fixed_at(fixed, chosen),
        float(table.full_correct.mean()),
        "thinking tokens",
        basis,
    )


def _risk(
    assessment: PaperAssessment,
    setting: PaperSetting,
    row: MatchedRisk,
    point: OperatingPoint | None,
) -> RiskFigure:
    shown = point or row.learned
    n_questions = setting.correct.shape[0]
    calibration, _ = paper_split(n_questions)
    scores = setting.scores[shown.family][calibration]
    loss = setting.loss[calibration]
    grid = threshold_grid(scores)[-2::-1]  # without the last, which never stops
    # The frontier's sums serve for any quantity of the stop: here what is lost.
    risk = grid_frontier(scores, loss.astype(np.float64), loss, grid).accuracy
    n = calibration.size
    slack = math.sqrt(math.log(shown.candidates / assessment.delta) / (2 * n))
    at = np.flatnonzero(grid == shown.threshold)
    return RiskFigure(
        shown.family,
        grid,
        None,
        risk,
        np.minimum(risk + slack, 1.0),
        "over all candidates",
        assessment.alpha,
        None,
        "",
        int(at[0]) if shown.feasible and at.size else None,
        "chosen",
        n,
        f"{n} calibration questions of the paper's split, Hoeffding over "
        f"{shown.candidates} candidates",
    )


def _alphas(assessment: PaperAssessment, basis: str) -> AlphaFigure:
    result = assessment.paper
    rows = result.matched_risk

    def saving(point: OperatingPoint) -> float | None:
        return point.total_saving_pct if point.feasible else None

    return AlphaFigure(
        tuple(row.alpha for row in rows),
        {
            "learned": tuple(saving(row.learned) for row in rows),
            "best scalar": tuple(saving(row.scalar) for row in rows),
        },
        None,
        assessment.alpha,
        basis,
    )
