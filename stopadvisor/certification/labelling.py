"""Labels for a certificate on lost answers: which questions to ask about, and what labels certify.

Rules are chosen by agreement, and the look is recorded with the order of asking, before any
question is shown or any label read.  The caller holds the run's lock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from stopadvisor.answers.grading import Grader, described
from stopadvisor.assessment.choice import Choice, Settings
from stopadvisor.certification.partial_labels import (
    AskingPlan,
    Grades,
    check_partial,
    label_tests,
    may_be_lost,
    with_labels,
)
from stopadvisor.collection.grades import SettledLabels, answers_at, as_graded, grade_by, settle
from stopadvisor.ground.errors import CalibrationError, GraderError
from stopadvisor.probes.outcomes import CalibrationQuestions
from stopadvisor.probes.records import ProbeRecord
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.labels import LabelFile
from stopadvisor.runs.look_log import as_recorded, digests_of, read_log
from stopadvisor.runs.sources import Source
from stopadvisor.stats.adaptive_labels import LabelForecast, LabelTest, asking_order, forecast

__all__ = [
    "LabelCounts", "LabelRun", "LabelledRun", "Labelling", "asking_salt",
    "label_request", "planned_labels",
]  # fmt: skip


def label_request(source: Source, settings: Settings) -> dict[str, Any]:
    """Entry that the log of looks needs in addition: a digest of the order of asking."""
    check_partial(settings)
    grading = (source.manifest or {}).get("grading", {})
    if "grader_sha256" in grading:
        raise GraderError(
            f"{source.folder} was graded by {described(grading)}, and typed labels are compared as "
            "gold: grade it again with `stopadvisor assess RUN --regrade --grader gold`"
        )
    table = source.part("calibration")
    keys = [table.keys[row] for row in asking_order(table.keys, asking_salt(source))]
    return {"asking": _digest("\n".join(keys))}


def planned_labels(
    source: Source, asked: Mapping[str, Any], wanted: int | None, *, fresh: bool
) -> int | None:
    """Number of labels to plan for: what the first look recorded, else what is wanted.

    `asked` are the settings of the look, including the order of asking where labels are needed.
    With `fresh` other questions may be labelled, for which another number may be planned.
    CalibrationError where the number differs from the one recorded before figures were shown.
    """
    asked = as_recorded(asked)
    log = read_log(source.folder)
    here = log.at(digests_of(source.part("calibration").keys))
    for look in reversed(log.looks):
        is_same = all(look.asked.get(name) == value for name, value in asked.items())
        if not is_same and (fresh or not look.opened or look not in here):
            continue
        planned: int | None = look.asked.get("sampled_labels")
        if wanted in (None, planned):
            return planned
        if not fresh:
            named = "no --labels" if planned is None else f"--labels {planned}"
            raise CalibrationError(
                f"look {look.number} at these questions named {named}, which settled which labels "
                f"count before a figure of theirs was shown, got --labels {wanted}: say --fresh "
                "for questions that no look has used"
            )
    return wanted


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def asking_salt(source: Source) -> str:
    """Salt of the hash that orders the questions to label."""
    return f"labels {source.seed}"


# --- Asking ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelCounts:
    """How many labels there are, and what more would gain."""

    workload: int
    """Calibration questions whose gold came with the workload."""
    asked: int
    """Other questions that somebody was asked about."""
    used: int
    """Of these, questions whose right answer is settled."""
    cannot_tell: int
    """Questions that a labeller could not tell; they count as lost."""
    disagreeing: int
    """Questions that two labellers answered differently; they count as lost."""
    more_labels: int
    """About how many are still worth asking for."""
    more_saving_pp: float
    """Points of net saving that they are expected to add."""


@dataclass(frozen=True)
class LabelledRun:
    """`label --json`: the labels of a run, and what they certify."""

    run: str
    """The run directory."""
    alpha: float
    """The share of lost answers to certify."""
    delta: float
    """1 minus the confidence."""
    n: int
    """Calibration questions; all of them count."""
    planned: int | None
    """Labels that were planned for, with `--labels`."""
    sampled: int | None
    """Where fit questions prefer a sample: of the replies that differ at a threshold the first so
    many count, in an order fixed beforehand; null where all do."""
    labels: LabelCounts
    """What there is, and what more would buy."""
    certified_saving_pct: float
    """Net saving that these labels certify, as fit questions measure it."""
    labellers: Mapping[str, int]
    """Questions that each has labelled."""
    disagreements: tuple[str, ...]
    """Ids of the questions answered differently."""
    file: str
    """Where the labels are."""
    exported: str | None
    """The sheet that was written, with `--export`."""
    n_exported: int | None
    """Questions on it."""


@dataclass(frozen=True)
class Labelling:
    """Calibration questions to be labelled, and the plan by which labels count."""

    choice: Choice
    questions: CalibrationQuestions
    """Questions that the test counts, graded by agreement."""
    salt: str
    labels: int | None = None
    """Number of labels planned; None for every label that can change a decision."""

    @cached_property
    def plan(self) -> AskingPlan:
        """Which labels count at which threshold, and the order of asking."""
        order = asking_order(self.questions.keys, self.salt)
        return AskingPlan.of(self.choice, order, self.labels)

    @cached_property
    def _tests(self) -> tuple[LabelTest, ...]:
        return label_tests(self.choice, self.questions, self.plan)

    def state(self, grades: Grades, *, n_draws: int = 50) -> LabelForecast:
        """What these labels certify, which to ask next, and what all further ones would gain."""
        tests = with_labels(self._tests, self.choice, self.questions, grades)
        known = np.zeros(self.questions.n_questions, dtype=np.bool_)
        known[list(grades)] = True
        rng = np.random.default_rng(0)
        return forecast(tests, known, self.plan.order, rng=rng, n_draws=n_draws)

    def answers(self, row: int, record: ProbeRecord) -> list[str]:
        """Different answers to a question, so that nothing tells which one comes from a stop.

        They are in normal form and ordered by hash.
        """
        budgets = set()
        for sequence in self.choice.sequences:
            view = sequence.scorer.view(self.questions.take(np.array([row])))
            budgets |= set(view.positions[may_be_lost(view)[:, :-1]].tolist())
        forms = answers_at(record, budgets)
        return sorted(forms, key=lambda form: _digest(f"{record.key} {form}"))


# --- The labels of a run --------------------------------------------------------------------------


@dataclass(frozen=True)
class KnownLabels:
    """Labels of calibration questions, from people and from the workload."""

    grades: Grades
    settled: SettledLabels
    n_workload: int
    """Questions whose gold came with the workload."""

    def counts(self, state: LabelForecast) -> LabelCounts:
        """Count the labels; `state` is the one that they lead to."""
        settled = self.settled
        return LabelCounts(
            self.n_workload,
            len(settled.gold),
            len(settled.gold) - len(settled.cannot_tell) - len(settled.disagreeing),
            len(settled.cannot_tell),
            len(settled.disagreeing),
            round(state.labels),
            state.saving_pp,
        )


@dataclass(frozen=True)
class LabelRun:
    """A run whose look was taken, with its questions to label and the labels given so far."""

    labelling: Labelling
    directory: RunDirectory
    records: Mapping[str, ProbeRecord]
    """First traces, by id."""
    file: LabelFile
    texts: Mapping[str, str] = field(default_factory=dict)
    """Text of each question to show, by key."""

    @classmethod
    def of(cls, source: Source, labelling: Labelling) -> LabelRun:
        """Open the labels of a source's run."""
        run = RunDirectory.load(source.folder)
        records = {record.id: record for record in run.records() if record.sample == 0}
        file = LabelFile(run, {name: record.key for name, record in records.items()})
        return cls(labelling, run, records, file)

    def known(self, labels: Mapping[str, Mapping[str, str | None]], grader: Grader) -> KnownLabels:
        """Grade the counted questions; `labels` holds each labeller's gold by question id."""
        records = self.records
        rows = {name: row for row, name in enumerate(self.labelling.questions.ids)}
        own = {name for name in rows if records[name].is_graded}
        mine = {
            labeller: {
                name: gold for name, gold in golds.items() if name in rows and name not in own
            }
            for labeller, golds in labels.items()
        }
        settled = settle(mine, {name: records[name].task for name in rows}, grader)
        golds = {name: gold for name, gold in settled.gold.items() if gold is not None}
        graded = grade_by([records[name] for name in golds], golds.values(), grader)
        found = dict(zip(golds, graded, strict=True))
        found |= {name: as_graded(records[name]) for name in own}
        unsettled = dict.fromkeys(settled.gold.keys() - golds.keys())
        grades = {rows[name]: grade for name, grade in {**found, **unsettled}.items()}
        return KnownLabels(grades, settled, len(own))
