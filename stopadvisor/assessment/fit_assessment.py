"""Assessing a source: profile, evidence, serving and recommendation as one result, with remarks.

Reads the outcomes of fit questions and no others; `paper.analysis` does the same under the paper's
protocol, over all questions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from stopadvisor.assessment.choice import Choice, Settings, choose, nothing_chosen
from stopadvisor.assessment.label_plan import LabelNeed, LabelRow, label_needs
from stopadvisor.assessment.promises import Promise, promises, proposed
from stopadvisor.assessment.rated import RulesOnFit
from stopadvisor.assessment.recommendation import Recommendation, recommend
from stopadvisor.assessment.rung_candidates import AlwaysRung, always_rungs
from stopadvisor.assessment.settings import alpha_remark
from stopadvisor.ground.constants import SMALL_WORKLOAD, TRUNCATED_WARN
from stopadvisor.ground.errors import CalibrationError, NothingToChoose
from stopadvisor.probes.grouping import calibration_rows
from stopadvisor.probes.outcomes import FitQuestions, GradedTable, require_fit
from stopadvisor.probes.table import GradedBy, ProbeTable
from stopadvisor.probes.trajectories import Profile, profile, trajectory
from stopadvisor.rules.costs import Weights
from stopadvisor.rules.losses import DIFFERS
from stopadvisor.rules.outcomes import BlindStopping, blind_stopping
from stopadvisor.rules.roofline import Prices
from stopadvisor.rules.schedules import grid_positions, grid_view
from stopadvisor.runs.sources import Source
from stopadvisor.stats.intervals import exact_interval
from stopadvisor.workload.questions import PARTS, SMALLEST_PARTS

__all__ = [
    "Assessment", "FitAssessment", "LoadSaving", "Repeats", "advice_profile",
    "assess", "calibration_size", "check_labels", "meaning_of_cut", "remarks_on_promise",
    "remarks_on_sample", "savings_by_load",
]  # fmt: skip


Protocol = Literal["paper", "deploy"]


@dataclass(frozen=True)
class Assessment:
    """What both protocols find, before anything is formatted."""

    protocol: Protocol
    source: Source
    alpha: float
    delta: float
    n_questions: int
    """In all parts; several traces of one question count once."""
    reference: str
    truncated_share: float
    """Of the questions whose outcomes this protocol reads."""
    split: dict[str, int]
    profile: Profile
    basis: Literal["all", "fit"]
    full_accuracy: float
    """Full-thinking accuracy of the questions on which the profile is based."""
    recommendation: Recommendation


@dataclass(frozen=True)
class Repeats:
    """Fit questions that thought twice: how often full thinking differs from itself.

    Agreement with full thinking can mean no more than this.  It is shown next to a promise about
    differing replies, and never subtracted from anything.
    """

    questions: int
    """Fit questions that thought twice."""
    differing: int
    """Of them, those that were answered differently the second time; no answer equals none."""
    share: float
    """Their share: what agreement with full thinking can mean at all."""
    ci95: tuple[float, float]
    """Exact (Clopper-Pearson) interval of the share."""


@dataclass(frozen=True)
class FitAssessment(Assessment):
    """What `assess` found on fit questions."""

    choice: Choice
    repeats: Repeats | None = None
    """How often full thinking differed from itself; None where no question thought twice."""
    promises: tuple[Promise, ...] | None = None
    """Where no risk was asked for: what several would buy, `alpha` being the one proposed."""
    rungs: tuple[AlwaysRung, ...] = ()
    """Each rung of a ladder served to everybody; empty where one trace is probed."""

    @property
    def label_savings(self) -> tuple[LabelRow, ...]:
        """What the advised rule is expected to save by the number of labels; empty without one."""
        share = self.split["calibration"] / self.n_questions
        return tuple(
            LabelRow(n, round(n / share), saving_pct, is_here=n == self.choice.n_calibration)
            for n, saving_pct in self.choice.label_savings.items()
        )

    @cached_property
    def label_needs(self) -> tuple[LabelNeed, ...]:
        """Gold labels that a promise about lost answers would take; simulated when first read."""
        return label_needs(self.choice)

    @property
    def graded_by(self) -> GradedBy:
        """What says that an answer of a fit question is right."""
        return self.choice.fit.table.graded_by


def calibration_size(table: ProbeTable) -> int:
    """Questions that would enter a bound: one trace per group; no outcome is looked at."""
    return calibration_rows(table).size


def assess(
    source: Source, settings: Settings, *, propose: bool = False, traces: int | None = None
) -> FitAssessment:
    """Assess under the deploy protocol, from fit questions alone.

    Whatever was measured ends in advice: where it leaves no rule to choose, in full thinking.

    Parameters
    ----------
    propose : bool
        Compare what several risks would buy, and assess at the one proposed in place of the
        settings' own.
    traces : int, optional
        Of each calibration question that will count; by default two where all have a second one.

    Raises
    ------
    CalibrationError
        Too few questions in a part, or families that these probes cannot be read by.
    """
    fit, counts = source.part("fit"), source.counts()
    n_calibration = calibration_size(source.part("calibration"))
    _check_sizes(counts, n_calibration, source.fractions)
    rng = np.random.default_rng(source.seed)
    shape = advice_profile(fit, rng=rng)
    sealed = source.part("calibration")
    categories = Counter(sealed.take(calibration_rows(sealed)).categories)
    if traces is None:
        traces = 1 + bool((sealed.samples == 1).sum() >= n_calibration)
    settings = replace(settings, traces=traces)
    offered: tuple[Promise, ...] | None = () if propose else None
    try:
        check_labels(fit)
        rules = RulesOnFit.measure(fit, settings, _other_parts(source))
        if propose:
            offered = promises(rules, n_calibration, settings, categories=categories)
            settings = replace(settings, alpha=proposed(offered).alpha)
        choice = choose(fit, n_calibration, settings, categories=categories, rules=rules)
    except NothingToChoose as error:  # a result like any other: the advice is full thinking
        choice = nothing_chosen(fit, n_calibration, settings, str(error))
    return FitAssessment(
        protocol="deploy",
        source=source,
        alpha=settings.alpha,
        delta=settings.delta,
        n_questions=sum(counts.values()),
        reference=fit.reference,
        truncated_share=float(fit.truncated.mean()),
        split=counts,
        profile=shape,
        basis="fit",
        full_accuracy=choice.full_accuracy,
        recommendation=recommend(shape, choice, _blind(choice, shape, rng)),
        choice=choice,
        repeats=_repeats(fit),
        promises=offered,
        rungs=always_rungs(choice.fit),
    )


def _other_parts(source: Source) -> ProbeTable:
    """First traces of calibration and test questions, without outcomes."""
    rows = (source.parts != PARTS.index("fit")) & (source.table.samples == 0)
    return source.table.take(rows).observations


def advice_profile(fit: FitQuestions, *, rng: np.random.Generator) -> Profile:
    """Profile of fit questions, one trace of each group, on which advice may rest.

    Along the positions that all questions share; where there are none, along each one's own.
    """
    require_fit(fit)
    table = fit.take(calibration_rows(fit))
    if grid_positions(table):
        table = grid_view(table)
    return profile(trajectory(table), rng=rng)


def _blind(choice: Choice, shape: Profile, rng: np.random.Generator) -> BlindStopping | None:
    """The advised rule against stopping at random, where the profile speaks against stopping."""
    sequence, index = choice.advised, choice.advised_index
    if sequence is None or index < 0 or shape.predicted != "full-budget":
        return None
    stops = sequence.curve.stops(index)
    return blind_stopping(sequence.scorer, sequence.view, stops, loss=choice.fit.loss, rng=rng)


def _check_sizes(counts: Mapping[str, int], n_calibration: int, fractions: Sequence[float]) -> None:
    for name, found in (("fit", counts["fit"]), ("calibration", n_calibration)):
        needed = SMALLEST_PARTS[name]
        if found < needed:
            shares = "/".join(f"{100 * f:g}" for f in fractions)
            raise CalibrationError(
                f"the {name} part needs at least {needed} questions, got {found} of "
                f"{sum(counts.values())} (split {shares}): label more questions"
            )


def check_labels(table: GradedTable) -> None:
    """Raise NothingToChoose where all answers are right, or all wrong: nothing can be learned."""
    correct = table.stop_correct
    if correct.all() or not correct.any():
        kind = "forced" if table.on_stop == "probe" else "visible"
        if table.graded_by == "agreement":
            found = "all" if correct.all() else "none"
            raise NothingToChoose(
                f"{found} of the {kind} answers {'are' if correct.all() else 'is'} what full "
                "thinking answers: both kinds are required to learn when to stop; check the cue "
                "with `stopadvisor preflight`"
            )
        found = "right" if correct.all() else "wrong"
        raise NothingToChoose(
            f"all {kind} answers are {found}: both right and wrong ones are required to learn "
            "when to stop; check gold answers and the cue with `stopadvisor preflight`"
        )


def _repeats(fit: FitQuestions) -> Repeats | None:
    """Compare the first two traces of each fit question; None where none has two."""
    second = {key: row for row, key in enumerate(fit.keys) if fit.samples[row] == 1}
    pairs = [
        (row, second[key])
        for row, key in enumerate(fit.keys)
        if fit.samples[row] == 0 and key in second
    ]
    # Copies of a question share its content, and are the same question.
    pairs = list({fit.keys[row]: (row, other) for row, other in pairs}.values())
    if not pairs:
        return None
    rows = np.array(pairs)  # (n_pairs, 2)
    answers = np.where(fit.truncated, -1, fit.full_codes)[rows]
    differing = int(((answers[:, 0] != answers[:, 1]) | (answers[:, 0] < 0)).sum())
    n = len(pairs)
    return Repeats(n, differing, differing / n, exact_interval(differing, n))


# --- At other loads -------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadSaving:
    """What the advised rule saves at another load than the one it was chosen for."""

    in_flight: int
    """Requests that decode together."""
    decoded: float
    """Seconds of a decoded token, at the mean context."""
    saving_pct: float
    """Net saving on fit questions."""


def savings_by_load(choice: Choice, loads: Sequence[Weights]) -> tuple[LoadSaving, ...]:
    """Net saving of the advised rule at the prices of other loads; empty where none is advised."""
    found = []
    for weights in loads:
        row = choice.serving(weights).get(choice.settings.serving)
        if row is not None and row.saving_pct is not None:
            load = weights.in_flight or 1, Prices.of(weights).decoded, row.saving_pct
            found.append(LoadSaving(*load))
    return tuple(found)


# --- What the figures do not tell their reader ----------------------------------------------------


def remarks_on_sample(assessment: Assessment) -> list[str]:
    """What the reader should know of the questions and traces."""
    found = [] if assessment.source.torn is None else [assessment.source.torn]
    of = "all questions" if assessment.basis == "all" else "fit questions"
    if assessment.truncated_share > TRUNCATED_WARN:
        differs = isinstance(assessment, FitAssessment) and assessment.choice.fit.loss is DIFFERS
        found.append(
            f"{assessment.truncated_share:.1%} of the traces ({of}) were cut off by max-think; "
            f"{meaning_of_cut(differs)}, and calibrate refuses more than 10%"
        )
    hint = _split_hint(assessment.source) if assessment.protocol == "deploy" else None
    return [*found, hint] if hint else found


def meaning_of_cut(differs: bool) -> str:
    """What a trace that was cut off means for a promise on replies that differ, or on lost ones."""
    if differs:
        return "a stop there counts as one that differs"
    return "a question cut off cannot be lost"


def remarks_on_promise(assessment: Assessment) -> list[str]:
    """What the reader should know of what is promised, and of what it rests on."""
    found = []
    source, alpha, accuracy = assessment.source, assessment.alpha, assessment.full_accuracy
    without_gold = isinstance(assessment, FitAssessment) and assessment.graded_by == "agreement"
    if without_gold:
        found.append(
            "no gold for every fit question: a reply counts as right where it is what full "
            "thinking answers, in the profile, in every risk and in what rules learn"
        )
    elif remark := alpha_remark(alpha, accuracy):
        found.append(remark)
    if source.is_archive:
        found.append(
            "the archive holds no natural answers: the full reference is last-checkpoint, and a "
            "policy from it is bound to no model"
        )
    if isinstance(assessment, FitAssessment):
        n_fit = assessment.choice.n_fit
        if n_fit < source.counts()["fit"]:
            found.append(f"the choice was made on {n_fit} of the fit questions")
    return found


def _split_hint(source: Source) -> str | None:
    """Advice on the split of a small sample; None where it is fine."""
    n = sum(source.counts().values())
    if n >= SMALL_WORKLOAD or source.fractions[2] == 0:
        return None
    how = "with another --out, " if source.is_archive else "in a run of its own, "
    return (
        f"{n} questions are few: {how}--split 40/60/0 would give calibration the test questions "
        "(expected figures then come from fit)"
    )
