"""How much gold a promise about lost answers would take, before anybody labels a question.

From fit questions alone, none of which needs gold: whether a reply differs from full thinking's
shows without it, and only a question whose reply differs can be lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stopadvisor.assessment.choice import Choice, fit_limit
from stopadvisor.rules.losses import DIFFERS

__all__ = ["LabelNeed", "label_needs"]

_SHARES_LOST = (1.0, 1 / 2, 1 / 4, 1 / 8)
"""Of the replies that differ, those that are wrong where full thinking is right: nobody knows."""


@dataclass(frozen=True)
class LabelNeed:
    """What the advised rule could promise about lost answers, and the gold that this would take."""

    lost_of_differing: float
    """Share of the differing replies that are lost; assumed."""
    labels: int
    """Calibration questions that would have to be labelled, about."""
    saving_pct: float
    """Net saving on fit questions at the last threshold that would pass."""


def label_needs(choice: Choice) -> tuple[LabelNeed, ...]:
    """Estimate the gold labels by how many differing replies turn out to be lost.

    Returns
    -------
    tuple of LabelNeed
        From the worst case, in which every differing reply is lost and no label helps, on; as far
        as bolder thresholds follow.  Empty where no rule is advised, or whole groups are tested.

    Notes
    -----
    A threshold at which D calibration questions differ passes as soon as the lost ones among those
    with a label, and all of those without one, are at most the k that the test allows.  If a share
    q of the differing is lost, that takes (D - k)/(1 - q) labels, and k/q show that it fails.  At
    the last threshold that passes D is about k/q, where both are the same.
    """
    sequence = choice.advised
    if sequence is None or choice.groups is not None or choice.fit.loss is not DIFFERS:
        return ()
    limit = fit_limit(choice.n_fit, choice.n_calibration, choice.settings, choice.full_accuracy)
    if limit < 0 or sequence.index(limit) < 0:
        return ()
    calibration = choice.n_calibration / choice.n_fit
    found: list[LabelNeed] = []
    for share in _SHARES_LOST:
        index = sequence.index(limit / share)
        beyond = float(np.maximum(sequence.losses[: index + 2] - limit, 0).max()) * calibration
        labels = beyond / (1 - share) if share < 1 else 0.0
        labels = min(labels, limit * calibration / share + 1) if share < 1 else 0.0
        saving = float(100 * (1 - sequence.costs[index] / choice.fit.full_cost.sum()))
        found.append(LabelNeed(share, math.ceil(labels), saving))
        if index == sequence.losses.size - 1:
            break
    return tuple(found)
