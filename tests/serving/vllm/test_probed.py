"""What log-probabilities of a forced answer come to: figures, and the entropy that they enclose."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from stopadvisor.errors import EngineError
from stopadvisor.serving.vllm.probed import Likeliest, Position, figures, positions

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
    rows = [Position(0, whole[0], whole[:40]) for whole in wholes]
    for part in (rows[:1], rows[1:2], rows):
        more, slack = likeliest.rest(part)
        of_few = sum(entropy(row.likeliest) for row in part) / len(part)
        exact = sum(map(entropy, wholes[rows.index(part[0]) :][: len(part)])) / len(part)
        assert abs(of_few + more - exact) <= slack
        assert spread < 10.0 or slack < 0.001, "close enough to decide by"


def test_impossible_tokens_leave_no_slack_behind() -> None:
    """Where fewer tokens are allowed than were asked for, the others have no probability."""
    more, slack = Likeliest(VOCABULARY, 3).rest([Position(0, 0.0, [0.0, -math.inf, -math.inf])])
    assert 0.0 <= more <= slack + 1e-12 < 0.001


def test_figures_are_those_of_the_tokens_that_count() -> None:
    flat = SimpleNamespace(
        start_indices=[0, 3],
        end_indices=[3, 6],
        token_ids=[7, 7, 8, 9, 5, 9],
        logprobs=[-0.5, -0.5, -1.5, -2.0, -0.25, -2.0],
    )
    rows = positions(flat)
    assert rows == [Position(7, -0.5, [-0.5, -1.5]), Position(9, -2.0, [-0.25, -2.0])]
    ((own, of_two, tail),) = figures([7], rows, -1)
    assert own == -0.5
    assert of_two == pytest.approx(0.5 * math.exp(-0.5) + 1.5 * math.exp(-1.5))
    assert tail == pytest.approx(1 - math.exp(-0.5) - math.exp(-1.5))
    assert figures([7, 9], rows, 0)[1][0] == -2.0
    assert figures([7, 9], [], None) == [(0.0, 0.0, 0.0)] * 2


@pytest.mark.parametrize("ids", [[8], [7, 9, 9]], ids=["another token", "one more"])
def test_log_probabilities_of_other_tokens_are_refused(ids: list[int]) -> None:
    rows = [Position(7, -0.5, []), Position(9, -2.0, [])]
    with pytest.raises(EngineError, match="gives no log-probability"):
        figures(ids, rows, 0)
