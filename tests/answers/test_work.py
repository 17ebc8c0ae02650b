"""Hostile texts: work is linear in the text, up to a cap."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from stopadvisor.answers import numerals
from stopadvisor.answers.normal_form import (
    MAX_CHARACTERS,
    TASKS,
    check_gold,
    extract_forced,
    extract_natural,
    guess_task,
    normalize,
)

FEW, MANY = 1_000, 16_000
MOST_GROWTH = 64
"""Sixteen times the text takes about 16 times the work by a linear rule, 256 by a quadratic one."""
LEAST_SECONDS = 1e-4
"""Processor time below which the clock's resolution dominates."""


def repeated(unit: str, before: str = "", after: str = "") -> Callable[[int], str]:
    """Text of n characters: a repeated unit between a beginning and an end."""
    return lambda n: before + (unit * n)[: n - len(before) - len(after)] + after


def halves(first: str, second: str) -> Callable[[int], str]:
    return lambda n: (first * n)[: n // 2] + (second * n)[: n // 2]


ATTACKS: dict[str, Callable[[int], str]] = {
    "nothing-then-letters": halves("!", "A ("),
    "groups-of-two-digits": repeated("11,", "1,"),
    "groups-of-two-digits-at-the-end": repeated("11,", "x=1,", "1"),
    "groups-and-single-digits": repeated("1,11,"),
    "groups-of-three-digits": repeated("111,", "", "x"),
    "white-space": repeated(" ", "1", "x"),
    "white-space-before-frac": repeated(" ", "\\", "frac"),
    "white-space-in-frac": repeated(" ", "\\frac{1", "x"),
    "white-space-before-frac-again": repeated("  \\frac ", "{,}"),
    "open-fracs": repeated("\\frac{1"),
    "minus-and-white-space": repeated(" ", "-", "x"),
    "power-and-white-space": repeated(" ", "2^", "x"),
    "scale-and-white-space": repeated(" ", "2*10^", "x"),
    "denominator-and-white-space": repeated(" ", "2/", "x"),
    "spaced-numbers": repeated("1   /"),
    "minuses": repeated("-"),
    "brackets": repeated("("),
    "long-number": repeated("1"),
    "long-decimals": repeated("1", "0."),
    "long-numbers": repeated("1" * 999 + "/0 "),
    "large-exponents": repeated("1e1000 "),
    "zero-denominators": repeated("1/0 "),
    "gold-and-white-space": repeated(" ", "5", "x%"),
    "gold-in-dollars": repeated("$ ", "x"),
    "tuple": repeated("1,", "(", "1"),
    "open-formulas": repeated("\\("),
    "formulas-and-closers": halves("\\(", "\\)"),
    "dollars": repeated("$"),
    "one-open-dollar": repeated("x ", "$"),
    "boxes": repeated("\\boxed{"),
    "braces": repeated("{"),
    "text-wrappers": repeated("\\text{"),
    "answers": repeated("final answer "),
    "answer-and-white-space": repeated(" ", "final answer", "x"),
    "answer-and-stars": repeated("*_", "answer", "x"),
    "options": repeated("option A (", "x "),
    "articles": repeated(" A car"),
    "lines": repeated("\n!"),
    "quotes-and-pairs": halves("\"'(", ")'\""),
    "assigned": repeated("x="),
    "marks": halves("a\u0301", "\u0327\u0301"),
    "marks-out-of-order": halves("\u0301", "\u0327"),
    "words-of-eighteen-letters": repeated("\ufdfa"),
    "superscripts": repeated("²⁻"),
    "thin-spaces": repeated("111\u202f"),
}


def work(text: str) -> float:
    """Seconds of processor time that all rules take for a text."""
    began = time.thread_time()
    guess_task(text)
    extract_forced("math", text)  # the same for all tasks
    for task in TASKS:
        normalize(task, text)
        extract_natural(task, text)
        with suppress(ValueError):
            check_gold(task, text)
    return time.thread_time() - began


@pytest.mark.parametrize("name", ATTACKS)
def test_work_is_linear_in_the_text(name: str) -> None:
    few = min(work(ATTACKS[name](FEW)) for _ in range(3))
    limit = MOST_GROWTH * max(few, LEAST_SECONDS)
    assert any(work(ATTACKS[name](MANY)) < limit for _ in range(3)), f"{few:.6f} s"


@pytest.mark.parametrize("task", TASKS)
def test_no_rule_reads_more_than_the_cap(task: str) -> None:
    """Text beyond the cap changes nothing."""
    filling = "x " * MAX_CHARACTERS
    beyond = " Final answer: B 7"
    assert normalize(task, filling + beyond) == normalize(task, filling[:MAX_CHARACTERS])
    assert extract_forced(task, filling + beyond) == filling[:MAX_CHARACTERS].strip()
    assert extract_natural(task, "Final answer: 3" + filling) == extract_natural(
        task, filling[-MAX_CHARACTERS:]
    )
    assert guess_task("7" + " " * MAX_CHARACTERS + "x") == "numeric"
    check_gold("numeric", "7" + " " * MAX_CHARACTERS + "x")


@pytest.mark.parametrize("task", TASKS)
def test_an_answer_at_the_end_of_a_long_text_is_found(task: str) -> None:
    answer = {"choice": "B", "exact": "blue"}.get(task, "42")
    found = extract_natural(task, "So 1 is A. " * MAX_CHARACTERS + f"\nFinal answer: {answer}")
    assert found is not None
    assert normalize(task, found) == normalize(task, answer)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1,11,111", ["1,11,111"]),
        ("1,11,11,1,111", ["1", "11", "11", "1,111"]),
        ("1,11,11,11", ["1", "11", "11", "11"]),
        ("12,34,567,89,12", ["12,34,567", "89", "12"]),
        ("1111,111,111", ["1111", "111,111"]),
        ("1,22,333.5,666,777", ["1,22,333.5", "666,777"]),
        (".5,111,222", [".5", "111,222"]),
        ("1,22,22,4444,555", ["1", "22", "22", "4444", "555"]),
        ("2/1,11,111", ["2/1,11,111"]),
    ],
)
def test_chains_of_groups_are_read_from_their_beginning(text: str, numbers: list[str]) -> None:
    assert [match[0] for match in numerals.NUMBER.finditer(text)] == numbers


def test_marks_beyond_thirty_on_one_letter_are_dropped() -> None:
    assert normalize("exact", "e\u0301" + "\u0327" * 400) == normalize(
        "exact", "e\u0301" + "\u0327" * 29
    )
    assert normalize("exact", "e\u0301" * 40) == "é" * 40
