"""How much gold a promise about lost answers would take, before anybody labels a question.

From fit questions alone, none of which needs gold: whether a reply differs from full thinking's
shows without it, and only a question whose reply differs can be lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stopadvisor.assessment.choice import Choice
from stopadvisor.ground.arrays import IntArray
from stopadvisor.ground.progress import tracked
from stopadvisor.rules.losses import DIFFERS
from stopadvisor.stats.adaptive_labels import LabelTest, walk
from stopadvisor.stats.bounds import max_losses
from stopadvisor.stats.label_sample import MOST_SAMPLED, labelled_first, most_lost_labelled

__all__ = ["LabelNeed", "label_needs"]

_SHARES_LOST = (1 / 2, 1 / 4, 1 / 8)
"""Of the replies that differ, those that are lost: nobody knows beforehand."""
_DRAWS = 20


@dataclass(frozen=True)
class LabelNeed:
    """What the advised rule could promise about lost answers, and the gold that this would take."""

    lost_of_differing: float | None
    """Assumed: of the replies that differ, those that are lost.  Null: nothing is labelled, and the
    promise is about replies that differ."""
    labels: int
    """Calibration questions that would have to be labelled, on average."""
    saving_pct: float
    """Net saving that would then be certified, on average; as fit questions measure it."""
    half_saving_pct: float | None = None
    """The same where half as many labels are planned for (`label --labels`), a sample of the
    replies that differ; null where nothing is labelled, or the questions are too many for that."""


def label_needs(choice: Choice, *, shares: Sequence[float] = _SHARES_LOST) -> tuple[LabelNeed, ...]:
    """Estimate the gold labels by how many differing replies turn out to be lost.

    Returns
    -------
    tuple of LabelNeed
        Without any label first, then by share.  Empty where no rule is advised, or where fit
        questions have gold.

    Notes
    -----
    Calibrations of the size that there is are drawn from the fit questions, out of fold, each
    differing question lost with the assumed probability, and labelled one at a time until no
    decision is open.
    """
    sequence = choice.advised
    if sequence is None:
        return ()
    if choice.fit.table.graded_by == "gold":
        return ()
    view, n = sequence.view, choice.n_calibration
    settings = choice.settings
    most = max_losses(n, settings.alpha, settings.delta)
    if most < 0:
        return ()
    differs = sequence.curve.each(DIFFERS.of(view) > 0)  # (n_fit, n_thresholds)
    savings = 100 * (1 - sequence.costs / choice.fit.full_cost.sum())
    nobody, order = np.zeros(n, dtype=np.bool_), np.arange(n)

    def mean(share: float, budget: int | None, planned: int = 0) -> tuple[float, float]:
        """Labels, and saving; `planned` ones are a sample."""
        rng = np.random.default_rng(settings.seed)
        found = []
        for _ in range(_DRAWS):
            counts = drawn = differs[rng.integers(len(differs), size=n)]
            lost = drawn & (rng.random(n) < share)[:, None]
            allowed: IntArray | int = most
            if planned:
                counts = labelled_first(drawn, order, planned)
                by_differing = most_lost_labelled(n, planned, settings.alpha, settings.delta)
                allowed = by_differing[drawn.sum(axis=0)]
            test = LabelTest(counts, lost & counts, allowed, savings)
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

    return tuple(labelled(share) for share in tracked("imitating labels", (None, *shares)))
