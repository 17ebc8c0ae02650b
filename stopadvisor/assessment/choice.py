"""Choose a rule, and the thresholds along which it will be tested, on fit questions.

The choice is complete before any calibration question is opened; `certification.calibration` tests
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stopadvisor.assessment.limits import FitLimits, Shares
from stopadvisor.assessment.rated import (
    SIMPLER_WITHIN,
    Imitation,
    RatedRule,
    RulesOnFit,
    certification_probability,
    compare,
    rating,
    saving_lower,
)
from stopadvisor.assessment.sequences import FitData, ThresholdSequence
from stopadvisor.assessment.settings import Settings
from stopadvisor.ground.errors import NothingToChoose
from stopadvisor.ground.progress import tracked
from stopadvisor.probes.outcomes import FitQuestions
from stopadvisor.probes.rungs import known_mean
from stopadvisor.rules.climb import Climb
from stopadvisor.rules.costs import Serving, Weights
from stopadvisor.rules.families import (
    AGREEMENT_FAMILIES,
    FIXED_BUDGET,
    at_budget,
    display_threshold,
)
from stopadvisor.rules.outcomes import StackCost, serving_costs
from stopadvisor.rules.scorer import Scorer
from stopadvisor.stats.bounds import unspent
from stopadvisor.stats.intervals import Interval

__all__ = ["Choice", "FitComparison", "FitRule", "Settings", "choose"]

_LABELS = (100, 200, 400, 800, 1600, 3200)
"""Numbers of calibration questions for which the expected saving is computed."""
_FIGURES = (
    "risk", "accuracy", "think_saving_pct", "total_saving_pct", "uncut_saving_pct",
    "answer_saving_pct",
)  # fmt: skip
"""Figures of a `FitRule` that fit questions measure."""


@dataclass(frozen=True, kw_only=True)
class FitRule:
    """A rule at the threshold that calibration is expected to certify, measured out of fold."""

    feasible: bool
    """Whether some threshold keeps the risk."""
    family: str
    """The best rule of its kind."""
    threshold: float | None
    """Stop when the score reaches it; null, like the figures below, if no threshold keeps the
    risk."""
    candidates: int
    """Thresholds tried."""
    schedule: tuple[int, ...] | None
    """Thinking tokens at which it probes; null if each trace has positions of its own."""
    where: str
    """The same in words."""
    expected_saving_pct: float
    """Net saving that calibration is expected to certify: mean over simulated calibrations."""
    fit_risk: float | None
    """Mean loss on fit questions, out of fold."""
    fit_accuracy: float | None
    """Accuracy with stopping."""
    fit_think_saving_pct: float | None
    """Thinking tokens saved."""
    fit_total_saving_pct: float | None
    """Net saving."""
    fit_uncut_saving_pct: float | None
    """Net saving on traces that were not cut off."""
    fit_answer_saving_pct: float | None = None
    """Only with `--on-stop answer`: saving in tokens of the visible answer."""


@dataclass(frozen=True)
class FitComparison:
    """The best rule of each kind at one risk."""

    alpha: float
    """The risk that all of them keep."""
    learned: FitRule | None
    """The best rule that combines the signals."""
    scalar: FitRule | None
    """The best rule of one signal."""
    fixed_budget: FitRule | None
    """The best fixed budget, without an earlier probe."""
    agreement: FitRule | None
    """The best rule that counts equal answers."""
    delta_saving_pp: Interval | None
    """Saving of learned minus scalar, in percentage points."""
    verdict: str
    """`learned better`, `scalar better`, `comparable` or `inconclusive`."""

    @property
    def kinds(self) -> tuple[FitRule, ...]:
        """The best rule of each kind; one that is best of two kinds appears once."""
        found = (self.learned, self.scalar, self.agreement, self.fixed_budget)
        return tuple({(rule.family, rule.where): rule for rule in found if rule}.values())

    @classmethod
    def empty(cls, alpha: float) -> FitComparison:
        """Comparison without any rule."""
        return cls(alpha, None, None, None, None, None, "inconclusive")


@dataclass(frozen=True)
class Choice:
    """All that fit questions decide; calibration changes none of it."""

    settings: Settings
    fit: FitData
    n_calibration: int
    comparison: FitComparison
    nothing: str | None = None
    """Why there is no rule to choose, and so no sequence."""
    sequences: tuple[ThresholdSequence, ...] = ()
    """What calibration will test: the advised sequence at all of delta, then perhaps a second one
    at the part of delta that the exact test of the first leaves."""
    compared: tuple[ThresholdSequence, ...] = ()
    """The best sequence of each kind and the tested ones, each once."""
    advised: ThresholdSequence | None = None
    """None if no rule is expected to save anything."""
    advised_index: int = -1
    advised_point: FitRule | None = None
    saving_lower: float | None = None
    """One-sided 95 % lower limit of the net saving (percent); see `rated.saving_lower`."""
    probability: float = 0.0
    """Estimated probability that calibration certifies a saving, if the risk is that on fit
    questions: of the likelier sequence, each tested at its own share of delta."""
    label_savings: Mapping[int, float] = field(default_factory=dict)
    """Expected saving of the advised rule (percent), by the number of calibration questions."""
    margin: float = SIMPLER_WITHIN
    """Points of saving by which a learned rule must lead simpler ones."""
    counted: tuple[int, ...] = ()
    """Number of calibration questions that each guarantee counts; empty without a sequence."""

    @property
    def n_fit(self) -> int:
        """Number of fit questions on which the choice was made."""
        return self.fit.table.n_questions

    @property
    def full_accuracy(self) -> float:
        """Full-thinking accuracy on fit questions."""
        return float(self.fit.table.full_correct.mean())

    @property
    def risk_to_expect(self) -> float:
        """Risk that label counts assume: on fit, that of the first sequence that saves, 0 if none.

        A second sequence may lose less, but only the first is tested at all of delta.
        """
        risks = (sequence.useful_risk for sequence in self.sequences)
        return min(next((risk for risk in risks if risk is not None), 0.0), 0.999)

    @property
    def shares_to_expect(self) -> tuple[Shares, ...]:
        """Fit shares of each limit where `risk_to_expect` is measured; empty if none saves."""
        return next((each.useful_shares for each in self.sequences if each.useful_shares), ())

    @property
    def saves_nothing(self) -> bool:
        """Whether no threshold of the sequences to be tested saves anything on fit questions."""
        return bool(self.sequences) and not any(each.saves.any() for each in self.sequences)

    @property
    def given_up_share(self) -> float | None:
        """Share of fit questions that the advised rule gives up; None if it never gives up."""
        rule, k = self.advised, self.advised_index
        climb = None if rule is None or k < 0 else rule.scorer.schedule
        if rule is None or not isinstance(climb, Climb) or not climb.give_up:
            return None
        return float(climb.at(self.fit.table, float(rule.thresholds[k]))[1].mean())

    @property
    def request_seconds(self) -> float | None:
        """Mean seconds of a request under the advised rule; None if not measured."""
        rule, k = self.advised, self.advised_index
        if rule is None or k < 0 or rule.view.rungs is None:
            return None
        seconds = rule.view.rungs.spent.seconds
        # The last column is the reference, which also serves questions that never stop.
        at = np.minimum(rule.curve.stops(k), seconds.shape[1] - 1)
        return known_mean(np.take_along_axis(seconds, at[:, None], axis=1))

    def deltas(self, n_counted: int, traces: int = 1) -> tuple[float, ...]:
        """Error probability of each sequence's test; their sum is at most delta."""
        settings, rest = self.settings, 0.0
        # With several limits or two traces, the part of delta left is not known exactly.
        if settings.is_plain and traces == 1:
            rest = unspent(n_counted, settings.alpha, settings.delta)
        return (settings.delta, rest)[: len(self.sequences)]

    def serving(self, weights: Weights | None = None) -> Mapping[Serving, StackCost]:
        """Cost of the advised rule under every serving regime; empty if none is advised.

        `weights` replace those of the settings, for another load.
        """
        sequence, settings = self.advised, self.settings
        if sequence is None or self.advised_index < 0:
            return {}
        return serving_costs(
            sequence.view,
            sequence.curve.stops(self.advised_index),
            weights or settings.weights,
            asking=sequence.scorer.asking,
        )


