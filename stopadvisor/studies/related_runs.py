"""Studies of runs that differ in one thing: `cues` and `temperature`.

Paper, Appendices "Prompt and Decoding Robustness" and "Temperature Sweep": full accuracy (of forced
answers at the last budget), peak gain and mean thinking.  Beyond the paper, `cues` compares forced
with natural answers on finished traces, to tell a brittle cue from a weak model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from stopadvisor.ground.errors import CalibrationError, StudyError
from stopadvisor.paper.peaks import learned_peak
from stopadvisor.paper.protocol import PaperSetting
from stopadvisor.runs.manifest import differences, identity_of
from stopadvisor.runs.sources import Source
from stopadvisor.stats.intervals import exact_interval, paired_difference
from stopadvisor.studies.registry import paper_setting
from stopadvisor.studies.tables import Outline, Row, StudyOptions, View, labels, layout, views_of

__all__ = ["OUTLINES"]

_SAMPLING = ("plan.temperature", "plan.greedy", "plan.seed", "split.seed", "split.fractions")
# fmt: off
_CUES = layout("cues", "Probe templates", run="Run", questions="Questions",
    full_accuracy=("Full acc. (forced)", "share"), full_accuracy_ci=("95% low", "share"),
    peak_gain="Peak gain", mean_think_tokens=("Mean think", "tokens"), cue="Cue")
_AGAINST = layout("against", "Forced against natural answers, and cue against cue",
    "shares right, on traces that are over by the last budget; lost by cue: natural right, forced "
    "wrong; against first: full accuracy, paired over common questions", run="Run",
    ended="Traces over", natural_accuracy=("Natural", "share"), forced_accuracy=("Forced", "share"),
    lost_by_cue=("Lost by cue", "share"), common="In common", difference=("Against first", "share"),
    difference_ci=("95% low", "share"))
_SAMPLES = layout("temperature", "By temperature, seed and sample", run="Run",
    temperature="Temperature", seed="Seed", sample="Sample", questions="Questions",
    full_accuracy=("Full acc. (forced)", "share"), full_accuracy_ci=("95% low", "share"),
    natural_accuracy=("Natural right", "share"), peak_gain="Peak gain",
    mean_think_tokens=("Mean think", "tokens"), truncated_share=("Cut off", "share"))
_SPREAD = layout("spread", "Over all rows", rows="Rows",
    full_accuracy_min=("Full acc. least", "share"), full_accuracy_max=("most", "share"),
    peak_gain_min="Peak gain least", peak_gain_max="most", peak_gain_std="std.")
# fmt: on


def _cues(
    sources: Sequence[Source], views: Sequence[View], options: StudyOptions
) -> Iterator[Row | str]:
    """Compare cues; refuses archives, and runs that differ in more than their cue."""
    _require_related(sources, varied={"plan.cue"})
    for source, view in zip(sources, views, strict=True):
        yield from _cue(source, view, views[0])


def _cue(source: Source, view: View, first: View) -> Iterator[Row | str]:
    assert source.manifest is not None  # archives were refused
    table, gain = view.table, None
    try:
        gain = learned_peak(PaperSetting.build(table)).gain
    except CalibrationError as error:  # a cue may leave no right answer to learn from
        yield f"{view.label}: no peak gain: {error}"
    right, natural = table.correct[:, -1], table.natural_correct
    cue, think = repr(source.manifest["plan"]["cue"])[1:-1], float(table.trace_tokens.mean())
    yield _CUES.row(run=view.label, questions=right.size, full_accuracy=float(right.mean()),
        full_accuracy_ci=exact_interval(int(right.sum()), right.size), peak_gain=gain,
        mean_think_tokens=think, cue=cue)  # fmt: skip
    over = table.ended[:, -1] & ~table.truncated
    shares: list[float | None] = [None] * 3
    if natural is not None and over.any():
        here, forced = natural[over], right[over]
        shares = [float(np.mean(right_there)) for right_there in (here, forced, here & ~forced)]
    there = dict(zip(first.table.keys, first.table.correct[:, -1].tolist(), strict=True))
    both = zip(table.keys, right.tolist(), strict=True)
    pairs = [(one, there[key]) for key, one in both if key in there]
    n, gained, lost = len(pairs), sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
    known = n > 0 and view is not first
    yield _AGAINST.row(run=view.label, ended=int(over.sum()), natural_accuracy=shares[0],
        forced_accuracy=shares[1], lost_by_cue=shares[2], common=n,
        difference=(gained - lost) / n if known else None,
        difference_ci=paired_difference(gained, lost, n) if known else None)  # fmt: skip


def _temperature(
    sources: Sequence[Source], views: Sequence[View], options: StudyOptions
) -> Iterator[Row]:
    """Compare temperatures, seeds and samples; refuses runs that differ otherwise."""
    if len(sources) < 2 and not (sources and sources[0].table.samples.max() > 0):
        raise StudyError(
            "needs two runs or more that differ in temperature or seed only, or one with several "
            "samples (`probe --samples`)"
        )
    _require_related(sources, varied=_SAMPLING)
    accuracies, gains = [], []
    for source, one in zip(sources, views, strict=True):
        assert source.manifest is not None  # archives were refused
        plan = source.manifest["plan"]
        drawn = "the model's own" if plan["temperature"] is None else f"{plan['temperature']:g}"
        for sample in np.unique(one.table.samples).tolist():
            table = one.table.with_reference("last-checkpoint")
            table = table.take(table.samples == sample)
            right, natural = table.correct[:, -1], table.natural_correct
            gains.append(learned_peak(paper_setting(replace(one, table=table))).gain)
            accuracies.append(float(right.mean()))
            yield _SAMPLES.row(run=one.label, seed=plan["seed"], sample=sample,
                temperature="0 (greedy)" if plan["greedy"] else drawn, questions=right.size,
                full_accuracy=accuracies[-1],
                full_accuracy_ci=exact_interval(int(right.sum()), right.size),
                natural_accuracy=None if natural is None else float(natural.mean()),
                peak_gain=gains[-1], mean_think_tokens=float(table.trace_tokens.mean()),
                truncated_share=float(table.truncated.mean()))  # fmt: skip
    std = float(np.std(gains, ddof=1)) if len(gains) > 1 else None
    ends = [end(values) for values in (accuracies, gains) for end in (min, max)]
    yield Row(_SPREAD, (len(gains), *ends, std))


def _require_related(sources: Sequence[Source], *, varied: Collection[str]) -> None:
    """Refuse archives, runs without a common question, and runs that differ in other fields.

    `varied` holds dotted names of manifest fields that may differ, such as ``plan.cue``.
    """
    names = labels(sources)
    identities = []
    for name, source in zip(names, sources, strict=True):
        if source.manifest is None:
            raise StudyError(f"{name} is an archive: it does not say how its probes were drawn")
        identities.append(identity_of(source.manifest))
    keys = set(sources[0].table.keys)
    for name, identity, source in zip(names[1:], identities[1:], sources[1:], strict=True):
        if not keys & set(source.table.keys):
            raise StudyError(f"{name} and {names[0]} have no question in common")
        for difference in differences(identity, identities[0]):
            if difference.partition(":")[0] not in varied:
                raise StudyError(
                    f"runs may differ in {', '.join(sorted(varied))} only; {name} against "
                    f"{names[0]}: {difference}"
                )


OUTLINES = (
    Outline("cues", 'Appendix "Prompt and Decoding Robustness"', (_CUES, _AGAINST), _cues),
    Outline(
        "temperature",
        'Appendix "Temperature Sweep"',
        (_SAMPLES, _SPREAD),
        _temperature,
        partial(views_of, all_samples=True),
    ),
)
