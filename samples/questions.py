"""Questions of three kinds, drawn from a seed: sums, ranges and left-to-right products.

Knows nothing of models, tokens or traces.  The held-out rule lives here because both sides need
it: training draws only questions for which `is_held_out` is false, workloads only the others.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random

__all__ = ["KINDS", "Question", "border_distance", "draw", "is_held_out"]

MODULUS = 100
"""All results are taken modulo this, so that every number is one token."""

HELD_OUT_SHARE = 10
"""One question in this many, by hash, is kept out of training."""

RANGES = {"A": (0, 24), "B": (25, 49), "C": (50, 74), "D": (75, 99)}
"""The options of a choice question."""

KINDS = ("arithmetic", "choice", "hard")
"""The kinds of question, each a workload of the same name."""

TASKS = {"arithmetic": "numeric", "choice": "choice", "hard": "numeric"}

OPERANDS = {"arithmetic": (2, 7), "choice": (2, 5), "hard": (3, 8)}
"""Fewest and most operands that follow the first number."""

# Products by these keep every residue equally likely; others would pile results up on 0 and 50.
FACTORS = (3, 7, 9)


@dataclass(frozen=True)
class Question:
    """One question with its right answer."""

    kind: str
    """One of `KINDS`."""
    start: int
    """The first number."""
    steps: tuple[tuple[str, int], ...]
    """Operator (``+``, ``-`` or ``*``) and operand, applied from left to right."""

    @property
    def task(self) -> str:
        """Return the tool's task name, which picks the prompt template."""
        return TASKS[self.kind]

    @property
    def value(self) -> int:
        """Return the exact result modulo 100."""
        value = self.start
        for operator, operand in self.steps:
            value = apply(value, operator, operand)
        return value

    @property
    def gold(self) -> str:
        """Return the right answer as the model should write it."""
        return range_of(self.value) if self.kind == "choice" else str(self.value)

    @property
    def text(self) -> str:
        """Return the question as its asker words it."""
        chain = f"{self.start} " + " ".join(f"{op} {operand}" for op, operand in self.steps)
        if self.kind == "arithmetic":
            return f"Compute {chain} modulo 100."
        if self.kind == "hard":
            return f"Working from left to right, compute {chain} modulo 100."
        options = "\n".join(f"{key}) {low}-{high}" for key, (low, high) in RANGES.items())
        return f"Which range contains {chain} modulo 100?\n{options}"

    @property
    def category(self) -> str:
        """Return the difficulty group: how many operands follow the first number."""
        return f"{len(self.steps)} operands"


def apply(value: int, operator: str, operand: int) -> int:
    """Return ``value operator operand`` modulo 100."""
    if operator == "+":
        return (value + operand) % MODULUS
    if operator == "-":
        return (value - operand) % MODULUS
    return (value * operand) % MODULUS


def border_distance(value: int) -> int:
    """Return how far `value` is from the nearer end of the option that contains it."""
    low, high = RANGES[range_of(value)]
    return min(value - low, high - value)


def range_of(value: int) -> str:
    """Return the letter of the option that contains `value`."""
    return next(key for key, (low, high) in RANGES.items() if low <= value <= high)


def is_held_out(text: str) -> bool:
    """Return whether a question text is kept out of training."""
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:4], "big") % HELD_OUT_SHARE == 0


def draw(
    kind: str,
    rng: Random,
    *,
    held_out: bool,
    operands: tuple[int, int] | None = None,
    smallest: int = 1,
) -> Question:
    """Draw one question.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    rng : random.Random
        Source of randomness.
    held_out : bool
        Draw from the questions kept out of training (true) or from the others.
    operands : tuple of int, optional
        Fewest and most operands; by default the kind's own, `OPERANDS`.
    smallest : int
        Smallest operand; larger ones carry more often.  No matter to the hard kind.

    Returns
    -------
    Question
        A question whose text obeys the held-out rule.
    """
    low, high = operands or OPERANDS[kind]
    while True:
        n, start = rng.randint(low, high), rng.randint(1, 99)
        question = Question(kind, start, tuple(_step(kind, rng, smallest) for _ in range(n)))
        if is_held_out(question.text) == held_out:
            return question


def _step(kind: str, rng: Random, smallest: int) -> tuple[str, int]:
    if kind != "hard":
        return rng.choice("+-"), rng.randint(smallest, 9)
    operator = rng.choice("+-**")
    return operator, rng.choice(FACTORS) if operator == "*" else rng.randint(1, 9)
