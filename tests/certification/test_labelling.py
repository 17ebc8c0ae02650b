"""Certifying with few labels, compared with all labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stopadvisor.answers.grading import Grader
from stopadvisor.assessment.choice import Choice, Settings, choose
from stopadvisor.certification.calibration import calibrate
from stopadvisor.certification.certify import check_partial, to_choose_by
from stopadvisor.certification.labelling import (
    GoldGrade,
    LabelCounts,
    Labelling,
    LabelRun,
    _forms,
    at_worst,
    grade_by,
    may_be_lost,
)
from stopadvisor.certification.labelling import tested_deltas as deltas_tested  # it is no test
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.probes.outcomes import CalibrationQuestions, OpenQuestions
from stopadvisor.probes.records import graded_table
from stopadvisor.report.sheets.plan import label_counts
from stopadvisor.rules.losses import LOST, Guarantee
from stopadvisor.runs.replies import reply_table
from stopadvisor.runs.verdicts import ungraded
from stopadvisor.stats.adaptive_labels import AskingPlan
from stopadvisor.stats.label_sample import most_lost_labelled
from tests.populations import POPULATIONS, KnownPopulation, regraded, renamed, without_gold
from tests.probes.test_records import checkpoint, record
from tests.rules.test_climb import MIXED, drawn
from tests.runs.test_replies import recorded

ALPHA = 0.10
SETTINGS = Settings(alpha=ALPHA, families=("confidence", "agreement"))


def grade(table: OpenQuestions, row: int) -> GoldGrade:
    assert table.natural_correct is not None
    replies = zip(table.positions[row].tolist(), table.correct[row].tolist(), strict=True)
    return GoldGrade(bool(table.natural_correct[row]), dict(replies))


@pytest.fixture(scope="module")
def choice() -> Choice:
    fit = renamed(POPULATIONS[0].draw(200, np.random.default_rng(1)), "f")
    chosen = choose(without_gold(fit).as_fit(), 200, to_choose_by(SETTINGS))
    return replace(chosen, settings=SETTINGS)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_asked_for_certifies_what_all_labels_do(choice: Choice, seed: int) -> None:
    table = POPULATIONS[seed].draw(200, np.random.default_rng(seed))
    questions = without_gold(table).as_calibration()
    labelling = Labelling(choice, questions, str(seed))
    grades: dict[int, GoldGrade | None] = {}
    while (row := labelling.state(grades, n_draws=2).walk.wanted) is not None:
        assert row not in grades
        grades[row] = grade(table, row)
    assert 5 < len(grades) < 120
    few = calibrate(choice, at_worst(questions, grades))
    everything = {row: grade(table, row) for row in range(table.n_questions)}
    full = calibrate(choice, at_worst(questions, everything))
    # Graded by gold itself, without any label: equal answers are graded alike here.
    gold = calibrate(choice, table.as_calibration())
    assert few.rule is not None
    assert full.rule is not None
    assert gold.rule is not None
    assert few.rule.threshold == full.rule.threshold == gold.rule.threshold
    assert full.rule.certificate == gold.rule.certificate
    assert few.rule.certificate.losses >= full.rule.certificate.losses
    reached = labelling.state(grades, n_draws=2).walk.indices
    position = [each.scorer for each in choice.sequences].index(few.rule.scorer)
    assert reached[position] == few.rule.certificate.index


def losses(table: CalibrationQuestions, choice: Choice) -> np.ndarray:
    sequence = choice.sequences[0]
    view = sequence.scorer.view(table)
    curve = sequence.scorer.curve(view, sequence.thresholds)
    return np.asarray(curve.totals(LOST.of(view))[0])


def test_a_question_that_nobody_can_tell_counts_as_unlabelled(choice: Choice) -> None:
    table = POPULATIONS[0].draw(100, np.random.default_rng(5))
    questions = without_gold(table).as_calibration()
    nothing = losses(at_worst(questions, {}), choice)
    assert np.array_equal(losses(at_worst(questions, {3: None, 4: None}), choice), nothing)
    known = {row: grade(table, row) for row in range(50)}
    assert (losses(at_worst(questions, known), choice) <= nothing).all()


def test_a_reply_that_equals_the_natural_answer_takes_its_grade(choice: Choice) -> None:
    table = POPULATIONS[0].draw(60, np.random.default_rng(6))
    questions = without_gold(table).as_calibration()
    wrong = {row: GoldGrade(True, {}) for row in range(60)}  # no reply is right, says the grader
    graded = at_worst(questions, wrong)
    same = (table.answer_codes == table.full_codes[:, None]) & (table.full_codes >= 0)[:, None]
    assert np.array_equal(graded.correct, same)


def test_without_a_natural_answer_nothing_is_lost_and_nobody_is_asked(choice: Choice) -> None:
    table = POPULATIONS[0].draw(60, np.random.default_rng(7))
    silent = regraded(table, natural_code=np.full(60, -1))
    questions = without_gold(silent).as_calibration()
    assert losses(at_worst(questions, {}), choice).sum() == 0
    assert Labelling(choice, questions, "").state({}).walk.wanted is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loss": "drop"}, "--loss drop"),
        ({"also": (Guarantee("differs", 0.1),)}, "a further limit"),
    ],
)
def test_what_takes_every_label_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(CalibrationError, match=f"{said}.* needs gold for every"):
        check_partial(replace(SETTINGS, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(("alpha", "taken"), [(0.1, 0.2), (0.3, 0.6), (0.6, 0.8)])
def test_rules_are_chosen_as_if_half_of_what_differs_is_lost(alpha: float, taken: float) -> None:
    chosen_by = to_choose_by(replace(SETTINGS, alpha=alpha))
    assert chosen_by.loss == "differs"
    assert chosen_by.alpha == pytest.approx(taken)


def test_a_label_may_show_a_loss_where_a_reply_differs_from_an_answer() -> None:
    table = POPULATIONS[0].draw(60, np.random.default_rng(8))
    full = np.arange(60) % 3 - 1  # -1: no natural answer
    found = may_be_lost(regraded(table, natural_code=full))
    assert found.shape == (60, table.n_checkpoints + 1)
    assert not found[:, -1].any(), "where nothing is stopped nothing is lost"
    differs = (table.stop_codes != full[:, None]) & (full >= 0)[:, None] & table.live
    assert np.array_equal(found[:, :-1], differs)
    assert all(differs[full == code].any() for code in (0, 1))


def test_a_sample_of_labels_leaves_no_delta_for_a_second_sequence(choice: Choice) -> None:
    both = replace(choice, sequences=choice.sequences[:1] * 2)
    order = np.arange(200)
    assert deltas_tested(both, AskingPlan(order, 30)) == (0.05, 0.0)
    assert deltas_tested(both, AskingPlan(order, 200)) == both.deltas(200)
    assert 0 < both.deltas(200)[1] < 0.05


def planned(
    population: KnownPopulation, seed: int, *plans: int | None
) -> Iterator[tuple[int, int | None, int]]:
    """By labels planned: those asked for, replies that differ, and losses there, in the end."""
    n, rng = 500, np.random.default_rng(seed)
    fit = without_gold(renamed(population.draw(150, rng), "f")).as_fit()
    chosen = replace(choose(fit, n, to_choose_by(SETTINGS)), settings=SETTINGS)
    table = population.draw(n, rng)
    for labels in plans:
        labelling = Labelling(chosen, without_gold(table).as_calibration(), str(seed), labels)
        grades: dict[int, GoldGrade | None] = {}
        while (row := (state := labelling.state(grades, n_draws=1)).walk.wanted) is not None:
            grades[row] = grade(table, row)
        found = calibrate(chosen, at_worst(labelling.questions, grades), labelling.plan)
        assert found.rule is not None
        certificate = found.rule.certificate
        # The walk and the test say the same, and all questions count.
        assert certificate.index in state.walk.indices
        assert certificate.n == found.entered.n_questions == n
        yield len(grades), certificate.differing, certificate.losses


@pytest.mark.slow
def test_as_many_differing_replies_are_labelled_as_were_planned() -> None:
    (asked, every, _), (fewer, differing, lost), more = planned(POPULATIONS[2], 3, None, 50, 999)
    assert every is more[1] is None, "more labels than there are questions count everyone"
    assert asked > 120
    assert 30 < fewer < 70
    assert differing is not None
    assert differing > 60
    sizes = [most_lost_labelled(500, labels, ALPHA, SETTINGS.delta) for labels in (30, 50)]
    assert lost <= max(most[differing] for most in sizes)


def test_at_each_threshold_the_first_that_differ_are_labelled() -> None:
    differs = np.array([[0, 1, 1], [0, 1, 1], [1, 0, 1], [0, 1, 1]], dtype=bool)
    labelled = AskingPlan(np.array([3, 0, 2, 1]), 2).labelled(differs)
    assert labelled.tolist() == [
        [False, True, True],
        [False, False, False],
        [True, False, False],
        [False, True, True],
    ]


def test_labels_grade_the_replies_of_a_ladder_as_gold_in_its_lines_does(tmp_path: Path) -> None:
    _, lines = drawn(tmp_path)  # one rung is a vote, and some replies were cut
    bare = [{name: value for name, value in line.items() if name != "gold"} for line in lines]
    by_gold = reply_table(recorded(tmp_path / "gold.jsonl", lines, MIXED).records, MIXED)
    records = recorded(tmp_path / "bare.jsonl", bare, MIXED).records
    with Grader() as grader:
        grades = grade_by(records, [line["gold"] for line in lines], grader)
    questions = reply_table(records, MIXED).as_calibration()
    graded = at_worst(questions, dict(enumerate(grades)))
    assert np.array_equal(graded.correct, by_gold.correct)
    assert np.array_equal(graded.full_correct, by_gold.full_correct)
    assert not np.array_equal(graded.correct, questions.correct)


# --- Labels of several people ---------------------------------------------------------------------


class OneWay(Grader):
    """Finds two answers equal only if the first one is the longer."""

    def grade(self, task: str, gold: str, answer: str | None) -> bool:
        return answer is not None and len(gold) >= len(answer) and float(gold) == float(answer)


def test_labels_are_settled_where_people_agree_and_count_as_lost_elsewhere() -> None:
    bare = [
        ungraded(record(name, gold=None)) for name in ("agreed", "apart", "untold", "alone", "new")
    ]
    counted = graded_table([record("own"), *bare[:4]]).as_calibration()
    records = {each.id: each for each in [record("own"), *bare]}
    run: Any = SimpleNamespace(labelling=SimpleNamespace(questions=counted), records=records)
    right = {"agreed": "42", "apart": "42", "untold": "42"}
    labels: dict[str, dict[str, str | None]] = {
        "ann": {**right, "alone": "7", "own": "1", "new": "1", "gone": "1"},
        "bob": {"untold": None, "apart": "43", "agreed": "42.0", "own": "2"},
    }
    with OneWay() as grader:
        known = LabelRun.known(run, labels, grader)
    told = [None if grade is None else grade.natural for _, grade in sorted(known.grades.items())]
    assert told == [True, True, None, None, False]
    assert known.labellers == {"ann": 4, "bob": 3}
    assert known.disagreeing == ("apart",)
    state: Any = SimpleNamespace(labels=3.4, saving_pp=1.5)
    assert known.counts(state) == LabelCounts(1, 4, 2, 1, 1, 3, 1.5, 1)


def test_labels_that_equal_no_answer_are_counted_because_they_lose_nothing() -> None:
    counted = graded_table([ungraded(record(name, gold=None)) for name in "abc"]).as_calibration()
    records = {name: ungraded(record(name, gold=None)) for name in "abc"}
    run: Any = SimpleNamespace(labelling=SimpleNamespace(questions=counted), records=records)
    with Grader() as grader:
        known = LabelRun.known(run, {"ann": {"a": "42", "b": "1234", "c": "?"}}, grader)
    assert known.n_neither == 2
    state: Any = SimpleNamespace(labels=0.0, saving_pp=0.0)
    said = "3 used of 3 asked for; 2 equal no recorded answer, so they count as not lost"
    assert label_counts(known.counts(state)) == said


def test_a_reply_without_an_answer_is_not_shown() -> None:
    replies = (
        checkpoint(0, answer="none"),
        checkpoint(64, answer="7"),
        checkpoint(128, answer="8"),
    )
    assert _forms(record("q", checkpoints=replies), {0, 64}) == {"42", "7"}


def test_visible_answers_are_shown_where_a_reply_has_one() -> None:
    replies = (
        checkpoint(0, answer="5", visible_answer="It is \\boxed{9}."),
        checkpoint(64, answer="7"),
        checkpoint(128, answer="8", visible_answer="It is \\boxed{6}."),
    )
    asked = record("q", checkpoints=replies)
    assert _forms(asked, {0, 64}) == {"42", "9", "7"}
    assert _forms(replace(asked, natural_answer=None), {128}) == {"6"}
