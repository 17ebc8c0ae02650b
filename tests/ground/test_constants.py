"""The paper's numbers, as it prints them; and which integers a file may hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import pytest

from stopadvisor.ground import fields
from stopadvisor.ground.constants import PAPER_BUDGETS, PAPER_SCHEDULES
from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.fields import MOST_TOKENS, Most, kind_of


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


LIMITS: list[tuple[Any, list[Any], list[Any]]] = [
    (fields.TokenId, [0, MOST_TOKENS], [-1, MOST_TOKENS + 1]),
    (fields.TokenCount, [1, MOST_TOKENS], [0, MOST_TOKENS + 1]),
    (fields.Count, [0, 10**7], [-1, 10**7 + 1]),
    (fields.Some, [1, 10**7], [0, 10**7 + 1]),
    (fields.Share, [1e-9, 1 - 1e-9], [0, 0.0, 1, 1.0]),
    (fields.ShareOrEnd, [0, 0.0, 1, 1.0], [-1e-9, 1 + 1e-9]),
    (fields.Positive, [1e-9, 1], [0, 0.0, -1.0]),
    (fields.Name, ["a\nb"], [""]),
    (fields.Line, ["a b"], ["", "a\nb", "a\u2028b"]),
    (float, [2**63 - 1024], [2**63, float("inf")]),
    (tuple[float, float], [[1.0, 1.0]], [[1.0, 0.5], [1.0]]),
    (Annotated[tuple[int, ...], Most(2)], [[1, 2]], [[1, 2, 3]]),
    (
        Mapping[str, int],
        [dict.fromkeys(map(str, range(1000)), 1)],
        [dict.fromkeys(map(str, range(1001)), 1)],
    ),
]


@pytest.mark.parametrize(("kind", "held", "refused"), LIMITS)
def test_a_field_is_read_up_to_its_limits(kind: Any, held: list[Any], refused: list[Any]) -> None:
    for value in held:
        read = kind_of(kind).read(value, "field")
        assert (list(read) if isinstance(read, tuple) else read) == value
    for value in refused:
        with pytest.raises(PolicyError, match="field"):
            kind_of(kind).read(value, "field")
