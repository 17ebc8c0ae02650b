"""Rules on fit questions, rated by what a calibration is expected to certify of each.

Measuring them takes most of the time, and depends on no risk: one measurement serves every alpha.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

import numpy as np

from stopadvisor.assessment.candidates import boosted_candidates, candidates
from stopadvisor.assessment.evidence import Resamples, choice_noise
from stopadvisor.assessment.forecasts import Imitation, RatedRule, fit_limit
from stopadvisor.assessment.limits import FitLimits, questions_that_count
from stopadvisor.assessment.sequences import FitData, ThresholdSequence
from stopadvisor.assessment.settings import Settings
from stopadvisor.ground.errors import CalibrationError, NothingToChoose
from stopadvisor.probes.outcomes import FitQuestions, require_fit
from stopadvisor.probes.table import ProbeTable
from stopadvisor.rules.families import FIXED_BUDGET, LEARNED_FAMILIES

__all__ = ["SIMPLER_WITHIN", "Ranking", "RulesOnFit", "fit_data", "rank_of", "rating"]

SIMPLER_WITHIN = 1.0
"""Points of saving; less is no reason for a more complicated rule."""
_MOST_FIT_QUESTIONS = 4000
"""A choice gains nothing from more questions."""

rating = attrgetter("rating_pct")
"""Rules are chosen by this."""


def rank_of(family: str) -> int:
    """Simple rules first: 0 for what looks at nothing, 1 for a scalar, 2 for a learned one."""
    if family in (FIXED_BUDGET, "rung"):
        return 0
    return 2 if family in (*LEARNED_FAMILIES, "rung-learned") else 1


@dataclass(frozen=True)
class Ranking:
    """Every rule rated at one risk, and which of them is taken."""

    rules: Sequence[RatedRule]
    counted: tuple[int, ...]
    """Calibration questions that each guarantee is of."""
    resamples: Resamples
    """At the losses on fit questions that correspond to what calibration could certify."""

    @property
    def limit(self) -> float | FitLimits:
        """Losses that are allowed on fit questions."""
        return self.resamples.limit

    def of_rank(self, *ranks: int) -> list[RatedRule]:
        """Rules of some kinds; see `rank_of`."""
        return [each for each in self.rules if rank_of(each.family) in ranks]

    @cached_property
    def margin(self) -> float:
        """Points by which a learned rule must be ahead of simpler ones: more than choosing varies.

        Never less than `SIMPLER_WITHIN`.
        """
        kinds = ([each.sequence for each in self.of_rank(*ranks)] for ranks in ((2,), (0, 1)))
        return max(SIMPLER_WITHIN, choice_noise(self.resamples, *kinds))

    @cached_property
    def advised(self) -> RatedRule | None:
        """The simplest rule near the best of those that are allowed; None where none saves.

        Near is a point; a learned rule must be ahead by the margin.
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
        """What calibration tests: the advised rule first, and the best of another kind after it.

        Where nothing is advised, the best candidate alone.
        """
        advised = self.advised
        if advised is None:
            return [max(self.rules, key=rating)]
        others = self.of_rank(*{0, 1, 2} - {rank_of(advised.family)})
        second = max(others, key=rating, default=None)
        return [advised] if second is None or second.rating_pct <= 0 else [advised, second]


@dataclass(frozen=True)
class RulesOnFit:
    """Every candidate measured on fit questions, when it is first rated."""

    fit: FitData
    families: tuple[str, ...]
    _boosted: dict[int, list[ThresholdSequence]] = field(default_factory=dict, repr=False)

    @classmethod
    def measure(
        cls, table: FitQuestions, settings: Settings, others: ProbeTable | None = None
    ) -> RulesOnFit:
        """Prepare the fit questions."""
        return cls(fit_data(table, settings, others), settings.families)

    def ranked(
        self,
        n_calibration: int,
        settings: Settings,
        categories: Mapping[str | None, int] | None = None,
    ) -> Ranking:
        """Rate every candidate over the same imitated calibrations of N questions.

        Raises
        ------
        CalibrationError
            The families read log-probabilities, and the probes hold none.
        NothingToChoose
            No family can be measured on these questions.
        """
        table = self.fit.table
        counted = questions_that_count(table, n_calibration, settings.guarantees, categories)
        limit = fit_limit(table.n_questions, n_calibration, settings, counted)
        rules = self._rated(Imitation.draw(self.fit, n_calibration, settings))
        return Ranking(rules, counted, Resamples.of(self.fit, limit))

    @cached_property
    def _candidates(self) -> list[ThresholdSequence]:
        return list(candidates(self.fit, self.families))

    def _rated(self, imitation: Imitation) -> list[RatedRule]:
        rules = [imitation.rate(each) for each in self._candidates]
        if "learned-boosted" in self.families:
            # On the schedule of the best linear rule, fitted once for each such rule.
            learned = [each for each in rules if rank_of(each.family) == 2]
            best = max(learned, key=rating).sequence if learned else None
            if id(best) not in self._boosted:
                self._boosted[id(best)] = list(boosted_candidates(self.fit, best))
            rules += [imitation.rate(each) for each in self._boosted[id(best)]]
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
