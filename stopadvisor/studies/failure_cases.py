"""Study `failure-cases`: lost questions, wins and overhead failures, with their trajectories.

Paper, Appendix, Table "Failure cases": test questions of the matched-risk comparison, at its
thresholds.  Answers come from the run's records or the archive, texts of questions from the
workload file, if it still exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.ground.errors import WorkloadError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.paper.protocol import first_stops, operating_points, paper_split
from stopadvisor.runs.archives import read_answers
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.sources import ARCHIVE, Source
from stopadvisor.studies.registry import paper_setting
from stopadvisor.studies.tables import Outline, Row, StudyOptions, View, layout
from stopadvisor.workload.questions import read_workload

__all__ = ["OUTLINES", "find_cases"]

# fmt: off
_COUNTS = layout("counts", "Cases, alpha = {alpha:g}", run="Run", protocol="Protocol",
    learned_family="Learned", scalar_family="Scalar", case="Case", questions="Questions",
    share=("Of all", "share"))
_CASES = layout("cases", "The clearest {cases} of each case", "checkpoints count from 0; one "
    "question may be several cases; costs include probes", run="Run", protocol="Protocol",
    case="Case", id="Question", learned_checkpoint="Learned ckpt", scalar_checkpoint="Scalar ckpt",
    full_correct="Full right", learned_correct="Learned right", scalar_correct="Scalar right",
    learned_cost=("Learned cost", "tokens"), scalar_cost=("Scalar cost", "tokens"),
    full_cost=("Full cost", "tokens"))
_PATHS = layout("trajectories", "Their trajectories", "with both rules' scores; over: the trace "
    "has ended, nothing is probed online", run="Run", protocol="Protocol", id="Question",
    checkpoint="Ckpt", budget=("Budget", "tokens"), ended="Over", answer="Answer", correct="Right",
    learned_score="Learned", scalar_score="Scalar")
_TEXTS = layout("texts", "Their texts, where the run holds them", run="Run", id="Question",
    question="Text", gold="Gold", natural_answer="Natural answer")
# fmt: on


def _rows(sources: Sequence[Source], views: Sequence[View], options: StudyOptions) -> Iterator[Row]:
    """List cases and trajectories; ``extra["cases"]`` limits the questions shown of each case."""
    shown = _OUTLINE.whole(options, "cases")
    for source, view in zip(sources, views, strict=True):
        yield from _of_run(source, view, shown, options)


def _of_run(source: Source, view: View, shown: int, options: StudyOptions) -> Iterator[Row]:
    setting, (calibration, test) = paper_setting(view), paper_split(view.table.n_questions)
    points = operating_points(setting, calibration, test, alpha=options.alpha, delta=options.delta)
    names, scores = (view.label, "paper"), [setting.scores[p.family][test] for p in points]
    stops = [first_stops(s, p.threshold) for s, p in zip(scores, points, strict=True)]
    at, table, correct = np.arange(test.size), view.table.take(test), setting.correct[test]
    full = (correct[:, -1], setting.costs.full_total[test])
    right = [correct[at, stop] for stop in stops]
    costs = [setting.costs.total[test][at, stop].astype(np.float64) for stop in stops]
    listed: dict[int, None] = {}
    for case, rows in find_cases(stops, right, costs, *full).items():
        n, families = rows.size, (p.family for p in points)
        yield Row(_COUNTS, (*names, *families, case, n, n / test.size))
        for row in rows[:shown].tolist():
            listed[row] = None
            whole = (*stops, full[0], *right, *costs, full[1])
            yield Row(_CASES, (*names, case, table.ids[row], *(c[row].item() for c in whole)))
    answers, texts = _texts(source)
    for row in listed:
        forced = answers.get((table.ids[row], int(table.samples[row])))
        for j in range(table.n_checkpoints):
            answer = forced[j] if forced else None
            ended, right_here = bool(table.ended[row, j]), bool(table.correct[row, j])
            cells = (ended, answer, right_here, *(float(s[row, j]) for s in scores))
            yield Row(_PATHS, (*names, table.ids[row], j, int(table.budgets[j]), *cells))
        if table.ids[row] in texts:
            yield Row(_TEXTS, (view.label, table.ids[row], *texts[table.ids[row]]))


def find_cases(
    stops: Sequence[IntArray],
    right: Sequence[BoolArray],
    costs: Sequence[FloatArray],
    full_right: BoolArray,
    full_cost: FloatArray,
) -> dict[str, IntArray]:
    """Return the rows of each case, clearest question first; cases may overlap.

    ``lost-correct``: full thinking is right and the learned rule wrong.  ``scalar lost-correct``:
    full thinking and the learned rule are right and the scalar rule is wrong.  ``overhead
    failure``: the learned rule is right but costs more than full thinking.  ``learned wins`` and
    ``scalar wins``: all three are right, and that rule stops earlier and is cheaper.
    Within a case, the largest difference in cost comes first.

    Parameters
    ----------
    stops, right, costs
        For the learned and the scalar rule: the checkpoint that answers, whether it is right, and
        the tokens of the whole request; (n_questions,) each.
    full_right, full_cost
        The same for full thinking.

    Paper, Appendix "Interpolation and Failure-Case Checks", Table "Failure cases": it names these
    cases without defining them.
    """
    (a, b), (learned, scalar) = stops, right
    both, saved, ahead = full_right & learned & scalar, full_cost - costs[0], costs[1] - costs[0]
    kinds = {
        "lost-correct": (full_right & ~learned, saved),
        "scalar lost-correct": (full_right & learned & ~scalar, full_cost - costs[1]),
        "overhead failure": (learned & (saved < 0), -saved),
        "learned wins": (both & (a < b) & (ahead > 0), ahead),
        "scalar wins": (both & (b < a) & (ahead < 0), -ahead),
    }
    rows = {name: np.flatnonzero(mask) for name, (mask, _) in kinds.items()}
    return {n: here[np.argsort(-kinds[n][1][here], kind="stable")] for n, here in rows.items()}


_Answers = Mapping[tuple[str, int], Sequence[str]]
"""Forced answers, by id and sample."""
_Texts = Mapping[str, tuple[str | None, str | None, str | None]]
"""Question, gold and the first sample's natural answer, by id."""


def _texts(source: Source) -> tuple[_Answers, _Texts]:
    """Return forced answers and texts of questions; an archive has only answers."""
    if source.manifest is None:
        path = parse_json((source.folder / ARCHIVE).read_text(encoding="utf-8"))["path"]
        rows = zip(source.table.ids, read_answers(Path(path)), strict=True)
        return {(name, 0): answers for name, answers in rows}, {}
    records = RunDirectory.load(source.folder).records()
    try:
        workload = read_workload(Path(source.manifest["workload"]["path"]))
        asked = {q.key: q.messages[-1]["content"] for q in workload.questions}
    except WorkloadError:
        asked = {}  # gone or damaged: show answers without questions
    answers = {(r.id, r.sample): [c.answer for c in r.checkpoints] for r in records}
    return answers, {
        r.id: (asked.get(r.key), r.gold, r.natural_answer and r.natural_answer.strip())
        for r in records
        if r.sample == 0
    }


_OUTLINE = Outline(
    "failure-cases",
    'Appendix, Table "Failure cases"',
    (_COUNTS, _CASES, _PATHS, _TEXTS),
    _rows,
    defaults={"cases": "5"},
)
OUTLINES = (_OUTLINE,)
