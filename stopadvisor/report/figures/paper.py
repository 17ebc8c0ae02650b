"""Figures of the paper's protocol: all questions, its own split, bound and costs.

Words and shapes what `paper.diagnostics` computed.  Whoever asks for these has opened every
question.
"""

from __future__ import annotations

from stopadvisor.assessment.diagnostics import accuracy_at_cost
from stopadvisor.assessment.signals import checkpoint_accuracy, signals_of
from stopadvisor.ground.arrays import numbers
from stopadvisor.paper.analysis import PaperAssessment
from stopadvisor.paper.diagnostics import paper_curves, paper_reliability, paper_risk, paper_stops
from stopadvisor.paper.protocol import MatchedRisk, PaperRule, PaperSetting
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.report.figures.data import (
    AlphaFigure,
    CheckpointFigure,
    Figures,
    FrontierFigure,
    ReliabilityFigure,
    RiskFigure,
    Texts,
    examples,
)
from stopadvisor.runs.access import open_all

__all__ = ["paper_figures"]


def paper_figures(assessment: PaperAssessment, texts: Texts, digest: str) -> Figures:
    """Everything that a report on an assessment under the paper's protocol shows."""
    result = assessment.paper
    table = open_all(assessment.source)
    table = table.take(table.samples == 0).with_reference("last-checkpoint")
    setting = PaperSetting.build(table)
    row = next(r for r in result.matched_risk if r.alpha == assessment.alpha)
    advised = assessment.recommendation.family
    point = next((p for p in (row.learned, row.scalar) if p.family == advised), None)
    basis = f"all {table.n_questions} questions, out of fold"
    return Figures(
        digest,
        _frontier(table, setting, point, basis),
        _risk(assessment, setting, row, point),
        _alphas(assessment, f"{result.n_test} test questions"),
        ReliabilityFigure(paper_reliability(table, setting), basis),
        CheckpointFigure(checkpoint_accuracy(table), f"all {table.n_questions} questions"),
        signals_of(table, (table, setting.scores["learned"])),
        basis,
        examples(
            table,
            None if point is None else paper_stops(setting, point),
            texts,
            "all questions are open here, scored out of fold; stops are those of the chosen rule",
        ),
        texts.remarks,
    )


def _frontier(
    table: GradedTable, setting: PaperSetting, point: PaperRule | None, basis: str
) -> FrontierFigure:
    rules, fixed = paper_curves(table, setting)
    chosen = None
    if point is not None:
        chosen = (
            f"{point.family} on test questions",
            100 - point.think_saving_pct,
            point.test_accuracy,
        )
    return FrontierFigure(
        rules,
        fixed,
        chosen,
        "chosen point",
        accuracy_at_cost(fixed, None if chosen is None else chosen[1]),
        float(table.full_correct.mean()),
        "thinking tokens",
        basis,
    )


def _risk(
    assessment: PaperAssessment, setting: PaperSetting, row: MatchedRisk, point: PaperRule | None
) -> RiskFigure:
    shown = point or row.learned
    found = paper_risk(setting, shown, assessment.delta)
    return RiskFigure(
        shown.family,
        numbers(found.thresholds),
        None,
        numbers(found.observed),
        numbers(found.upper),
        assessment.alpha,
        None,
        "",
        found.chosen,
        "chosen",
        found.n,
        f"{found.n} calibration questions of the paper's split, Hoeffding over "
        f"{shown.candidates} candidates",
    )


def _alphas(assessment: PaperAssessment, basis: str) -> AlphaFigure:
    result = assessment.paper
    rows = result.matched_risk

    def saving(point: PaperRule) -> float | None:
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
