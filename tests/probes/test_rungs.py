"""What the rungs of a ladder agree on, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stopadvisor.probes.rungs import Votes


def votes(codes: np.ndarray[Any, Any], blocks: Sequence[range]) -> list[np.ndarray[Any, Any]]:
    """Answer, support and share of each reply; codes below 0 are no answer."""
    found = []
    for row in codes.tolist():
        so_far = Votes()
        for block in blocks:
            for made, k in enumerate(block, start=1):
                answer = row[k] if row[k] >= 0 else None
                leader, *rest = so_far.add(answer, made if len(block) > 1 else 0)
                found.append([-1 if leader is None else leader, *rest])
    return [np.array(each).reshape(codes.shape) for each in list(zip(*found, strict=True))[:3]]


def test_a_plurality_leads_by_its_lead_and_single_rungs_by_their_run() -> None:
    codes = np.array(
        [
            [0, 0, 0, 1, 1, 1, 2],  # an answer may have the number 0
            [3, 4, -1, 4, 4, 4, 4],
            [-1, -1, -1, 5, -1, 5, 5],
        ]
    )
    before = codes.copy()
    answers, support, share = votes(codes, (range(1), range(1, 5), range(5, 6), range(6, 7)))
    np.testing.assert_array_equal(codes, before)
    np.testing.assert_array_equal(
        answers, [[0, 0, 0, 0, 0, 1, 2], [3, 4, 4, 4, 4, 4, 4], [-1, -1, -1, 5, 5, 5, 5]]
    )
    np.testing.assert_array_equal(
        support, [[1, 1, 2, 1, 0, 1, 1], [1, 1, 1, 2, 3, 2, 3], [0, 0, 0, 1, 1, 2, 3]]
    )
    np.testing.assert_allclose(
        share,
        [
            [1, 1, 1, 2 / 3, 1 / 2, 1, 1],
            [1, 1, 1 / 2, 2 / 3, 3 / 4, 1, 1],
            [1, 0, 0, 1 / 3, 1 / 4, 1, 1],
        ],
    )


def test_single_rungs_in_agreement_are_counted_and_none_agrees_with_no_answer() -> None:
    _, support, _ = votes(np.array([[0, 0, -1, -1, 1, 1]]), [range(k, k + 1) for k in range(6)])
    assert support.tolist() == [[1, 2, 0, 0, 1, 2]]
