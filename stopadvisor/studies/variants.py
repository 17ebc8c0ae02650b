"""Variants of the learned rule side by side: their peaks, and what they save on fit questions.

Takes each variant's probabilities; how they were fitted is for the studies to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import numpy as np

from stopadvisor.arrays import FloatArray
from stopadvisor.assessment.frontier import fixed_budget_frontier
from stopadvisor.assessment.sequences import ThresholdSequence
from stopadvisor.paper.gain_bootstrap import resample_gains
from stopadvisor.paper.peaks import peak, peak_thresholds
from stopadvisor.paper.protocol import first_stops
from stopadvisor.runs.access import View
from stopadvisor.stats.bootstrap import interval
from stopadvisor.stats.reliability import auroc
from stopadvisor.studies.protocols import DeployProtocol
from stopadvisor.studies.rows import Ends, RunRow, column, ends
from stopadvisor.studies.study import StudyOptions

__all__ = ["VariantPeak", "VariantSaving", "variant_peaks", "variant_saving"]


class VariantPeak(RunRow):
    """Peak gain of a variant; a study gives it a table, and `ahead` its title."""

    variant: str = column("Variant")
    threshold: float = column("Threshold")
    peak_gain: float = column("Peak gain", of="gain")
    gain_ci: Ends = ends("95 % CI")
    ahead: float | None = column("Ahead of the first")
    ahead_ci: Ends = ends("95 % CI")
    auroc: float | None = column("AUROC")


class VariantSaving(RunRow):
    """What a variant saves on fit questions; empty where it cannot be fitted or may not stop."""

    variant: str = column("Variant")
    auroc: float | None = column("AUROC (fit)")
    fit_risk: float | None = column("Risk (fit)", "share", of="risk")
    fit_saving_pct: float | None = column("Net saving (fit)", "%", of="saving_pct")


_Peak = TypeVar("_Peak", bound=VariantPeak)
_Saving = TypeVar("_Saving", bound=VariantSaving)


def variant_peaks(
    kind: type[_Peak],
    view: View,
    probabilities: Mapping[str, FloatArray],
    reference: str,
    options: StudyOptions,
) -> Iterator[_Peak]:
    """Peak gain of each variant, and by how much it is ahead of one of them.

    `kind` is the study's own row class; `probabilities` are out of fold, shape (n_questions,
    n_checkpoints); with the variant `reference` the others are compared, in the same resamples.
    """
    table = view.table
    thinking = table.think_tokens.astype(np.float64)
    fixed = fixed_budget_frontier(thinking, table.correct, table.budgets)
    peaks = {
        name: peak(values, thinking, table.correct, peak_thresholds("learned", values), fixed)
        for name, values in probabilities.items()
    }
    resampled = resample_gains(
        {name: first_stops(probabilities[name], found.threshold) for name, found in peaks.items()},
        thinking,
        table.correct,
        n_resamples=options.resamples,
        rng=np.random.default_rng(options.seed),
    )
    for name, found in peaks.items():
        other = name != reference
        yield kind.of(
            found,
            run=view.label,
            variant=name,
            gain_ci=interval(resampled[name]),
            ahead=found.gain - peaks[reference].gain if other else None,
            ahead_ci=interval(resampled[name] - resampled[reference]) if other else None,
            auroc=auroc(probabilities[name], table.correct),
        )


def variant_saving(
    kind: type[_Saving],
    deploy: DeployProtocol,
    name: str,
    scores: FloatArray,
    sequence: ThresholdSequence,
) -> _Saving:
    """What a variant over all checkpoints saves at the risk that calibration could certify.

    `kind` is the study's own row class; `scores`, (n_questions, n_checkpoints), are out of fold on
    the fit questions, and `sequence` is made of them.
    """
    live, right = ~deploy.fit.table.ended, deploy.fit.table.stop_correct
    area = auroc(scores[live], right[live])
    return kind.of(deploy.limit(sequence), run=deploy.label, variant=name, auroc=area)
