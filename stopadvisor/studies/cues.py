"""Study `cues`: what the words that force an answer do to accuracy and gain.

Paper, Appendix "Prompt and Decoding Robustness": full accuracy (of forced answers at the last
budget), peak gain and mean thinking by probe template.  Takes runs over the same questions that
differ in their cue alone.  Beside the paper's columns it holds forced answers against natural ones
where the trace is over, which tells a brittle cue from a weak model, and takes the agreement that
preflight recorded in the run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from stopadvisor.errors import CalibrationError, StudyError
from stopadvisor.paper.peaks import learned_peak
from stopadvisor.paper.protocol import PaperSetting
from stopadvisor.probes.table import ProbeTable
from stopadvisor.runs.access import basis_remarks
from stopadvisor.runs.compatibility import require_related
from stopadvisor.runs.sources import Source
from stopadvisor.stats.intervals import exact_interval, paired_difference
from stopadvisor.studies.protocols import EXPECTED, fit_sides, paper_views, study_settings
from stopadvisor.studies.study import Cell, Column, StudyOptions, StudyResult, Table

__all__ = ["run"]

_CUES = (
    Column("run", "Run"),
    Column("questions", "Questions"),
    Column("full_accuracy", "Full acc. (forced)", "share"),
    Column("full_accuracy_low", "95% low", "share"),
    Column("full_accuracy_high", "high", "share"),
    Column("peak_gain", "Peak gain"),
    Column("mean_think_tokens", "Mean think", "tokens"),
    Column("cue", "Cue"),
)
_SERVED = (Column("run", "Run"), *EXPECTED)
_AGAINST = (
    Column("run", "Run"),
    Column("ended", "Traces over"),
    Column("natural_accuracy", "Natural", "share"),
    Column("forced_accuracy", "Forced", "share"),
    Column("lost_by_cue", "Lost by cue", "share"),
    Column("agreement", "Preflight agrees", "share"),
    Column("common", "In common"),
    Column("difference", "Beside first", "share"),
    Column("difference_low", "95% low", "share"),
    Column("difference_high", "high", "share"),
)


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Accuracy and gain by cue.

    Parameters
    ----------
    sources : sequence of Source
        Runs that differ in their cue only, two or more; the first is what the others stand beside.
    options : StudyOptions

    Raises
    ------
    StopAdvisorError
        One run only, an archive, or runs that differ in more than their cue.
    """
    if len(sources) < 2:
        raise StudyError(
            "comparing cues needs two runs or more that differ in their cue only, got "
            f"{len(sources)}: probe the workload again with another --cue"
        )
    require_related(sources, varied={"plan.cue"})
    views = paper_views(sources)
    first = views[0].table
    rows: list[tuple[Cell, ...]] = []
    against: list[tuple[Cell, ...]] = []
    unlearned: list[str] = []
    for source, view in zip(sources, views, strict=True):
        assert source.manifest is not None  # held by require_related
        table = view.table
        right = table.correct[:, -1]
        try:
            gain = learned_peak(PaperSetting.build(table)).gain
        except CalibrationError as error:
            gain = None  # a cue may leave no right answer to learn from
            unlearned.append(f"{view.label}: no peak gain: {error}")
        rows.append(
            (
                view.label,
                table.n_questions,
                float(right.mean()),
                *exact_interval(int(right.sum()), table.n_questions),
                gain,
                float(table.trace_tokens.mean()),
                repr(source.manifest["plan"]["cue"])[1:-1],
            )
        )
        ended = _at_the_end(table)
        against.append((view.label, *ended, _agreement(source), *_beside(table, first)))
    sides, reasons = fit_sides(sources, study_settings(options))
    served = [(side.label, *side.expected(side.all_chains())) for side in sides]
    return StudyResult(
        "cues",
        'Appendix "Prompt and Decoding Robustness"',
        ("paper", "deploy"),
        (
            Table("cues", "Probe templates", _CUES, tuple(rows)),
            Table(
                "against",
                "Forced against natural answers, and cue against cue",
                _AGAINST,
                tuple(against),
                "shares right, on traces that are over by the last budget; lost by cue: natural "
                "right, forced wrong; beside first: full accuracy, paired over common questions",
            ),
            Table(
                "served",
                f"Expected at equal risk, {options.serving}",
                _SERVED,
                tuple(served),
                "the cheapest rule on fit questions; what it loses is held against natural answers",
            ),
        ),
        (*basis_remarks(views), *unlearned, *reasons),
    )


def _at_the_end(table: ProbeTable) -> tuple[Cell, ...]:
    """Forced against natural answers on the traces that are over at the last budget."""
    over = table.ended[:, -1] & ~table.truncated
    n = int(over.sum())
    if n == 0 or table.natural_correct is None:
        return (n, None, None, None)
    natural, forced = table.natural_correct[over], table.correct[over, -1]
    return (n, float(natural.mean()), float(forced.mean()), float((natural & ~forced).mean()))


def _agreement(source: Source) -> float | None:
    """Share of equal answers that preflight recorded in the run; None without it."""
    file = source.folder / "preflight.json"
    try:
        value = json.loads(file.read_text(encoding="utf-8"))["agreement"]
    except FileNotFoundError:
        return None  # the preflight was skipped
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StudyError(f"{file}: not readable as the result of a preflight: {error}") from error
    return None if value is None else float(value)


def _beside(table: ProbeTable, first: ProbeTable) -> tuple[Cell, ...]:
    """Full accuracy minus the first run's, over the questions of both."""
    there = dict(zip(first.keys, first.correct[:, -1].tolist(), strict=True))
    here = dict(zip(table.keys, table.correct[:, -1].tolist(), strict=True))
    common = [(here[key], there[key]) for key in here if key in there]
    if not common or table is first:
        return (len(common), None, None, None)
    gained = sum(a and not b for a, b in common)
    lost = sum(b and not a for a, b in common)
    n = len(common)
    return (n, (gained - lost) / n, *paired_difference(gained, lost, n))
