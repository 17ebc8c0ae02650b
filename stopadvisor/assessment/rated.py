"""Rules on fit questions, rated by what a calibration is expected to certify of each.

Measuring them takes most of the time, and depends on no risk: one measurement serves every alpha.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stopadvisor.assessment.candidates import boosted_candidates, candidates
from stopadvisor.assessment.evidence import Resamples, choice_noise
from stopadvisor.assessment.forecasts import Imitation
from stopadvisor.assessment.limits import FitLimits
from stopadvisor.assessment.requirements import Settings
from stopadvisor.assessment.sequences import FitData, ThresholdSequence
from stopadvisor.ground.errors import CalibrationError, NothingToChoose
from stopadvisor.probes.outcomes import FitQuestions, require_fit
from stopadvisor.probes.table import ProbeTable
from stopadvisor.rules.families import FIXED_BUDGET, LEARNED_FAMILIES

__all__ = [
    "SIMPLER_WITHIN",
    "RatedRule",
    "RulesOnFit",
    "advised_rule",
    "fit_data",
    "margin_of",
    "rank_of",
    "rating",
    "sequences_of",
    "tested_rules",
]

SIMPLER_WITHIN = 1.0
"""Points of saving; less is no reason for a more complicated rule."""
_MOST_FIT_QUESTIONS = 4000
"""A choice gains nothing from more questions."""


@dataclass(frozen=True)
class RatedRule:
    """A rule with what it is expected to save at one risk."""

    sequence: ThresholdSequence
    rating_pct: float
    saving_pct: float
    """Expected to be certified."""

    @property
    def family(self) -> str:
        """The family of the rule."""
        return self.sequence.scorer.family


@dataclass(frozen=True)
class RulesOnFit:
    """Every candidate measured on fit questions."""

    fit: FitData
    families: tuple[str, ...]

    @classmethod
    def measure(
        cls, table: FitQuestions, settings: Settings, others: ProbeTable | None = None
    ) -> RulesOnFit:
        """Prepare the fit questions; candidates are measured when they are first rated."""
        return cls(fit_data(table, settings, others), settings.families)

    @cached_property
    def _linear(self) -> list[ThresholdSequence]:
        return list(candidates(self.fit, self.families))

    def rated(self, imitation: Imitation) -> list[RatedRule]:
        """Rate every candidate over the same imitated calibrations; at least one.

        Raises
        ------
        CalibrationError
            The families read log-probabilities, and the probes hold none.
        NothingToChoose
            No family can be measured on these questions.
        """

        def rate(sequence: ThresholdSequence) -> RatedRule:
            expected = imitation.expected(sequence)
            return RatedRule(sequence, expected.rating_pct, expected.saving_pct)

        rules = [rate(each) for each in self._linear]
        if "learned-boosted" in self.families:
            learned = [each for each in rules if rank_of(each.family) == 2]
            best = max(learned, key=rating).sequence if learned else None
            rules += [rate(each) for each in self._boosted(best)]
        if rules:
            return rules
        if self.fit.table.entropy_source == "none" and self.fit.table.live.any():
            raise CalibrationError(
                "these probes hold no log-probabilities (entropy source none), and families "
                f"{', '.join(self.families)} read them; fixed-budget, agreement and learned do not"
            )
        raise NothingToChoose(
            "no family can be measured on the fit questions: every trace ends before the first "
            "budget, or the forced answers are all right or all wrong"
        )

    @cached_property
    def _known_boosted(self) -> dict[int, list[ThresholdSequence]]:
        return {}

    def _boosted(self, best: ThresholdSequence | None) -> list[ThresholdSequence]:
        """Boosted trees on the schedule of the best linear rule, fitted once for each such rule."""
        if id(best) not in self._known_boosted:
            self._known_boosted[id(best)] = list(boosted_candidates(self.fit, best))
        return self._known_boosted[id(best)]


def fit_data(table: FitQuestions, settings: Settings, others: ProbeTable | None = None) -> FitData:
    """Prepare fit questions, at most 4,000 of them; refuses a table without any."""
    require_fit(table)
    n = table.n_questions
    if n == 0:
        raise CalibrationError("no fit questions: nothing can be chosen")
    if n > _MOST_FIT_QUESTIONS:
        # Evenly over the file, which may be sorted by subject.
        table = table.take(np.linspace(0, n - 1, _MOST_FIT_QUESTIONS).astype(np.int64))
    limits = settings.guarantees_on(table.graded_by)
    return FitData.build(table, settings.costing, guarantees=limits, others=others)


def rank_of(family: str) -> int:
    """Simple rules first: 0 for what looks at nothing, 1 for a scalar, 2 for a learned one."""
    if family in (FIXED_BUDGET, "rung"):
        return 0
    return 2 if family in (*LEARNED_FAMILIES, "rung-learned") else 1


def rating(each: RatedRule) -> float:
    """Rules are chosen by this."""
    return each.rating_pct


def sequences_of(rules: Sequence[RatedRule]) -> list[ThresholdSequence]:
    """The rules without their ratings."""
    return [each.sequence for each in rules]


def advised_rule(
    rules: Sequence[RatedRule], limit: float | FitLimits, margin: float
) -> RatedRule | None:
    """The simplest rule near the best of those that are allowed; None where none saves anything.

    Near is a point; a learned rule must be ahead by `margin_of` these rules.
    """
    allowed = [each for each in rules if each.sequence.index(limit) >= 0]
    best = max(allowed, key=rating, default=None)
    if best is None or best.rating_pct <= 0:
        return None
    lead = margin if rank_of(best.family) == 2 else SIMPLER_WITHIN
    near = [each for each in allowed if each.rating_pct >= best.rating_pct - lead]
    return min(near, key=lambda each: (rank_of(each.family), -each.rating_pct))


def tested_rules(measured: Sequence[RatedRule], advised: RatedRule | None) -> list[RatedRule]:
    """What calibration tests: the advised rule first, and the best of another kind after it.

    Where nothing is advised, the best candidate alone.
    """
    if advised is None:
        return [max(measured, key=rating)]
    others = [each for each in measured if rank_of(each.family) != rank_of(advised.family)]
    second = max(others, key=rating, default=None)
    return [advised] if second is None or second.rating_pct <= 0 else [advised, second]


def margin_of(rules: Sequence[RatedRule], resamples: Resamples) -> float:
    """Points by which a learned rule must be ahead of simpler ones: more than choosing varies."""
    learned, simpler = (
        sequences_of([each for each in rules if (rank_of(each.family) == 2) is wanted])
        for wanted in (True, False)
    )
    return max(SIMPLER_WITHIN, choice_noise(resamples, learned, simpler))
