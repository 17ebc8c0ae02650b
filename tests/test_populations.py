"""Populations draw the requested kinds of questions, as probes could show them."""

from __future__ import annotations

import numpy as np
import pytest

from stopadvisor.ground.constants import PAPER_BUDGETS
from stopadvisor.probes.trajectories import TYPES, classify, trajectory
from tests.populations import FREE_FORM, UNSOLVED, KnownPopulation, draw_kinds

COUNTED_AS = {"trap": "beneficial", "relapse": "early_solved"}


@pytest.mark.parametrize("n_checkpoints", [4, 10])
@pytest.mark.parametrize("kind", [*TYPES, *COUNTED_AS])
def test_a_law_of_one_kind_draws_that_kind_alone(kind: str, n_checkpoints: int) -> None:
    law = KnownPopulation("one kind", (), budgets=PAPER_BUDGETS[:n_checkpoints])
    table = draw_kinds(law, {kind: 1.0}, 2000, np.random.default_rng(0))
    found = classify(trajectory(table))
    assert (found == TYPES.index(COUNTED_AS.get(kind, kind))).all()


@pytest.mark.parametrize("law", [FREE_FORM, UNSOLVED], ids=lambda law: law.name)
def test_what_is_drawn_is_what_a_probe_could_show(law: KnownPopulation) -> None:
    n = 40_000
    table = law.draw(n, np.random.default_rng(1))
    found = np.bincount(classify(trajectory(table)), minlength=len(TYPES)) / n
    expected = np.array(law.shares)
    assert (abs(found - expected) < 4 * np.sqrt(expected * (1 - expected) / n)).all()
    assert (table.mean_logprob < 0).all()
    assert (table.mean_entropy > 0).all()
    np.testing.assert_array_equal(table.answer_codes == 0, table.correct)
    assert (np.diff(table.markers, axis=1) >= 0).all()
    assert not table.markers[:, 0].any()  # budget 0: no thinking yet
    after = np.where(table.ended, table.answer_codes, -1)
    assert all(len(set(row[row >= 0])) <= 1 for row in after)  # the same final answer
