"""The counting rule of backtracking markers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopadvisor.ground.constants import MARKERS
from stopadvisor.probes.markers import MarkerCounter


@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param("", 0, id="empty"),
        pytest.param("Wait, wait. WAIT!", 3, id="any case"),
        pytest.param("The waiter awaits; waiting, wait_for", 0, id="inside longer words"),
        pytest.param("Hold on - I made an error, let me re-examine it.", 3, id="several words"),
        pytest.param("hold  on, holdon", 0, id="other spacing"),
        pytest.param("Alternatively,\nhold on\n", 2, id="across lines"),
    ],
)
def test_counts(text: str, count: int) -> None:
    assert MarkerCounter().count(text) == count


@given(st.lists(st.sampled_from([*MARKERS, "so", "7", "waiting"]), max_size=8))
def test_words_count_one_each(words: list[str]) -> None:
    assert MarkerCounter().count(". ".join(words)) == sum(word in MARKERS for word in words)


@given(
    st.lists(st.sampled_from([*MARKERS, " ", "Wait", "er", "hold", "\n", "é", "I made"])), st.data()
)
def test_prefixes_are_counted_as_each_would_be_alone(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=10))
    # Unsorted: a text need not continue the one before it.
    texts = [text[:cut] for cut in cuts]
    counter = MarkerCounter()
    assert [counter.count(text) for text in texts] == [MarkerCounter().count(t) for t in texts]
