r"""Is an answer right: compare it with gold.  Labels alone come from here, never features.

Numbers, option letters and exact texts are right when their normal forms (``normal_form.py``) are
equal.  Mathematics is right when math-verify says so; that can hang on an innocent-looking answer
(``2003^{2002^{2001}}``), so it runs in processes of its own that can be killed.  This module knows
no probes and no files, and imports no mathematics itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Self

from stopadvisor.answers.normal_form import GRADER, NORMALIZER, extract_forced, normalize
from stopadvisor.answers.worker import NotReady, Workers
from stopadvisor.ground.errors import StopAdvisorError
from stopadvisor.ground.progress import tracked

__all__ = ["GRADING", "Grader"]

GRADING = {"normalizer": NORMALIZER, "grader": GRADER}
"""Versions that decide the labels; changing them needs `regrade`, not new probes."""


class Grader:
    """Grades answers; a context manager, because it may own a process.

    The process starts with the first mathematical answer that needs one, which may take `timeout_s`
    CPU seconds: past them it counts as wrong, and so does one that takes the process down.
    Identical items are compared once.  Not to be shared between threads.

    Examples
    --------
    >>> with Grader() as grader:
    ...     grader.grade_many([("numeric", "1,000", "$1000.00"), ("choice", "B", "(c)")])
    [True, False]
    """

    identity: Mapping[str, str] = GRADING
    """What a run's manifest says about how its answers were graded."""
    reads_questions = False
    """Whether questions must be given."""

    def __init__(self, timeout_s: float = 5.0) -> None:
        self.timeouts = 0
        """Answers given up so far; each is graded False."""
        self._workers = Workers(1, timeout_s)
        self._verdicts: dict[tuple[str, str], bool] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._workers.close()

    def grade(self, task: str, gold: str, answer: str | None) -> bool:
        """Grade one answer; see `grade_many`."""
        return self.grade_many([(task, gold, answer)])[0]

    def grade_many(
        self, items: Sequence[tuple[str, str, str | None]], questions: Sequence[str] = ()
    ) -> list[bool]:
        """Grade answers against gold, each a (task, gold, answer); `questions` are not read.

        An answer is a raw probe text or an extracted answer; None (thinking never closed), "" and
        what holds no answer of the task's kind are wrong.

        Raises
        ------
        StopAdvisorError
            The process for mathematical answers cannot be started.
        """
        verdicts = [_by_normal_form(*item) for item in items]
        pairs = [(gold, answer or "") for _, gold, answer in items]
        graded = list(zip(pairs, verdicts, strict=True))
        unsure = dict.fromkeys(pair for pair, verdict in graded if verdict is None)
        self._compare([pair for pair in unsure if pair not in self._verdicts])
        return [self._verdicts[pair] if verdict is None else verdict for pair, verdict in graded]

    def remarks(self) -> list[str]:
        """Return no remark: of a comparison with gold there is nothing to say."""
        return []

    def _compare(self, pairs: list[tuple[str, str]]) -> None:
        """Put a verdict on each pair; an interruption keeps those that are there."""
        requests = [
            {"gold": _formulas(gold)[0], "answers": _formulas(answer)} for gold, answer in pairs
        ]
        try:
            replies = tracked("grading", self._workers.ask_each(requests), len(pairs))
            for pair, reply in zip(pairs, replies, strict=True):
                self.timeouts += not reply
                self._verdicts[pair] = reply == b"1"
        except NotReady as error:
            raise StopAdvisorError(
                "cannot grade mathematical answers, which needs math-verify 0.9 "
                f"(pip install 'math-verify>=0.9,<0.10'): {error}"
            ) from error


_INTEGER = re.compile(r"-?\d+", re.ASCII)


def _by_normal_form(task: str, gold: str, answer: str | None) -> bool | None:
    """Return the verdict of the normal forms; None where only mathematics can tell."""
    right = normalize(task, gold)
    given = normalize(task, answer or "")
    if not given or not right:
        return False
    if given == right:
        return True
    if task != "math":
        return False
    if _INTEGER.fullmatch(given) and _INTEGER.fullmatch(right):
        return False
    if right.isalpha() and len(right) > 2 and given.casefold() == right.casefold():
        return True  # a word, not a product of variables
    return None


_DELIMITERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"))
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")


def _formulas(text: str) -> list[str]:
    """Write an answer for math-verify, which reads bare LaTeX only between dollars."""
    text = extract_forced("math", text)
    bare = text.replace("\\$", "").strip().rstrip(".").strip()
    for opening, closing in _DELIMITERS:
        if bare.startswith(opening) and bare.endswith(closing) and len(bare) > 2 * len(opening):
            bare = bare[len(opening) : -len(closing)].strip().rstrip(".").strip()
    if "$" in bare or "\\(" in bare or "\\[" in bare:
        return [text]  # several formulas, or prose around them: it finds them itself
    return [f"${bare}$", text] if _PROSE.search(bare) else [f"${bare}$"]
