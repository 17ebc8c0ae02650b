"""Figures and entropy bounds from the log-probabilities of a forced answer."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stopadvisor.ground.errors import EngineError
from stopadvisor.serving.vllm.engine_model import Likeliest, Position, figures, positions
from tests.serving.vllm.fake_engine import FlatLogprobs

VOCABULARY = 500


def logprobs(spread: float, seed: int) -> list[float]:
    """A distribution over the vocabulary, in 32 bits as an engine has it, descending."""
    logits = np.random.default_rng(seed).normal(0, spread, VOCABULARY)
    found = (logits - np.logaddexp.reduce(logits)).astype(np.float32)
    return sorted(found.tolist(), reverse=True)


def entropy(values: list[float]) -> float:
    return -math.fsum(math.exp(value) * value for value in values)


@pytest.mark.parametrize("spread", [0.0, 0.5, 2.0, 5.0, 20.0, 200.0])
def test_the_likeliest_tokens_enclose_the_entropy(spread: float) -> None:
    likeliest = Likeliest(VOCABULARY, 40)
    wholes = [logprobs(spread, seed) for seed in range(20)]
    rows = [Position(whole[0], whole[:40]) for whole in wholes]
    for part in (rows[:1], rows[1:2], rows):
        more, slack = likeliest.rest(part)
        of_few = sum(entropy(row.likeliest) for row in part) / len(part)
        exact = sum(map(entropy, wholes[rows.index(part[0]) :][: len(part)])) / len(part)
        assert abs(of_few + more - exact) <= slack
        assert spread < 10.0 or slack < 0.001, "close enough to decide by"


def test_impossible_tokens_leave_no_slack_behind() -> None:
    """Where fewer tokens are allowed than were asked for, the others have no probability."""
    more, slack = Likeliest(VOCABULARY, 3).rest([Position(0.0, [0.0, -math.inf, -math.inf])])
    assert 0.0 <= more <= slack + 1e-12 < 0.001


def test_bounds_by_hand() -> None:
    rows = [Position(math.log(p), [*map(math.log, (p, 0.15, 0.05))]) for p in (0.5, 0.6)]
    left, last = [0.3, 0.2], -math.log(0.05)
    least = [(rest - 1e-5) * last for rest in left]
    most = [(rest + 1e-5) * math.log(97 / (rest + 1e-5)) for rest in left]
    more, slack = Likeliest(100, 3).rest(rows)
    assert more == pytest.approx((sum(least) + sum(most)) / 4)
    assert slack == pytest.approx((sum(most) - sum(least)) / 4)


def flat(*rows: tuple[list[int], list[float]]) -> FlatLogprobs:
    found = FlatLogprobs()
    for row in rows:
        found.append(*row)
    return found


def test_figures_are_those_of_the_tokens_that_count() -> None:
    found = flat(([7, 7, 8], [-0.5, -0.5, -1.5]), ([9, 5, 9], [-2.0, -0.25, -2.0]))
    rows = positions(found, [7, 9], 2)
    assert rows == [Position(-0.5, [-0.5, -1.5]), Position(-2.0, [-0.25, -2.0])]
    ((own, of_two, tail),) = figures(rows[:1])
    assert own == -0.5
    assert of_two == pytest.approx(0.5 * math.exp(-0.5) + 1.5 * math.exp(-1.5))
    assert tail == pytest.approx(1 - math.exp(-0.5) - math.exp(-1.5))
    alone = positions(found, [7, 9], 0)
    assert [row.likeliest for row in alone] == [[], []]
    assert figures(alone)[1][0] == -2.0


@pytest.mark.parametrize("k", [3, -1])
@pytest.mark.parametrize("decoded", [0, 2, 3], ids=["likeliest", "third", "outside"])
def test_figures_do_not_depend_on_how_outputs_were_merged(k: int, decoded: int) -> None:
    """vLLM drops the second copy of the decoded token where it merges two outputs."""
    ids, values = [11, 12, 13, 14], [-0.5, -1.5, -2.0, -2.5]
    named = slice(0, 3 if k == 3 else 4)
    row = ([ids[decoded], *ids[named]], [values[decoded], *values[named]])
    apart = [positions(flat(row), [ids[decoded]], k)] * 3
    together = flat(row)
    for _ in range(2):
        together.extend(flat(row))
    assert [len(together.token_ids[:4]), len(together.token_ids)] != [4, 12] or decoded == 3
    assert positions(together, [ids[decoded]] * 3, k) == [rows[0] for rows in apart]
    assert apart[0] == [Position(values[decoded], values[named])]


@pytest.mark.parametrize("ids", [[8, 9], [7, 9, 9]], ids=["another token", "one more"])
def test_log_probabilities_of_other_tokens_are_refused(ids: list[int]) -> None:
    with pytest.raises(EngineError, match="gives no log-probability"):
        positions(flat(([7], [-0.5]), ([9], [-2.0])), ids, 0)
    with pytest.raises(EngineError, match="gives no log-probability"):
        positions(None, ids, 0)
