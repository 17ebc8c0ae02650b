"""Study `failure-cases`: lost questions, wins and overhead failures, with their trajectories.

Paper, Appendix, Table "Failure cases": held-out questions of the matched-risk comparison.  The
paper's side takes its test questions at its thresholds; the deploy side fit questions, out of fold,
at the threshold that calibration is expected to certify.  Answers come from the run's own records
or the archive; the question's text from the workload file, while that is where it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from stopadvisor.arrays import FloatArray, IntArray
from stopadvisor.assessment.sequences import ThresholdSequence, score_out_of_fold
from stopadvisor.errors import StudyError, WorkloadError
from stopadvisor.paper.cases import RulePair, find_cases
from stopadvisor.paper.protocol import first_stops, operating_points, paper_split
from stopadvisor.probes.table import ProbeTable
from stopadvisor.rules.families import SCALAR_FAMILIES
from stopadvisor.runs.access import View, basis_remarks
from stopadvisor.runs.archives import read_answers
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.sources import ARCHIVE, Source
from stopadvisor.studies.protocols import (
    FitSide,
    fit_sides,
    paper_setting,
    paper_views,
    study_settings,
)
from stopadvisor.studies.study import Cell, Column, StudyOptions, StudyResult, Table
from stopadvisor.workload.questions import read_workload

__all__ = ["run"]

_SHOWN = 5
"""Questions of each case, unless `cases` says otherwise."""

_COUNTS = (
    Column("run", "Run"),
    Column("protocol", "Protocol"),
    Column("learned_family", "Learned"),
    Column("scalar_family", "Scalar"),
    Column("case", "Case"),
    Column("questions", "Questions"),
    Column("share", "Of all", "share"),
)
_CASES = (
    Column("run", "Run"),
    Column("protocol", "Protocol"),
    Column("case", "Case"),
    Column("id", "Question"),
    Column("learned_checkpoint", "Learned ckpt"),
    Column("scalar_checkpoint", "Scalar ckpt"),
    Column("full_correct", "Full right"),
    Column("learned_correct", "Learned right"),
    Column("scalar_correct", "Scalar right"),
    Column("learned_cost", "Learned cost", "tokens"),
    Column("scalar_cost", "Scalar cost", "tokens"),
    Column("full_cost", "Full cost", "tokens"),
)
_TRAJECTORIES = (
    Column("run", "Run"),
    Column("protocol", "Protocol"),
    Column("id", "Question"),
    Column("checkpoint", "Ckpt"),
    Column("budget", "Budget", "tokens"),
    Column("ended", "Over"),
    Column("answer", "Answer"),
    Column("correct", "Right"),
    Column("learned_score", "Learned"),
    Column("scalar_score", "Scalar"),
)
_TEXTS = (
    Column("run", "Run"),
    Column("id", "Question"),
    Column("question", "Text"),
    Column("gold", "Gold"),
    Column("natural_answer", "Natural answer"),
)


@dataclass(frozen=True)
class _Side:
    """Two rules on some questions of a source, ready to be sorted into cases."""

    label: str
    protocol: str
    families: tuple[str, str]
    table: ProbeTable
    duel: RulePair
    learned_scores: FloatArray  # (n_questions, n_checkpoints); NaN where not probed
    scalar_scores: FloatArray  # (n_questions, n_checkpoints)


@dataclass(frozen=True)
class _Texts:
    """What is known in words of a source's questions."""

    answers: Mapping[tuple[str, int], Sequence[str]]
    """By id and sample."""
    questions: Mapping[str, tuple[str | None, str, str | None]]
    """By id: question, gold, natural answer of the first sample."""


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Cases of every run, and the trajectories behind them.

    Parameters
    ----------
    sources : sequence of Source
    options : StudyOptions
        ``extra["cases"]``: questions shown of each case.

    Raises
    ------
    StopAdvisorError
        Too few questions, labels of one class only, or a number of cases that is none.
    """
    shown = _shown(options)
    views = paper_views(sources)
    sides, reasons = fit_sides(sources, study_settings(options))
    texts = {view.label: _texts(source) for source, view in zip(sources, views, strict=True)}
    pairs = [_paper_side(view, options) for view in views]
    for side in sides:
        found = _deploy_side(side)
        if found is None:
            reasons = (*reasons, f"{side.label}: no learned and scalar rule that may be certified")
        else:
            pairs.append(found)
    counts: list[tuple[Cell, ...]] = []
    cases: list[tuple[Cell, ...]] = []
    trajectories: list[tuple[Cell, ...]] = []
    said: dict[tuple[str, str], tuple[Cell, ...]] = {}
    for pair in pairs:
        words = texts[pair.label]
        listed: dict[int, None] = {}
        for case in find_cases(pair.duel):
            names = (pair.label, pair.protocol)
            size = case.rows.size
            counts.append((*names, *pair.families, case.name, size, size / pair.table.n_questions))
            for row in case.rows[:shown].tolist():
                cases.append((*names, case.name, *_case_row(pair, row)))
                listed[row] = None
        for row in listed:
            question = pair.table.ids[row]
            answers = words.answers.get((question, int(pair.table.samples[row])))
            trajectories.extend(_trajectory(pair, row, answers))
            if question in words.questions:
                said[pair.label, question] = (pair.label, question, *words.questions[question])
    return StudyResult(
        "failure-cases",
        'Appendix, Table "Failure cases"',
        ("paper", "deploy"),
        (
            Table("counts", f"Cases, alpha = {options.alpha:g}", _COUNTS, tuple(counts)),
            Table(
                "cases",
                f"The clearest {shown} of each case",
                _CASES,
                tuple(cases),
                "checkpoints count from 0; one question may be of several cases; costs with probes",
            ),
            Table(
                "trajectories",
                "Their trajectories",
                _TRAJECTORIES,
                tuple(trajectories),
                "with both rules' scores; over: the trace has ended, nothing is probed online",
            ),
            Table("texts", "Their texts, where the run holds them", _TEXTS, tuple(said.values())),
        ),
        (*basis_remarks(views), *reasons),
    )


def _shown(options: StudyOptions) -> int:
    value = options.extra.get("cases", str(_SHOWN))
    if not value.isdecimal() or int(value) < 1:
        raise StudyError(f"option cases must be a whole number >= 1, got {value!r}")
    return int(value)


# --- The two sides --------------------------------------------------------------------------------


def _at(values: NDArray[np.generic], stops: IntArray) -> NDArray[np.generic]:
    return np.take_along_axis(values, stops[:, None], axis=1)[:, 0]


def _paper_side(view: View, options: StudyOptions) -> _Side:
    setting = paper_setting(view)
    calibration, test = paper_split(view.table.n_questions)
    points = operating_points(setting, calibration, test, alpha=options.alpha, delta=options.delta)
    stops = [first_stops(setting.scores[p.family][test], p.threshold) for p in points]
    correct = [_at(setting.correct[test], s).astype(bool) for s in stops]
    costs = [_at(setting.costs.total[test], s).astype(np.float64) for s in stops]
    duel = RulePair(
        stops[0],
        stops[1],
        correct[0],
        correct[1],
        setting.correct[test, -1],
        costs[0],
        costs[1],
        setting.costs.full_total[test],
    )
    learned, scalar = (p.family for p in points)
    return _Side(
        view.label,
        "paper",
        (learned, scalar),
        view.table.take(test),
        duel,
        setting.scores[learned][test],
        setting.scores[scalar][test],
    )


def _deploy_side(side: FitSide) -> _Side | None:
    """The cheapest learned and scalar rules on fit questions; None where one side has none."""
    chains = side.all_chains()
    scalar = side.cheapest([c for c in chains if c.scorer.family in SCALAR_FAMILIES])
    learned = side.cheapest([c for c in chains if c.scorer.is_learned])
    if learned is None or scalar is None:
        return None
    rows = np.flatnonzero(side.fit.table.samples == 0)  # further traces are no further questions
    table = side.fit.table.take(rows)
    outcomes = [_chain_outcome(side, chain) for chain in (learned, scalar)]
    (stops, others), (right, too), (cost, price) = (
        [values[rows] for values in pair] for pair in zip(*outcomes, strict=True)
    )
    duel = RulePair(
        stops, others, right, too, table.full_correct, cost, price, side.fit.full_cost[rows]
    )
    families = (learned.scorer.family, scalar.scorer.family)
    scores = (_scores(side, chain)[rows] for chain in (learned, scalar))
    return _Side(side.label, "deploy", families, table, duel, *scores)


def _chain_outcome(
    side: FitSide, chain: ThresholdSequence
) -> tuple[IntArray, NDArray[np.bool_], FloatArray]:
    """Stop as a probed checkpoint, correctness and cost of each fit question."""
    table = side.fit.table
    columns = np.array(chain.scorer.schedule)
    stops = chain.curve.stops(chain.position(side.limit))
    right = np.column_stack([table.correct_online[:, columns], table.full_correct])
    cost = side.fit.counts(chain.scorer.schedule).weighed(side.settings.weights)
    probed = np.append(columns, table.n_checkpoints)[stops].astype(np.int64)
    return probed, _at(right, stops).astype(np.bool_), _at(cost, stops).astype(np.float64)


def _scores(side: FitSide, chain: ThresholdSequence) -> FloatArray:
    """Out-of-fold scores at every probed checkpoint; NaN where the rule does not probe."""
    found = score_out_of_fold(side.fit, chain.scorer.family, chain.scorer.schedule)
    assert found is not None  # the chain exists
    values = found[1]
    if chain.scorer.is_learned:
        values = expit(values)
    elif chain.scorer.family == "confidence":
        values = np.exp(values)
    out = np.full(side.fit.table.correct.shape, np.nan)
    out[:, list(chain.scorer.schedule)] = values
    return out


# --- Rows -----------------------------------------------------------------------------------------


def _case_row(side: _Side, row: int) -> tuple[Cell, ...]:
    duel, m = side.duel, side.table.n_checkpoints
    learned, scalar = int(duel.learned_stop[row]), int(duel.scalar_stop[row])
    return (
        side.table.ids[row],
        learned if learned < m else None,
        scalar if scalar < m else None,
        bool(duel.full_correct[row]),
        bool(duel.learned_correct[row]),
        bool(duel.scalar_correct[row]),
        float(duel.learned_cost[row]),
        float(duel.scalar_cost[row]),
        float(duel.full_cost[row]),
    )


def _trajectory(side: _Side, row: int, answers: Sequence[str] | None) -> list[tuple[Cell, ...]]:
    table = side.table
    ended = table.ended[row]

    def number(value: float) -> float | None:
        return None if np.isnan(value) else float(value)

    return [
        (
            side.label,
            side.protocol,
            table.ids[row],
            j,
            int(table.budgets[j]),
            bool(ended[j]),
            None if answers is None else answers[j],
            bool(table.correct[row, j]),
            number(side.learned_scores[row, j]),
            number(side.scalar_scores[row, j]),
        )
        for j in range(table.n_checkpoints)
    ]


def _texts(source: Source) -> _Texts:
    """Answers and texts of a source."""
    if source.manifest is None:
        path = json.loads((source.folder / ARCHIVE).read_text(encoding="utf-8"))["path"]
        rows = zip(source.table.ids, read_answers(Path(path)), strict=True)
        return _Texts({(name, 0): answers for name, answers in rows}, {})
    records = RunDirectory.load(source.folder).records()
    try:
        workload = read_workload(Path(source.manifest["workload"]["path"]))
        asked = {q.key: q.messages[-1]["content"] for q in workload.questions}
    except WorkloadError:
        asked = {}  # the file is gone or has changed: answers stand without their questions
    return _Texts(
        {(r.id, r.sample): [c.answer for c in r.checkpoints] for r in records},
        {
            r.id: (asked.get(r.key), r.gold, r.natural_answer and r.natural_answer.strip())
            for r in records
            if r.sample == 0
        },
    )
