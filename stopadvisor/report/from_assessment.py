"""From an assessment to its result; takes figures as they are and computes none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stopadvisor.assessment.choice import Choice
from stopadvisor.assessment.fit_assessment import FitAssessment, LoadSaving
from stopadvisor.paper.analysis import PaperAssessment
from stopadvisor.policy.shown import promise_of
from stopadvisor.report.assessed import (
    Assessed,
    AssessedByPaper,
    AssessedRun,
    AssessedSettings,
    AssessedWorkload,
    FitComparison,
    Limit,
    PaperSaving,
    PaperStacks,
    PredictedRegime,
    StackCosts,
)
from stopadvisor.report.headline import assessed_headline
from stopadvisor.rules.costs import LADDER
from stopadvisor.rules.losses import LOST
from stopadvisor.rules.roofline import Prices
from stopadvisor.rules.schedules import grid_positions
from stopadvisor.rules.serving_costs import StackCost
from stopadvisor.workload.questions import PartCounts

__all__ = ["assessed"]


def assessed(
    assessment: FitAssessment | PaperAssessment,
    remarks: Sequence[str] = (),
    *,
    loads: Sequence[LoadSaving] = (),
) -> Assessed:
    """Put an assessment into its result; under deploy the same fit questions give the same bytes.

    Notes
    -----
    It carries no time, and nothing of a calibration question under the deploy protocol.
    """
    common = _common(assessment, remarks)
    result: Assessed
    if isinstance(assessment, PaperAssessment):
        result = _by_paper(assessment, common)
    else:
        result = _deploy(assessment, common, loads)
    return replace(result, headline=assessed_headline(result))


def _common(assessment: FitAssessment | PaperAssessment, remarks: Sequence[str]) -> dict[str, Any]:
    source = assessment.source
    is_open = isinstance(assessment, FitAssessment) and assessment.promises is not None
    is_answer = isinstance(assessment, FitAssessment) and source.table.on_stop == "answer"
    return {
        "alpha": None if is_open else assessment.alpha,
        "delta": assessment.delta,
        "run": str(source.folder),
        "workload": AssessedWorkload(
            n_questions=assessment.n_questions,
            n_checkpoints=source.table.n_checkpoints,
            budgets=tuple(grid_positions(source.table)),
            full_reference=assessment.reference,
            graded_by=assessment.graded_by,
            truncated_share=assessment.truncated_share,
            model=source.model,
            engine=source.engine,
            sha256=source.workload_sha256,
            on_stop="answer" if is_answer else None,
        ),
        "split": PartCounts(**assessment.split),
        "profile": assessment.profile.shares,
        "regime": PredictedRegime(
            assessment.profile.predicted, assessment.profile.stability, assessment.basis
        ),
        "recommendation": assessment.recommendation,
        "remarks": tuple(remarks),
    }


def _deploy(
    assessment: FitAssessment, common: dict[str, Any], loads: Sequence[LoadSaving]
) -> AssessedRun:
    choice, settings = assessment.choice, assessment.choice.settings
    comparison = FitComparison(
        settings.alpha,
        learned=choice.learned,
        scalar=choice.scalar,
        fixed_budget=choice.fixed_budget,
        agreement=choice.agreement,
        delta_saving_pp=choice.delta_saving_pp,
        verdict=choice.verdict,
    )
    also = tuple(Limit(each.loss, each.alpha, each.category) for each in settings.also)
    return AssessedRun(
        **common,
        matched_risk=(comparison,),
        serving=_stack_costs(choice, loads),
        fit_full_accuracy=choice.full_accuracy,
        fit_saving_lower_pct=choice.saving_lower,
        label_savings=assessment.label_savings,
        label_needs=assessment.label_needs or None,
        repeats=assessment.repeats,
        rungs=assessment.rungs or None,
        chance_to_certify=choice.probability,
        settings=AssessedSettings(
            settings.serving,
            settings.weights,
            settings.cache_block,
            settings.families,
            None if settings.loss == LOST.name and settings.serving != LADDER else settings.loss,
            also or None,
        ),
        asked=None if settings.is_lost else promise_of(settings.guarantees),
        promises=assessment.promises,
    )


def _stack_costs(choice: Choice, loads: Sequence[LoadSaving]) -> StackCosts:
    point, rows = choice.advised_point, choice.serving()
    at = None
    if point is not None and point.threshold is not None:
        at = (
            f"{point.family} at threshold {point.threshold:.4g}, {point.where}; fit questions, out "
            "of fold"
        )
    return StackCosts(
        operating_point=at,
        prices=Prices.of(choice.settings.weights),
        by_load=tuple(loads) or None,
        vllm=rows.get("vllm", _NO_COST) if choice.settings.serving == "vllm" else None,
        kv_fork=rows.get("kv-fork", _NO_COST),
        prefix_cache=rows.get("prefix-cache", _NO_COST),
        black_box=rows.get("black-box", _NO_COST),
        ladder=rows.get(LADDER),
    )


_NO_COST = StackCost(None, None, None, None, None, None, None, None)
"""Where no rule is advised."""


def _by_paper(assessment: PaperAssessment, common: dict[str, Any]) -> AssessedByPaper:
    serving = assessment.serving
    saving = {name: PaperSaving(value) for name, value in serving.saving_pct.items()}
    return AssessedByPaper(
        **common,
        matched_risk=assessment.matched_risk,
        serving=PaperStacks(
            f"learned at its peak-gain threshold {serving.threshold:g}, probing at every "
            "checkpoint; all questions, out of fold",
            saving["kv-fork"],
            saving["prefix-cache"],
            saving["black-box"],
        ),
        full_accuracy=assessment.full_accuracy,
    )
