"""Study `temperature`: how sampling changes accuracy, thinking and gain.

Paper, Appendix "Temperature Sweep": full accuracy and peak gain by temperature and seed.  Takes
runs with questions in common that differ in temperature, greediness, seed or split, or one run
with several samples of each question: each sample is a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stopadvisor.ground.errors import StudyError
from stopadvisor.paper.peaks import learned_peak
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.runs.access import labels, view
from stopadvisor.runs.sources import Source
from stopadvisor.stats.intervals import exact_interval
from stopadvisor.studies.runner import paper_setting, require_related
from stopadvisor.studies.tables import Outline, Row, StudyOptions, StudyReport, layout

__all__ = ["OUTLINE", "run"]

_VARIED = ("plan.temperature", "plan.greedy", "plan.seed", "split.seed", "split.fractions")
# fmt: off
_SAMPLES = layout("temperature", "By temperature, seed and sample", run="Run",
    temperature="Temperature", seed="Seed", sample="Sample", questions="Questions",
    full_accuracy=("Full acc. (forced)", "share"), full_accuracy_ci=("95% low", "share"),
    natural_accuracy=("Natural right", "share"), peak_gain="Peak gain",
    mean_think_tokens=("Mean think", "tokens"), truncated_share=("Cut off", "share"))
_SPREAD = layout("spread", "Over all rows", rows="Rows",
    full_accuracy_min=("Full acc. least", "share"), full_accuracy_max=("most", "share"),
    peak_gain_min="Peak gain least", peak_gain_max="most", peak_gain_std="std.")
# fmt: on
OUTLINE = Outline("temperature", 'Appendix "Temperature Sweep"', (_SAMPLES, _SPREAD))


def run(sources: Sequence[Source], options: StudyOptions) -> StudyReport:
    """Accuracy and gain by temperature, seed and sample; refuses runs that differ otherwise."""
    if len(sources) < 2 and not (sources and sources[0].table.samples.max() > 0):
        raise StudyError(
            "needs two runs or more that differ in temperature or seed only, or one with several "
            "samples (`probe --samples`)"
        )
    require_related(sources, varied=_VARIED)
    views = [view(s, n, all_samples=True) for s, n in zip(sources, labels(sources), strict=True)]
    rows, accuracies, gains = [], [], []
    for source, one in zip(sources, views, strict=True):
        for sample in np.unique(one.table.samples).tolist():
            table = one.table.with_reference("last-checkpoint")
            table = table.take(table.samples == sample)
            gains.append(learned_peak(paper_setting(replace(one, table=table))).gain)
            accuracies.append(float(table.correct[:, -1].mean()))
            rows.append(_row(source, one.label, sample, table, accuracies[-1], gains[-1]))
    std = float(np.std(gains, ddof=1)) if len(gains) > 1 else None
    ends = [end(values) for values in (accuracies, gains) for end in (min, max)]
    return OUTLINE.result([*rows, Row(_SPREAD, (len(rows), *ends, std))], options, views)


def _row(
    source: Source, run: str, sample: int, table: OpenQuestions, accuracy: float, gain: float
) -> Row:
    assert source.manifest is not None  # require_related refuses archives
    plan, right, natural = source.manifest["plan"], table.correct[:, -1], table.natural_correct
    chosen = "the model's own" if plan["temperature"] is None else f"{plan['temperature']:g}"
    return _SAMPLES.row(run=run, temperature="0 (greedy)" if plan["greedy"] else chosen,
        seed=plan["seed"], sample=sample, questions=right.size, full_accuracy=accuracy,
        full_accuracy_ci=exact_interval(int(right.sum()), right.size),
        natural_accuracy=None if natural is None else float(natural.mean()), peak_gain=gain,
        mean_think_tokens=float(table.trace_tokens.mean()),
        truncated_share=float(table.truncated.mean()),
    )  # fmt: skip
