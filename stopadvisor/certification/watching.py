"""What the traffic of a certified rule is compared with later: yardsticks, not claims.

Both are read at the threshold that the same questions certified.
"""

from __future__ import annotations

import numpy as np

from stopadvisor.certification.calibration import ExportedRule
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.probes.outcomes import CalibrationQuestions
from stopadvisor.rules.losses import DIFFERS
from stopadvisor.stats.bounds import upper_limit

__all__ = ["differs_limit", "served_features"]

_MOST_STORED = 500
"""Questions whose features go into the file; drift that takes more to be seen is of no account."""


def differs_limit(rule: ExportedRule, entered: CalibrationQuestions, delta: float) -> float | None:
    """Share of replies that may differ from full thinking's, as far as calibration tells.

    Returns
    -------
    float or None
        Exact upper limit; None where the probes hold no answers that could be compared.
    """
    view = rule.scorer.view(entered)
    try:
        counts = rule.scorer.losses(view, DIFFERS)
    except CalibrationError:
        return None
    curve = rule.scorer.curve(view, np.array([rule.threshold]))
    differing = int(curve.totals(counts)[0, 0].round())
    return upper_limit(differing, view.n_questions, delta)


def served_features(rule: ExportedRule, entered: CalibrationQuestions) -> dict[str, list[float]]:
    """Where calibration questions would have stopped, and what their requests were like.

    Returns
    -------
    dict of str to list of float
        One value a question, of evenly spaced ones: `stop` in thinking tokens, -1 where it never
        stops; `prompt_tokens`; `first_logprob` of the first forced answer, where known.
    """
    view = rule.scorer.view(entered)
    stops = rule.scorer.stops(view, rule.threshold)
    positions = view.positions_at(range(view.n_checkpoints))
    positions = np.broadcast_to(positions, (view.n_questions, view.n_checkpoints))
    never = np.full((view.n_questions, 1), -1)
    where = np.hstack([positions, never])[np.arange(view.n_questions), stops]
    spaced = np.linspace(0, view.n_questions - 1, min(view.n_questions, _MOST_STORED)).astype(int)
    found = {
        "stop": where[spaced].astype(float).tolist(),
        "prompt_tokens": view.prompt_tokens[spaced].astype(float).tolist(),
    }
    if rule.scorer.asking.before and view.n_checkpoints:
        first = view.mean_logprob[:, 0][spaced]
        known = view.live[:, 0][spaced] & np.isfinite(first)
        found["first_logprob"] = first[known].astype(float).tolist()
    return found
