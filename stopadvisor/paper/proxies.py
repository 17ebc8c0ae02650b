"""Scores of rules for comparison only: proxies of published early exits, and LearnStop-10.

DEER, EAT, PUMA and TERMINATOR as the paper's scripts imitate them on recorded probes, and the
learned rule with the two audit features.  None is exported.  The real systems read more than forced
answers, so these proxies do not represent them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from stopadvisor.ground.arrays import FloatArray
from stopadvisor.ground.constants import PAPER_EAT_WINDOW
from stopadvisor.paper.protocol import PaperSetting, paper_probability
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.rules.features import AUDIT_FEATURES, FEATURES, feature_array, run_lengths

__all__ = [
    "AUDIT_FAMILIES", "audit_setting", "entropy_variance", "marker_density", "proxy_scores",
]  # fmt: skip

Proxy = Literal["deer", "eat", "puma", "terminator-light"]
_PROXIES: tuple[Proxy, ...] = get_args(Proxy)
AUDIT_FAMILIES = (*_PROXIES, "learned-10")

_NO_VARIANCE = 999.0
"""Stands for the variance of an incomplete window; no real one is as large."""


def proxy_scores(family: Proxy, table: GradedTable) -> FloatArray:
    """Return the score of a proxy at every checkpoint; higher means stop sooner.

    Returns
    -------
    ndarray of float, shape (n_questions, n_checkpoints)
        ``deer``: confidence times marker density, which imitates confidence at a transition.
        ``eat``: minus the variance of the last three entropies.  ``puma``: run length times (1 -
        marker density / its maximum).  ``terminator-light``: out-of-fold probability,
        by the eight features, that a right answer has been seen by now.

    Paper, Appendix "Extended Baselines" and "Matched-Risk Audit of Output-Level Recent-Method
    Proxies"; the formulas are those of its published scripts.  The methods: Yang et al. (DEER),
    Wang et al. 2025 (EAT), Min et al. (PUMA), Nagle et al. (TERMINATOR).
    """
    if family == "deer":
        return np.asarray(np.exp(table.mean_logprob) * marker_density(table), dtype=np.float64)
    if family == "eat":
        return -entropy_variance(table, PAPER_EAT_WINDOW)
    if family == "puma":
        density = marker_density(table)
        share = density / max(float(density.max()), 1e-9)
        return np.asarray(run_lengths(table.answer_codes) * (1 - share), dtype=np.float64)
    reached = np.maximum.accumulate(table.correct, axis=1)
    return paper_probability(table, reached)


def audit_setting(table: GradedTable, setting: PaperSetting) -> PaperSetting:
    """Add the families of this module to the paper's setting of a table."""
    scores = dict(setting.scores)
    scores |= {family: proxy_scores(family, table) for family in _PROXIES}
    # In the order of the archives, on which the last digits of lbfgs depend.
    names = (*FEATURES, *reversed(AUDIT_FEATURES))
    scores["learned-10"] = paper_probability(table, table.correct, names)
    return replace(setting, scores=scores)


def marker_density(table: GradedTable) -> FloatArray:
    """Return markers per thinking token, (n_questions, n_checkpoints)."""
    return feature_array(table, names=("marker_density",))[..., 0]


def entropy_variance(table: GradedTable, window: int) -> FloatArray:
    """Return the variance of the last `window` entropies, (n_questions, n_checkpoints)."""
    variance = np.full(table.mean_entropy.shape, _NO_VARIANCE)
    if table.n_checkpoints >= window:
        runs = np.lib.stride_tricks.sliding_window_view(table.mean_entropy, window, axis=1)
        variance[:, window - 1 :] = runs.var(axis=-1)
    return variance
