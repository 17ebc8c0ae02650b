"""What the rungs of a ladder agree on, by hand."""

from __future__ import annotations

import numpy as np

from stopadvisor.probes.rungs import votes


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
