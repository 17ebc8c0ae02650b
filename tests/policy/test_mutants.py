"""Thousands of damaged policies: each is refused in one line, or loads as what it was."""

from __future__ import annotations

import pytest

from tests.policy.mutants import fuzz, shipped


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_mutants_are_refused_or_unchanged(seed: int) -> None:
    found = fuzz(1_100, seed)
    assert found.refused > 800
    assert found.loaded > 10  # some damage is none: the mutants reach every check
    assert found.slowest_s < 5.0


def test_the_mutants_are_those_of_every_shipped_policy() -> None:
    assert len(shipped()) == 3
