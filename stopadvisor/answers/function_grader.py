"""Is an answer right: ask a function of the user's, ``MODULE:FUNCTION``.

The function is called as ``function(question, gold, answer)`` in a process that can be killed, and
returns True (right), False (wrong) or None (it cannot tell).  An exception, a crash and a timeout
also mean that it cannot tell; such answers are graded wrong, and their number is reported.  It only
decides what is right: rules read whether two answers are equal from their normal forms.  This
module imports none of the user's code and knows no probes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from stopadvisor.answers.grading import Grader
from stopadvisor.answers.normal_form import NORMALIZER, extract_forced
from stopadvisor.answers.worker import NotReady, Workers
from stopadvisor.ground.errors import EngineError, GraderError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.ground.progress import tracked

__all__ = [
    "BY_GOLD", "FUNCTION_SECONDS", "FunctionGrader", "Graders", "Grades",
    "described", "open_graders"
]  # fmt: skip

BY_GOLD = "gold"
"""What `--grader` takes for the comparison with gold."""
FUNCTION_SECONDS = 30.0
"""CPU time that a function may take over one answer; of wall time, ten times as much."""
_MOST_WORKERS = 64
_LONGEST_NAME = 200
"""Characters that a policy holds of it."""


class FunctionGrader:
    """Grades by a function of the user's; a context manager, because it owns processes.

    The answer that the function sees is the one that stands in the text, as the task's rule finds
    it, before it is brought to its normal form; a text without one is wrong, and not asked about.
    Equal items are asked once.

    Parameters
    ----------
    name : str
        ``MODULE:FUNCTION``, looked for among the installed packages and then in the current
        directory, where nothing else that it imports is looked for, except in its own package.
        The function may carry attributes: `version`, a text that becomes a part of its
        name, and `workers`, how many processes may ask it at once.
    timeout_s : float
        CPU seconds that one answer may take.

    Raises
    ------
    GraderError
        There is no such function, or it does not take three arguments.
    """

    reads_questions = True

    def __init__(self, name: str, timeout_s: float = FUNCTION_SECONDS) -> None:
        module, _, function = name.partition(":")
        if not all(part.isidentifier() for part in [*module.split("."), function]):
            raise GraderError(f"--grader: expected MODULE:FUNCTION or {BY_GOLD!r}, got {name!r}")
        self._option = f"--grader {name}"
        first = Workers(1, timeout_s, (name,))
        try:
            found = parse_json(first.each[0].start())
        except NotReady as error:
            raise GraderError(
                f"{self._option}: expected a function of (question, gold, answer) in an installed "
                f"module or one in the current directory, got {error}"
            ) from error
        self.name = f"{name} ({found['version']})" if found["version"] else name
        if len(self.name) > _LONGEST_NAME or not (self.name.isascii() and self.name.isprintable()):
            raise GraderError(
                f"{self._option}: expected a name and version of at most {_LONGEST_NAME} printable "
                f"ASCII characters, got {self.name[:_LONGEST_NAME]!a}"
            )
        self.identity: Mapping[str, str] = {
            "normalizer": NORMALIZER,
            "grader": self.name,
            "grader_sha256": str(found["sha256"]),
        }
        self._workers = first
        if found["workers"] > 1:
            first.close()
            self._workers = Workers(min(found["workers"], _MOST_WORKERS), timeout_s, (name,))
        self._verdicts: dict[tuple[str, str, str], bool | None] = {}
        self._untold: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._workers.close()

    def grade_many(
        self, items: Sequence[tuple[str, str, str | None]], questions: Sequence[str] = ()
    ) -> list[bool | None]:
        """Ask of each (task, gold, answer) whether it is right; None where that cannot be told.

        Raises
        ------
        GraderError
            The function returned something else than True, False and None.
        EngineError
            The function says that it cannot grade now, as a judge whose server is down.
        """
        answers = [extract_forced(task, answer or "") for task, _, answer in items]
        cases = [
            (question, gold, answer)
            for question, (_, gold, _), answer in zip(questions, items, answers, strict=True)
        ]
        self._ask([case for case in dict.fromkeys(cases) if case[2] and case not in self._verdicts])
        return [self._verdicts[case] if case[2] else False for case in cases]

    def _ask(self, cases: Sequence[tuple[str, str, str]]) -> None:
        """Store a verdict for each case; an interruption keeps those that it has."""
        names = ("question", "gold", "answer")
        requests = [dict(zip(names, case, strict=True)) for case in cases]
        try:
            replies = tracked("grading", self._workers.ask_each(requests), len(cases))
            for case, reply in zip(cases, replies, strict=True):
                self._verdicts[case] = self._verdict(reply)
        except NotReady as error:
            raise GraderError(f"{self._option}: {error}") from error

    def _verdict(self, reply: bytes) -> bool | None:
        kind, said = reply[:1], reply[1:].decode(errors="replace")
        if kind in (b"0", b"1"):
            return kind == b"1"
        if kind == b"!":
            raise GraderError(f"{self._option}: expected True, False or None, got {said}")
        if kind == b"x":
            raise EngineError(f"{self._option}: {said}")
        self._untold[said or "it ran out of time, or took its process down"] += 1
        return None

    def remarks(self) -> list[str]:
        """Return how many different answers the function could not judge, and the usual reason."""
        if not self._untold:
            return []
        (reason, count), *_ = self._untold.most_common(1)
        total = self._untold.total()
        return [
            f"{self.name} could not tell of {total} of {len(self._verdicts)} different answers "
            f"whether they are right, and they count as wrong; most often ({count}): {reason}"
        ]


Grades = Grader | FunctionGrader
"""What grades answers against gold."""


def described(identity: Mapping[str, str]) -> str:
    """Name what graded answers; a function with the beginning of its module's hash."""
    name, digest = identity.get("grader", "an unknown grader"), identity.get("grader_sha256")
    return name if digest is None else f"{name} (SHA-256 {digest[:12]})"


@dataclass(frozen=True)
class Graders:
    """What decides about answers while a command runs."""

    equal: Grader
    """Whether two answers of the model are equivalent: never a user's function."""
    right: Grades
    """Whether an answer is right."""


@contextmanager
def open_graders(name: str | None) -> Iterator[Graders]:
    """Graders of a command, closed at the end.

    `name` is ``MODULE:FUNCTION`` for what is right; None, or ``gold``, to compare with gold.
    """
    with Grader() as equal:
        if name is None or name == BY_GOLD:
            yield Graders(equal, equal)
            return
        with FunctionGrader(name) as right:
            yield Graders(equal, right)
