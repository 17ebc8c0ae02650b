"""Choosing on fit questions: one rule, and the thresholds along which it will be tested.

`choose` sees fit questions and nothing else; what it returns is complete before any calibration
question is looked at.  `certification.calibration` tests it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stopadvisor.assessment.evidence import Resamples, compare, saving_lower
from stopadvisor.assessment.forecasts import (
    Imitation,
    certification_probability,
    counted_labels,
    fit_limit,
)
from stopadvisor.assessment.limits import FitLimits, questions_that_count
from stopadvisor.assessment.rated import (
    SIMPLER_WITHIN,
    RatedRule,
    RulesOnFit,
    advised_rule,
    fit_data,
    margin_of,
    rank_of,
    rating,
    sequences_of,
    tested_rules,
)
from stopadvisor.assessment.requirements import Settings
from stopadvisor.assessment.sequences import FitData, ThresholdSequence
from stopadvisor.ground.errors import NothingToChoose
from stopadvisor.ground.progress import tracked
from stopadvisor.probes.outcomes import FitQuestions
from stopadvisor.probes.table import ProbeTable
from stopadvisor.rules.climb import Climb
from stopadvisor.rules.costs import Serving
from stopadvisor.rules.families import AGREEMENT_FAMILIES, FIXED_BUDGET, display_threshold
from stopadvisor.rules.outcomes import measure
from stopadvisor.rules.schedules import GridSchedule, at_budget
from stopadvisor.rules.scorer import Scorer
from stopadvisor.rules.serving_costs import StackCost, serving_costs
from stopadvisor.stats.bootstrap import Interval
from stopadvisor.stats.bounds import unspent

__all__ = ["Choice", "FitRule", "Settings", "choose", "fewest_labels", "nothing_chosen"]

_LABELS = (100, 200, 400, 800, 1600, 3200)
"""Calibration questions for which the expected saving is computed."""


@dataclass(frozen=True)
class Choice:
    """Everything that fit questions decide; calibration changes none of it."""

    settings: Settings
    n_fit: int
    n_calibration: int
    full_accuracy: float
    """Full-thinking accuracy on fit questions."""
    sequences: tuple[ThresholdSequence, ...]
    """What calibration will test: the advised sequence with all of delta, then perhaps a second
    with what the exact test of the first leaves of it."""
    learned: FitRule | None
    scalar: FitRule | None
    fixed_budget: FitRule | None
    agreement: FitRule | None
    """The best of its kind; None where there is none."""
    compared: tuple[ThresholdSequence, ...]
    """The best learned sequence, scalar, fixed budget and agreement, as far as there are such, and
    what is tested; each once."""
    verdict: str
    delta_saving_pp: Interval | None
    """Learned minus scalar, paired over questions, every choice made again in each resample."""
    advised: ThresholdSequence | None
    """The sequence that the evidence favours; None: none is expected to save anything."""
    advised_index: int
    advised_point: FitRule | None
    saving_lower: float | None
    """One-sided 95 % lower limit of the net saving (percent): chosen in a resample, measured on
    the questions outside it."""
    probability: float
    """Probability that calibration certifies some positive saving, at the fit risk."""
    serving: Mapping[Serving, StackCost]
    """The advised rule under every serving regime; empty where none is advised."""
    label_savings: tuple[LabelSaving, ...]
    """Of the advised rule, by the number of calibration questions."""
    fit: FitData
    margin: float = SIMPLER_WITHIN
    """Points of saving by which a learned rule must be ahead of simpler ones."""
    nothing: str | None = None
    """Why there is no rule to choose; then there is no sequence either."""
    counted: tuple[int, ...] = ()
    """Calibration questions that each guarantee is of, where there is more than one plain loss."""

    def deltas(self, n_counted: int, traces: int = 1) -> tuple[float, ...]:
        """Error probability of each sequence that is tested; their sum is at most delta."""
        settings, rest = self.settings, 0.0
        # What several tests at once leave of it is not known exactly, nor that of two traces.
        if settings.is_plain and traces == 1:
            rest = unspent(n_counted, settings.alpha, settings.delta)
        return (settings.delta, rest)[: len(self.sequences)]


def choose(
    fit_table: FitQuestions,
    n_calibration: int,
    settings: Settings,
    *,
    categories: Mapping[str | None, int] | None = None,
    others: ProbeTable | None = None,
    rules: RulesOnFit | None = None,
) -> Choice:
    """Choose family, schedule and threshold order from fit questions alone.

    Parameters
    ----------
    n_calibration : int
        How many calibration questions will enter the test; their number, not their outcomes.
    categories : mapping, optional
        Calibration questions of each category; None for as many as their share on fit says.
    others : ProbeTable, optional
        Questions of the other parts: no rule probes where one of them was not probed.  Their
        outcomes are not read.
    rules : RulesOnFit, optional
        The rules measured on these questions, where that was done already for another alpha.

    Raises
    ------
    CalibrationError
        Questions of another type, or too few of them.
    NothingToChoose
        A risk target that full thinking cannot miss, or nothing that a rule could be measured by.

    Notes
    -----
    Departs from the paper, which compares families at thresholds chosen once: frozen thresholds
    tell two equal families apart far too often.  Here thresholds, schedules and families are
    chosen again in each resample.
    """
    if rules is None:
        rules = RulesOnFit.measure(fit_table, settings, others)
    fit, table = rules.fit, rules.fit.table
    full_accuracy = float(table.full_correct.mean())
    if settings.limits_accuracy and settings.alpha >= full_accuracy:
        raise NothingToChoose(
            f"alpha must be below the full-thinking accuracy ({full_accuracy:.3f} on fit "
            f"questions), got {settings.alpha!r}: never being right would meet it"
        )
    measured = rules.rated(Imitation.draw(fit, n_calibration, settings))
    counted = questions_that_count(table, n_calibration, settings.guarantees, categories)
    limit = fit_limit(table.n_questions, n_calibration, settings, counted)
    learned, scalar, fixed = (
        [each for each in measured if rank_of(each.family) == rank] for rank in (2, 1, 0)
    )
    agreement = [each for each in scalar if each.family in (*AGREEMENT_FAMILIES, "rung-agreement")]
    kinds = (learned, scalar, fixed, agreement)
    points = [_best_point(fit, kind, limit) for kind in kinds]
    # Where even the most careful threshold loses too many fit questions, nothing is advised.
    resamples = Resamples.of(fit, limit)
    margin = margin_of(measured, resamples)
    advised = advised_rule(measured, limit, margin)
    tested = tested_rules(measured, advised)
    verdict, spread = compare(resamples, sequences_of(learned), sequences_of(scalar))
    sequence = None if advised is None else advised.sequence
    index = -1 if sequence is None else sequence.index(limit)
    return Choice(
        settings,
        table.n_questions,
        n_calibration,
        full_accuracy,
        tuple(each.sequence for each in tested),
        points[0],
        points[1],
        points[2],
        points[3],
        _compared(kinds, tested),
        verdict,
        spread,
        sequence,
        index,
        None if advised is None else _fit_point(fit, advised, index),
        None if advised is None else saving_lower(resamples, sequences_of(measured)),
        max(
            certification_probability(fit, each.sequence, n_calibration, settings, counted)
            for each in tested
        ),
        {}
        if sequence is None or index < 0
        else serving_costs(
            sequence.view,
            sequence.curve.stops(index),
            settings.weights,
            cache_block=settings.cache_block,
            asking=sequence.scorer.asking,
        ),
        ()
        if sequence is None
        else tuple(
            LabelSaving(n, Imitation.draw(fit, n, settings).saving_pct(sequence))
            for n in tracked("imitating calibrations", sorted({*_LABELS, n_calibration}))
        ),
        fit,
        margin,
        counted=counted,
    )


def nothing_chosen(
    fit_table: FitQuestions, n_calibration: int, settings: Settings, why: str
) -> Choice:
    """A choice of full thinking, where what was measured leaves no rule to choose."""
    fit = fit_data(fit_table, settings)
    return Choice(
        settings,
        fit.table.n_questions,
        n_calibration,
        float(fit.table.full_correct.mean()),
        sequences=(),
        learned=None,
        scalar=None,
        fixed_budget=None,
        agreement=None,
        compared=(),
        verdict="inconclusive",
        delta_saving_pp=None,
        advised=None,
        advised_index=-1,
        advised_point=None,
        saving_lower=None,
        probability=0.0,
        serving={},
        label_savings=(),
        fit=fit,
        nothing=why,
    )


# --- What is tested, and the best of each kind ----------------------------------------------------


def _compared(
    kinds: Sequence[Sequence[RatedRule]], tested: Sequence[RatedRule]
) -> tuple[ThresholdSequence, ...]:
    best = [max(kind, key=rating) for kind in kinds if kind]
    return tuple({id(e): e.sequence for e in (*best, *tested)}.values())


def _best_point(
    fit: FitData, kind: Sequence[RatedRule], limit: float | FitLimits
) -> FitRule | None:
    if not kind:
        return None
    best = max(kind, key=rating)
    return _fit_point(fit, best, best.sequence.index(limit))


def _fit_point(fit: FitData, each: RatedRule, index: int) -> FitRule:
    sequence = each.sequence
    scorer, threshold = sequence.scorer, None
    nothing = ("risk", "accuracy", "think_saving_pct", "total_saving_pct", "uncut_saving_pct")
    figures: dict[str, float | None] = {f"fit_{name}": None for name in nothing}
    if index >= 0:
        threshold = display_threshold(scorer.family, float(sequence.thresholds[index]))
        outcome = measure(
            scorer,
            sequence.view,
            sequence.curve.stops(index),
            fit.costs(scorer, sequence.view),
            fit.full_cost,
            loss=fit.loss,
        )
        figures = {
            "fit_risk": outcome.risk,
            "fit_accuracy": outcome.accuracy,
            "fit_think_saving_pct": outcome.think_saving_pct,
            "fit_total_saving_pct": outcome.total_saving_pct,
            "fit_uncut_saving_pct": outcome.uncut_saving_pct,
            "fit_answer_saving_pct": outcome.answer_saving_pct,
        }
    schedule, where = _asked_at(scorer, threshold)
    return FitRule(
        feasible=threshold is not None,
        family=scorer.family,
        threshold=threshold,
        candidates=sequence.thresholds.size,
        schedule=schedule,
        where=where,
        expected_saving_pct=each.saving_pct,
        **figures,
    )


def _asked_at(scorer: Scorer, threshold: float | None) -> tuple[tuple[int, ...] | None, str]:
    """Where a rule asks, in thinking tokens where traces share its positions, and in words."""
    schedule = scorer.schedule
    if scorer.family == FIXED_BUDGET:
        if threshold is None:
            return (), schedule.describe()
        return (int(threshold),), at_budget(int(threshold))
    if isinstance(schedule, Climb):
        return None, schedule.describe(threshold)
    return schedule.positions if isinstance(schedule, GridSchedule) else None, schedule.describe()


def fewest_labels(choice: Choice) -> int:
    """Calibration questions without which nothing can be certified, even if none is lost."""
    needed = counted_labels(choice.settings, choice.settings.delta, 0.0)
    assert needed is not None  # no loss at all is below any alpha
    return needed


@dataclass(frozen=True, kw_only=True)
class FitRule:
    """A rule at the threshold that fit questions expect calibration to certify; out of fold."""

    feasible: bool
    """Whether a threshold keeps the risk."""
    family: str
    """The best rule of its kind."""
    threshold: float | None
    """Stop when the score reaches it; null, as what follows, where no threshold keeps the risk."""
    candidates: int
    """Thresholds tried."""
    schedule: tuple[int, ...] | None
    """Thinking tokens at which it probes; null where each trace has its own."""
    where: str
    """The same in words."""
    expected_saving_pct: float
    """Net saving that calibration is expected to certify: mean over imitated ones."""
    fit_risk: float | None
    """Share lost of the fit questions, out of fold."""
    fit_accuracy: float | None
    """Accuracy with stopping."""
    fit_think_saving_pct: float | None
    """Thinking tokens saved."""
    fit_total_saving_pct: float | None
    """Net saving."""
    fit_uncut_saving_pct: float | None
    """Net saving on traces that were not cut off."""
    fit_answer_saving_pct: float | None = None
    """With `--on-stop answer` only: tokens of the visible answer that are saved."""


@dataclass(frozen=True)
class LabelSaving:
    """What a calibration on N questions is expected to save."""

    calibration: int
    saving_pct: float
