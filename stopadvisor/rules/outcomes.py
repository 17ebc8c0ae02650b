"""Losses, accuracy, savings and serving costs of one rule on given questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopadvisor.ground.arrays import FloatArray, IntArray
from stopadvisor.probes.grouping import group_numbers
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.probes.table import ProbeTable
from stopadvisor.rules.costs import (
    EVERYWHERE,
    LADDER,
    REGIMES,
    Asking,
    Costing,
    Serving,
    Weights,
    asked_at,
    attended_by,
    full_counts,
    stopped_counts,
)
from stopadvisor.rules.losses import LOST, Loss
from stopadvisor.rules.scorer import Scorer
from stopadvisor.stats.intervals import exact_interval, paired_difference, saving_interval

__all__ = [
    "BlindStopping", "Outcome", "RequestMoney", "RequestTokens", "StackCost", "blind_stopping",
    "measure", "measure_rule", "serving_costs",
]  # fmt: skip

_MOST_BLOCKS = 1000
_SHUFFLES = 999
_SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Outcome:
    """Losses, accuracy and savings of one rule."""

    n: int
    losses: int
    """Sum of the questions' losses; for `drop`, lost minus gained."""
    correct: int
    full_correct: int
    think_saving_pct: float
    total_saving_pct: float
    total_saving_ci95: tuple[float, float] | None = None
    """95 % interval of the net saving; None if not requested or nothing was stopped."""
    answer_saving_pct: float | None = None
    """Saving in tokens of the visible answer; None if a stopped question gets the forced one."""
    uncut_saving_pct: float | None = None
    """Net saving on traces that were not cut off; None if all were.  A trace that was cut off
    cannot be lost, so a small budget owes much of its saving to such traces."""
    gained: int | None = None
    """For `drop`, questions that stopping made right; None for losses of 0 or 1."""

    @property
    def risk(self) -> float:
        """Mean loss; for a loss of 0 or 1, the share lost."""
        return self.losses / self.n

    @property
    def risk_ci95(self) -> tuple[float, float]:
        """Two-sided 95 % interval of the risk: exact for a share, a score interval for a `drop`."""
        if self.gained is None:
            return exact_interval(self.losses, self.n)
        return paired_difference(self.losses + self.gained, self.gained, self.n)

    @property
    def accuracy(self) -> float:
        """Share answered right under the rule."""
        return self.correct / self.n

    @property
    def full_accuracy(self) -> float:
        """Share that full thinking answers right."""
        return self.full_correct / self.n

    def figures(self, prefix: str, *names: str) -> dict[str, Any]:
        """Named figures as fields of a result, each name with a prefix."""
        return {f"{prefix}_{name}": getattr(self, name) for name in names}


def measure(
    view: GradedTable,
    stops: IntArray,
    costs: FloatArray,
    full_cost: FloatArray,
    *,
    loss: Loss = LOST,
    rng: np.random.Generator | None = None,
) -> Outcome:
    """Risk, accuracy and saving of one rule.

    Parameters
    ----------
    view : GradedTable
        Questions at the rule's own probes.
    stops : ndarray of int, shape (n_questions,)
        Probe at which each question stops; n_probes for never.
    costs : ndarray of float, shape (n_questions, n_probes + 1)
    full_cost : ndarray of float, shape (n_questions,)
    rng : numpy.random.Generator, optional
        If given, the outcome has an interval of the net saving, see `saving_interval`.
    """

    def at(values: NDArray[np.generic]) -> FloatArray:
        return np.take_along_axis(values, stops[:, None], axis=1)[:, 0].astype(np.float64)

    full_correct = view.full_correct
    correct = np.column_stack([view.correct_online, full_correct])
    last = view.full_think_tokens.astype(np.float64)
    thinking = np.column_stack([view.think_tokens, last])
    answer_saving = None
    if view.visible_tokens is not None and view.natural_tokens is not None:
        written = np.column_stack([view.visible_tokens, view.natural_tokens])
        whole = float(view.natural_tokens.sum())
        answer_saving = float(100 * (1 - at(written).sum() / whole)) if whole else 0.0
    stopped = at(costs)
    spread = None
    if rng is not None and (stops < view.n_checkpoints).any():
        blocks = group_numbers(view) % _MOST_BLOCKS  # groups are independent
        sums = [np.bincount(blocks, each).astype(np.float64) for each in (stopped, full_cost)]
        spread = saving_interval(*sums, rng=rng)
    uncut = ~view.truncated
    counted = at(loss.of(view))
    return Outcome(
        view.n_questions,
        int(counted.sum()),
        int(at(correct).sum()),
        int(full_correct.sum()),
        float(100 * (1 - at(thinking).sum() / last.sum())) if last.sum() else 0.0,
        float(100 * (1 - stopped.sum() / full_cost.sum())),
        spread,
        answer_saving,
        float(100 * (1 - stopped[uncut].sum() / full_cost[uncut].sum())) if uncut.any() else None,
        None if loss.is_binary else int((counted < 0).sum()),
    )


