"""The paper's accounting, beside figures worked out by hand."""

from __future__ import annotations

import numpy as np

from stopadvisor.paper.protocol import paper_costs
from tests.rules.test_costs import one_question


def test_the_papers_accounting_by_hand() -> None:
    # Recipe: min(T, B_j) + 48 (j + 1); prefix-cache adds 0.1 B_j (j + 1), black-box the sum of
    # the prefixes probed so far; full is T + 48.
    found = paper_costs(one_question(trace_tokens=np.array([60])))
    assert found.thinking.tolist() == [[0, 50, 60]]
    assert found.total.tolist() == [[48, 146, 204]]
    assert found.prefix_cache.tolist() == [[48, 146 + 0.1 * 50 * 2, 204 + 0.1 * 80 * 3]]
    assert found.black_box.tolist() == [[48, 146 + 50, 204 + 130]]
    assert found.full_total.tolist() == [108]
