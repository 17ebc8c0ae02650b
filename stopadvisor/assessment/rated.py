"""Rate rules on fit questions by the saving that calibration is expected to certify.

Expected savings come from simulated calibrations: as many questions as calibration has are drawn
from the fit questions, and the test walks along the sequence.  Whether one kind of rule saves more
than another is judged on bootstrap resamples of the fit questions, in each of which thresholds,
schedules and families are chosen again.  Measuring the rules takes most of the time and does not
depend on alpha.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

import numpy as np

from stopadvisor.assessment.candidates import candidates
from stopadvisor.assessment.limits import (
    FitLimits,
    Shares,
    allowed,
    expected_most,
    labels_for,
    pass_probability,
)
from stopadvisor.assessment.sequences import FitData, ThresholdSequence
from stopadvisor.assessment.settings import Settings
from stopadvisor.ground.arrays import FloatArray, IntArray
from stopadvisor.ground.errors import CalibrationError, NothingToChoose
from stopadvisor.probes.outcomes import FitQuestions
from stopadvisor.probes.table import ProbeTable
from stopadvisor.rules.climb import OnGiveUp
from stopadvisor.rules.families import FIXED_BUDGET, LEARNED_FAMILIES
from stopadvisor.stats.intervals import Interval, interval, resample_counts

__all__ = [
    "SIMPLER_WITHIN", "Imitation", "Ranking", "RatedRule", "Resamples", "RulesOnFit",
    "certification_probability", "choice_noise", "compare", "counted_labels", "fit_limit",
    "rank_of", "rating", "saving_lower",
]  # fmt: skip

# --- What fit questions expect of a calibration ---------------------------------------------------

_DRAWS = 200
_LIMITS = (2 / 3, 1.0, 4 / 3, 3 / 2, 2.0, 5 / 2)
"""Limits over which rules are rated, as multiples of the losses that the test allows: at a single
limit three or four unlucky questions would decide."""
_FEW_LOSSES = 16
"""With more allowed losses than this the limits move closer together, because chance matters
less."""


def fit_limit(settings: Settings, counted: Sequence[int]) -> FitLimits:
    """Limits on fit questions that correspond to the losses calibration allows.

    `counted` holds the number of calibration questions that each guarantee counts.
    """
    pairs = zip(settings.guarantees, counted, strict=True)
    most = (expected_most(each, n, settings) for each, n in pairs)
    return FitLimits(tuple(most), tuple(map(float, counted)))


def certification_probability(
    sequence: ThresholdSequence, settings: Settings, counted: Sequence[int]
) -> float:
    """Probability that the most careful threshold that saves passes, if its risk is that on fit.

    With several limits, the smallest of their probabilities: an upper bound on all passing at once.
    `counted` is as in `fit_limit`.
    """
    expected = sequence.useful_shares
    if expected is None:
        return 0.0
    return min(
        pass_probability(each, n, settings.delta, shares, settings.traces)
        for each, n, shares in zip(settings.guarantees, counted, expected, strict=True)
    )


def counted_labels(
    settings: Settings,
    delta: float,
    expected: float | Sequence[Shares],
    *,
    power_wanted: float = 0.8,
) -> int | None:
    """Questions that the test must count for each limit to pass with that power.

    `expected` is the share lost, or the shares of each loss.  None if no number suffices.
    """
    if isinstance(expected, float):
        expected = (Shares(expected),) * len(settings.guarantees)
    needed = [
        labels_for(each, delta, share, power_wanted=power_wanted, traces=settings.traces)
        for each, share in zip(settings.guarantees, expected, strict=True)
    ]
    known = [n for n in needed if n is not None]
    return max(known) if len(known) == len(needed) else None


# --- Simulated calibrations -----------------------------------------------------------------------


@dataclass(frozen=True)
class RatedRule:
    """A rule with its mean saving over simulated calibrations, in percent."""

    sequence: ThresholdSequence
    rating_pct: float
    """Saving averaged over several limits, most of them above the allowed one; decides the
    choice."""
    saving_pct: float
    """Saving at the allowed limit, which calibration is expected to certify."""

    @property
    def family(self) -> str:
        """The family of the rule."""
        return self.sequence.scorer.family


@dataclass(frozen=True)
class Imitation:
    """Simulated calibrations, the same ones for every sequence."""

    settings: Settings
    draws: FloatArray  # (n_draws, n_blocks)
    """How often each block of fit questions is drawn, divided by its size."""
    full_cost: float
    """Cost of full thinking on all fit questions."""

    @classmethod
    def draw(cls, fit: FitData, n_calibration: int, settings: Settings) -> Imitation:
        """Draw calibrations of `n_calibration` questions; deterministic for given fit questions."""
        rng = np.random.default_rng(fit.table.n_questions)
        shares = np.full(fit.n_blocks, 1 / fit.n_blocks)
        # A draw of a block stands for any one of its questions.
        draws = rng.multinomial(n_calibration, shares, _DRAWS) / fit.block_sizes
        return cls(settings, draws.astype(np.float32), float(fit.full_cost.sum()))

    def rate(self, sequence: ThresholdSequence) -> RatedRule:
        """Rate a sequence over all limits and at the allowed one."""
        costs = self._mean_costs(sequence, _LIMITS)
        allowed = costs[_LIMITS.index(1.0)]
        return RatedRule(sequence, self._saved_pct(costs), self._saved_pct([allowed]))

    def saving_pct(self, sequence: ThresholdSequence) -> float:
        """Saving that a calibration is expected to certify for this sequence (percent)."""
        return self._saved_pct(self._mean_costs(sequence, (1.0,)))

    def _saved_pct(self, costs: Sequence[float]) -> float:
        return float(100 * (1 - np.mean(costs) / self.full_cost))

    def _mean_costs(self, sequence: ThresholdSequence, limits: Sequence[float]) -> list[float]:
        """Mean cost over the draws, at each limit of losses."""
        # A certified rule that costs more than full thinking is not exported.
        costs = np.append(np.minimum(sequence.costs, self.full_cost), self.full_cost)
        tested = []
        for guarantee, part in zip(self.settings.guarantees, sequence.counts, strict=True):
            _, lost, gained = part.in_draws(self.draws)  # (n_draws, n_steps)
            sizes, which = np.unique(part.counted(self.draws).round(), return_inverse=True)
            tables = [expected_most(guarantee, int(n), self.settings) for n in sizes]
            if part.gained is None:
                most = np.array([float(table[0]) for table in tables])[which][:, None]
            else:
                pairs = zip(which, gained, strict=True)
                most = np.stack([allowed(tables[k], row) for k, row in pairs])
            tested.append((part, lost, most))
        found = []
        for factor in limits:
            last = []
            for part, lost, most in tested:
                away = (factor - 1) * np.sqrt(np.maximum(most, 0) * np.clip(most, 0, _FEW_LOSSES))
                limit = np.where(most < 0, -1.0, np.round(most + away) + 0.5 + 1e-6)
                last.append(part.last(lost > limit))
            found.append(float(costs[np.min(last, axis=0)].mean()))
        return found


# --- Ranking --------------------------------------------------------------------------------------

SIMPLER_WITHIN = 1.0
"""Points of saving: a smaller lead does not justify a more complex rule."""

rating = attrgetter("rating_pct")


def rank_of(family: str) -> int:
    """Complexity of a rule: 0 if it reads no signal, 1 for a scalar, 2 for a learned rule."""
    if family in (FIXED_BUDGET, "rung"):
        return 0
    return 2 if family in (*LEARNED_FAMILIES, "rung-learned") else 1


@dataclass(frozen=True)
class Ranking:
    """Every rule rated at one alpha, and the rules that are advised and tested."""

    rules: Sequence[RatedRule]
    counted: tuple[int, ...]
    """Calibration questions that each guarantee counts."""
    resamples: Resamples

    @property
    def limit(self) -> FitLimits:
        """Losses allowed on fit questions."""
        return self.resamples.limit

    def of_rank(self, *ranks: int) -> list[RatedRule]:
        """Rules of these ranks; see `rank_of`."""
        return [each for each in self.rules if rank_of(each.family) in ranks]

    @cached_property
    def margin(self) -> float:
        """Points by which a learned rule must lead: `choice_noise`, at least `SIMPLER_WITHIN`."""
        kinds = ([each.sequence for each in self.of_rank(*ranks)] for ranks in ((2,), (0, 1)))
        return max(SIMPLER_WITHIN, choice_noise(self.resamples, *kinds))

    @cached_property
    def advised(self) -> RatedRule | None:
        """The simplest allowed rule near the best one; None if none saves.

        Near means within `SIMPLER_WITHIN` points, or within `margin` if the best one is learned.
        """
        allowed = [each for each in self.rules if each.sequence.index(self.limit) >= 0]
        best = max(allowed, key=rating, default=None)
        if best is None or best.rating_pct <= 0:
            return None
        lead = self.margin if rank_of(best.family) == 2 else SIMPLER_WITHIN
        near = [each for each in allowed if each.rating_pct >= best.rating_pct - lead]
        return min(near, key=lambda each: (rank_of(each.family), -each.rating_pct))

    @property
    def tested(self) -> list[RatedRule]:
        """Rules for calibration to test: the advised one, then the best of another kind.

        If nothing is advised, only the best candidate.
        """
        advised = self.advised
        if advised is None:
            return [max(self.rules, key=rating)]
        others = self.of_rank(*{0, 1, 2} - {rank_of(advised.family)})
        second = max(others, key=rating, default=None)
        return [advised] if second is None or second.rating_pct <= 0 else [advised, second]


@dataclass(frozen=True)
class RulesOnFit:
    """All candidates, measured on fit questions at first use."""

    fit: FitData
    families: tuple[str, ...]
    on_give_up: OnGiveUp = "escalate"

    @classmethod
    def measure(
        cls, table: FitQuestions, settings: Settings, others: ProbeTable | None = None
    ) -> RulesOnFit:
        """Prepare the fit questions."""
        fit = FitData.build(table, settings, others)
        return cls(fit, settings.families, settings.on_give_up)

    def ranked(
        self,
        n_calibration: int,
        settings: Settings,
        categories: Mapping[str | None, int] | None = None,
    ) -> Ranking:
        """Rate every candidate over the same simulated calibrations.

        Raises
        ------
        CalibrationError
            The families need log-probabilities and the probes have none.
        NothingToChoose
            No family can be measured on these questions.
        """
        table = self.fit.table

        def of(category: str | None) -> int:
            if category is None:
                return n_calibration
            if categories is not None:
                return categories.get(category, 0)
            share = sum(name == category for name in table.categories) / table.n_questions
            return round(share * n_calibration)  # as on fit

        counted = tuple(of(each.category) for each in settings.guarantees)
        limit = fit_limit(settings, counted)
        imitation = Imitation.draw(self.fit, n_calibration, settings)
        rules = [imitation.rate(each) for each in self.candidates]
        return Ranking(rules, counted, Resamples.of(self.fit, limit))

    @cached_property
    def candidates(self) -> list[ThresholdSequence]:
        """Every candidate; errors as in `ranked`."""
        found = list(candidates(self.fit, self.families, self.on_give_up))
        if found:
            return found
        if self.fit.table.entropy_source == "none" and self.fit.table.live.any():
            raise CalibrationError(
                "these probes hold no log-probabilities (entropy source none), and families "
                f"{', '.join(self.families)} read them; fixed-budget, agreement and learned do not"
            )
        raise NothingToChoose(
            "no family can be measured on the fit questions: every trace ends before the first "
            "budget, or the forced answers are all right or all wrong"
        )


# --- Resamples ------------------------------------------------------------------------------------

_RESAMPLES = 1000


@dataclass(frozen=True, eq=False)
class Resamples:
    """Bootstrap resamples of fit questions, and the threshold of each sequence in each resample."""

    fit: FitData
    limit: FitLimits
    """Losses allowed on fit questions."""
    counts: FloatArray  # (n_resamples, n_blocks)
    """How often each block was drawn."""
    full: FloatArray  # (n_resamples,)
    """Cost of full thinking."""
    _reached: dict[int, tuple[ThresholdSequence, IntArray, FloatArray]] = field(
        default_factory=dict, repr=False
    )

    @classmethod
    def of(cls, fit: FitData, limit: FitLimits) -> Resamples:
        """Draw the resamples; deterministic for given fit questions."""
        rng = np.random.default_rng(fit.table.n_questions)
        counts = resample_counts(fit.n_blocks, _RESAMPLES, rng=rng)
        full = counts.astype(np.float64) @ np.bincount(fit.blocks, fit.full_cost, fit.n_blocks)
        return cls(fit, limit, counts, full)

    def reached(self, sequence: ThresholdSequence) -> tuple[IntArray, FloatArray]:
        """Threshold that each resample chooses, and its cost; cached per sequence."""
        if id(sequence) not in self._reached:
            index = self.limit.last(sequence.counts, self.counts)
            costs = sequence.costs_at(self.counts, index, self.full)
            self._reached[id(sequence)] = sequence, index, costs
        return self._reached[id(sequence)][1:]


def compare(
    resamples: Resamples, learned: Sequence[ThresholdSequence], scalar: Sequence[ThresholdSequence]
) -> tuple[str, Interval | None]:
    """Say which kind of rule saves more at the allowed risk, from a percentile interval.

    Also return the saving of learned minus scalar in percentage points, paired over questions; None
    if a kind has no candidate.
    """
    if not learned or not scalar:
        return "inconclusive", None
    difference, limit = _difference(resamples, learned, scalar), resamples.limit
    # If not even one fit loss is allowed, a single question (the most confident loser) decides each
    # threshold.  The bootstrap understates the spread of extremes: at nominal 95 %, equal families
    # seemed to differ in up to 9 % of simulated data sets, at nominal 99 % in at most 4 %.
    fewest = limit.fewest(resamples.fit.table.n_questions)
    level = 0.95 if fewest >= 1 else 0.99
    spread = interval(difference, level)
    feasible = [any(each.index(limit) >= 0 for each in kind) for kind in (learned, scalar)]
    if not all(feasible):
        return "inconclusive", spread
    if spread.low > 0:
        return "learned better", spread
    return ("scalar better" if spread.high < 0 else "comparable"), spread


def choice_noise(
    resamples: Resamples, learned: Sequence[ThresholdSequence], simpler: Sequence[ThresholdSequence]
) -> float:
    """Chance variation of the saving of learned over simpler rules (percentage points).

    Half the interquartile range over resamples, in each of which thresholds, schedules and families
    are chosen again; 0 if a kind has no candidate.  Of many candidates some look good by luck: on
    recorded text-only traces, learned rules with a smaller lead certified less than simpler ones.
    """
    if not learned or not simpler:
        return 0.0
    low, high = np.quantile(_difference(resamples, learned, simpler), [0.25, 0.75])
    return float(high - low) / 2


def _difference(
    resamples: Resamples, one: Sequence[ThresholdSequence], other: Sequence[ThresholdSequence]
) -> FloatArray:
    """Saving of the best of one kind minus the best of another, in each resample."""

    def savings(kind: Sequence[ThresholdSequence]) -> FloatArray:
        costs = [resamples.reached(each)[1] for each in kind]
        return np.asarray(100 * (1 - np.min(costs, axis=0) / resamples.full))

    return savings(one) - savings(other)


def saving_lower(resamples: Resamples, sequences: Sequence[ThresholdSequence]) -> float:
    """One-sided 95 % lower limit of the saving of the best of these sequences (percent).

    The 5 % quantile over resamples: in each the best sequence is chosen, then measured on the
    questions outside it.  On the questions that chose it, the best of many would look too good.
    """
    fit, full = resamples.fit, resamples.full
    outside = (resamples.counts == 0).astype(np.float32)
    full_blocks = np.bincount(fit.blocks, fit.full_cost, fit.n_blocks)
    full_outside = outside.astype(np.float64) @ full_blocks
    best = full.copy()
    at = full_outside.copy()
    for sequence in sequences:
        index, costs = resamples.reached(sequence)
        cheaper = costs < best
        best = np.where(cheaper, costs, best)
        if cheaper.any():
            at = np.where(cheaper, sequence.costs_at(outside, index, full_outside), at)
    return float(np.quantile(100 * (1 - at / np.maximum(full_outside, 1e-12)), 0.05))
