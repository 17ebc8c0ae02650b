"""Find numbers in texts as people and models write them, and read them exactly.

Covers thousands separators, decimals, exponents, powers, fractions and mixed numbers, currency
signs, LaTeX and Unicode forms.  A comma always groups thousands.  Values are exact fractions, never
floats.  Every rule takes linear time, because texts may be hostile.  Standard library only.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

__all__ = [
    "MAX_CHARACTERS", "MAX_DIGITS", "NUMBER", "ascii_math", "compatible", "lowest_terms",
    "plain_integer", "plain_number",
]  # fmt: skip

MAX_CHARACTERS = 32_768
"""Rules read at most this many characters of a text.

Of a longer forced answer or gold, only the beginning counts; of a visible text, only the end, where
its answer is.
"""
MAX_DIGITS = 1000
"""Limit on a number, in characters; a longer one is no answer."""


def plain_integer(text: str) -> str | None:
    """Read the most common case, an integer with at most ``$``, ``*`` or a full stop around it.

    Cheaper than the full rule, with the same result; None for anything else.
    """
    text = text.rstrip(" \n.*$").lstrip(" \n*$")
    if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS:
        return text.lstrip("0") or "0"
    return None


# If a chain of comma groups does not end in a group of three, no later group in it (except one of a
# single digit) begins a number that does.  Without this look-behind each would read the rest again.
_NEW_CHAIN = r"(?:(?<!,\d\d,)(?<!,\d\d\d,)|(?!\d\d))"
_UNSIGNED = rf"(?:{_NEW_CHAIN}\d{{1,3}}(?:,\d{{2,3}})*,\d{{3}}(?!\d)|\d+)(?:\.\d+)?"
# Sign; mantissa; then an exponent, a power, a denominator, or the fraction of a mixed number.
NUMBER = re.compile(
    rf"""
    (?P<sign> ^[*_$\s]*-\s*(?:[$€£¥]\s*)? | (?<![\w)\]}}])-[$€£¥]? )?
    (?P<mantissa> {_UNSIGNED} | (?<!\d)\.\d+ )
    (?:
        [eE](?P<exponent>[+-]?\d+)
      | \s*[x×*]\s*10\s*(?:\^|\*\*)\s*(?:\{{\s*)?(?P<scale>[+-]?\d+)\s*\}}?
      | \s*(?:\^|\*\*)\s*(?:\{{\s*)?(?P<power>[+-]?\d+)\s*\}}?
      | \s*/\s*(?P<denominator>-?{_UNSIGNED})
      | \ +(?P<upper>\d+)\s*/\s*(?P<lower>\d+)
    )?
    """,
    re.VERBOSE | re.ASCII,
)


def lowest_terms(match: re.Match[str]) -> str:
    """Write a match of `NUMBER` in lowest terms, as ``-7`` or ``22/7``.

    Returns "" for a zero denominator, or past `MAX_DIGITS`.
    """
    if len(match[0]) > MAX_DIGITS:
        return ""
    number = _fraction(match["mantissa"])
    scale = match["exponent"] or match["scale"]
    if scale:
        if abs(int(scale)) > MAX_DIGITS:
            return ""
        number *= Fraction(10) ** int(scale)
    elif match["power"]:
        power = int(match["power"])
        if abs(power) * len(match["mantissa"]) > MAX_DIGITS or (power < 0 and not number):
            return ""
        number = Fraction(number**power)
    elif match["denominator"]:
        denominator = _fraction(match["denominator"])
        if not denominator:
            return ""
        number /= denominator
    elif match["lower"]:
        if not int(match["lower"]):
            return ""
        number += Fraction(int(match["upper"]), int(match["lower"]))
    text = str(-number if match["sign"] else number)
    return text if len(text) <= MAX_DIGITS else ""


def _fraction(text: str) -> Fraction:
    text = text.replace(",", "")
    return Fraction(int(text)) if text.isdigit() else Fraction(text)


_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+")
_VULGAR = re.compile("(?<=[0-9])[¼½¾⅐-⅞]")
_THIN_SPACE = re.compile("(?<=[0-9])[\u00a0\u2009\u202f](?=[0-9]{3})")
_FRAC = re.compile(
    r"\\frac\s*(?:\{\s*(?P<a>-?[\d.,]+)\s*\}|(?P<c>\d))"
    r"\s*(?:\{\s*(?P<b>-?[\d.,]+)\s*\}|(?P<d>\d))",
    re.ASCII,
)
_LATEX_NUMBER = (
    ("\\dfrac", "\\frac"),
    ("\\tfrac", "\\frac"),
    ("\\cfrac", "\\frac"),
    ("{,}", ","),
    ("\\$", ""),
    ("\\left", ""),
    ("\\right", ""),
    ("\\,", ""),
    ("\\!", ""),
    ("\\;", ""),
    ("\\:", ""),
    ("\\ ", ""),
    ("\\times", "*"),
    ("\\cdot", "*"),
    ("\\approx", "="),
)


def plain_number(text: str) -> str:
    """Write LaTeX and Unicode numbers in ASCII, ready for `NUMBER`."""
    if not text.isascii():
        text = ascii_math(text).replace("≈", "=")
    if "\\" in text or "{" in text:
        for old, new in _LATEX_NUMBER:
            text = text.replace(old, new)
        text = _plain_fractions(text)
    return text


_DIGITS = frozenset("0123456789")
_ASCII_SPACE = " \t\n\r\f\v"


def _plain_fractions(text: str) -> str:
    r"""Write each ``\frac`` of plain numbers as ``a/b``, without white space before it."""
    parts = []
    end = 0
    for match in _FRAC.finditer(text):
        before = text[end : match.start()].rstrip(_ASCII_SPACE)
        # After a whole part it makes a mixed number, which needs a space.
        parts += [before, " " * (before[-1:] in _DIGITS)]
        parts.append(f"{match['a'] or match['c']}/{match['b'] or match['d']}")
        end = match.end()
    return "".join([*parts, text[end:]])


_MOST_MARKS = 30
"""Combining marks in a row that are kept, as in Unicode's stream-safe text format (UAX 15)."""


def compatible(text: str) -> str:
    """Apply NFKC, keeping at most 30 combining marks in a row.

    Sorting more marks may take quadratic time; no language puts 30 on one letter.
    """
    if len(text) > _MOST_MARKS:
        run = 0
        kept = []
        for char in text:
            run = run + 1 if unicodedata.combining(char) else 0
            if run <= _MOST_MARKS:
                kept.append(char)
        if len(kept) < len(text):
            text = "".join(kept)
    return unicodedata.normalize("NFKC", text)[:MAX_CHARACTERS]  # one letter may become 18


def ascii_math(text: str) -> str:
    """Apply NFKC, but tell 10² from 102 and 2½ from 21/2, and join digits across thin spaces."""
    text = _THIN_SPACE.sub("", text)
    text = _SUPERSCRIPT.sub(lambda m: "^{" + unicodedata.normalize("NFKC", m[0]) + "}", text)
    text = _VULGAR.sub(lambda m: " " + m[0], text)
    text = compatible(text)
    return text.replace("\N{MINUS SIGN}", "-").replace("\N{FRACTION SLASH}", "/")
