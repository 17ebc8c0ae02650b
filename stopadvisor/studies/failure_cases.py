"""Study `failure-cases`: lost questions, wins and overhead failures, with their trajectories.

Paper, Appendix, Table "Failure cases": held-out questions of the matched-risk comparison.  The
paper's protocol takes its test questions at its thresholds; the deploy protocol takes fit
questions, out of fold, at the threshold that calibration is expected to certify.  Answers come from
the run's own records or the archive; a question's text from the workload file, if it is still where
it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stopadvisor.arrays import FloatArray, IntArray
from stopadvisor.assessment.sequences import ThresholdSequence
from stopadvisor.errors import StudyError, WorkloadError
from stopadvisor.json_text import parse_json
from stopadvisor.paper.cases import RulePair, find_cases
from stopadvisor.paper.protocol import first_stops, operating_points, paper_split
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.rules.families import SCALAR_FAMILIES
from stopadvisor.runs.access import View, basis_remarks
from stopadvisor.runs.archives import read_answers
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.sources import ARCHIVE, Source
from stopadvisor.studies.protocols import (
    DeployProtocol,
    Limit,
    deploy_protocols,
    fit_scores,
    paper_setting,
    paper_views,
    study_settings,
)
from stopadvisor.studies.rows import Outline, Row, RunRow, column
from stopadvisor.studies.study import StudyOptions, StudyResult
from stopadvisor.workload.questions import read_workload

__all__ = ["OUTLINE", "run"]


class _FailureCasesNames(RunRow):
    protocol: str = column("Protocol")


class _Count(_FailureCasesNames, table="counts", title="Cases, alpha = {alpha:g}"):
    learned_family: str = column("Learned")
    scalar_family: str = column("Scalar")
    case: str = column("Case")
    questions: int = column("Questions")
    share: float = column("Of all", "share")


class _CaseRow(
    _FailureCasesNames,
    table="cases",
    title="The clearest {cases} of each case",
    note="checkpoints count from 0; one question may be of several cases; costs with probes",
):
    case: str = column("Case")
    id: str = column("Question")
    learned_checkpoint: int | None = column("Learned ckpt")
    scalar_checkpoint: int | None = column("Scalar ckpt")
    full_correct: bool = column("Full right")
    learned_correct: bool = column("Learned right")
    scalar_correct: bool = column("Scalar right")
    learned_cost: float = column("Learned cost", "tokens")
    scalar_cost: float = column("Scalar cost", "tokens")
    full_cost: float = column("Full cost", "tokens")


class _CheckpointRow(
    _FailureCasesNames,
    table="trajectories",
    title="Their trajectories",
    note="with both rules' scores; over: the trace has ended, nothing is probed online",
):
    id: str = column("Question")
    checkpoint: int = column("Ckpt")
    budget: int = column("Budget", "tokens")
    ended: bool = column("Over")
    answer: str | None = column("Answer")
    correct: bool = column("Right")
    learned_score: float | None = column("Learned")
    scalar_score: float | None = column("Scalar")


class _Text(RunRow, table="texts", title="Their texts, where the run holds them"):
    id: str = column("Question")
    question: str | None = column("Text")
    gold: str | None = column("Gold")
    natural_answer: str | None = column("Natural answer")


OUTLINE = Outline(
    "failure-cases",
    'Appendix, Table "Failure cases"',
    (_Count, _CaseRow, _CheckpointRow, _Text),
    defaults={"cases": "5"},
)


@dataclass(frozen=True)
class _Comparison:
    """Two rules on some questions of a source, ready to be sorted into cases."""

    label: str
    protocol: str
    families: tuple[str, str]
    table: GradedTable
    rules: RulePair
    learned_scores: FloatArray  # (n_questions, n_checkpoints); NaN where not probed
    scalar_scores: FloatArray  # (n_questions, n_checkpoints)


@dataclass(frozen=True)
class _SourceTexts:
    """What is known in words of a source's questions."""

    answers: Mapping[tuple[str, int], Sequence[str]]
    """By id and sample."""
    questions: Mapping[str, tuple[str | None, str | None, str | None]]
    """By id: question, gold, natural answer of the first sample."""


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Cases of every run, and the trajectories behind them.

    ``extra["cases"]`` says how many questions are shown of each case.
    """
    shown = _shown(options)
    views = paper_views(sources)
    protocols, reasons = deploy_protocols(sources, study_settings(options))
    texts_of = {
        view.label: _source_texts(source) for source, view in zip(sources, views, strict=True)
    }
    compared = [_compare_paper(view, options) for view in views]
    found: list[Row | str] = list(reasons)
    for deploy in protocols:
        comparison = _compare_deploy(deploy)
        if comparison is None:
            found.append(f"{deploy.label}: no learned and scalar rule that may be certified")
        else:
            compared.append(comparison)
    texts: dict[_Text, None] = {}  # a question may be shown under both protocols
    for each in compared:
        for row in _rows(each, texts_of[each.label], shown):
            if isinstance(row, _Text):
                texts[row] = None
            else:
                found.append(row)
    return OUTLINE.result([*found, *texts], options, basis_remarks(views))


def _shown(options: StudyOptions) -> int:
    value = {**OUTLINE.defaults, **options.extra}["cases"]
    if not value.isdecimal() or int(value) < 1:
        raise StudyError(f"option cases must be a whole number >= 1, got {value!r}")
    return int(value)


# --- Comparing two rules --------------------------------------------------------------------------


def _at(values: NDArray[np.generic], stops: IntArray) -> NDArray[np.generic]:
    return np.take_along_axis(values, stops[:, None], axis=1)[:, 0]


def _compare_paper(view: View, options: StudyOptions) -> _Comparison:
    setting = paper_setting(view)
    calibration, test = paper_split(view.table.n_questions)
    points = operating_points(setting, calibration, test, alpha=options.alpha, delta=options.delta)
    stops = [first_stops(setting.scores[p.family][test], p.threshold) for p in points]
    correct = [_at(setting.correct[test], s).astype(bool) for s in stops]
    costs = [_at(setting.costs.total[test], s).astype(np.float64) for s in stops]
    learned, scalar = (p.family for p in points)
    return _Comparison(
        view.label,
        "paper",
        (learned, scalar),
        view.table.take(test),
        RulePair(
            stops[0],
            stops[1],
            correct[0],
            correct[1],
            setting.correct[test, -1],
            costs[0],
            costs[1],
            setting.costs.full_total[test],
        ),
        setting.scores[learned][test],
        setting.scores[scalar][test],
    )


def _compare_deploy(deploy: DeployProtocol) -> _Comparison | None:
    """The cheapest learned and scalar rules on fit questions; None where there are not both."""
    sequences = deploy.all_sequences()
    scalar = deploy.cheapest([s for s in sequences if s.scorer.family in SCALAR_FAMILIES])
    learned = deploy.cheapest([s for s in sequences if s.scorer.is_learned])
    if learned is None or scalar is None:
        return None
    rows = np.flatnonzero(deploy.fit.table.samples == 0)  # further traces are no further questions
    table = deploy.fit.table.take(rows)
    outcomes = [_outcomes(deploy, *chosen) for chosen in (learned, scalar)]
    (stops, others), (right, too), (cost, price) = (
        [values[rows] for values in pair] for pair in zip(*outcomes, strict=True)
    )
    return _Comparison(
        deploy.label,
        "deploy",
        (learned[0].scorer.family, scalar[0].scorer.family),
        table,
        RulePair(
            stops, others, right, too, table.full_correct, cost, price, deploy.fit.full_cost[rows]
        ),
        _scores(deploy, learned[0])[rows],
        _scores(deploy, scalar[0])[rows],
    )


def _outcomes(
    deploy: DeployProtocol, sequence: ThresholdSequence, limit: Limit
) -> tuple[IntArray, NDArray[np.bool_], FloatArray]:
    """Stop as a probed checkpoint, correctness and cost of each fit question."""
    view, columns = sequence.view, _columns(deploy, sequence)
    stops = sequence.curve.stops(limit.index)
    right = np.column_stack([view.correct_online, view.full_correct])
    cost = deploy.fit.costs(sequence.scorer, view)
    probed = np.append(columns, deploy.fit.table.n_checkpoints)[stops].astype(np.int64)
    return probed, _at(right, stops).astype(np.bool_), _at(cost, stops).astype(np.float64)


def _scores(deploy: DeployProtocol, sequence: ThresholdSequence) -> FloatArray:
    """Out-of-fold scores at every probed checkpoint; NaN where the rule does not probe."""
    values = fit_scores(deploy.fit, sequence.scorer.family, sequence.scorer.schedule)
    assert values is not None  # the sequence exists
    out = np.full(deploy.fit.table.correct.shape, np.nan)
    out[:, _columns(deploy, sequence)] = values
    return out


def _columns(deploy: DeployProtocol, sequence: ThresholdSequence) -> IntArray:
    """The probed checkpoints at which a rule probes."""
    return np.searchsorted(deploy.fit.table.budgets, sequence.view.budgets).astype(np.int64)


# --- Rows -----------------------------------------------------------------------------------------


def _rows(pair: _Comparison, texts: _SourceTexts, shown: int) -> Iterator[Row]:
    listed: dict[int, None] = {}
    for case in find_cases(pair.rules):
        size = case.rows.size
        yield _Count(
            pair.label,
            pair.protocol,
            *pair.families,
            case=case.name,
            questions=size,
            share=size / pair.table.n_questions,
        )
        for row in case.rows[:shown].tolist():
            yield _case(pair, case.name, row)
            listed[row] = None
    for row in listed:
        question = pair.table.ids[row]
        answers = texts.answers.get((question, int(pair.table.samples[row])))
        yield from _trajectory(pair, row, answers)
        if question in texts.questions:
            yield _Text(pair.label, question, *texts.questions[question])


def _case(pair: _Comparison, name: str, row: int) -> _CaseRow:
    rules, m = pair.rules, pair.table.n_checkpoints
    here = {field.name: getattr(rules, field.name)[row].item() for field in fields(rules)}
    learned, scalar = here.pop("learned_stop"), here.pop("scalar_stop")
    return _CaseRow(
        run=pair.label,
        protocol=pair.protocol,
        case=name,
        id=pair.table.ids[row],
        learned_checkpoint=learned if learned < m else None,
        scalar_checkpoint=scalar if scalar < m else None,
        **here,
    )


def _trajectory(
    pair: _Comparison, row: int, answers: Sequence[str] | None
) -> Iterator[_CheckpointRow]:
    def number(value: float) -> float | None:
        return None if np.isnan(value) else float(value)

    table = pair.table
    for j in range(table.n_checkpoints):
        yield _CheckpointRow(
            run=pair.label,
            protocol=pair.protocol,
            id=table.ids[row],
            checkpoint=j,
            budget=int(table.budgets[j]),
            ended=bool(table.ended[row, j]),
            answer=None if answers is None else answers[j],
            correct=bool(table.correct[row, j]),
            learned_score=number(pair.learned_scores[row, j]),
            scalar_score=number(pair.scalar_scores[row, j]),
        )


def _source_texts(source: Source) -> _SourceTexts:
    """Answers and texts of a source."""
    if source.manifest is None:
        path = parse_json((source.folder / ARCHIVE).read_text(encoding="utf-8"))["path"]
        rows = zip(source.table.ids, read_answers(Path(path)), strict=True)
        return _SourceTexts({(name, 0): answers for name, answers in rows}, {})
    records = RunDirectory.load(source.folder).records()
    try:
        workload = read_workload(Path(source.manifest["workload"]["path"]))
        asked = {q.key: q.messages[-1]["content"] for q in workload.questions}
    except WorkloadError:
        asked = {}  # the file is gone or has changed: answers stand without their questions
    return _SourceTexts(
        {(r.id, r.sample): [c.answer for c in r.checkpoints] for r in records},
        {
            r.id: (asked.get(r.key), r.gold, r.natural_answer and r.natural_answer.strip())
            for r in records
            if r.sample == 0
        },
    )