def choose(
    questions: FitQuestions | RulesOnFit,
    n_calibration: int,
    settings: Settings,
    *,
    categories: Mapping[str | None, int] | None = None,
) -> Choice:
    """Choose family, schedule and testing order from fit questions alone.

    Parameters
    ----------
    questions : FitQuestions or RulesOnFit
        Fit questions, or rules already measured on them, perhaps at another alpha.
    n_calibration : int
        Number of calibration questions that the test will count.
    categories : mapping, optional
        Number of calibration questions of each category; by default in proportion to fit questions.

    Raises
    ------
    CalibrationError
        The questions are not fit questions, or too few.
    NothingToChoose
        Alpha is not below the full-thinking accuracy, or no rule can be measured.

    Notes
    -----
    Departs from the paper, which compares families at thresholds chosen once: with frozen
    thresholds two equal families seem to differ far too often.  Here thresholds, schedules and
    families are chosen again in each resample.
    """
    rules = questions
    if not isinstance(rules, RulesOnFit):
        rules = RulesOnFit.measure(rules, settings)
    fit = rules.fit
    full_accuracy = float(fit.table.full_correct.mean())
    if settings.limits_accuracy and settings.alpha >= full_accuracy:
        raise NothingToChoose(
            f"alpha must be below the full-thinking accuracy ({full_accuracy:.3f} on fit "
            f"questions), got {settings.alpha!r}: always being wrong would meet it"
        )
    ranking = rules.ranked(n_calibration, settings, categories)
    limit, advised, tested = ranking.limit, ranking.advised, ranking.tested
    learned, scalar, fixed = (ranking.of_rank(rank) for rank in (2, 1, 0))
    agreement = [each for each in scalar if each.family in (*AGREEMENT_FAMILIES, "rung-agreement")]
    kinds = {
        "learned": learned, "scalar": scalar, "fixed_budget": fixed, "agreement": agreement
    }  # fmt: skip
    best = {name: max(kind, key=rating, default=None) for name, kind in kinds.items()}
    points = {k: None if each is None else _fit_point(fit, each, limit) for k, each in best.items()}
    verdict, spread = compare(ranking.resamples, _sequences(learned), _sequences(scalar))
    compared = {id(each): each.sequence for each in (*best.values(), *tested) if each is not None}
    found = Choice(
        settings,
        fit,
        n_calibration,
        FitComparison(settings.alpha, **points, delta_saving_pp=spread, verdict=verdict),
        sequences=tuple(_sequences(tested)),
        compared=tuple(compared.values()),
        margin=ranking.margin,
        counted=ranking.counted,
    )
    deltas = found.deltas(n_calibration, settings.traces)
    chances = [
        certification_probability(sequence, replace(settings, delta=delta), ranking.counted)
        for sequence, delta in zip(found.sequences, deltas, strict=True)
        if delta > 0
    ]
    found = replace(found, probability=max(chances))
    if advised is None:
        return found
    sequence = advised.sequence
    return replace(
        found,
        advised=sequence,
        advised_index=sequence.index(limit),
        advised_point=_fit_point(fit, advised, limit),
        saving_lower=saving_lower(ranking.resamples, _sequences(ranking.rules)),
        label_savings={
            n: Imitation.draw(fit, n, settings).saving_pct(sequence)
            for n in tracked("imitating calibrations", sorted({*_LABELS, n_calibration}))
        },
    )


