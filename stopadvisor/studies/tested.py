"""What a finished rule does on a source's test questions.

Whether they may be shown is for `opened` to say.
"""

from __future__ import annotations

import numpy as np

from stopadvisor.chains import Scorer
from stopadvisor.choice import Settings
from stopadvisor.costs import full_counts, stopped_counts
from stopadvisor.outcomes import Outcome, measure
from stopadvisor.probes import ProbeTable

__all__ = ["measure_rule"]


def measure_rule(
    scorer: Scorer, threshold: float, test: ProbeTable, settings: Settings, *, seed: int
) -> Outcome:
    """Measure a rule on questions that had no part in it.

    Parameters
    ----------
    scorer : Scorer
    threshold : float
        Linear scale.
    test : ProbeTable
        At least one question; of several traces the first is taken.
    settings : Settings
        Serving regime and weights.
    seed : int
        Of the bootstrap interval of the saving.
    """
    table = test.take(test.samples == 0)
    counts = stopped_counts(
        table, scorer.schedule, settings.serving, cache_block=settings.cache_block
    )
    return measure(
        scorer,
        table,
        scorer.curve(table, np.array([threshold])).stops(0),
        counts.weighed(settings.weights),
        full_counts(table).weighed(settings.weights),
        rng=np.random.default_rng(seed),
    )
