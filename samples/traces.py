"""What the model is taught to think: worked passes, slips that recur, and second thoughts.

A trace is a list of lines.  Slips depend on the numbers at hand and not on chance, so that a
model that has learned them makes them under greedy decoding too; they sit at other places in the
second pass than in the first, which is what makes the two passes disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from questions import MODULUS, Question, apply, range_of

__all__ = ["Line", "think"]

FIRST_PASS_SLIPS = frozenset({8})
"""Operands whose carry or borrow the first pass forgets."""

SECOND_PASS_SLIPS = frozenset({7})
"""Operands whose carry or borrow puts the second pass off by one."""

CHOICE_SLIPS = frozenset({3})
"""Operands whose carry or borrow is forgotten in choice questions."""

HARD_SLIPS = frozenset({17, 19})
"""Factors whose product comes out ten short when it passes a hundred."""

RANDOM_SLIP = 0.005
"""Chance that a step comes out wrong for no reason."""

SLIPS_FROM = 4
"""Fewest operands of a sum for which the passes slip."""

KEEP_SECOND_FROM = 5
"""Fewest operands for which the model may settle for a second result that disagrees."""


@dataclass(frozen=True)
class Line:
    """One line of thinking."""

    text: str
    """The line with its newline."""
    claim: str | None = None
    """The answer that this line states, if it states one."""


def think(question: Question, rng: Random) -> list[Line]:
    """Write the thinking for a question; the last claim is the answer it comes to."""
    lines = [Line("\n")]
    if question.kind == "choice":
        result = _work(question.start, question.steps, CHOICE_SLIPS, 10, rng, lines)
        letter = range_of(result)
        lines.append(Line(f" So {result} is {letter}\n", letter))
    elif question.kind == "hard":
        _claim(question.start, question.steps, HARD_SLIPS, 10, rng, lines)
    else:
        _think_about_sum(question.start, question.steps, rng, lines)
    return lines


def _think_about_sum(
    start: int, steps: tuple[tuple[str, int], ...], rng: Random, lines: list[Line]
) -> None:
    """Work a sum forwards, then often backwards, then often forwards with care.

    What decides about another pass is the numbers themselves, so that greedy decoding shows every
    course: second thoughts that were needed, and ones that only confirm what stood there already.
    """
    n = len(steps)
    careless = n >= SLIPS_FROM
    first = _claim(start, steps, FIRST_PASS_SLIPS if careless else frozenset(), 10, rng, lines)
    if not careless and first % 3 == 0:
        return
    lines.append(Line(f" {'Alternatively' if first % 2 else 'Wait'}, backwards:\n"))
    slips = SECOND_PASS_SLIPS if careless else frozenset()
    second = _claim(start, steps[::-1], slips, 1, rng, lines)
    if second == first:
        again = careless and first % 10 < 8
    else:
        again = n < KEEP_SECOND_FROM or second % 5 != 3
    if again:
        lines.append(Line(" Hold on, again:\n"))
        _claim(start, steps, frozenset(), 0, rng, lines)


def _claim(
    value: int,
    steps: tuple[tuple[str, int], ...],
    slips: frozenset[int],
    error: int,
    rng: Random,
    lines: list[Line],
) -> int:
    """Append one pass and the result it claims, and return that."""
    result = _work(value, steps, slips, error, rng, lines)
    lines.append(Line(f" So {result}\n", str(result)))
    return result


def _work(
    value: int,
    steps: tuple[tuple[str, int], ...],
    slips: frozenset[int],
    error: int,
    rng: Random,
    lines: list[Line],
) -> int:
    """Append one pass over the steps to `lines` and return its result."""
    for operator, operand in steps:
        result = apply(value, operator, operand)
        if operand in slips and _carries(value, operator, operand):
            result += error if operator == "-" else -error
        elif rng.random() < RANDOM_SLIP:
            result += rng.choice((-10, -1, 1, 10))
        result %= MODULUS
        lines.append(Line(f" {value} {operator} {operand} = {result}\n"))
        value = result
    return value


def _carries(value: int, operator: str, operand: int) -> bool:
    """Return whether the units digit of a sum or difference runs over, or a product its tens."""
    if operator == "*":
        return value * operand >= MODULUS
    units = operand % 10
    return value % 10 + units >= 10 if operator == "+" else value % 10 < units
