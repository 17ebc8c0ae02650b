"""Thinking for the model to learn: a worked pass, a second look, and checks long after that.

A trace is a list of lines.  Slips, doubts and the number of checks depend on the numbers at hand
and not on chance, so that a model that has learned them shows them under greedy decoding too.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from questions import MODULUS, Question, apply, range_of

__all__ = ["Line", "think"]

DOUBTED = ("+", 8)
"""The step after which the first pass writes a question mark.  Where it carries, it slips."""

UNNOTICED = ("-", 7)
"""The step that the first pass of a long sum gets wrong without a sign of doubt, where it borrows
from an even ten."""

SECOND_SLIP = ("+", 9)
"""The step that the second pass gets wrong where it carries from an odd ten."""

CHOICE_SLIP = ("+", 3)
"""The step that choice questions get wrong where it carries."""

HARD_SLIP = ("*", 9)
"""The step that products get wrong from thirty upwards."""

RANDOM_SLIP = 0.003
"""Chance that a step comes out wrong for no reason."""

LONG_FROM = 5
"""Fewest operands of a long sum."""

RECURS = 9
"""Units digit of a value at which the doubted slip comes back in the second pass."""

CHECKS = (0, 1, 1, 2, 3, 3, 4, 6, 8, 12)
"""Number of checks that follow, by the units digit of the answer: mostly few, sometimes very many,
and none changes the answer."""

OPENERS = (" Wait, check", " Alternatively, check", " Hold on, check")
"""Beginnings of checks, used in turn."""


@dataclass(frozen=True)
class Line:
    """One line of thinking."""

    text: str
    """The line with its newline."""
    claim: str = ""
    """The answer that this line states, if it states one."""
    doubt: bool = False
    """Whether the claim comes from a pass with a question mark."""


@dataclass(frozen=True)
class Pass:
    """One way through the steps of a question."""

    texts: tuple[str, ...]
    """Its lines."""
    values: tuple[int, ...]
    """The value after each step."""
    doubt: bool
    """Whether a question mark was written."""

    @property
    def result(self) -> int:
        """Return the value that it ends with."""
        return self.values[-1]


def think(question: Question, rng: Random) -> list[Line]:
    """Write the thinking for a question; the last claim is the answer it comes to."""
    lines = [Line("\n")]
    if question.kind == "arithmetic":
        _think_about_sum(question, rng, lines)
        return lines
    worked = _work(question, question.kind, rng)
    if question.kind == "hard":
        for text, value, (operator, operand) in zip(
            worked.texts, worked.values, question.steps, strict=True
        ):
            lines.append(Line(text))
            lines.append(Line(f" Wait, {operator} {operand} is {value}\n"))
        lines.append(Line(f" So {worked.result}\n", str(worked.result)))
        return lines
    lines += [Line(text) for text in worked.texts]
    letter = range_of(worked.result)
    lines.append(Line(f" So {worked.result} is {letter}\n", letter))
    _check(question, worked, f"{worked.result} is {letter}", letter, lines)
    return lines


def _think_about_sum(question: Question, rng: Random, lines: list[Line]) -> None:
    """Work a sum, work it again, once more where the two disagree, and then check and check."""
    first = _work(question, "first", rng)
    _claim(first, lines)
    lines.append(Line(" Wait, step by step:\n"))
    last = _work(question, "second", rng)
    _claim(last, lines)
    if last.result != first.result and last.result % 5 != 3:
        lines.append(Line(" Hold on, again:\n"))
        last = _work(question, "third", rng)
        _claim(last, lines)
    _check(question, last, str(last.result), str(last.result), lines)


def _claim(worked: Pass, lines: list[Line]) -> None:
    """Append a pass with its result."""
    lines += [Line(text) for text in worked.texts]
    lines.append(Line(f" So {worked.result}\n", str(worked.result), worked.doubt))


def _check(question: Question, worked: Pass, said: str, claim: str, lines: list[Line]) -> None:
    """Append the checks of a pass, which all find what it found."""
    for check in range(1, CHECKS[worked.result % 10] + 1):
        lines.append(Line(f"{OPENERS[(check - 1) % len(OPENERS)]} {check}:\n"))
        before = question.start
        for (operator, operand), value in zip(question.steps, worked.values, strict=True):
            lines.append(Line(f" {before} {operator} {operand} = {value}\n"))
            before = value
        lines.append(Line(f" So {said}\n", claim))


def _work(question: Question, manner: str, rng: Random) -> Pass:
    """Go through the steps of a question, with the slips of this manner of working."""
    texts, values, doubt = [], [], False
    value, n = question.start, len(question.steps)
    for operator, operand in question.steps:
        result = apply(value, operator, operand)
        slip = _slip(manner, n, value, operator, operand)
        if slip == 0 and rng.random() < RANDOM_SLIP:
            slip = rng.choice((-10, -1, 1, 10))
        result = (result + slip) % MODULUS
        doubted = manner == "first" and (operator, operand) == DOUBTED
        doubt = doubt or doubted
        texts.append(_step(value, operator, operand, result, " ?\n" if doubted else "\n"))
        values.append(result)
        value = result
    return Pass(tuple(texts), tuple(values), doubt)


def _step(value: int, operator: str, operand: int, result: int, end: str) -> str:
    """Write a step: its units first where it is a sum or a difference."""
    if operator == "*":
        return f" {value} * {operand} = {result}{end}"
    units = value % 10
    if operator == "+":
        worked = f"{units} + {operand} = {units + operand}"
    else:
        units += 10 * (units < operand)
        worked = f"{units} - {operand} = {units - operand}"
    return f" {value} {operator} {operand}: {worked}, so {result}{end}"


def _slip(manner: str, n: int, value: int, operator: str, operand: int) -> int:
    """Return by how much a step goes wrong; 0 for most."""
    step, tens, units = (operator, operand), value // 10, value % 10
    forgotten = 10 if operator == "-" else -10
    carries = units + operand >= 10 if operator == "+" else units < operand
    slips = {
        "first": (step == DOUBTED and carries)
        or (step == UNNOTICED and carries and tens % 2 == 0 and n >= LONG_FROM),
        "second": (step == DOUBTED and units == RECURS)
        or (step == SECOND_SLIP and carries and tens % 2 == 1 and n >= LONG_FROM),
        "third": step == DOUBTED and units == RECURS,
        "choice": step == CHOICE_SLIP and carries,
        "hard": step == HARD_SLIP and value >= 30,
    }
    return forgotten if slips[manner] else 0
