"""Study `temperature`: what sampling does to accuracy, thinking and gain.

Paper, Appendix "Temperature Sweep": full accuracy and peak gain by temperature and seed.  Takes
runs over the same questions that differ in temperature, greediness or seed, or one run with
several samples a question: each sample is a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stopadvisor.errors import StudyError
from stopadvisor.paper.peaks import learned_peak
from stopadvisor.runs.access import View, basis_remarks, labels, view
from stopadvisor.runs.compatibility import require_related
from stopadvisor.runs.sources import Source
from stopadvisor.stats.intervals import exact_interval
from stopadvisor.studies.protocols import Expected, deploy_protocols, paper_setting, study_settings
from stopadvisor.studies.rows import Ends, Outline, Row, RunRow, column, ends, part
from stopadvisor.studies.study import StudyOptions, StudyResult

__all__ = ["OUTLINE", "run"]

_VARIED = ("plan.temperature", "plan.greedy", "plan.seed", "split.seed", "split.fractions")


class _Sample(RunRow, table="temperature", title="By temperature, seed and sample"):
    temperature: str = column("Temperature")
    seed: int = column("Seed")
    sample: int = column("Sample")
    questions: int = column("Questions")
    full_accuracy: float = column("Full acc. (forced)", "share")
    full_accuracy_ci: Ends = ends("95% low", "share")
    natural_accuracy: float | None = column("Natural right", "share")
    peak_gain: float = column("Peak gain")
    mean_think_tokens: float = column("Mean think", "tokens")
    truncated_share: float = column("Cut off", "share")


class _SpreadRow(Row, table="spread", title="Over all rows"):
    rows: int = column("Rows")
    full_accuracy_min: float = column("Full acc. least", "share")
    full_accuracy_max: float = column("most", "share")
    peak_gain_min: float = column("Peak gain least")
    peak_gain_max: float = column("most")
    peak_gain_std: float | None = column("std.")


class _TemperatureServed(
    RunRow,
    table="served",
    title="Expected at equal risk, {serving}",
    note="the cheapest rule on fit questions, all samples together",
):
    temperature: str = column("Temperature")
    expected: Expected | None = part(Expected)


OUTLINE = Outline(
    "temperature", 'Appendix "Temperature Sweep"', (_Sample, _SpreadRow, _TemperatureServed)
)


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Accuracy and gain by temperature, seed and sample.

    Raises
    ------
    StopAdvisorError
        One run with one sample, an archive, or runs that differ in more than sampling.
    """
    if len(sources) < 2 and not (sources and sources[0].table.samples.max() > 0):
        raise StudyError(
            "needs two runs or more that differ in temperature or seed only, or one with several "
            "samples (`probe --samples`)"
        )
    require_related(sources, varied=_VARIED)
    views = [view(s, n, all_samples=True) for s, n in zip(sources, labels(sources), strict=True)]
    samples = [
        _sample(source, one, sample)
        for source, one in zip(sources, views, strict=True)
        for sample in np.unique(one.table.samples).tolist()
    ]
    protocols, reasons = deploy_protocols(sources, study_settings(options))
    temperatures = {row.run: row.temperature for row in samples}
    served = [
        _TemperatureServed(
            each.label, temperatures[each.label], each.expected(each.all_sequences())
        )
        for each in protocols
    ]
    found: list[Row | str] = [*samples, _spread(samples), *served, *reasons]
    return OUTLINE.result(found, options, basis_remarks(views))


def _sample(source: Source, one: View, sample: int) -> _Sample:
    assert source.manifest is not None  # held by require_related
    plan = source.manifest["plan"]
    table = one.table.with_reference("last-checkpoint")
    table = table.take(table.samples == sample)
    right, natural = table.correct[:, -1], table.natural_correct
    return _Sample(
        run=one.label,
        temperature=_temperature(plan["greedy"], plan["temperature"]),
        seed=plan["seed"],
        sample=sample,
        questions=right.size,
        full_accuracy=float(right.mean()),
        full_accuracy_ci=exact_interval(int(right.sum()), right.size),
        natural_accuracy=None if natural is None else float(natural.mean()),
        peak_gain=learned_peak(paper_setting(replace(one, table=table))).gain,
        mean_think_tokens=float(table.trace_tokens.mean()),
        truncated_share=float(table.truncated.mean()),
    )


def _spread(samples: Sequence[_Sample]) -> _SpreadRow:
    accuracies = [row.full_accuracy for row in samples]
    gains = [row.peak_gain for row in samples]
    return _SpreadRow(
        rows=len(samples),
        full_accuracy_min=min(accuracies),
        full_accuracy_max=max(accuracies),
        peak_gain_min=min(gains),
        peak_gain_max=max(gains),
        peak_gain_std=float(np.std(gains, ddof=1)) if len(gains) > 1 else None,
    )


def _temperature(greedy: bool, temperature: float | None) -> str:
    if greedy:
        return "0 (greedy)"
    return "the model's own" if temperature is None else f"{temperature:g}"
