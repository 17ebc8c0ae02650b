"""What a finished rule does on a source's test questions.

Whether they may be shown is for `opened` to say.
"""

from __future__ import annotations

import numpy as np

from stopadvisor.assessment.choice import Settings
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.rules import outcomes
from stopadvisor.rules.scorer import Scorer

__all__ = ["measure_rule"]


def measure_rule(
    scorer: Scorer, threshold: float, test: GradedTable, settings: Settings, *, seed: int
) -> outcomes.Outcome:
    """Measure a rule on questions that had no part in it.

    Parameters
    ----------
    scorer : Scorer
    threshold : float
        Linear scale.
    test : GradedTable
        At least one question; of several traces the first is taken.
    settings : Settings
        Serving regime and weights.
    seed : int
        Of the bootstrap interval of the saving.
    """
    return outcomes.measure_rule(
        scorer,
        threshold,
        test.take(test.samples == 0),
        serving=settings.serving,
        weights=settings.weights,
        cache_block=settings.cache_block,
        rng=np.random.default_rng(seed),
    )