def measure_rule(
    scorer: Scorer,
    threshold: float,
    table: GradedTable,
    costing: Costing,
    *,
    loss: Loss = LOST,
    rng: np.random.Generator | None = None,
) -> Outcome:
    """Measure a rule at one threshold (linear scale); see `measure` and `costs.stopped_counts`."""
    view = scorer.view(table)
    return measure(
        view,
        scorer.stops(view, threshold),
        scorer.costs(view, costing),
        costing.full(table),
        loss=loss,
        rng=rng,
    )


@dataclass(frozen=True)
class BlindStopping:
    """A rule compared with random stopping: its own stops, permuted among the questions."""

    losses: int
    """Losses of the rule."""
    blind_losses: float
    """Expected losses over all permutations."""
    p_value: float
    """One-sided: share of permutations, the rule's own included, that lose no more than the
    rule."""

    @property
    def informed(self) -> bool:
        """Whether the rule loses significantly fewer questions than random stopping, at 5 %."""
        return self.p_value <= _SIGNIFICANT


def blind_stopping(
    view: GradedTable, stops: IntArray, *, loss: Loss = LOST, rng: np.random.Generator
) -> BlindStopping:
    """Compare a rule with random stopping, by a permutation test.

    Where full thinking is mostly wrong, random stopping keeps a risk limit too: a question that was
    never solved cannot be lost.

    `view` holds questions at the rule's own probes; `stops`, (n_questions,), is the probe at which
    each one stops by its out-of-fold score, n_probes for never.
    """
    lost = loss.of(view)  # (n_questions, n_probes + 1)
    rows = np.arange(view.n_questions)
    found = int(lost[rows, stops].sum())
    shuffled = [int(lost[rows, rng.permutation(stops)].sum()) for _ in range(_SHUFFLES)]
    places = np.bincount(stops, minlength=lost.shape[1])
    expected = float(lost.sum(axis=0) @ places) / view.n_questions
    as_few = sum(losses <= found for losses in shuffled)
    return BlindStopping(found, expected, (1 + as_few) / (1 + _SHUFFLES))


# --- Costs of serving, under every regime ---------------------------------------------------------


@dataclass(frozen=True)
class RequestTokens:
    """Mean tokens of a request."""

    decoded: float
    """Generated."""
    cached: float
    """Read from the cache."""
    prefilled: float
    """Read for the first time."""


@dataclass(frozen=True)
class RequestMoney:
    """Money per 1000 requests."""

    policy: float
    """With stopping."""
    full: float
    """With full thinking."""


