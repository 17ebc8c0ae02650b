"""The paper's numbers, as it prints them; and which integers a file may hold."""

from __future__ import annotations

import pytest

from stopadvisor.ground.constants import PAPER_BUDGETS, PAPER_SCHEDULES
from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.fields import kind_of


def test_the_grids_are_the_papers() -> None:
    budgets, schedules = tuple(PAPER_BUDGETS), dict(PAPER_SCHEDULES)
    assert budgets == (0, 128, 192, 256, 384, 512, 640, 768, 1024, 1536)
    assert schedules == {
        "4-linear": (0, 256, 512, 1536),
        "6-linear": (0, 192, 384, 512, 768, 1536),
        "6-log": (0, 64, 192, 512, 1024, 1536),
        "8-hybrid": (0, 64, 128, 256, 384, 640, 1024, 1536),
        "8-linear": (0, 128, 256, 384, 512, 768, 1024, 1536),
        "14-dense": (0, 64, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1536),
    }


@pytest.mark.parametrize("value", [-(2**63), 0, 2**63 - 1])
def test_an_integer_of_64_bits_is_read(value: int) -> None:
    assert kind_of(int).read(value, "field") == value


@pytest.mark.parametrize("value", [-(2**63) - 1, 2**63, True, 1.0])
def test_no_other_value_is_an_integer(value: object) -> None:
    with pytest.raises(PolicyError, match="field"):
        kind_of(int).read(value, "field")
