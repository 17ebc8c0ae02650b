"""Extracting answers from texts and normalising them."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import timeit
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopadvisor.answers.normal_form import (
    TASKS,
    check_gold,
    extract_forced,
    extract_natural,
    guess_task,
    normalize,
)
from stopadvisor.answers.numerals import MAX_DIGITS

# What models write, and what random text does not hit upon.
FRAGMENTS = st.sampled_from(
    [
        "Final answer:", "final answer is", "answer is", "Answer:", "The answer is", "**", "$",
        "\n", "\\boxed{", "\\boxed", "{", "}", "\\frac", "\\dfrac12", "\\frac{1}{2}", "\\left(",
        "\\,", "\\text{", "\\le", "ft", "^\\circ", "^{2}", "x=", "=", "-", "−", "½", "²", "10^",
        "e5", "%", "1,000", "42", ".5", "0", "/", " ", "A", "(B)", "c)", "I think", "“", "”", "(",
        ")", "ß", "İ", "ＡＮＳＷＥＲ is", "an\u00a0swer is", "\u2028", "\\", "\u202f", "٣", "ﬁ",
        ".", ",", "'",
    ]
)  # fmt: skip
TEXTS = st.one_of(st.text(max_size=40), st.lists(FRAGMENTS, max_size=12).map("".join))


FORMS: dict[str, dict[str, list[str]]] = {
    "numeric": {
        "42": [
            " 42", " 42\n", "42.", "42.0", "**42**", " $42$.", "\\boxed{42", "\\boxed 42$",
            "\n\n42\n43", "４２", "6*7=42",
        ],
        "7": ["007", "The answer is 7", "the answer is: **7** apples.", "+7"],
        "1/2": [" \\boxed{\\frac{1}{2}}", ".5", "0.50", "2/4"],
        "8": ["Final answer: 8"],
        "0": ["-0", "-0.0"],
        "-3": ["−3"],
        "-5": ["- 5", "-$5"],
        "1/10": ["0.1"],
        "2469135/2": ["1,234,567.50"],
        "100000": ["1,00,000", "1e5"],
        "10000": ["10\u202f000"],
        "1000": ["1{,}000", "1\\,000", "$1,000"],
        "5": ["\\$5", "€ 5", "x = 5"],
        "50": ["50%", "50\\%"],
        "12": ["12 km", "about 12 km/h"],
        "-1/2": ["-1/2", "1/-2", "-\\frac12", "- \\frac{1}{2}", "it is -½"],
        "3/1000": ["3/1,000"],
        "3/4": ["\\dfrac{3}{4}"],
        "5/2": ["2\\frac{1}{2}", "2 1/2", "2½"],
        "1/100": ["1E-2", "10⁻²"],
        "300000": ["3 × 10⁵", "3.0 x 10^5"],
        "3/10": ["$3 \\times 10^{-1}$"],
        "1024": ["2^10"],
        "157/50": ["x ≈ 3.14"],
        "": ["", " \n", "unknown", "1/0", "1 0/0", "0^-1", "1e999999999", "9^999999999", "٣"],
    },
    "choice": {
        "B": [
            "B", " (B)", " B) foo", "B.", "b", "b)", "b: foo", "$B$", "\\(B\\)", "the (b) one",
            "B and C", "I think B", "f(x) = B",
        ],
        "D": ["**D**", "_D_"],
        "C": [
            "\\boxed{\\text{(C)}}", "\\text{c}", "The answer is (C)", "The answer is c.",
            "Option c", "I'd say C",
        ],
        "A": ["A", "A. a car"],
        "": ["A car", "a car", "It is", "Éa", "42", ""],
    },
    "exact": {
        "paris": [
            " Paris.", "**Paris**", '"Paris"', "“Paris”", "(Paris)", "The answer is PARIS!",
            "Ｐaris",
        ],
        "x": ["$x$"],
        "new york": ["  New \t York "],
        "strasse": ["straße"],
        "fine": ["ﬁne"],
        "c++": ["C++"],
        "-5": ["-5"],
        ".net": [".net"],
        "f(x)": ["f(x)"],
        "(a) or (b)": ["(a) or (b)"],
        "(1, 2)": ["(1, 2)"],
        "first": ["first\nsecond"],
        "!": ["!"],
        "": [""],
    },
    "math": {
        "42": ["42", "**42**", "$42$."],
        "1000": ["1{,}000"],
        "1/2": ["0.5", "$\\dfrac{1}{2}$.", "\\frac12"],
        "5/2": ["2 1/2", "2\\frac{1}{2}"],
        "21/2": ["21/2"],
        "1 2": ["1 2"],
        "5": ["x = 5", "\\boxed{\\boxed{5}}"],
        "2x+1": ["y = 2x + 1"],
        "(1,2)": ["\\boxed{\\left( 1,2 \\right)}"],
        "\\{1,2\\}": ["\\boxed{\\{1, 2\\}}"],
        "x^2+1": ["\\[ x^{2}+1 \\]", "x²+1"],
        "x^{10}": ["x^{10}"],
        "x^23": ["x^{2}3"],
        "\\frac{a}b": ["\\frac{a}b"],
        "Tuesday": ["\\text{Tuesday}"],
        "10": ["10^\\circ"],
        "50%": ["50\\%"],
        "\\leq3": ["\\leq 3"],
        "": [""],
    },
}  # fmt: skip
"""By task and normal form: texts that have it."""


@pytest.mark.parametrize("task", TASKS)
def test_texts_of_one_form(task: str) -> None:
    wanted = {text: form for form, texts in FORMS[task].items() for text in texts}
    assert {text: normalize(task, text) for text in wanted} == wanted


def test_a_number_has_at_most_a_thousand_digits() -> None:
    assert normalize("numeric", "9" * MAX_DIGITS) == "9" * MAX_DIGITS
    assert normalize("numeric", "9" * (MAX_DIGITS + 1)) == ""


@pytest.mark.parametrize("task", TASKS)
@given(text=TEXTS)
def test_normal_forms_are_stable(task: str, text: str) -> None:
    form = normalize(task, text)
    assert normalize(task, form) == form


@given(value=st.fractions(max_denominator=10**6))
def test_numeric_forms_are_exact(value: Fraction) -> None:
    assert normalize("numeric", f"{value.numerator}/{value.denominator}") == str(value)
    assert normalize("numeric", f"{float(value)!r}") == str(Fraction(repr(float(value))))


@given(value=st.integers())
def test_thousands_separators_change_nothing(value: int) -> None:
    assert (
        normalize("numeric", f"{value:,}") == normalize("numeric", f"${value:,}.00$") == str(value)
    )


@pytest.mark.parametrize(
    ("task", "text"),
    [("numeric", " 42"), ("numeric", " $\\frac{1}{2}$."), ("choice", " (B)"), ("exact", " Paris.")],
)
def test_normalising_is_fast(task: str, text: str) -> None:
    """It runs at every checkpoint of every request: microseconds of processor time."""
    timer = timeit.Timer(lambda: normalize(task, text), timer=time.thread_time)
    assert min(timer.repeat(number=1000, repeat=3)) / 1000 < 100e-6


def test_online_part_is_standard_library_only() -> None:
    code = (
        "import sys; import stopadvisor.answers.normal_form;"
        "print(sorted({'numpy', 'sympy', 'math_verify', 'torch', 'sklearn'} & set(sys.modules)))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "[]"


# --- Extraction -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "text", "answer"),
    [
        ("numeric", "Some words.\n\nFinal answer: 42", "42"),
        ("numeric", "**Final Answer:** 42\n\nDone.", "42"),
        ("numeric", "### Final Answer\n\n$$\n\\boxed{42}\n$$", "42"),
        ("numeric", "Final answer: 1\nNo.\nFINAL ANSWER: 2", "2"),
        ("numeric", "\\boxed{3}\nFinal answer: 4", "4"),
        ("numeric", "Final answer: unknown. But \\boxed{3}", "3"),
        ("numeric", "First \\boxed{1}, then \\boxed{2}.", "2"),
        ("numeric", "The answer is 7 apples.", "7 apples."),
        ("numeric", "So 6 and 1,000. Thus **42** apples.", "42"),
        ("numeric", "Eleven.", None),
        ("numeric", "", None),
        ("choice", "Reasons.\n\nFinal answer: (C)", "(C)"),
        ("choice", "Not A. Thus C is right", "C"),
        ("choice", "none of them", None),
        ("math", "... \\boxed{42}.", "42"),
        ("math", "\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("math", "\\boxed{{1}, 2}", "{1}, 2"),
        ("math", "We get\n\nso $x = 5$ and $y=6$.", "$y=6$"),
        ("math", "We get\n\nso \\(x = 5\\) and \\(y=6\\).", "\\(y=6\\)"),
        ("math", "Final answer:\n\\[\n\\frac{1}{2}\n\\]", "\\frac{1}{2}"),
        ("math", "", None),
        ("exact", "Final answer: Paris.", "Paris."),
        ("exact", "Let me see.\n\nParis.\n", "Paris."),
        ("exact", " \n", None),
    ],
)
def test_natural_answers(task: str, text: str, answer: str | None) -> None:
    assert extract_natural(task, text) == answer


def test_forced_answers() -> None:
    answers = {
        " 42\n": "42", "": "", "\n\n7\n8": "7", "\\[\n7\n\\]": "7", "The answer is 7": "7",
        "\\boxed{x^{2}} or so": "x^{2}", "Final answer:": "",
    }  # fmt: skip
    assert {text: extract_forced("math", text) for text in answers} == answers


ANSWERS = {
    "numeric": st.fractions(max_denominator=999).map(str),
    "choice": st.sampled_from("ABCDEFGHIJ"),
    "exact": st.from_regex(r"[A-Z][a-z]{0,6}( [a-z]{1,6}){0,2}", fullmatch=True),
    "math": st.sampled_from(["\\frac{a}{b}", "x^2+1", "(1, 2)", "\\sqrt{2}", "42", "[0, \\infty)"]),
}


@pytest.mark.parametrize("task", TASKS)
@given(data=st.data(), words=st.text(max_size=40))
def test_final_answer_round_trips(task: str, data: st.DataObject, words: str) -> None:
    answer = data.draw(ANSWERS[task].filter(lambda text: "answer" not in text.lower()))
    for form in (
        "Final answer: {}",
        "**Final answer:** {}\n",
        "Final Answer:\n\n{}\n\nThat is it.",
    ):
        text = words + "\n\n" + form.format(answer)
        assert extract_natural(task, text) == answer
        assert normalize(task, form.format(answer)) == normalize(task, answer)


@pytest.mark.parametrize("task", TASKS)
@given(text=TEXTS)
def test_natural_answers_can_be_read(task: str, text: str) -> None:
    answer = extract_natural(task, text)
    assert answer is None or normalize(task, answer)


# --- Gold and tasks -------------------------------------------------------------------------------


GOLD = {
    "choice": ["C", "(C)", "C."],
    "numeric": ["42", "-1,234.5", "3/4", "$5", "$5.00", "50%", "50 %"],
    "math": ["\\frac{1}{2}", "x^2", "a_{1}", "$x+1$", "(1, 2)"],
    "exact": ["Paris", "x", "(see above, please)", "4 May 2024", "?"],
}


def test_good_gold_says_its_task() -> None:
    for task, golds in GOLD.items():
        for gold in golds:
            check_gold(task, gold)
        assert {gold: guess_task(gold) for gold in golds} == dict.fromkeys(golds, task)
    check_gold("choice", "(c)")
    check_gold("numeric", "\\frac{1}{2}")


@pytest.mark.parametrize(
    ("task", "gold", "message"),
    [
        ("choice", "Paris", "expected an option letter for task 'choice', got 'Paris'"),
        ("choice", "1", "expected an option letter"),
        ("numeric", "twelve", "expected a number for task 'numeric', got 'twelve'"),
        ("numeric", "12 apples", "expected a number"),
        ("numeric", "12,34", "expected a number"),
        ("numeric", "1/0", "expected a number"),
        ("numeric", "3 or 4", "expected a number"),
        ("math", " ", "expected an answer, got ' '"),
        ("math", "??", "expected an answer, got '??'"),
        ("math", " - ", "expected an answer, got ' - '"),
        ("math", "N/A.", "expected an answer, got 'N/A.'"),
        ("math", "$$", "expected an answer for task 'math'"),
        ("exact", "", "expected an answer"),
        ("poetry", "x", "task must be one of math, numeric, choice, exact, got 'poetry'"),
    ],
)
def test_bad_gold(task: str, gold: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        check_gold(task, gold)


@given(gold=TEXTS.filter(str.strip))
def test_guessed_tasks_fit_numbers_and_letters(gold: str) -> None:
    task = guess_task(gold)
    assert task in TASKS
    if task in ("choice", "numeric"):
        check_gold(task, gold)


@pytest.mark.parametrize("rule", [normalize, extract_forced, extract_natural])
def test_unknown_task(rule: object) -> None:
    with pytest.raises(ValueError, match="task must be one of"):
        rule("poetry", "x")  # type: ignore[operator]
