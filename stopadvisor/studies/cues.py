"""Study `cues`: what the words that force an answer do to accuracy and gain.

Paper, Appendix "Prompt and Decoding Robustness": full accuracy (of forced answers at the last
budget), peak gain and mean thinking by probe template.  Takes runs over the same questions that
differ in their cue alone.  Beside the paper's columns it compares forced with natural answers on
traces that are over, which tells a brittle cue from a weak model, and shows the agreement that
preflight recorded in the run.
"""

from __future__ import annotations

from collections.abc import Sequence

from stopadvisor.errors import CalibrationError, StudyError
from stopadvisor.json_text import parse_json
from stopadvisor.paper.peaks import learned_peak
from stopadvisor.paper.protocol import PaperSetting
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.runs.access import View, basis_remarks
from stopadvisor.runs.compatibility import require_related
from stopadvisor.runs.sources import Source
from stopadvisor.stats.intervals import exact_interval, paired_difference
from stopadvisor.studies.protocols import Expected, deploy_protocols, paper_views, study_settings
from stopadvisor.studies.rows import Ends, Outline, Row, RunRow, column, ends, part
from stopadvisor.studies.study import StudyOptions, StudyResult

__all__ = ["OUTLINE", "run"]


class _Cue(RunRow, table="cues", title="Probe templates"):
    questions: int = column("Questions")
    full_accuracy: float = column("Full acc. (forced)", "share")
    full_accuracy_ci: Ends = ends("95% low", "share")
    peak_gain: float | None = column("Peak gain")
    mean_think_tokens: float = column("Mean think", "tokens")
    cue: str = column("Cue")


class _Natural(Row):
    """Forced against natural answers on the traces that are over at the last budget."""

    ended: int = column("Traces over")
    natural_accuracy: float | None = column("Natural", "share")
    forced_accuracy: float | None = column("Forced", "share")
    lost_by_cue: float | None = column("Lost by cue", "share")


class _First(Row):
    """Full accuracy minus the first run's, over the questions of both."""

    common: int = column("In common")
    difference: float | None = column("Beside first", "share")
    difference_ci: Ends = ends("95% low", "share")


class _Against(
    RunRow,
    table="against",
    title="Forced against natural answers, and cue against cue",
    note="shares right, on traces that are over by the last budget; lost by cue: natural right, "
    "forced wrong; beside first: full accuracy, paired over common questions",
):
    natural: _Natural = part(_Natural)
    agreement: float | None = column("Preflight agrees", "share")
    first: _First = part(_First)


class _CuesServed(
    RunRow,
    table="served",
    title="Expected at equal risk, {serving}",
    note="the cheapest rule on fit questions; what it loses is held against natural answers",
):
    expected: Expected | None = part(Expected)


OUTLINE = Outline(
    "cues", 'Appendix "Prompt and Decoding Robustness"', (_Cue, _Against, _CuesServed)
)


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Accuracy and gain by cue; the other runs are compared with the first.

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
    found: list[Row | str] = []
    for source, view in zip(sources, views, strict=True):
        try:
            gain = learned_peak(PaperSetting.build(view.table)).gain
        except CalibrationError as error:
            gain = None  # a cue may leave no right answer to learn from
            found.append(f"{view.label}: no peak gain: {error}")
        found += [_cue(source, view, gain), _against(source, view, views[0].table)]
    protocols, reasons = deploy_protocols(sources, study_settings(options))
    found += [_CuesServed(each.label, each.expected(each.all_sequences())) for each in protocols]
    return OUTLINE.result([*found, *reasons], options, basis_remarks(views))


def _cue(source: Source, view: View, gain: float | None) -> _Cue:
    assert source.manifest is not None  # held by require_related
    right = view.table.correct[:, -1]
    return _Cue(
        run=view.label,
        questions=right.size,
        full_accuracy=float(right.mean()),
        full_accuracy_ci=exact_interval(int(right.sum()), right.size),
        peak_gain=gain,
        mean_think_tokens=float(view.table.trace_tokens.mean()),
        cue=repr(source.manifest["plan"]["cue"])[1:-1],
    )


def _against(source: Source, view: View, first: GradedTable) -> _Against:
    natural, agreement = _natural(view.table), _agreement(source)
    return _Against(view.label, natural, agreement, _beside(view.table, first))


def _natural(table: GradedTable) -> _Natural:
    over = table.ended[:, -1] & ~table.truncated
    n = int(over.sum())
    if n == 0 or table.natural_correct is None:
        return _Natural(n, None, None, None)
    natural, forced = table.natural_correct[over], table.correct[over, -1]
    lost = float((natural & ~forced).mean())
    return _Natural(n, float(natural.mean()), float(forced.mean()), lost)


def _agreement(source: Source) -> float | None:
    """Share of equal answers that preflight recorded in the run; None without it."""
    file = source.folder / "preflight.json"
    try:
        value = parse_json(file.read_text(encoding="utf-8"))["agreement"]
    except FileNotFoundError:
        return None  # the preflight was skipped
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StudyError(f"{file}: not readable as the result of a preflight: {error}") from error
    return None if value is None else float(value)


def _beside(table: GradedTable, first: GradedTable) -> _First:
    there = dict(zip(first.keys, first.correct[:, -1].tolist(), strict=True))
    here = dict(zip(table.keys, table.correct[:, -1].tolist(), strict=True))
    common = [(here[key], there[key]) for key in here if key in there]
    n = len(common)
    if not common or table is first:
        return _First(n, None, None)
    gained = sum(a and not b for a, b in common)
    lost = sum(b and not a for a, b in common)
    return _First(n, (gained - lost) / n, paired_difference(gained, lost, n))
