"""One question after the other on a terminal, each answer on disk before the next is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TextIO

from stopadvisor.answers.grading import Grader
from stopadvisor.answers.normal_form import normalize
from stopadvisor.certification.labelling import Labelling, LabelState, known_labels
from stopadvisor.probes.records import ProbeRecord
from stopadvisor.report.screen import Screen
from stopadvisor.report.sheet import Section
from stopadvisor.report.words import plural
from stopadvisor.runs.labels import Label, LabelFile

__all__ = ["KEYS", "LabelLoop"]

KEYS = "n neither, c cannot tell, u undo, q quit"

_DRAWS = 20
"""For what is still worth asking, which changes little from one question to the next."""
_MOST_ANSWERS = 9
"""One key each; whatever else there is can be typed."""


@dataclass(frozen=True)
class LabelLoop:
    """Asks one labeller, who sees no other's labels."""

    labelling: Labelling
    records: Mapping[str, ProbeRecord]
    file: LabelFile
    texts: Mapping[str, str]
    """What was asked, by key of the question."""
    labeller: str
    grader: Grader

    key: Callable[[], str]
    """Waits for a key and gives it."""
    line: Callable[[], str]
    """Asks for the right answer and gives it."""

    def ask(self, err: TextIO) -> None:
        """Ask until no label is worth asking for, or the labeller quits."""
        screen = Screen(err)
        while True:
            mine = self.file.read().get(self.labeller, {})
            state = self._state(mine)
            row = state.walk.wanted
            if row is None:
                screen.text("No label that is still missing can change what is certified.")
                return
            record = self.records[self.labelling.questions.ids[row]]
            answers = self.labelling.answers(row, record)[:_MOST_ANSWERS]
            question = self.texts.get(record.key, f"(question {record.id})")
            more = state.forecast
            progress = (
                f"{plural(len(mine), 'question')} labelled, about {more.labels:.0f} still worth "
                f"asking ({more.saving_pp:+.1f} points of saving)"
            )
            keys = tuple((f"[{key}]", answer) for key, answer in enumerate(answers, start=1))
            screen.title(f"Question {record.id}")
            screen.text(question)
            screen.section(Section(rows=keys, texts=(progress, KEYS)))
            if not self._take(record, answers, mine, screen):
                return

    def _state(self, mine: Mapping[str, str | None]) -> LabelState:
        questions = self.labelling.questions
        known = known_labels(questions, self.records, {self.labeller: mine}, self.grader)
        return self.labelling.state(known.grades, n_draws=_DRAWS)

    def _take(
        self,
        record: ProbeRecord,
        answers: list[str],
        mine: Mapping[str, str | None],
        screen: Screen,
    ) -> bool:
        """Read keys until one settles the question or goes back; False to quit."""
        while True:
            pressed = self.key().lower()
            if pressed in ("q", "\x04"):
                return False
            if pressed == "u":
                if not mine:
                    screen.text("There is no label to undo.")
                    continue
                name, gold = list(mine.items())[-1]
                self.file.withdraw(Label(name, gold, self.labeller))
                return True
            gold = None
            if pressed == "n":
                gold = self._typed(record, screen)
                if gold is None:
                    continue
            elif pressed.isdecimal() and 1 <= int(pressed) <= len(answers):
                gold = answers[int(pressed) - 1]
            elif pressed != "c":
                screen.text(f"Press 1 to {len(answers)}, n, c, u or q.")
                continue
            self.file.add([Label(record.id, gold, self.labeller)])
            return True

    def _typed(self, record: ProbeRecord, screen: Screen) -> str | None:
        """The right answer as it is typed; None where it is none, so that keys are read again."""
        gold = self.line().strip()
        if not normalize(record.task, gold):
            screen.text(f"That is no answer of the kind {record.task}: press a key.")
            return None
        return gold
