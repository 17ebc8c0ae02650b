"""Questions probed at positions of their own: a grid is the special case, and some need one."""

from __future__ import annotations

import numpy as np
import pytest

from stopadvisor.assessment.choice import Settings, choose
from stopadvisor.ground.errors import CalibrationError, ProbeError
from stopadvisor.paper.protocol import PaperSetting
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.rules.features import feature_array
from stopadvisor.rules.schedules import grid_view
from tests.populations import FREE_FORM, with_own_positions


def draw(n: int = 40, seed: int = 0) -> OpenQuestions:
    rng = np.random.default_rng(seed)
    return with_own_positions(FREE_FORM.draw(n, rng), rng)


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
