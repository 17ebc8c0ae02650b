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
from stopadvisor.runs.access import basis_remarks, labels, view
from stopadvisor.runs.compatibility import require_related
from stopadvisor.runs.sources import Source
from stopadvisor.stats.intervals import exact_interval
from stopadvisor.studies.protocols import EXPECTED, fit_sides, paper_setting, study_settings
from stopadvisor.studies.study import Cell, Column, StudyOptions, StudyResult, Table

__all__ = ["run"]

_VARIED = ("plan.temperature", "plan.greedy", "plan.seed", "split.seed", "split.fractions")

_ROWS = (
    Column("run", "Run"),
    Column("temperature", "Temperature"),
    Column("seed", "Seed"),
    Column("sample", "Sample"),
    Column("questions", "Questions"),
    Column("full_accuracy", "Full acc. (forced)", "share"),
    Column("full_accuracy_low", "95% low", "share"),
    Column("full_accuracy_high", "high", "share"),
    Column("natural_accuracy", "Natural right", "share"),
    Column("peak_gain", "Peak gain"),
    Column("mean_think_tokens", "Mean think", "tokens"),
    Column("truncated_share", "Cut off", "share"),
)
_SERVED = (Column("run", "Run"), Column("temperature", "Temperature"), *EXPECTED)
_SPREAD = (
    Column("rows", "Rows"),
    Column("full_accuracy_min", "Full acc. least", "share"),
    Column("full_accuracy_max", "most", "share"),
    Column("peak_gain_min", "Peak gain least"),
    Column("peak_gain_max", "most"),
    Column("peak_gain_std", "std."),
)


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Accuracy and gain by temperature, seed and sample.

    Parameters
    ----------
    sources : sequence of Source
        Related runs, or one with several samples.
    options : StudyOptions

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
    rows: list[tuple[Cell, ...]] = []
    accuracies: list[float] = []
    gains: list[float] = []
    for source, one in zip(sources, views, strict=True):
        assert source.manifest is not None  # held by require_related
        plan = source.manifest["plan"]
        for sample in np.unique(one.table.samples).tolist():
            table = one.table.with_reference("last-checkpoint")
            table = table.take(table.samples == sample)
            right, natural = table.correct[:, -1], table.natural_correct
            found = learned_peak(paper_setting(replace(one, table=table)))
            accuracies.append(float(right.mean()))
            gains.append(found.gain)
            rows.append(
                (
                    one.label,
                    _temperature(plan["greedy"], plan["temperature"]),
                    plan["seed"],
                    sample,
                    table.n_questions,
                    accuracies[-1],
                    *exact_interval(int(right.sum()), table.n_questions),
                    None if natural is None else float(natural.mean()),
                    found.gain,
                    float(table.trace_tokens.mean()),
                    float(table.truncated.mean()),
                )
            )
    spread = (
        len(rows),
        min(accuracies),
        max(accuracies),
        min(gains),
        max(gains),
        float(np.std(gains, ddof=1)) if len(gains) > 1 else None,
    )
    sides, reasons = fit_sides(sources, study_settings(options))
    drawn = {str(row[0]): row[1] for row in rows}
    served = [(s.label, drawn[s.label], *s.expected(s.all_chains())) for s in sides]
    return StudyResult(
        "temperature",
        'Appendix "Temperature Sweep"',
        ("paper", "deploy"),
        (
            Table("temperature", "By temperature, seed and sample", _ROWS, tuple(rows)),
            Table("spread", "Over all rows", _SPREAD, (spread,)),
            Table(
                "served",
                f"Expected at equal risk, {options.serving}",
                _SERVED,
                tuple(served),
                "the cheapest rule on fit questions, all samples together",
            ),
        ),
        (*basis_remarks(views), *reasons),
    )


def _temperature(greedy: bool, temperature: float | None) -> str:
    if greedy:
        return "0 (greedy)"
    return "the model's own" if temperature is None else f"{temperature:g}"
