"""Study `cues`: how the words that force an answer change accuracy and gain.

Paper, Appendix "Prompt and Decoding Robustness": full accuracy (of forced answers at the last
budget), peak gain and mean thinking by probe template.  Takes runs over the same questions that
differ in nothing but their cue.  Besides the paper's columns it compares forced with natural
answers on traces that are over, which tells a brittle cue from a weak model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stopadvisor.ground.errors import CalibrationError
from stopadvisor.paper.peaks import learned_peak
from stopadvisor.paper.protocol import PaperSetting
from stopadvisor.runs.access import View
from stopadvisor.runs.sources import Source
from stopadvisor.stats.intervals import exact_interval, paired_difference
from stopadvisor.studies.runner import paper_views, require_related
from stopadvisor.studies.tables import Outline, Row, StudyOptions, StudyReport, layout

__all__ = ["OUTLINE", "run"]

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
# fmt: on
OUTLINE = Outline("cues", 'Appendix "Prompt and Decoding Robustness"', (_CUES, _AGAINST))


def run(sources: Sequence[Source], options: StudyOptions) -> StudyReport:
    """Accuracy and gain by cue; refuses archives, and runs that differ in more than their cue."""
    require_related(sources, varied={"plan.cue"})
    views = paper_views(sources)
    rows = [row for s, v in zip(sources, views, strict=True) for row in _rows(s, v, views[0])]
    return OUTLINE.result(rows, options, views)


def _rows(source: Source, view: View, first: View) -> Iterator[Row | str]:
    assert source.manifest is not None  # require_related refuses archives
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
