"""What each promise would buy: the same rules on the same fit questions, at several risks.

Sees no calibration question, so that whoever reads the table may choose any of its promises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stopadvisor.assessment.evidence import Resamples
from stopadvisor.assessment.forecasts import (
    Imitation,
    certification_probability,
    first_useful_risk,
    fit_limit,
    useful_shares,
)
from stopadvisor.assessment.limits import Shares, labels_for, questions_that_count
from stopadvisor.assessment.rated import (
    RatedRule,
    RulesOnFit,
    advised_rule,
    margin_of,
    tested_rules,
)
from stopadvisor.assessment.requirements import Settings
from stopadvisor.ground.errors import NothingToChoose
from stopadvisor.ground.progress import tracked
from stopadvisor.rules.outcomes import measure

__all__ = ["PROMISES", "Promise", "promises", "proposed"]

PROMISES = (0.01, 0.02, 0.05, 0.10, 0.15)
"""Risks that are compared where none is asked for."""
_SURE = 0.9
"""Probability of a certificate from which on a promise is proposed."""


@dataclass(frozen=True)
class Promise:
    """What one promise is expected to buy, on fit questions."""

    alpha: float
    """The risk that would be promised."""
    saving_pct: float
    """Net saving that calibration is expected to certify; 0 where no rule is worth it."""
    accuracy_points: float
    """Points of accuracy that this saving gains, or costs where negative."""
    probability: float
    """Probability that the labels at hand certify a saving."""
    labels_for_90: int | None
    """Calibration questions with which that probability is 90 %; null where no number suffices,
    or no rule is worth it."""


def promises(
    rules: RulesOnFit,
    n_calibration: int,
    settings: Settings,
    *,
    categories: Mapping[str | None, int] | None = None,
    alphas: Sequence[float] = PROMISES,
) -> tuple[Promise, ...]:
    """Say what each risk would buy, all else being as the settings say.

    Parameters
    ----------
    rules : RulesOnFit
        Measured once, for all of them.
    n_calibration : int
        How many calibration questions will enter the test.
    categories : mapping, optional
        Calibration questions of each category.

    Returns
    -------
    tuple of Promise
        Without risks that never being right would meet.

    Raises
    ------
    NothingToChoose
        No family can be measured on these questions, or full thinking is right on too few.
    """
    table = rules.fit.table
    accuracy = float(table.full_correct.mean())
    counted = questions_that_count(table, n_calibration, settings.guarantees, categories)
    meant = [alpha for alpha in alphas if alpha < accuracy or not settings.limits_accuracy]
    if not meant:
        raise NothingToChoose(
            f"full thinking gets {accuracy:.1%} of the fit questions right: never being right "
            f"would keep a promise of {min(alphas):.0%}"
        )
    wanted = (replace(settings, alpha=alpha) for alpha in tracked("comparing promises", meant))
    return tuple(_promise(rules, n_calibration, each, counted) for each in wanted)


def _promise(
    rules: RulesOnFit, n_calibration: int, settings: Settings, counted: Sequence[int]
) -> Promise:
    fit = rules.fit
    limit = fit_limit(fit.table.n_questions, n_calibration, settings, counted)
    rated = rules.rated(Imitation.draw(fit, n_calibration, settings))
    advised = advised_rule(rated, limit, margin_of(rated, Resamples.of(fit, limit)))
    if advised is None:
        return Promise(
            settings.alpha, 0.0, 0.0, 0.0, _labels(rules, tested_rules(rated, None), settings)
        )
    sequence = advised.sequence
    outcome = measure(
        sequence.scorer,
        sequence.view,
        sequence.curve.stops(sequence.index(limit)),
        fit.costs(sequence.scorer, sequence.view),
        fit.full_cost,
        loss=fit.loss,
    )
    return Promise(
        settings.alpha,
        advised.saving_pct,
        100 * (outcome.accuracy - float(fit.table.full_correct.mean())),
        certification_probability(fit, sequence, n_calibration, settings, counted),
        _labels(rules, tested_rules(rated, advised), settings),
    )


def _labels(rules: RulesOnFit, rated: Sequence[RatedRule], settings: Settings) -> int | None:
    """Fewest labels with which one of these rules is certified nine times in ten."""
    needed = []
    for each in rated:
        risk = first_useful_risk(rules.fit, each.sequence)
        if risk is None:
            continue
        shares = useful_shares(rules.fit, each.sequence) or (Shares(risk),)
        found = [
            labels_for(limit, settings.delta, share, power_wanted=_SURE, traces=settings.traces)
            for limit, share in zip(settings.guarantees, shares, strict=True)
        ]
        known = [n for n in found if n is not None]
        if len(known) == len(found):
            needed.append(max(known))
    return min(needed, default=None)


def proposed(offered: Sequence[Promise]) -> Promise:
    """The smallest risk that is all but sure to be certified; else the likeliest, the largest."""
    sure = [each for each in offered if each.probability >= _SURE and each.saving_pct > 0]
    return sure[0] if sure else max(offered, key=lambda each: (each.probability, each.alpha))
