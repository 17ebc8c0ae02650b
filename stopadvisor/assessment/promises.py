"""What each promise would buy: the same rules on the same fit questions, at several risks.

Sees no calibration question, so that whoever reads the table may choose any of its promises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stopadvisor.assessment.forecasts import (
    RatedRule,
    certification_probability,
    first_useful_risk,
    useful_shares,
)
from stopadvisor.assessment.limits import Shares, labels_for
from stopadvisor.assessment.rated import RulesOnFit
from stopadvisor.assessment.settings import Settings
from stopadvisor.ground.errors import NothingToChoose
from stopadvisor.ground.progress import tracked

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
    """Say what each risk would buy, all else being as the settings say; arguments as of `choose`.

    Risks that never being right would meet are left out; NothingToChoose where none is left.
    """
    accuracy = float(rules.fit.table.full_correct.mean())
    meant = [alpha for alpha in alphas if alpha < accuracy or not settings.limits_accuracy]
    if not meant:
        raise NothingToChoose(
            f"full thinking gets {accuracy:.1%} of the fit questions right: never being right "
            f"would keep a promise of {min(alphas):.0%}"
        )
    return tuple(
        _promise(rules, n_calibration, replace(settings, alpha=alpha), categories)
        for alpha in tracked("comparing promises", meant)
    )


def _promise(
    rules: RulesOnFit,
    n_calibration: int,
    settings: Settings,
    categories: Mapping[str | None, int] | None,
) -> Promise:
    fit, ranking = rules.fit, rules.ranked(n_calibration, settings, categories)
    advised, labels = ranking.advised, _labels(rules, ranking.tested, settings)
    if advised is None:
        return Promise(settings.alpha, 0.0, 0.0, 0.0, labels)
    sequence = advised.sequence
    outcome = fit.outcome(sequence, sequence.index(ranking.limit))
    return Promise(
        settings.alpha,
        advised.saving_pct,
        100 * (outcome.accuracy - float(fit.table.full_correct.mean())),
        certification_probability(fit, sequence, n_calibration, settings, ranking.counted),
        labels,
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
