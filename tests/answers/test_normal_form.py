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


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (" 42", "42"),
        (" 42\n", "42"),
        ("42.", "42"),
        ("42.0", "42"),
        ("007", "7"),
        ("**42**", "42"),
        (" $42$.", "42"),
        (" \\boxed{\\frac{1}{2}}", "1/2"),
        ("\\boxed{42", "42"),
        ("\\boxed 42$", "42"),
        ("The answer is 7", "7"),
        ("the answer is: **7** apples.", "7"),
        ("Final answer: 8", "8"),
        ("\n\n42\n43", "42"),
        ("-0", "0"),
        ("-0.0", "0"),
        ("+7", "7"),
        ("−3", "-3"),
        ("- 5", "-5"),
        (".5", "1/2"),
        ("0.1", "1/10"),
        ("0.50", "1/2"),
        ("1,234,567.50", "2469135/2"),
        ("1,00,000", "100000"),
        ("10\u202f000", "10000"),
        ("1{,}000", "1000"),
        ("1\\,000", "1000"),
        ("$1,000", "1000"),
        ("\\$5", "5"),
        ("-$5", "-5"),
        ("€ 5", "5"),
        ("50%", "50"),
        ("50\\%", "50"),
        ("12 km", "12"),
        ("about 12 km/h", "12"),
        ("2/4", "1/2"),
        ("-1/2", "-1/2"),
        ("1/-2", "-1/2"),
        ("3/1,000", "3/1000"),
        ("\\dfrac{3}{4}", "3/4"),
        ("-\\frac12", "-1/2"),
        ("- \\frac{1}{2}", "-1/2"),
        ("2\\frac{1}{2}", "5/2"),
        ("2 1/2", "5/2"),
        ("2½", "5/2"),
        ("it is -½", "-1/2"),
        ("1e5", "100000"),
        ("1E-2", "1/100"),
        ("3 × 10⁵", "300000"),
        ("3.0 x 10^5", "300000"),
        ("$3 \\times 10^{-1}$", "3/10"),
        ("2^10", "1024"),
        ("10⁻²", "1/100"),
        ("４２", "42"),
        ("x = 5", "5"),
        ("6*7=42", "42"),
        ("x ≈ 3.14", "157/50"),
        ("", ""),
        (" \n", ""),
        ("unknown", ""),
        ("1/0", ""),
        ("1 0/0", ""),
        ("0^-1", ""),
        ("1e999999999", ""),
        ("9^999999999", ""),
        ("9" * (MAX_DIGITS + 1), ""),
        ("9" * MAX_DIGITS, "9" * MAX_DIGITS),
        ("٣", ""),
    ],
)
def test_numeric_forms(text: str, form: str) -> None:
    assert normalize("numeric", text) == form


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("B", "B"),
        (" (B)", "B"),
        (" B) foo", "B"),
        ("B.", "B"),
        ("b", "B"),
        ("b)", "B"),
        ("b: foo", "B"),
        ("**D**", "D"),
        ("_D_", "D"),
        ("$B$", "B"),
        ("\\(B\\)", "B"),
        ("\\boxed{\\text{(C)}}", "C"),
        ("\\text{c}", "C"),
        ("The answer is (C)", "C"),
        ("The answer is c.", "C"),
        ("Option c", "C"),
        ("the (b) one", "B"),
        ("B and C", "B"),
        ("I think B", "B"),
        ("I'd say C", "C"),
        ("A", "A"),
        ("A. a car", "A"),
        ("A car", ""),
        ("a car", ""),
        ("f(x) = B", "B"),
        ("It is", ""),
        ("Éa", ""),
        ("42", ""),
        ("", ""),
    ],
)
def test_choice_forms(text: str, form: str) -> None:
    assert normalize("choice", text) == form


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (" Paris.", "paris"),
        ("**Paris**", "paris"),
        ('"Paris"', "paris"),
        ("“Paris”", "paris"),
        ("(Paris)", "paris"),
        ("$x$", "x"),
        ("The answer is PARIS!", "paris"),
        ("  New \t York ", "new york"),
        ("straße", "strasse"),
        ("ﬁne", "fine"),
        ("Ｐaris", "paris"),
        ("C++", "c++"),
        ("-5", "-5"),
        (".net", ".net"),
        ("f(x)", "f(x)"),
        ("(a) or (b)", "(a) or (b)"),
        ("(1, 2)", "(1, 2)"),
        ("first\nsecond", "first"),
        ("!", "!"),
        ("", ""),
    ],
)
def test_exact_forms(text: str, form: str) -> None:
    assert normalize("exact", text) == form


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("42", "42"),
        ("**42**", "42"),
        ("$42$.", "42"),
        ("1{,}000", "1000"),
        ("0.5", "1/2"),
        ("$\\dfrac{1}{2}$.", "1/2"),
        ("\\frac12", "1/2"),
        ("2 1/2", "5/2"),
        ("2\\frac{1}{2}", "5/2"),
        ("21/2", "21/2"),
        ("1 2", "1 2"),
        ("x = 5", "5"),
        ("y = 2x + 1", "2x+1"),
        ("\\boxed{\\left( 1,2 \\right)}", "(1,2)"),
        ("\\boxed{\\{1, 2\\}}", "\\{1,2\\}"),
        ("\\boxed{\\boxed{5}}", "5"),
        ("\\[ x^{2}+1 \\]", "x^2+1"),
        ("x²+1", "x^2+1"),
        ("x^{10}", "x^{10}"),
        ("x^{2}3", "x^23"),
        ("\\frac{a}b", "\\frac{a}b"),
        ("\\text{Tuesday}", "Tuesday"),
        ("10^\\circ", "10"),
        ("50\\%", "50%"),
        ("\\leq 3", "\\leq3"),
        ("", ""),
    ],
)
def test_math_forms(text: str, form: str) -> None:
    assert normalize("math", text) == form


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
        ("math", "Final answer:\n\\[\n\\frac{1}{2}\n\\]", "\\frac{1}{2}"),
        ("math", "", None),
        ("exact", "Final answer: Paris.", "Paris."),
        ("exact", "Let me see.\n\nParis.\n", "Paris."),
        ("exact", " \n", None),
    ],
)
def test_natural_answers(task: str, text: str, answer: str | None) -> None:
    assert extract_natural(task, text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" 42\n", "42"),
        ("", ""),
        ("\n\n7\n8", "7"),
        ("\\[\n7\n\\]", "7"),
        ("The answer is 7", "7"),
        ("\\boxed{x^{2}} or so", "x^{2}"),
        ("Final answer:", ""),
    ],
)
def test_forced_answers(text: str, answer: str) -> None:
    assert extract_forced("math", text) == answer


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


@pytest.mark.parametrize(
    ("task", "gold"),
    [
        ("choice", "C"),
        ("choice", "(c)"),
        ("choice", "C."),
        ("numeric", "-1,234.5"),
        ("numeric", "$5.00"),
        ("numeric", "50 %"),
        ("numeric", "\\frac{1}{2}"),
        ("math", "(1,2)"),
        ("exact", "?"),
    ],
)
def test_good_gold(task: str, gold: str) -> None:
    check_gold(task, gold)
    assert normalize(task, gold)


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