@dataclass(frozen=True)
class StackCost:
    """Cost of the advised rule on one serving stack; all null if none is advised."""

    saving_pct: float | None
    """Net saving."""
    decoded_saving_pct: float | None
    """Saving in decoded tokens."""
    held_saving_pct: float | None
    """Saving in KV-token-time, the context summed over decoded tokens."""
    tokens: RequestTokens | None
    """Mean tokens of a request."""
    money_per_1000: RequestMoney | None
    """Money per 1000 requests; null without `--price`."""
    probes: float | None
    """Probes per request."""
    break_even_probes: float | None
    """Number of probes per request, at their present mean cost, at which the saving is gone; null
    if probes cost nothing or thinking is not shortened.  The rule saves if this exceeds
    `probes`."""
    break_even_cached_price: float | None
    """Price of a cached token at which the saving is gone; null if no cached token is read, or only
    a negative price would do."""


def serving_costs(
    view: ProbeTable, stops: NDArray[np.int64], weights: Weights, *, asking: Asking = EVERYWHERE
) -> dict[Serving, StackCost]:
    """Compute the cost of one rule under every regime.

    `view` is as for `stopped_counts`; `stops`, (n_questions,), is the probe at which each question
    stops, n_probes for never.
    """
    full = full_counts(view)
    full_cost, full_decoded = float(full.weighed(weights).mean()), float(full.decoded.mean())
    full_attended = float(full.attended.mean())
    asked = asked_at(view, asking)
    column = np.arange(view.n_checkpoints)
    reached = column <= stops[:, None] if asking.before else column == stops[:, None]
    probes = float((asked & reached).sum(axis=1).mean())
    # The same stops, with free probes.
    reply = view.think_tokens.astype(np.float64)
    if view.visible_tokens is not None:
        reply += view.visible_tokens
    prompt = view.prompt_tokens[:, None].astype(np.float64)
    last = np.column_stack([reply, full.decoded])
    held = np.column_stack([attended_by(prompt, reply), full.attended])
    thinking = float(
        weights.decoded * _mean_at(stops, last)
        + weights.held * _mean_at(stops, held)
        + weights.prefilled * full.prefilled.mean()
        + weights.request
    )
    found: dict[Serving, StackCost] = {}
    regimes = REGIMES if full.price is None else (LADDER,)
    for regime in regimes:
        counts = stopped_counts(view, regime, asking=asking)
        decoded = _mean_at(stops, counts.decoded + counts.wasted(weights))
        cached, prefilled = _mean_at(stops, counts.cached), _mean_at(stops, counts.prefilled)
        requests, attended = _mean_at(stops, counts.requests), _mean_at(stops, counts.attended)
        bare = (
            weights.decoded * decoded
            + weights.held * attended
            + weights.prefilled * prefilled
            + weights.request * requests
        )
        cost = bare + weights.cached * cached
        if counts.price is not None:  # each reply at the price of its rung: no probe breaks even
            cost, probes = _mean_at(stops, counts.price), requests - 1
            bare = thinking = full_cost
        probing, shortened = cost - thinking, full_cost - thinking
        found[regime] = StackCost(
            100 * (1 - cost / full_cost),
            100 * (1 - decoded / full_decoded),
            100 * (1 - attended / full_attended),
            RequestTokens(decoded, cached, prefilled),
            _money(weights, cost, full_cost),
            probes,
            probes * shortened / probing if probes > 0 and probing > 0 and shortened > 0 else None,
            (full_cost - bare) / cached if cached > 0 and full_cost > bare else None,
        )
    return found


def _mean_at(stops: NDArray[np.int64], values: FloatArray) -> float:
    """Mean over questions at their stops; `values` has shape (n_questions, n_probes + 1)."""
    return float(np.take_along_axis(values, stops[:, None], axis=1).mean())


def _money(weights: Weights, cost: float, full_cost: float) -> RequestMoney | None:
    """Money per 1000 requests; None unless the weights are prices in money."""
    policy, full = weights.per_thousand(cost), weights.per_thousand(full_cost)
    return None if policy is None or full is None else RequestMoney(policy, full)
