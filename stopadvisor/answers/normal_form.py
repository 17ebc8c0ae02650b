r"""Extract an answer from what a model wrote, and bring it to a normal form.

Two answers are the same if their normal forms are equal.  Features use no other comparison, so this
module runs online at every checkpoint: it needs only the standard library, takes a few
microseconds, and its version (`NORMALIZER`) is part of every policy.  Even for hostile text, of
which at most `MAX_CHARACTERS` are read, time is linear.  ``grading.py`` decides which answers are
*right*.

Normal forms, where "" means no answer:

========  =====================================================================================
numeric   lowest terms, ``-7`` or ``22/7``; commas group thousands; units, currency and percent
          signs are dropped (``50%`` is 50, not 1/2)
choice    one capital letter
exact     NFKC, case-folded, white space collapsed, outer quotes, brackets and full stops dropped
math      LaTeX with delimiters, spacing and text wrappers removed; plain numbers as in numeric
========  =====================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from stopadvisor.answers.numerals import (
    MAX_CHARACTERS,
    MAX_DIGITS,
    NUMBER,
    ascii_math,
    compatible,
    lowest_terms,
    plain_integer,
    plain_number,
)

__all__ = [
    "GRADER", "MAX_CHARACTERS", "NORMALIZER", "TASKS", "check_gold", "extract_forced",
    "extract_natural", "guess_task", "normalize",
]  # fmt: skip

TASKS = ("math", "numeric", "choice", "exact")
NORMALIZER = "1"
"""Version of the rules in this module; raised whenever a normal form changes."""
GRADER = "math-verify-0.9/1"
"""Version of ``grading.py``; the grading process refuses another minor version of math-verify."""


# --- Extracting the answer ------------------------------------------------------------------------

_FINAL = re.compile(r"final\s+answer[*_]*\s*(?:is\b[*_]*\s*[:：]?|[:：]|\n)[\s*_]*", re.IGNORECASE)
_ANSWER = re.compile(r"\banswer[*_]*\s*(?:is\b[*_]*\s*[:：]?|[:：])[\s*_]*", re.IGNORECASE)
_CONTENT = re.compile(r"[^\W_]|[∞∅]")


def extract_forced(task: str, text: str) -> str:
    r"""Extract the short answer from a forced probe's text.

    It is the first line with content after the last "Final answer:", else of the last ``\boxed{}``,
    else after the last "answer is", else of the text, as the model wrote it; "" if there is none.
    The rule is the same for all tasks.
    """
    _check_task(task)
    return _segment(text[:MAX_CHARACTERS])


def extract_natural(task: str, text: str) -> str | None:
    r"""Extract the answer from the visible text after closed thinking.

    Tried in turn until one gives an answer of the task's kind: after the last "Final answer:"; the
    last ``\boxed{}``; after the last "answer is"; finally the last number (numeric), the last
    option letter (choice), the last formula of the last line (math), or the last line (exact).

    Returns the answer as the model wrote it, None if there is none.  If thinking was never closed
    there is no visible text to call this with.
    """
    _check_task(task)
    text = text[-MAX_CHARACTERS:]
    for part in _anchored(text):
        answer = _first_line(part)
        if normalize(task, answer):
            return answer
    if task == "numeric":
        numbers = [match[0] for match in NUMBER.finditer(plain_number(text))][-_MOST_NUMBERS:]
        return next((number for number in reversed(numbers) if normalize(task, number)), None)
    if task == "choice":
        letters = list(_letters(text))
        return letters[-1] if letters else None
    lines = [line.strip() for line in text.split("\n") if _CONTENT.search(line)]
    if not lines:
        return None
    formula = _last_formula(lines[-1]) if task == "math" else None
    answer = formula or lines[-1]
    return answer if normalize(task, answer) else None


_MOST_NUMBERS = 100
"""Only the last numbers of a visible text are tried, up to this many."""


def _segment(text: str) -> str:
    return _first_line(next(_anchored(text), text))


def _anchored(text: str) -> Iterator[str]:
    """Texts after the known anchors, the most explicit first."""
    named = "nswer" in text or "NSWER" in text
    rest = _after_last(_FINAL, text) if named else None
    if rest is not None:
        yield _boxed(rest) if "\\boxed" in rest else rest
    if "\\boxed" in text:
        yield _boxed(text)
    rest = _after_last(_ANSWER, text) if named else None
    if rest is not None:
        yield rest


def _after_last(pattern: re.Pattern[str], text: str) -> str | None:
    end = None
    for match in pattern.finditer(text):
        end = match.end()
    return None if end is None else text[end:]


def _boxed(text: str) -> str:
    r"""Content of the last ``\boxed``; one cut off by the cap runs to the end of the text."""
    content = text[text.rindex("\\boxed") + len("\\boxed") :].lstrip()
    if not content.startswith("{"):
        return re.split(r"[\s$]", content, maxsplit=1)[0]
    end = content.find("}", 1)
    if end > 0 and content.find("{", 1, end) < 0 and content.find("\\", 1, end) < 0:
        return content[1:end]
    depth = 0
    position = 0
    while position < len(content):
        char = content[position]
        if char == "\\":
            position += 1  # skip an escaped brace
        elif char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return content[1:position]
        position += 1
    return content[1:]


def _first_line(text: str) -> str:
    text = text.strip()
    if "\n" not in text:
        return text
    lines = text.split("\n")
    return next((line.strip() for line in lines if _CONTENT.search(line)), lines[0].strip())


# --- Normal forms ---------------------------------------------------------------------------------


def normalize(task: str, text: str) -> str:
    """Bring a forced probe's text, an extracted answer or gold to its normal form.

    It is "" if the text has no answer.  Normalising is idempotent.

    Examples
    --------
    >>> normalize("numeric", " **42.0** apples"), normalize("choice", " B) foo")
    ('42', 'B')
    """
    try:
        rule = _RULES[task]
    except KeyError:
        _check_task(task)
        raise
    return rule(text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS])


def _numeric(text: str) -> str:
    plain = plain_integer(text)
    if plain is not None:
        return plain
    text = _segment(text)
    plain = plain_integer(text)  # as in a box
    if plain is not None:
        return plain
    text = plain_number(text).strip()
    head, equals, tail = text.rpartition("=")
    match = (NUMBER.search(tail) if equals else None) or NUMBER.search(head or tail)
    return lowest_terms(match) if match else ""


_LETTER = re.compile(r"(?<![^\W_])(?<!['’\\])([A-Za-z])(?![^\W_])(?!['’])")
_SET_OFF = re.compile(
    r"(?:(?:^|[^\w(\[])[(\[]?[a-z][)\]]|\\[a-z]+\{[a-z]\}|(?:option|choice)\s+[a-z]\W?)\Z",
    re.IGNORECASE,
)
_ARTICLE = re.compile(r"\s+[a-z]")


def _letters(text: str) -> Iterator[str]:
    """Option letters of a text: single capitals, or small letters set off as options."""
    content = _CONTENT.search(text)
    first = content.start() if content else len(text)
    for match in _LETTER.finditer(text):
        letter, start, end = match[1], match.start(), match.end()
        if letter in "AIa" and _ARTICLE.match(text, end):
            continue  # "A car", "I think"
        leading = start <= first and text[end : end + 1] != "("
        if letter.isupper() or leading or _SET_OFF.search(text, max(0, start - 12), end + 1):
            yield letter.upper()


def _choice(text: str) -> str:
    return next(_letters(_segment(text)), "")


_PAIRS = {"(": ")", "[": "]", "{": "}", "$": "$", "“": "”", "«": "»"}


def _exact(text: str) -> str:
    for _ in range(8):  # usually once; again if case folding uncovers an anchor
        before = text
        text = _exact_once(text)
        if text == before:
            break
    return text


def _exact_once(text: str) -> str:
    text = " ".join(_segment(text).split())
    if not text.isascii():
        text = compatible(text).casefold()
        text = " ".join(compatible(text).split())
    else:
        text = text.lower()
    while True:
        bare = text.rstrip(".,;:!? \"'`*_’").lstrip(" \"'`*_‘")
        if bare and _PAIRS.get(bare[0]) == bare[-1] and len(bare) > 2:
            inner = bare[1:-1]
            # "(a) or (b)" is not one pair of brackets, and (1, 2) differs from [1, 2].
            if "," not in inner and bare[0] not in inner and bare[-1] not in inner:
                bare = inner
        if not bare or bare == text:
            return text
        text = bare


_FORMULA_OPENS = re.compile(r"\$|\\[(\[]")
_DOLLAR_FORMULA = re.compile(r"\$\$?[^$]+\$\$?")
_FORMULA_CLOSES = re.compile(r"\\[)\]]")


def _last_formula(line: str) -> str | None:
    r"""The last formula ``$…$``, ``$$…$$``, ``\(…\)`` or ``\[…\]`` in a line."""
    last = None
    position = 0
    closed = True  # once no closer follows, no later opener has one either
    while opening := _FORMULA_OPENS.search(line, position):
        start, position = opening.start(), opening.start() + 1
        if opening[0] == "$":
            if formula := _DOLLAR_FORMULA.match(line, start):
                last, position = formula[0], formula.end()
        elif closed:
            closing = _FORMULA_CLOSES.search(line, opening.end() + 1)
            closed = closing is not None
            if closing:
                last, position = line[start : closing.end()], closing.end()
    return last


_MATH_DROPPED = re.compile(
    r"\\(?:left|right|displaystyle|limits|quad|qquad)(?![A-Za-z])|\\[,;:! ()\[\]]|[$~]"
    r"|(?<!\d)\s+|\s+(?!\d)|\^\{?\\circ\}?|\\degree(?![A-Za-z])|°"
)
_MATH_FRAC = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_MATH_BARE_FRAC = re.compile(r"\\frac(?:(\d)|\{([^{}]*)\})(?:(\d)|\{([^{}]*)\})")
_MATH_TEXT = re.compile(r"\\(?:text|mathrm|textbf|textit|mathbf|mbox|operatorname)\{([^{}]*)\}")
_MATH_SINGLE = re.compile(r"([\^_])\{([A-Za-z0-9])\}")
_MATH_ASSIGNED = re.compile(r"[A-Za-z]=(?!.*=)")


def _math(text: str) -> str:
    plain = plain_integer(text)
    if plain is not None:
        return plain
    for _ in range(8):
        before = text
        text = _math_once(text)
        if text == before:
            break
    return text


def _math_once(text: str) -> str:
    text = _segment(text)
    if not text.isascii():
        text = ascii_math(text)
    text = text.strip("*").rstrip(".;:, *")
    number = _number(text.strip(" $"))  # before white space is dropped: 2 1/2 is not 21/2
    if number:
        return number
    if "\\" in text or "{" in text:
        text = _MATH_FRAC.sub(r"\\frac", text.replace("{,}", ","))
        text = _MATH_TEXT.sub(r"\1", text).replace("\\%", "%")
        text = _MATH_DROPPED.sub("", text)
        text = _MATH_BARE_FRAC.sub(r"\\frac{\1\2}{\3\4}", text)
        text = _MATH_SINGLE.sub(r"\1\2", text)
    else:
        text = _MATH_DROPPED.sub("", text)
    text = text.rstrip(".;:,")
    assigned = _MATH_ASSIGNED.match(text)
    if assigned:
        text = text[assigned.end() :] or text
    return _number(text) or text


def _number(text: str) -> str:
    """Normalise a text that is a single number; "" for any other."""
    match = NUMBER.fullmatch(plain_number(text)) if len(text) <= MAX_DIGITS else None
    return lowest_terms(match) if match else ""


_RULES: dict[str, Callable[[str], str]] = {
    "math": _math,
    "numeric": _numeric,
    "choice": _choice,
    "exact": _exact,
}


# --- Gold -----------------------------------------------------------------------------------------

_GOLD_LETTER = re.compile(r"\(?([A-Za-z])\)?[.:]?")
_TUPLE = re.compile(r"(?!.*[A-Za-z]{2})[(\[]\s*-?\w(?:[\w\s.+*/-]*,)+[\w\s.+*/-]+[)\]]")
_MOST_SHOWN = 80
"""Characters of gold shown in a message."""
_GOLD_CURRENCY = re.compile(r"(-?)\s*(?:\\?\$|[€£¥])\s*")


def check_gold(task: str, gold: str) -> None:
    """Refuse gold that no answer of its task could ever equal.

    Raises
    ------
    ValueError
        Unknown task, or gold that does not fit it; the message starts with "expected".
    """
    _check_task(task)
    gold = gold[:MAX_CHARACTERS]
    shown = gold if len(gold) <= _MOST_SHOWN else gold[:_MOST_SHOWN] + "…"
    if not gold.strip() or (task == "math" and gold.strip().lower().strip("?-–—. ") in ("", "n/a")):
        raise ValueError(f"expected an answer, got {shown!r}")
    if task == "choice" and not _GOLD_LETTER.fullmatch(gold.strip()):
        raise ValueError(f"expected an option letter for task 'choice', got {shown!r}")
    if task == "numeric" and not _is_number(gold):
        raise ValueError(f"expected a number for task 'numeric', got {shown!r}")
    if not normalize(task, gold):
        raise ValueError(f"expected an answer for task {task!r}, got {shown!r}")


def guess_task(gold: str) -> str:
    r"""Guess the task from gold: a capital letter, a number, LaTeX, else exact text."""
    text = gold[:MAX_CHARACTERS].strip()
    if _GOLD_LETTER.fullmatch(text) and any(c.isupper() for c in text):
        return "choice"
    if "\\" in text or "^" in text or "_{" in text:
        return "math"
    if _is_number(text):
        return "numeric"
    return "math" if _TUPLE.fullmatch(text) or re.fullmatch(r"\$.+\$", text) else "exact"


def _is_number(text: str) -> bool:
    text = plain_number(text.strip().strip("$")).strip()
    if currency := _GOLD_CURRENCY.match(text):
        text = currency[1] + text[currency.end() :]
    if text.endswith(("%", "$", ".")):
        text = text[:-1].removesuffix("\\").rstrip()
    match = NUMBER.fullmatch(text) if len(text) <= MAX_DIGITS else None
    return match is not None and lowest_terms(match) != ""


def _check_task(task: str) -> None:
    if task not in _RULES:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