def _sequences(rules: Sequence[RatedRule]) -> list[ThresholdSequence]:
    return [each.sequence for each in rules]


def _fit_point(fit: FitData, rated: RatedRule, limit: FitLimits) -> FitRule:
    sequence, scorer = rated.sequence, rated.sequence.scorer
    index, threshold = sequence.index(limit), None
    figures: dict[str, float | None] = {f"fit_{name}": None for name in _FIGURES}
    if index >= 0:
        threshold = display_threshold(scorer.family, float(sequence.thresholds[index]))
        figures = fit.outcome(sequence, index).figures("fit", *_FIGURES)
    schedule, where = _asked_at(scorer, threshold)
    return FitRule(
        feasible=threshold is not None,
        family=scorer.family,
        threshold=threshold,
        candidates=sequence.thresholds.size,
        schedule=schedule,
        where=where,
        expected_saving_pct=rated.saving_pct,
        **figures,
    )


def _asked_at(scorer: Scorer, threshold: float | None) -> tuple[tuple[int, ...] | None, str]:
    """Where a rule probes: its positions if all traces share them, and words."""
    schedule = scorer.schedule
    if scorer.family == FIXED_BUDGET:
        if threshold is None:
            return (), schedule.describe()
        return (int(threshold),), at_budget(int(threshold))
    if isinstance(schedule, Climb):
        return None, schedule.describe(threshold)
    return schedule.positions, schedule.describe()
