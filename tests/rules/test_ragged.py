"""Questions probed at positions of their own, against plain Python, one question at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stopadvisor.assessment.choice import Settings, choose
from stopadvisor.ground.errors import CalibrationError, ProbeError
from stopadvisor.paper.protocol import PaperSetting
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.rules.costs import PAPER_WEIGHTS, Costing
from stopadvisor.rules.features import feature_array
from stopadvisor.rules.losses import LOST
from stopadvisor.rules.outcomes import measure_rule
from stopadvisor.rules.schedules import MarkerSchedule, grid_view
from stopadvisor.rules.scorer import Scorer
from stopadvisor.rules.serving_costs import serving_costs
from tests.populations import FREE_FORM, with_own_positions


def draw(n: int = 40, seed: int = 0) -> OpenQuestions:
    rng = np.random.default_rng(seed)
    return with_own_positions(FREE_FORM.draw(n, rng), rng)


def probes_of(table: OpenQuestions, i: int, schedule: list[int]) -> list[int]:
    """Columns at which question `i` is probed online, in order."""
    length, found = int(table.trace_tokens[i]), []
    for column in schedule:
        position = int(table.positions[i, column])
        if position < 0 or position >= length:
            break
        found.append(column)
    return found


@pytest.mark.parametrize("family", ["confidence", "run-stability", "confidence-leap"])
def test_stops_losses_and_savings_are_those_of_each_question(family: str) -> None:
    # At markers, without a gap between them: at every probe that there is.
    table, schedule = draw(60, 3), list(range(10))
    table = replace(table, marker_positions=table.positions)
    scorer = Scorer(family, MarkerSchedule(0, 10), None)
    view = scorer.view(table)
    assert np.array_equal(view.live, table.live)
    scores = scorer.scores(view)
    threshold = float(np.quantile(scores[table.live], 0.6))
    stops = scorer.curve(view, np.array([threshold])).stops(0)
    lost = LOST.of(view)
    losses = correct = 0
    decoded = full = 0.0
    assert table.natural_correct is not None
    assert table.natural_tokens is not None
    for i in range(table.n_questions):
        columns = probes_of(table, i, schedule)
        hits = [c for c in columns if scores[i, c] >= threshold]
        stop = hits[0] if hits else len(schedule)
        assert stops[i] == stop
        right = bool(table.natural_correct[i])
        whole = int(table.trace_tokens[i]) + float(table.natural_tokens[i])
        asked = [c for c in columns if c <= stop]
        decoded += sum(float(table.probe_tokens[i, c]) for c in asked)
        if hits:
            is_lost = right and not bool(table.correct[i, stop])
            assert bool(lost[i, stop]) == is_lost
            losses += is_lost
            correct += bool(table.correct[i, stop])
            decoded += int(table.positions[i, stop])
        else:
            assert not lost[i, stop]
            correct += right
            decoded += whole
        decoded += table.suffix_tokens * len(asked) + int(table.prompt_tokens[i])
        full += whole + int(table.prompt_tokens[i])
    outcome = measure_rule(scorer, threshold, table, Costing())
    assert (outcome.losses, outcome.correct) == (losses, correct)
    assert outcome.total_saving_pct == pytest.approx(100 * (1 - decoded / full))
    rows = serving_costs(view, stops, PAPER_WEIGHTS)
    assert rows["kv-fork"].saving_pct == pytest.approx(outcome.total_saving_pct)


def test_a_grid_is_the_special_case() -> None:
    table = FREE_FORM.draw(30, np.random.default_rng(1))
    assert table.is_grid
    assert table.positions.base is not None  # one row, shown for all questions
    assert table.positions.strides[0] == 0
    part = table.take(np.arange(5))
    assert part.is_grid
    assert part.positions.strides[0] == 0
    assert np.array_equal(part.budgets, table.budgets)
    ragged = draw()
    same = ragged.take(np.flatnonzero(ragged.positions[:, -1] >= 0)[:1])
    assert same.is_grid  # one question is always on its own grid
    assert not ragged.is_grid
    with pytest.raises(ProbeError, match="positions of their own"):
        _ = ragged.budgets


def test_what_takes_a_grid_says_so() -> None:
    table = draw(200)
    for name in ("budget_fraction", "checkpoint_index"):
        with pytest.raises(ProbeError, match=f"'{name}' takes one grid"):
            feature_array(table, names=(name,))
    with pytest.raises(ProbeError, match="last-checkpoint reference needs one grid"):
        table.with_reference("last-checkpoint")
    with pytest.raises(ProbeError, match="one grid"):
        PaperSetting.build(table)
    with pytest.raises(ProbeError, match="no position in common"):
        grid_view(table)
    with pytest.raises(CalibrationError, match="no family can be measured"):
        choose(table.as_fit(), 100, Settings(families=("learned", "confidence")))
