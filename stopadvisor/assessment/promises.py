"""What each promise would save and how many labels it takes, before anybody labels a question.

The same rules on the same fit questions are rated at several alphas; a reply that differs from full
thinking's shows without gold.  No calibration question is read, so the reader may choose any of the
promises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stopadvisor.assessment.choice import Choice
from stopadvisor.assessment.limits import Shares, labels_for, pass_probability
from stopadvisor.assessment.rated import RulesOnFit, certification_probability, counted_labels
from stopadvisor.assessment.settings import Settings
from stopadvisor.ground.errors import NothingToChoose
from stopadvisor.ground.progress import tracked
from stopadvisor.rules.losses import DIFFERS, LOST, Guarantee, LossName
from stopadvisor.stats.adaptive_labels import AskingPlan, walk
from stopadvisor.stats.bounds import max_losses
from stopadvisor.stats.label_sample import MOST_SAMPLED

__all__ = [
    "PROMISES", "LabelNeed", "LabelPlan", "LabelRow", "Promise", "label_needs", "plan_labels",
    "promises", "proposed",
]  # fmt: skip

PROMISES = (0.01, 0.02, 0.05, 0.10, 0.15)
"""Alphas compared if none is given."""
_SURE = 0.9
"""Probability of a certificate from which a promise is proposed."""


@dataclass(frozen=True)
class Promise:
    """What one promise is expected to gain, measured on fit questions."""

    alpha: float
    """The risk that would be promised."""
    saving_pct: float
    """Net saving that calibration is expected to certify; 0 if no rule is worth it."""
    accuracy_points: float
    """Points of accuracy that stopping gains; negative if it costs some."""
    probability: float
    """Estimated probability that the labels at hand certify a saving."""
    labels_for_90: int | None
    """Calibration questions with which that probability is 90 %; null if no number suffices or no
    rule is worth it."""


def promises(
    rules: RulesOnFit,
    n_calibration: int,
    settings: Settings,
    *,
    categories: Mapping[str | None, int] | None = None,
) -> tuple[Promise, ...]:
    """Rate each of `PROMISES`, with the other settings as given; arguments as for `choose`.

    If the loss counts grades, alphas from the full-thinking accuracy up are left out, because no
    rule can break them; NothingToChoose if none is left.
    """
    accuracy = float(rules.fit.table.full_correct.mean())
    meant = [alpha for alpha in PROMISES if alpha < accuracy or not settings.limits_accuracy]
    if not meant:
        raise NothingToChoose(
            f"full thinking gets {accuracy:.1%} of the fit questions right: always being wrong "
            f"would keep a promise of {min(PROMISES):.0%}"
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
    advised = ranking.advised
    # Of the first rule alone: a second one is tested at the part of delta that the first leaves.
    shares = ranking.tested[0].sequence.useful_shares
    labels = None
    if shares is not None:
        labels = counted_labels(settings, settings.delta, shares, power_wanted=_SURE)
    if advised is None:
        return Promise(settings.alpha, 0.0, 0.0, 0.0, labels)
    sequence = advised.sequence
    outcome = fit.outcome(sequence, sequence.index(ranking.limit))
    return Promise(
        settings.alpha,
        advised.saving_pct,
        100 * (outcome.accuracy - float(fit.table.full_correct.mean())),
        certification_probability(sequence, settings, ranking.counted),
        labels,
    )


def proposed(offered: Sequence[Promise]) -> Promise:
    """The smallest alpha that saves with probability 0.9, else the largest of the likeliest."""
    sure = [each for each in offered if each.probability >= _SURE and each.saving_pct > 0]
    return sure[0] if sure else max(offered, key=lambda each: (each.probability, each.alpha))


# --- Labels ---------------------------------------------------------------------------------------

_SHARES_LOST = (1 / 2, 1 / 4, 1 / 8)
"""Shares of the differing replies assumed lost; the true one is unknown."""
_DRAWS = 20
_MOST_COMPARED = 5_000
"""Most labels for which two traces are considered; beyond that the search takes seconds."""


@dataclass(frozen=True)
class LabelRow:
    """A number of labels, and the saving expected from it."""

    calibration: int
    """Calibration questions."""
    labels: int
    """Questions in all parts, at the present split."""
    saving_pct: float
    """Net saving that calibration is expected to certify."""
    is_here: bool
    """Whether this is the number of calibration questions at hand."""


@dataclass(frozen=True)
class LabelNeed:
    """Gold labels that a promise about lost answers would take, and the saving it would certify."""

    lost_of_differing: float | None
    """Assumed share of the differing replies that are lost.  Null: nothing is labelled, and the
    promise is about replies that differ."""
    labels: int
    """Mean number of calibration questions to label."""
    saving_pct: float
    """Mean net saving then certified, as measured on fit questions."""
    half_saving_pct: float | None = None
    """The same with half as many labels planned (`label --labels`), for a sample of the replies
    that differ; null if nothing is labelled, or there are too many questions for a sample."""


def label_needs(choice: Choice) -> tuple[LabelNeed, ...]:
    """Estimate the gold labels needed, by the share of differing replies that are lost.

    The first entry is without labels.  Empty if no rule is advised or fit questions have gold.

    Notes
    -----
    Simulates calibrations of the actual size, drawn from the fit questions (scored out of fold):
    each differing question is lost with the assumed probability, and labels are asked for one at a
    time until no decision is open.
    """
    sequence, settings, n = choice.advised, choice.settings, choice.n_calibration
    most = max_losses(n, settings.alpha, settings.delta)
    if sequence is None or most < 0 or choice.fit.table.graded_by == "gold":
        return ()
    differs = sequence.curve.each(DIFFERS.of(sequence.view) > 0)  # (n_fit, n_thresholds)
    nobody, order = np.zeros(n, dtype=np.bool_), np.arange(n)

    def mean(share: float, budget: int | None, planned: int | None = None) -> tuple[float, float]:
        """Mean number of labels, and mean saving; with `planned` labels a sample is tested."""
        plan, rng = AskingPlan(order, planned), np.random.default_rng(settings.seed)
        found = []
        for _ in range(_DRAWS):
            drawn = differs[rng.integers(len(differs), size=n)]
            lost = drawn & (rng.random(n) < share)[:, None]
            test = plan.test(drawn, lost, sequence.savings, settings.alpha, settings.delta)
            end = walk([test], nobody, order, budget=budget)
            found.append((end.asked.size, end.saving([test])))
        labels, saving = np.mean(found, axis=0)
        return float(labels), float(saving)

    def labelled(share: float | None) -> LabelNeed:
        if share is None:
            return LabelNeed(None, 0, mean(0.0, 0)[1])
        labels, saving = mean(share, None)
        half = math.ceil(labels / 2)
        sampled = mean(share, half, half)[1] if half and n <= MOST_SAMPLED else None
        return LabelNeed(share, math.ceil(labels), saving, sampled)

    return tuple(labelled(share) for share in tracked("imitating labels", (None, *_SHARES_LOST)))


@dataclass(frozen=True)
class LabelPlan:
    """`plan --json`: how many labels a certificate takes."""

    alpha: float
    """The risk to certify."""
    delta: float
    """1 minus the confidence."""
    expected_risk: float
    """Expected risk of the most careful threshold that saves."""
    power: float
    """Wanted probability of a certificate."""
    split: tuple[float, float, float]
    """Shares of fit, calibration and test."""
    calibration_labels: int | None
    """Smallest number from which on the power is reached, for a drop nearly; null if no number
    suffices, or no rule of RUN saves anything."""
    total_labels: int | None
    """Labels in all parts."""
    power_reached: float | None
    """Probability of a certificate with that number."""
    two_traces_calibration_labels: int | None = None
    """Questions that suffice if each has two traces, and if a second trace loses half of the
    questions that the first loses; missing for a drop, or if none or too many are needed."""
    loss: LossName | None = None
    """What alpha limits; lost answers if missing."""
    label_savings: tuple[LabelRow, ...] | None = None
    """Only with RUN: expected saving of its advised rule by the number of labels."""
    label_needs: tuple[LabelNeed, ...] | None = None
    """Only with a RUN without gold: labels that a promise about lost answers would take."""
    gained: float | None = None
    """Only for a drop measured on a RUN: expected share gained; as many more are lost."""


def plan_labels(
    *,
    alpha: float,
    delta: float,
    expected_risk: float,
    power: float = 0.8,
    split: tuple[float, float, float],
    loss: LossName | None = None,
    gained: float = 0.0,
    saves_nothing: bool = False,
    label_savings: tuple[LabelRow, ...] | None = None,
    label_needs: tuple[LabelNeed, ...] | None = None,
) -> LabelPlan:
    """Find the number of labels for a given power.

    `expected_risk` is that of the most careful threshold that saves; for a drop it is the share
    lost minus the share `gained`.  With `saves_nothing` there is
    no such threshold, and no number suffices.  `label_savings` and `label_needs` are those of a
    run, if there is one.
    """
    wanted, shares = Guarantee(loss or LOST.name, alpha), Shares(expected_risk + gained, gained)
    needed = None if saves_nothing else labels_for(wanted, delta, shares, power_wanted=power)
    twice = None
    if wanted.counted.is_binary and needed is not None and needed <= _MOST_COMPARED:
        twice = labels_for(wanted, delta, shares, power_wanted=power, traces=2)
    return LabelPlan(
        alpha=alpha,
        delta=delta,
        expected_risk=expected_risk,
        power=power,
        split=split,
        calibration_labels=needed,
        # Rounded first: 286 / 0.4 is 715, but slightly more in floating point.
        total_labels=None if needed is None else math.ceil(round(needed / split[1], 6)),
        power_reached=None if needed is None else pass_probability(wanted, needed, delta, shares),
        two_traces_calibration_labels=twice,
        loss=None if loss == LOST.name else loss,
        label_savings=label_savings,
        label_needs=label_needs or None,
        gained=gained or None,
    )
